/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fuzzes the decoders, and a master with whatever decodes. What decodes must encode to the same bytes again;
 * what the master answers must be encodable.
 *
 * As a test it drives itself for KV_FUZZ_SECONDS (5) with messages of every type that it mutates, from the
 * seed KV_FUZZ_SEED (1): the first line says which, and a failure names the round. With -DKV_LIBFUZZER the same
 * check is libFuzzer's target (clang -fsanitize=fuzzer); the input is two bytes of type, one of flags, a payload.
 */
#include "tests/unit/wire_samples.h"

#include <signal.h>
#include <stdlib.h>

#include "kvstore_status.h"
#include "store/base/clock.h"
#include "store/base/log.h"
#include "store/base/parse.h"
#include "store/master/master.h"

#define ARENA_LIMIT   ((size_t)64 << 20)
#define MASTER_ROUNDS 20000 /* then a new one: what was mounted is not kept for ever */

static struct master *master;

static void renew_master(void)
{
	struct master_config config;
	master_destroy(master);
	master_config_default(&config);
	kv_log_set_level(KV_LOG_ERROR + 1);
	master = master_create(&config);
	MUST(master);
}

/* The request goes to the master; its answer must have an encoding, unless it is too long. */
static void serve(const struct kvw_header *header, const void *request)
{
	struct kv_arena arena = {.limit = ARENA_LIMIT};
	struct kvw_header answer = {.type = header->type, .flags = KVW_RESPONSE};
	void *response;
	if (master_call(master, header->type, 1, request, &response, &arena) == KV_OK) {
		uint8_t *frame;
		size_t size;
		const char *why = NULL;
		int status = kvw_frame_encode(&arena, &answer, response, &frame, &size, &why);
		MUST(status == KV_OK || status == KV_INTERNAL_ERROR || strcmp(why, "payload too long") == 0);
	}
	kv_arena_free(&arena);
}

/* One payload, in memory of exactly its size. True if it decoded. */
static bool check_payload(uint16_t type, uint32_t flags, const uint8_t *bytes, size_t size)
{
	struct kv_arena arena = {.limit = ARENA_LIMIT};
	struct kvw_header header = {.type = type, .flags = flags, .payload = (uint32_t)size};
	uint8_t *payload = malloc(size ? size : 1);
	MUST(payload);
	if (size)
		memcpy(payload, bytes, size);
	void *message = NULL;
	const char *why = NULL;
	int status = kvw_payload_decode(&arena, &header, payload, &message, &why);
	if (status == KV_OK) {
		uint8_t *frame;
		size_t frame_size;
		MUST(kvw_frame_encode(&arena, &header, message, &frame, &frame_size, &why) == KV_OK);
		MUST(frame_size == KVW_HEADER_SIZE + size);
		MUST(memcmp(frame + KVW_HEADER_SIZE, payload, size) == 0);
		if (!flags)
			serve(&header, message);
	} else {
		MUST(why && !message);
	}
	free(payload);
	kv_arena_free(&arena);
	return status == KV_OK;
}

static void check_header(const uint8_t *bytes)
{
	struct kvw_header header;
	const char *why = NULL;
	if (kvw_header_decode(&header, bytes, &why) == KV_OK) {
		uint8_t again[KVW_HEADER_SIZE];
		kvw_header_encode(again, &header);
		MUST(memcmp(again, bytes, sizeof(again)) == 0);
	} else {
		MUST(why);
	}
}

#ifdef KV_LIBFUZZER

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
	static unsigned rounds;
	if (rounds++ % MASTER_ROUNDS == 0)
		renew_master();
	if (size >= KVW_HEADER_SIZE)
		check_header(bytes);
	if (size >= 3)
		check_payload((uint16_t)(bytes[0] | bytes[1] << 8), bytes[2] & KVW_RESPONSE, bytes + 3, size - 3);
	return 0;
}

#else

enum { MOST_BYTES = 16384 };

static void store_u32(uint8_t *at, uint32_t value)
{
	memcpy(at, &value, sizeof(value));
}

