/* SPDX-License-Identifier: Apache-2.0 */
/* The codec: every message there and back, cut at every byte, with every bit flipped. Buffers are exactly as
 * long as they say, so that the address sanitizer sees a read beyond them. */
#include "tests/unit/wire_samples.h"

#include <stdlib.h>

#include "kvstore_status.h"

struct encoded {
	struct kvw_header header;
	uint8_t *frame;
	size_t size;
};

static struct encoded encode(struct kv_arena *arena, const struct wire_sample *sample, const void *message)
{
	struct encoded out = {.header = {.type = sample->type, .flags = sample->flags, .request = 7, .op_id = 11}};
	const char *why;
	assert_int_equal(kvw_frame_encode(arena, &out.header, message, &out.frame, &out.size, &why), KV_OK);
	assert_int_equal(out.size, KVW_HEADER_SIZE + out.header.payload);
	return out;
}

/* Decodes `size` bytes from a buffer of exactly that size. */
static int decode(struct kv_arena *arena, struct kvw_header header, const uint8_t *bytes, size_t size, void **message,
                  uint8_t **buffer, const char **why)
{
	*buffer = malloc(size);
	assert_true(*buffer || size == 0);
	if (size)
		memcpy(*buffer, bytes, size);
	header.payload = (uint32_t)size;
	return kvw_payload_decode(arena, &header, *buffer, message, why);
}

static void *sample_of(const struct wire_sample *sample, struct sampler *sampler)
{
	void *message = kv_arena_calloc(sampler->arena, 1, sample->bytes);
	sample->fill(sampler, message);
	return message;
}

static void every_message_survives_the_wire(void **state)
{
	(void)state;
	struct kv_arena arena = {.limit = 0};
	for (size_t i = 0; i < N_WIRE_SAMPLES; i++) {
		for (uint64_t seed = 0; seed < 50; seed++) {
			struct sampler sampler = {.rng = {seed}, .arena = &arena, .most = (uint32_t)seed};
			void *sent = sample_of(&wire_samples[i], &sampler);
			struct encoded encoded = encode(&arena, &wire_samples[i], sent);
			struct kvw_header header;
			const char *why;
			assert_int_equal(kvw_header_decode(&header, encoded.frame, &why), KV_OK);
			assert_int_equal(header.type, wire_samples[i].type);
			assert_int_equal(header.flags, wire_samples[i].flags);
			assert_int_equal(header.request, 7);
			assert_int_equal(header.op_id, 11);
			void *got;
			assert_int_equal(
			        kvw_payload_decode(&arena, &header, encoded.frame + KVW_HEADER_SIZE, &got, &why),
			        KV_OK);
			assert_true(wire_samples[i].same(sent, got));
			kv_arena_reset(&arena, 1 << 20);
		}
	}
	kv_arena_free(&arena);
}

static void a_message_cut_anywhere_is_refused(void **state)
{
	(void)state;
	struct kv_arena arena = {.limit = 0};
	for (size_t i = 0; i < N_WIRE_SAMPLES; i++) {
		struct sampler sampler = {.rng = {i}, .arena = &arena, .most = 5};
		struct encoded encoded = encode(&arena, &wire_samples[i], sample_of(&wire_samples[i], &sampler));
		for (size_t size = 0; size < encoded.header.payload; size++) {
			void *got;
			uint8_t *buffer;
			const char *why = NULL;
			int status = decode(&arena, encoded.header, encoded.frame + KVW_HEADER_SIZE, size, &got,
			                    &buffer, &why);
			assert_int_equal(status, KV_INVALID_PARAMS);
			assert_non_null(why);
			assert_null(got);
			free(buffer);
		}
		kv_arena_reset(&arena, 1 << 20);
	}
	kv_arena_free(&arena);
}

static void bytes_behind_a_message_are_refused(void **state)
{
	(void)state;
	struct kv_arena arena = {.limit = 0};
	for (size_t i = 0; i < N_WIRE_SAMPLES; i++) {
		struct sampler sampler = {.rng = {i}, .arena = &arena, .most = 3};
		struct encoded encoded = encode(&arena, &wire_samples[i], sample_of(&wire_samples[i], &sampler));
		uint8_t *longer = kv_arena_calloc(&arena, 1, encoded.header.payload + 1);
		memcpy(longer, encoded.frame + KVW_HEADER_SIZE, encoded.header.payload);
		void *got;
		const char *why = NULL;
		encoded.header.payload++;
		assert_int_equal(kvw_payload_decode(&arena, &encoded.header, longer, &got, &why), KV_INVALID_PARAMS);
		assert_string_equal(why, "bytes behind the message");
		kv_arena_reset(&arena, 1 << 20);
	}
	kv_arena_free(&arena);
}

