/* SPDX-License-Identifier: Apache-2.0 */
/* kvengine.h: arguments, two engines, themselves, forked children, threads. */
#include "tests/unit/kv_cmocka.h"

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "kvengine.h"

#define SIZE ((size_t)1 << 20)

struct side {
	kvengine_t *engine;
	uint8_t *memory;
	char session[64];
};

static struct side open_side(const char *host)
{
	struct side side = {.memory = malloc(SIZE)};
	kvengine_config_t config = {.struct_size = sizeof(config), .host = host, .protocol = "tcp"};
	assert_non_null(side.memory);
	assert_int_equal(kvengine_create(&side.engine, &config), 0);
	assert_int_equal(kvengine_register(side.engine, side.memory, SIZE), 0);
	snprintf(side.session, sizeof(side.session), strchr(host, ':') ? "[%s]:%d" : "%s:%d", host,
	         kvengine_rpc_port(side.engine));
	return side;
}

static void close_side(struct side *side)
{
	kvengine_destroy(side->engine);
	free(side->memory);
}

static void fill(uint8_t *at, size_t size, uint64_t seed)
{
	struct rng rng = {seed};
	for (size_t i = 0; i < size; i++)
		at[i] = (uint8_t)rng_next(&rng);
}

static int move(struct side *side, const char *session, uint8_t *local, uint8_t *remote, size_t size, bool write)
{
	void *ptr = local;
	uint64_t address = (uint64_t)(uintptr_t)remote;
	return (write ? kvengine_write : kvengine_read)(side->engine, session, &ptr, &address, &size, 1, 0);
}

static void creation(void **state)
{
	(void)state;
	kvengine_t *engine;
	kvengine_config_t config = {.struct_size = sizeof(config)};
	assert_int_equal(kvengine_create(NULL, &config), KV_INVALID_PARAMS);
	assert_int_equal(kvengine_create(&engine, NULL), KV_INVALID_PARAMS);
	assert_null(engine);
	config.struct_size = 8;
	assert_int_equal(kvengine_create(&engine, &config), KV_INVALID_PARAMS);
	config.struct_size = sizeof(config);
	config.protocol = "carrier pigeon";
	assert_int_equal(kvengine_create(&engine, &config), KV_INVALID_PARAMS);
	config.protocol = "rdma"; /* tcp, with a warning */
	config.host = "not a host";
	assert_int_equal(kvengine_create(&engine, &config), KV_INVALID_PARAMS);
	config.host = "127.0.0.1";
	assert_int_equal(kvengine_create(&engine, &config), 0);
	int port = kvengine_rpc_port(engine);
	assert_in_range(port, 1, 65535);
	/* the port is taken now */
	kvengine_t *second;
	config.port = (uint16_t)port;
	assert_int_equal(kvengine_create(&second, &config), KV_INTERNAL_ERROR);
	assert_null(second);
	kvengine_destroy(engine);
	assert_int_equal(kvengine_create(&engine, &config), 0);
	assert_int_equal(kvengine_rpc_port(engine), port);
	kvengine_destroy(engine);
	kvengine_destroy(NULL);
	assert_int_equal(kvengine_rpc_port(NULL), 0);
}