/* One change of the size bytes, of which there may be MOST_BYTES; returns the new size. */
static size_t mutate(struct rng *rng, uint8_t *bytes, size_t size)
{
	static const uint32_t lengths[] = {0, 1, 4096, 4097, 65536, 262144, 262145, 0x7fffffff, 0xffffffff};
	size_t at = size ? rng_below(rng, size) : 0;
	size_t run = 1 + rng_below(rng, 32);
	switch (rng_below(rng, 7)) {
	case 0: /* a bit */
		if (size)
			bytes[at] ^= (uint8_t)(1u << rng_below(rng, 8));
		return size;
	case 1: /* a byte */
		if (size)
			bytes[at] = (uint8_t)rng_next(rng);
		return size;
	case 2: /* a length */
		if (size >= 4)
			store_u32(bytes + (at < size - 4 ? at : size - 4),
			          lengths[rng_below(rng, sizeof(lengths) / sizeof(lengths[0]))]);
		return size;
	case 3: /* less */
		return size ? rng_below(rng, size) : 0;
	case 4: /* out of the middle */
		if (at + run > size)
			return size;
		memmove(bytes + at, bytes + at + run, size - at - run);
		return size - run;
	case 5: /* more */
		if (size + run > MOST_BYTES)
			return size;
		memmove(bytes + at + run, bytes + at, size - at);
		for (size_t i = 0; i < run; i++)
			bytes[at + i] = (uint8_t)rng_next(rng);
		return size + run;
	default: /* the same again, elsewhere */
		if (size > run)
			memmove(bytes + rng_below(rng, size - run), bytes + rng_below(rng, size - run), run);
		return size;
	}
}

/* Keys that repeat, so that requests meet each other in the master: short texts, small numbers. */
static void make_familiar(struct rng *rng, uint8_t *bytes, size_t size)
{
	for (size_t i = 0; i < size; i++) {
		if (bytes[i] > 4 && rng_below(rng, 4))
			bytes[i] &= 3;
	}
}

static uint64_t now_fuzzing; /* the round, for the message of a failure */

static void one_round(struct rng *rng, uint64_t *decoded)
{
	static uint8_t bytes[MOST_BYTES];
	struct kv_arena arena = {.limit = 0};
	const struct wire_sample *sample = &wire_samples[rng_below(rng, N_WIRE_SAMPLES)];
	struct sampler sampler = {.rng = {rng_next(rng)}, .arena = &arena, .most = (uint32_t)rng_below(rng, 6)};
	void *message = kv_arena_calloc(&arena, 1, sample->bytes);
	sample->fill(&sampler, message);
	struct kvw_header header = {.type = sample->type, .flags = sample->flags};
	uint8_t *frame;
	size_t size;
	const char *why;
	MUST(kvw_frame_encode(&arena, &header, message, &frame, &size, &why) == KV_OK);
	size_t payload = size - KVW_HEADER_SIZE < MOST_BYTES ? size - KVW_HEADER_SIZE : MOST_BYTES;
	memcpy(bytes, frame + KVW_HEADER_SIZE, payload);
	if (rng_below(rng, 2))
		make_familiar(rng, bytes, payload);
	for (uint64_t changes = rng_below(rng, 4); changes > 0; changes--)
		payload = mutate(rng, bytes, payload);
	*decoded += check_payload(sample->type, sample->flags, bytes, payload);

	frame[rng_below(rng, KVW_HEADER_SIZE)] ^= (uint8_t)(rng_below(rng, 4) ? 0 : rng_next(rng));
	check_header(frame);
	kv_arena_free(&arena);
}

static void name_the_round(int signal_number)
{
	(void)signal_number;
	fprintf(stderr, "fuzz-wire: failed in round %llu\n", (unsigned long long)now_fuzzing);
}

static void nothing_that_arrives_does_harm(void **state)
{
	(void)state;
	uint64_t seed = kv_env_u64("KV_FUZZ_SEED", 1, 0, UINT64_MAX);
	uint64_t seconds = kv_env_u64("KV_FUZZ_SECONDS", 5, 1, 86400);
	print_message("fuzz-wire: KV_FUZZ_SEED=%llu KV_FUZZ_SECONDS=%llu\n", (unsigned long long)seed,
	              (unsigned long long)seconds);
	struct rng rng = {seed};
	uint64_t decoded = 0, deadline = kv_now_ns() + seconds * KV_NS_PER_S;
	signal(SIGABRT, name_the_round); /* then the default action: abort() sees to that */
	for (now_fuzzing = 0; now_fuzzing % 64 || kv_now_ns() < deadline; now_fuzzing++) {
		if (now_fuzzing % MASTER_ROUNDS == 0)
			renew_master();
		one_round(&rng, &decoded);
	}
	signal(SIGABRT, SIG_DFL);
	print_message("fuzz-wire: %llu rounds, %llu decoded\n", (unsigned long long)now_fuzzing,
	              (unsigned long long)decoded);
	assert_true(decoded > 0 && decoded < now_fuzzing);
	master_destroy(master);
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(nothing_that_arrives_does_harm)};
	return cmocka_run_group_tests_name("fuzz-wire", tests, NULL, NULL);
}

#endif