/* There is one encoding of a message: what decodes must encode to the same bytes again. */
static void a_flipped_bit_is_refused_or_another_message(void **state)
{
	(void)state;
	struct kv_arena arena = {.limit = 0};
	for (size_t i = 0; i < N_WIRE_SAMPLES; i++) {
		struct sampler sampler = {.rng = {i + 100}, .arena = &arena, .most = 4};
		struct encoded encoded = encode(&arena, &wire_samples[i], sample_of(&wire_samples[i], &sampler));
		uint8_t *payload = encoded.frame + KVW_HEADER_SIZE;
		size_t size = encoded.header.payload;
		for (size_t bit = 0; bit < size * 8; bit++) {
			struct kv_arena other = {.limit = 1 << 20};
			payload[bit / 8] ^= (uint8_t)(1u << bit % 8);
			void *got;
			uint8_t *buffer;
			const char *why = NULL;
			int status = decode(&other, encoded.header, payload, size, &got, &buffer, &why);
			if (status == KV_OK) {
				struct encoded again = encode(&other, &wire_samples[i], got);
				assert_int_equal(again.size, encoded.size);
				assert_memory_equal(again.frame + KVW_HEADER_SIZE, payload, size);
			} else {
				assert_non_null(why);
			}
			free(buffer);
			kv_arena_free(&other);
			payload[bit / 8] ^= (uint8_t)(1u << bit % 8);
		}
		kv_arena_reset(&arena, 1 << 20);
	}
	kv_arena_free(&arena);
}

static void every_flipped_bit_of_a_header_is_seen(void **state)
{
	(void)state;
	uint8_t bytes[KVW_HEADER_SIZE];
	struct kvw_header header = {
	        .version = KVW_VERSION, .type = KVW_PING, .payload = 16, .request = 1, .op_id = 0x1234};
	kvw_header_encode(bytes, &header);
	const char *why;
	struct kvw_header out;
	assert_int_equal(kvw_header_decode(&out, bytes, &why), KV_OK);
	assert_null(why);
	for (size_t bit = 0; bit < sizeof(bytes) * 8; bit++) {
		bytes[bit / 8] ^= (uint8_t)(1u << bit % 8);
		why = NULL;
		assert_int_equal(kvw_header_decode(&out, bytes, &why), KV_INVALID_PARAMS);
		assert_non_null(why);
		bytes[bit / 8] ^= (uint8_t)(1u << bit % 8);
	}
}

static void expect_header_refused(struct kvw_header header, const char *expected)
{
	uint8_t bytes[KVW_HEADER_SIZE];
	const char *why = NULL;
	struct kvw_header out;
	kvw_header_encode(bytes, &header);
	assert_int_equal(kvw_header_decode(&out, bytes, &why), KV_INVALID_PARAMS);
	assert_string_equal(why, expected);
}

static void a_header_says_what_is_wrong_with_it(void **state)
{
	(void)state;
	struct kvw_header good = {.version = KVW_VERSION, .type = KVW_PING, .payload = KVW_MAX_PAYLOAD};
	struct kvw_header bad = good;
	bad.version = KVW_VERSION + 1;
	expect_header_refused(bad, "unknown version");
	bad = good;
	bad.type = 999;
	expect_header_refused(bad, "unknown type");
	bad = good;
	bad.flags = 2;
	expect_header_refused(bad, "unknown flags");
	bad = good;
	bad.payload = KVW_MAX_PAYLOAD + 1;
	expect_header_refused(bad, "payload too long");

	uint8_t zeros[KVW_HEADER_SIZE] = {0};
	const char *why = NULL;
	struct kvw_header out;
	assert_int_equal(kvw_header_decode(&out, zeros, &why), KV_INVALID_PARAMS);
	assert_string_equal(why, "bad magic");
}