static void arguments(void **state)
{
	(void)state;
	struct side a = open_side("127.0.0.1"), b = open_side("127.0.0.1");
	void *local[2] = {a.memory, a.memory + 100};
	uint64_t remote[2] = {(uint64_t)(uintptr_t)b.memory, (uint64_t)(uintptr_t)b.memory + 200};
	size_t sizes[2] = {10, 10};
	static const char *const sessions[] = {"",     "127.0.0.1", "127.0.0.1:0", "127.0.0.1:99999",
	                                       "[::1", "a b:1",     ":5"};
	for (size_t i = 0; i < sizeof(sessions) / sizeof(*sessions); i++)
		assert_int_equal(kvengine_write(a.engine, sessions[i], local, remote, sizes, 2, 0),
		                 KV_INVALID_PARAMS);
	assert_int_equal(kvengine_write(a.engine, NULL, local, remote, sizes, 2, 0), KV_INVALID_PARAMS);
	assert_int_equal(kvengine_write(NULL, b.session, local, remote, sizes, 2, 0), KV_INVALID_PARAMS);
	assert_int_equal(kvengine_write(a.engine, b.session, NULL, remote, sizes, 2, 0), KV_INVALID_PARAMS);
	assert_int_equal(kvengine_write(a.engine, b.session, local, NULL, sizes, 2, 0), KV_INVALID_PARAMS);
	assert_int_equal(kvengine_write(a.engine, b.session, local, remote, NULL, 2, 0), KV_INVALID_PARAMS);
	assert_int_equal(kvengine_write(a.engine, b.session, local, remote, sizes, KVENGINE_RANGES_MAX + 1, 0),
	                 KV_INVALID_PARAMS);
	assert_int_equal(kvengine_write(a.engine, b.session, NULL, NULL, NULL, 0, 0), 0);
	assert_int_equal(kvengine_register(NULL, a.memory, 1), KV_INVALID_PARAMS);
	assert_int_equal(kvengine_unregister(NULL, a.memory), KV_INVALID_PARAMS);
	assert_int_equal(kvengine_register(a.engine, a.memory + 5, 1), KV_INVALID_PARAMS);
	sizes[1] = 0;
	assert_int_equal(kvengine_write(a.engine, b.session, local, remote, sizes, 2, 0), KV_INVALID_PARAMS);
	sizes[1] = SIZE_MAX;
	assert_int_equal(kvengine_write(a.engine, b.session, local, remote, sizes, 2, 0), KV_INVALID_PARAMS);
	sizes[1] = 10;
	remote[1] = UINT64_MAX - 3;
	assert_int_equal(kvengine_write(a.engine, b.session, local, remote, sizes, 2, 0), KV_INVALID_PARAMS);
	remote[1] = (uint64_t)(uintptr_t)b.memory + SIZE - 9;
	assert_int_equal(kvengine_write(a.engine, b.session, local, remote, sizes, 2, 0), KV_INVALID_PARAMS);
	remote[1]--;
	local[1] = a.memory + SIZE - 9;
	assert_int_equal(kvengine_write(a.engine, b.session, local, remote, sizes, 2, 0), KV_INVALID_PARAMS);
	local[1] = a.memory + SIZE - 10;
	assert_int_equal(kvengine_write(a.engine, b.session, local, remote, sizes, 2, UINT64_MAX), 0);
	close_side(&a);
	close_side(&b);
}

/* Blocks that follow one another here and there, or only here, or only there, or backwards. */
static void neighbours(void **state)
{
	(void)state;
	enum { N = 600, BLOCK = 512 };
	struct side a = open_side("127.0.0.1"), b = open_side("127.0.0.1");
	static void *local[N];
	static uint64_t remote[N];
	static size_t sizes[N];
	for (int order = 0; order < 4; order++) {
		for (size_t i = 0; i < N; i++) {
			size_t here = order & 1 ? N - 1 - i : i, there = order & 2 ? N - 1 - i : i;
			local[i] = a.memory + here * BLOCK;
			remote[i] = (uint64_t)(uintptr_t)b.memory + there * BLOCK;
			sizes[i] = BLOCK;
		}
		fill(a.memory, SIZE, 10u + (uint64_t)order);
		memset(b.memory, 0xee, SIZE);
		assert_int_equal(kvengine_write(a.engine, b.session, local, remote, sizes, N, 0), 0);
		for (size_t i = 0; i < N; i++)
			assert_memory_equal((void *)(uintptr_t)remote[i], local[i], BLOCK);
		for (size_t i = N * BLOCK; i < SIZE; i++)
			assert_int_equal(b.memory[i], 0xee);
		memset(a.memory, 0, SIZE);
		assert_int_equal(kvengine_read(a.engine, b.session, local, remote, sizes, N, 0), 0);
		for (size_t i = 0; i < N; i++)
			assert_memory_equal((void *)(uintptr_t)remote[i], local[i], BLOCK);
	}
	close_side(&a);
	close_side(&b);
}

