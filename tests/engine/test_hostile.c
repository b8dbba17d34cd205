/* SPDX-License-Identifier: Apache-2.0 */
/* Peers that ask an engine for what no peer may have: each is refused or loses its connection, nothing outside of the
 * registered range changes or is told, and the next good transfer works. */
#include "tests/unit/kv_cmocka.h"

#include <arpa/inet.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "kvengine.h"
#include "store/base/clock.h"
#include "store/base/net.h"
#include "store/wire/wire.h"

#define WINDOW   4096u
#define LIMIT_NS (20 * KV_NS_PER_S)
#define CLOSED   1 /* in place of a status: the engine hung up */

struct victim {
	kvengine_t *engine, *friend;
	uint8_t memory[3 * WINDOW]; /* the middle is registered */
	uint8_t friends[WINDOW];
	char session[32];
	uint16_t port;
};

static struct victim *open_victim(void)
{
	struct victim *victim = calloc(1, sizeof(*victim));
	kvengine_config_t config = {.struct_size = sizeof(config)};
	assert_non_null(victim);
	assert_int_equal(kvengine_create(&victim->engine, &config), 0);
	assert_int_equal(kvengine_create(&victim->friend, &config), 0);
	victim->port = (uint16_t)kvengine_rpc_port(victim->engine);
	snprintf(victim->session, sizeof(victim->session), "127.0.0.1:%u", (unsigned)victim->port);
	memset(victim->memory, 0x11, sizeof(victim->memory));
	assert_int_equal(kvengine_register(victim->engine, victim->memory + WINDOW, WINDOW), 0);
	assert_int_equal(kvengine_register(victim->friend, victim->friends, WINDOW), 0);
	return victim;
}

static void close_victim(struct victim *victim)
{
	kvengine_destroy(victim->engine);
	kvengine_destroy(victim->friend);
	free(victim);
}

static void is_unharmed(struct victim *victim)
{
	void *local = victim->friends;
	uint64_t remote = (uint64_t)(uintptr_t)victim->memory + WINDOW;
	size_t size = WINDOW;
	for (size_t i = 0; i < sizeof(victim->memory); i++)
		assert_int_equal(victim->memory[i], 0x11);
	memset(victim->friends, 0, WINDOW);
	assert_int_equal(kvengine_read(victim->friend, victim->session, &local, &remote, &size, 1, 0), 0);
	for (size_t i = 0; i < WINDOW; i++)
		assert_int_equal(victim->friends[i], 0x11);
	assert_int_equal(kvengine_write(victim->friend, victim->session, &local, &remote, &size, 1, 0), 0);
}

static int connect_to(const struct victim *victim)
{
	struct kv_hostport to = {.host = "127.0.0.1", .port = victim->port};
	int fd = kv_connect(&to, kv_now_ns() + LIMIT_NS);
	assert_true(fd >= 0);
	return fd;
}

/* The status of the answer, or CLOSED. *bytes: that it says follow. */
static int receive_answer(int fd, uint64_t *bytes)
{
	uint8_t head[KVW_HEADER_SIZE], payload[64];
	struct kv_arena arena = {0};
	struct kvw_header header;
	void *message;
	const char *why;
	if (kv_recv_all(fd, head, sizeof(head), kv_now_ns() + LIMIT_NS))
		return CLOSED;
	assert_int_equal(kvw_header_decode(&header, head, &why), 0);
	assert_true(header.payload <= sizeof(payload));
	assert_int_equal(kv_recv_all(fd, payload, header.payload, kv_now_ns() + LIMIT_NS), 0);
	assert_int_equal(kvw_payload_decode(&arena, &header, payload, &message, &why), 0);
	struct kvm_data_resp answer = *(struct kvm_data_resp *)message;
	kv_arena_free(&arena);
	*bytes = answer.bytes;
	return answer.status;
}

static void send_request(int fd, uint16_t type, struct kvm_range *ranges, uint32_t count)
{
	struct kv_arena arena = {0};
	struct kvm_data_req request = {.ranges = ranges, .n_ranges = count};
	struct kvw_header header = {.version = KVW_VERSION, .type = type};
	const char *why = "";
	uint8_t *frame;
	size_t size;
	assert_int_equal(kvw_frame_encode(&arena, &header, &request, &frame, &size, &why), 0);
	struct iovec piece = {frame, size};
	assert_int_equal(kv_send_all(fd, &piece, 1, kv_now_ns() + LIMIT_NS), 0);
	kv_arena_free(&arena);
}

static int ask(const struct victim *victim, uint16_t type, struct kvm_range *ranges, uint32_t count)
{
	int fd = connect_to(victim);
	uint64_t bytes = 0;
	send_request(fd, type, ranges, count);
	if (type == KVW_DATA_WRITE) /* no data comes: the engine is to see the end of it */
		assert_int_equal(shutdown(fd, SHUT_WR), 0);
	int status = receive_answer(fd, &bytes);
	if (status != KV_OK)
		assert_int_equal(bytes, 0);
	close(fd);
	return status;
}