static void a_count_cannot_eat_memory(void **state)
{
	(void)state;
	/* client id, then a count that the bytes at hand cannot hold */
	uint8_t payload[20] = {0};
	payload[16] = 0xff, payload[17] = 0xff, payload[18] = 0x03;
	struct kv_arena arena = {.limit = 64 << 20};
	struct kvw_header header = {.type = KVW_BATCH_EXIST_KEY, .payload = sizeof(payload)};
	void *got;
	const char *why = NULL;
	assert_int_equal(kvw_payload_decode(&arena, &header, payload, &got, &why), KV_INVALID_PARAMS);
	assert_string_equal(why, "list longer than its message");
	assert_true(arena.held < 1 << 20);
	payload[19] = 0xff; /* beyond the limit of the list as well */
	assert_int_equal(kvw_payload_decode(&arena, &header, payload, &got, &why), KV_INVALID_PARAMS);
	assert_string_equal(why, "too many keys");
	kv_arena_free(&arena);
}

static void a_full_arena_is_not_the_peers_fault(void **state)
{
	(void)state;
	struct kv_arena big = {.limit = 0}, small = {.limit = 4096};
	struct kvm_key keys[1000];
	for (size_t i = 0; i < 1000; i++)
		keys[i].key = kv_str("key");
	struct kvm_keys_req request = {.keys = keys, .n_keys = 1000};
	struct kvw_header header = {.type = KVW_BATCH_EXIST_KEY};
	uint8_t *frame;
	size_t size;
	const char *why;
	assert_int_equal(kvw_frame_encode(&big, &header, &request, &frame, &size, &why), KV_OK);
	void *got;
	assert_int_equal(kvw_payload_decode(&small, &header, frame + KVW_HEADER_SIZE, &got, &why), KV_INTERNAL_ERROR);
	assert_non_null(why);
	assert_int_equal(kvw_frame_encode(&small, &header, &request, &frame, &size, &why), KV_INTERNAL_ERROR);
	kv_arena_free(&big);
	kv_arena_free(&small);
}

static void limits_hold_for_the_encoder_too(void **state)
{
	(void)state;
	struct kv_arena arena = {.limit = 0};
	char *text = kv_arena_calloc(&arena, 1, KVW_MAX_KEY + 1);
	struct kvm_key *keys = kv_arena_calloc(&arena, KVW_MAX_KEYS + 1, sizeof(*keys));
	struct kvm_keys_req request = {.keys = keys, .n_keys = KVW_MAX_KEYS + 1};
	struct kvw_header header = {.type = KVW_BATCH_EXIST_KEY};
	uint8_t *frame;
	size_t size;
	const char *why;
	assert_int_equal(kvw_frame_encode(&arena, &header, &request, &frame, &size, &why), KV_INVALID_PARAMS);
	assert_string_equal(why, "too many keys");
	keys[0].key = (struct kv_str){text, KVW_MAX_KEY + 1};
	request.n_keys = 1;
	assert_int_equal(kvw_frame_encode(&arena, &header, &request, &frame, &size, &why), KV_INVALID_PARAMS);
	assert_string_equal(why, "key too long");
	for (uint32_t i = 0; i < KVW_MAX_KEYS; i++)
		keys[i].key = (struct kv_str){text, KVW_MAX_KEY};
	request.n_keys = KVW_MAX_KEYS;
	assert_int_equal(kvw_frame_encode(&arena, &header, &request, &frame, &size, &why), KV_INVALID_PARAMS);
	assert_string_equal(why, "payload too long");
	header.type = 999;
	assert_int_equal(kvw_frame_encode(&arena, &header, &request, &frame, &size, &why), KV_INVALID_PARAMS);
	assert_string_equal(why, "unknown type");
	kv_arena_free(&arena);
}

static void types_have_names(void **state)
{
	(void)state;
	assert_string_equal(kvw_type_name(KVW_BATCH_PUT_START), "BATCH_PUT_START");
	assert_string_equal(kvw_type_name(KVW_DATA_READ), "DATA_READ");
	assert_string_equal(kvw_type_name(0), "?");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(every_message_survives_the_wire),
	        cmocka_unit_test(a_message_cut_anywhere_is_refused),
	        cmocka_unit_test(bytes_behind_a_message_are_refused),
	        cmocka_unit_test(a_flipped_bit_is_refused_or_another_message),
	        cmocka_unit_test(every_flipped_bit_of_a_header_is_seen),
	        cmocka_unit_test(a_header_says_what_is_wrong_with_it),
	        cmocka_unit_test(a_count_cannot_eat_memory),
	        cmocka_unit_test(a_full_arena_is_not_the_peers_fault),
	        cmocka_unit_test(limits_hold_for_the_encoder_too),
	        cmocka_unit_test(types_have_names),
	};
	return cmocka_run_group_tests_name("wire", tests, NULL, NULL);
}