/* Two registrations that touch, as those of a cache's layers do: a range may not span them, and ranges that are
 * contiguous across the border are not taken for one. */
static void adjacent_registrations(void **state)
{
	(void)state;
	struct side a = open_side("127.0.0.1"), b = open_side("127.0.0.1");
	assert_int_equal(kvengine_unregister(b.engine, b.memory), 0);
	assert_int_equal(kvengine_register(b.engine, b.memory, 1000), 0);
	assert_int_equal(kvengine_register(b.engine, b.memory + 1000, 1000), 0);
	assert_int_equal(move(&a, b.session, a.memory, b.memory + 999, 2, true), KV_INVALID_PARAMS);
	void *local[2] = {a.memory, a.memory + 10};
	uint64_t remote[2] = {(uint64_t)(uintptr_t)b.memory + 990, (uint64_t)(uintptr_t)b.memory + 1000};
	size_t sizes[2] = {10, 10};
	assert_int_equal(kvengine_write(a.engine, b.session, local, remote, sizes, 2, 0), 0);
	close_side(&a);
	close_side(&b);
}

static void with_itself(void **state)
{
	(void)state;
	struct side a = open_side("127.0.0.1");
	fill(a.memory, SIZE, 3);
	memset(a.memory + SIZE / 2, 0, 1000);
	assert_int_equal(move(&a, a.session, a.memory, a.memory + SIZE / 2, 1000, true), 0);
	assert_memory_equal(a.memory, a.memory + SIZE / 2, 1000);
	assert_int_equal(move(&a, a.session, a.memory + 5000, a.memory + SIZE / 2, 1000, false), 0);
	assert_memory_equal(a.memory + 5000, a.memory, 1000);
	close_side(&a);
}

static void ipv6(void **state)
{
	(void)state;
	kvengine_t *probe;
	kvengine_config_t config = {.struct_size = sizeof(config), .host = "::1"};
	if (kvengine_create(&probe, &config) != 0)
		skip(); /* this host has none */
	kvengine_destroy(probe);
	struct side a = open_side("::1"), b = open_side("::1");
	fill(a.memory, 100, 1);
	assert_int_equal(move(&a, b.session, a.memory, b.memory, 100, true), 0);
	assert_memory_equal(a.memory, b.memory, 100);
	close_side(&a);
	close_side(&b);
}

/* A name goes through the resolver, within the call's time. */
static void by_name(void **state)
{
	(void)state;
	struct side a = open_side("127.0.0.1"), b = open_side("localhost");
	assert_int_equal(move(&a, b.session, a.memory, b.memory, 100, true), 0);
	assert_int_equal(move(&a, "no-such-host.invalid:4000", a.memory, b.memory, 100, true), KV_TRANSFER_FAIL);
	assert_int_equal(move(&a, b.session, a.memory, b.memory, 100, true), 0);
	close_side(&a);
	close_side(&b);
}

static void a_forked_child(void **state)
{
	(void)state;
	struct side a = open_side("127.0.0.1"), b = open_side("127.0.0.1");
	assert_int_equal(move(&a, b.session, a.memory, b.memory, 100, true), 0);
	pid_t child = fork();
	assert_true(child >= 0);
	if (child == 0) {
		int right = move(&a, b.session, a.memory, b.memory, 1, true) == KV_UNAVAILABLE_IN_CURRENT_STATUS &&
		            move(&a, b.session, a.memory, b.memory, 1, false) == KV_UNAVAILABLE_IN_CURRENT_STATUS &&
		            kvengine_register(a.engine, &right, 1) == KV_UNAVAILABLE_IN_CURRENT_STATUS &&
		            kvengine_unregister(a.engine, a.memory) == KV_UNAVAILABLE_IN_CURRENT_STATUS;
		kvengine_destroy(a.engine);
		_exit(right ? 0 : 1);
	}
	int status;
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_int_equal(status, 0);
	assert_int_equal(move(&a, b.session, a.memory, b.memory, 100, true), 0);
	close_side(&a);
	close_side(&b);
}