static void ranges_that_are_not_its_own(void **state)
{
	(void)state;
	struct victim *victim = open_victim();
	uint64_t start = (uint64_t)(uintptr_t)victim->memory + WINDOW;
	struct kvm_range outside[] = {
	        {start - 1, 1}, {start - 1, 2}, {start + WINDOW, 1}, {start + WINDOW - 1, 2}, {start, WINDOW + 1},
	        {0, 1},         {0, WINDOW},    {UINT64_MAX, 1},     {UINT64_MAX - 5, 100},   {start, 1ull << 62},
	        {5, start},
	};
	for (size_t i = 0; i < sizeof(outside) / sizeof(*outside); i++) {
		struct kvm_range good_then_bad[] = {{start, WINDOW}, outside[i]};
		assert_int_equal(ask(victim, KVW_DATA_READ, &outside[i], 1), KV_INVALID_PARAMS);
		assert_int_equal(ask(victim, KVW_DATA_READ, good_then_bad, 2), KV_INVALID_PARAMS);
		/* its data never comes */
		assert_int_equal(ask(victim, KVW_DATA_WRITE, good_then_bad, 2), CLOSED);
		is_unharmed(victim);
	}
	close_victim(victim);
}

static void sums_that_wrap(void **state)
{
	(void)state;
	struct victim *victim = open_victim();
	uint64_t start = (uint64_t)(uintptr_t)victim->memory + WINDOW;
	struct kvm_range wrapping[] = {{start, UINT64_MAX}, {start, 2}},
	                 half[] = {{start, 1ull << 63}, {start, 1ull << 63}};
	assert_int_equal(ask(victim, KVW_DATA_READ, wrapping, 2), CLOSED);
	assert_int_equal(ask(victim, KVW_DATA_WRITE, wrapping, 2), CLOSED);
	assert_int_equal(ask(victim, KVW_DATA_READ, half, 2), CLOSED);
	is_unharmed(victim);
	close_victim(victim);
}

/* Headers that promise what is too long, payloads that count what is not there, and noise. */
static void lengths_and_noise(void **state)
{
	(void)state;
	struct victim *victim = open_victim();
	struct rng rng = {99};
	uint64_t bytes;
	uint8_t noise[4096];
	for (int i = 0; i < 3; i++) {
		static const uint32_t lengths[] = {UINT32_MAX, KVW_MAX_PAYLOAD, KVW_MAX_PAYLOAD + 1};
		struct kvw_header header = {.version = KVW_VERSION, .type = KVW_DATA_READ, .payload = lengths[i]};
		int fd = connect_to(victim);
		kvw_header_encode(noise, &header);
		struct iovec piece = {noise, KVW_HEADER_SIZE};
		assert_int_equal(kv_send_all(fd, &piece, 1, kv_now_ns() + LIMIT_NS), 0);
		assert_int_equal(receive_answer(fd, &bytes), CLOSED);
		close(fd);
		is_unharmed(victim);
	}
	for (int i = 0; i < 200; i++) {
		/* every other one has a right header before its noise */
		struct kvw_header header = {.version = KVW_VERSION,
		                            .type = i & 2 ? KVW_DATA_READ : KVW_DATA_WRITE,
		                            .payload = (uint32_t)sizeof(noise) - KVW_HEADER_SIZE};
		int fd = connect_to(victim);
		for (size_t n = 0; n < sizeof(noise); n++)
			noise[n] = (uint8_t)rng_next(&rng);
		if (i & 1)
			kvw_header_encode(noise, &header);
		struct iovec piece = {noise, sizeof(noise)};
		kv_send_all(fd, &piece, 1, kv_now_ns() + LIMIT_NS); /* it may hang up before the end */
		shutdown(fd, SHUT_WR);
		assert_int_not_equal(receive_answer(fd, &bytes), KV_OK);
		close(fd);
	}
	is_unharmed(victim);
	close_victim(victim);
}

/* Half of a write's data, then the end: the engine holds the range no longer, and unregisters it at once. */
static void a_writer_that_leaves(void **state)
{
	(void)state;
	struct victim *victim = open_victim();
	uint64_t start = (uint64_t)(uintptr_t)victim->memory + WINDOW, bytes;
	struct kvm_range range = {start, WINDOW};
	uint8_t same[WINDOW / 2];
	int fd = connect_to(victim);
	memset(same, 0x11, sizeof(same));
	send_request(fd, KVW_DATA_WRITE, &range, 1);
	struct iovec piece = {same, sizeof(same)};
	assert_int_equal(kv_send_all(fd, &piece, 1, kv_now_ns() + LIMIT_NS), 0);
	shutdown(fd, SHUT_WR);
	assert_int_equal(receive_answer(fd, &bytes), CLOSED);
	close(fd);
	is_unharmed(victim);
	assert_int_equal(kvengine_unregister(victim->engine, victim->memory + WINDOW), 0);
	assert_int_equal(ask(victim, KVW_DATA_READ, &range, 1), KV_INVALID_PARAMS);
	close_victim(victim);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(ranges_that_are_not_its_own),
	        cmocka_unit_test(sums_that_wrap),
	        cmocka_unit_test(lengths_and_noise),
	        cmocka_unit_test(a_writer_that_leaves),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