/* Eight threads between two engines, each with pages of its own; one more takes a range of the peer's away and
 * registers it again: transfers into that are done or refused, and never come later. */
enum { THREADS = 8, ROUNDS = 150, PART = 32 << 10 };

struct mover {
	struct side *from, *to;
	size_t at;
	uint64_t seed;
};

static void *move_often(void *arg)
{
	struct mover *self = arg;
	struct rng rng = {self->seed};
	for (int round = 0; round < ROUNDS; round++) {
		size_t size = 1 + rng_below(&rng, PART), offset = rng_below(&rng, PART - size + 1);
		uint8_t *local = self->from->memory + self->at + offset, *remote = self->to->memory + self->at;
		fill(local, size, rng_next(&rng));
		MUST(move(self->from, self->to->session, local, remote, size, true) == 0);
		uint8_t last = local[size - 1];
		local[size - 1] = (uint8_t)~last;
		MUST(move(self->from, self->to->session, local, remote, size, false) == 0);
		MUST(local[size - 1] == last);
		MUST(memcmp(local, remote, size) == 0);
	}
	return NULL;
}

struct intruder {
	struct side *from, *to;
	uint8_t *window; /* registered at to for itself */
	atomic_bool stop;
	unsigned done, refused;
};

static void *write_into_window(void *arg)
{
	struct intruder *self = arg;
	while (!atomic_load(&self->stop)) {
		int status = move(self->from, self->to->session, self->from->memory + THREADS * PART, self->window,
		                  PART, true);
		MUST(status == 0 || status == KV_INVALID_PARAMS);
		status ? self->refused++ : self->done++;
	}
	return NULL;
}

static void threads(void **state)
{
	(void)state;
	struct side a = open_side("127.0.0.1"), b = open_side("127.0.0.1");
	struct mover movers[THREADS];
	pthread_t ids[THREADS], intruder_id;
	struct intruder intruder = {.from = &a, .to = &b, .window = malloc(PART)};
	assert_non_null(intruder.window);
	memset(a.memory, 1, SIZE);
	memset(intruder.window, 0, PART);
	assert_int_equal(pthread_create(&intruder_id, NULL, write_into_window, &intruder), 0);
	for (size_t i = 0; i < THREADS; i++) {
		bool forth = i % 2;
		movers[i] = (struct mover){forth ? &a : &b, forth ? &b : &a, i * PART, i + 1};
		assert_int_equal(pthread_create(&ids[i], NULL, move_often, &movers[i]), 0);
	}
	for (int round = 0; round < ROUNDS; round++) {
		assert_int_equal(kvengine_register(b.engine, intruder.window, PART), 0);
		usleep(500);
		assert_int_equal(kvengine_unregister(b.engine, intruder.window), 0);
		memset(intruder.window, 0, PART); /* ours alone now: tsan and this see who comes later */
		for (size_t i = 0; i < PART; i++)
			assert_int_equal(intruder.window[i], 0);
	}
	for (size_t i = 0; i < THREADS; i++)
		pthread_join(ids[i], NULL);
	atomic_store(&intruder.stop, true);
	pthread_join(intruder_id, NULL);
	assert_true(intruder.done > 0);
	assert_true(intruder.refused > 0);
	close_side(&a);
	close_side(&b);
	free(intruder.window);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(creation),    cmocka_unit_test(arguments),
	        cmocka_unit_test(neighbours),  cmocka_unit_test(adjacent_registrations),
	        cmocka_unit_test(with_itself), cmocka_unit_test(ipv6),
	        cmocka_unit_test(by_name),     cmocka_unit_test(a_forked_child),
	        cmocka_unit_test(threads),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
