/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the calls do and return, over every way that bytes can take: inside the process by memcpy, inside the
 * process through its own data server, and between processes with a kvmaster.
 */
#include "support.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MIB ((size_t)1 << 20)

/* One pool and the store that the test calls. */
struct pool {
	struct process master, worker;
	kvstore_t *store;
	int remote;
};

static int open_memcpy(void **state)
{
	static struct pool pool;
	unsetenv("MC_STORE_MEMCPY");
	pool = (struct pool){.store = open_store("embedded", 64 * MIB, 8 * MIB)};
	*state = &pool;
	return 0;
}

static int open_loopback(void **state)
{
	static struct pool pool;
	setenv("MC_STORE_MEMCPY", "0", 1);
	pool = (struct pool){.store = open_store("embedded", 64 * MIB, 8 * MIB)};
	unsetenv("MC_STORE_MEMCPY");
	*state = &pool;
	return 0;
}

static int open_remote(void **state)
{
	static struct pool pool;
	pool = (struct pool){.remote = 1, .master = start_master(NULL, NULL, NULL)};
	pool.worker = start_worker(pool.master.address, 64);
	pool.store = open_store(pool.master.address, 0, 8 * MIB);
	*state = &pool;
	return 0;
}

static int close_pool(void **state)
{
	struct pool *pool = *state;
	close_store(pool->store);
	if (pool->remote) {
		assert_int_equal(stop_process(&pool->worker), 0);
		assert_int_equal(stop_process(&pool->master), 0);
	}
	return 0;
}

static kvstore_t *store_of(void **state)
{
	return ((struct pool *)*state)->store;
}

/* --- data -------------------------------------------------------------------------------------------------- */

static void sizes_and_fragments(void **state)
{
	static const size_t sizes[] = {1, 2, 7, 4095, 4096, 4097, 65537, MIB, 5 * MIB + 3, 16 * MIB};
	static const size_t fragments[] = {1, 2, 16, 3000};
	kvstore_t *store = store_of(state);
	char key[64];
	for (size_t i = 0; i < sizeof(sizes) / sizeof(*sizes); i++)
		for (size_t j = 0; j < sizeof(fragments) / sizeof(*fragments); j++) {
			if (fragments[j] > sizes[i])
				continue;
			snprintf(key, sizeof(key), "size.%zu.%zu", sizes[i], fragments[j]);
			assert_int_equal(put_object(store, key, sizes[i], fragments[j]), 0);
			/* read in other pieces than it was written in */
			assert_int_equal(get_object(store, key, sizes[i], fragments[j]), sizes[i]);
			assert_int_equal(get_object(store, key, sizes[i], 1), sizes[i]);
			assert_int_equal(kvstore_get_size(store, key), sizes[i]);
			assert_int_equal(kvstore_remove(store, key, 1), 0);
			assert_int_equal(get_object(store, key, sizes[i], 1), KV_OBJECT_NOT_FOUND);
		}
}

static void a_larger_buffer_is_filled_in_part(void **state)
{
	kvstore_t *store = store_of(state);
	assert_int_equal(put_object(store, "part", 1000, 3), 0);
	assert_int_equal(get_object(store, "part", 1001, 1), 1000);
	assert_int_equal(get_object(store, "part", 5000, 16), 1000);
	assert_int_equal(get_object(store, "part", 999, 1), KV_INVALID_PARAMS);
	assert_int_equal(get_object(store, "part", 999, 7), KV_INVALID_PARAMS);
}

/* 600 objects of 1 KiB in one call: more than a frame of the data plane takes. */
static void large_batch(void **state)
{
	enum { N = 600, SIZE = 1024 };
	kvstore_t *store = store_of(state);
	static char names[N][32];
	static const char *keys[N];
	static void *bufs[N];
	static size_t sizes[N];
	static int codes[N];
	static int64_t lengths[N];
	uint8_t *memory = malloc(N * SIZE);
	assert_non_null(memory);
	for (size_t i = 0; i < N; i++) {
		snprintf(names[i], sizeof(names[i]), "batch.%zu", i);
		keys[i] = names[i];
		bufs[i] = memory + i * SIZE;
		sizes[i] = SIZE;
		fill_bytes(bufs[i], SIZE, names[i]);
	}
	assert_int_equal(kvstore_batch_put_from(store, keys, bufs, sizes, N, NULL, codes), 0);
	memset(memory, 0, N * SIZE);
	assert_int_equal(kvstore_batch_get_into(store, keys, bufs, sizes, N, lengths), 0);
	for (size_t i = 0; i < N; i++) {
		assert_int_equal(codes[i], 0);
		assert_int_equal(lengths[i], SIZE);
		assert_true(is_filled(bufs[i], SIZE, names[i]));
	}
	assert_int_equal(kvstore_batch_is_exist(store, keys, N, codes), 0);
	for (size_t i = 0; i < N; i++)
		assert_int_equal(codes[i], 1);
	free(memory);
}

static void single_calls(void **state)
{
	kvstore_t *store = store_of(state);
	uint8_t value[5000], back[6000];
	void *copy;
	fill_bytes(value, sizeof(value), "single");
	assert_int_equal(kvstore_put(store, "single", value, sizeof(value), NULL), 0);
	assert_int_equal(kvstore_get_into(store, "single", back, sizeof(back)), sizeof(value));
	assert_memory_equal(back, value, sizeof(value));
	assert_int_equal(kvstore_get_into(store, "single", back, sizeof(value) - 1), KV_INVALID_PARAMS);
	assert_int_equal(kvstore_get_buffer(store, "single", &copy), sizeof(value));
	assert_memory_equal(copy, value, sizeof(value));
	free(copy);
	assert_int_equal(kvstore_get_buffer(store, "absent", &copy), KV_OBJECT_NOT_FOUND);
	assert_null(copy);
	assert_int_equal(kvstore_put_from(store, "single.from", value, sizeof(value), NULL), 0);
	assert_int_equal(kvstore_get_into(store, "single.from", back, sizeof(back)), sizeof(value));
	assert_memory_equal(back, value, sizeof(value));
	assert_int_equal(kvstore_put_from(store, "single.zero", value, 0, NULL), 0);
	assert_int_equal(kvstore_is_exist(store, "single.zero"), 0);
	assert_int_equal(kvstore_is_exist(store, "single"), 1);
	assert_int_equal(kvstore_get_size(store, "absent"), KV_OBJECT_NOT_FOUND);
}

/* --- results ----------------------------------------------------------------------------------------------- */

static void first_writer_wins(void **state)
{
	kvstore_t *store = store_of(state);
	uint8_t other[100], back[100];
	memset(other, 0xee, sizeof(other));
	assert_int_equal(put_object(store, "dup", 100, 1), 0);
	assert_int_equal(put_object(store, "dup", 100, 1), 0);
	assert_int_equal(kvstore_put_from(store, "dup", other, sizeof(other), NULL), 0);
	assert_int_equal(kvstore_put(store, "dup", other, sizeof(other), NULL), 0);
	assert_int_equal(kvstore_get_into(store, "dup", back, sizeof(back)), 100);
	assert_true(is_filled(back, sizeof(back), "dup"));
}

static void the_same_key_twice(void **state)
{
	kvstore_t *store = store_of(state);
	const char *keys[] = {"twice", "twice", "twice"};
	uint8_t memory[3][64];
	void *bufs[] = {memory[0], memory[1], memory[2]};
	size_t sizes[] = {64, 64, 64};
	int codes[3];
	int64_t lengths[3];
	for (int i = 0; i < 3; i++)
		fill_bytes(memory[i], 64, "twice");
	assert_int_equal(kvstore_batch_put_from(store, keys, bufs, sizes, 3, NULL, codes), 0);
	memset(memory, 0, sizeof(memory));
	assert_int_equal(kvstore_batch_get_into(store, keys, bufs, sizes, 3, lengths), 0);
	for (int i = 0; i < 3; i++) {
		assert_int_equal(codes[i], 0);
		assert_int_equal(lengths[i], 64);
		assert_true(is_filled(memory[i], 64, "twice"));
	}
	assert_int_equal(kvstore_remove(store, "twice", 1), 0);
	assert_int_equal(kvstore_is_exist(store, "twice"), 0);
}

/* A key that fails fails alone. */
static void one_bad_key_of_each_kind(void **state)
{
	kvstore_t *store = store_of(state);
	char longest[4097], too_long[4098];
	memset(longest, 'k', sizeof(longest) - 1);
	memset(too_long, 'k', sizeof(too_long) - 1);
	longest[4096] = too_long[4097] = '\0';
	const char *keys[] = {"ok.1", "", NULL, too_long, longest, "ok.2", "null.buffer", "no.bytes"};
	uint8_t memory[8][32];
	void *bufs[8];
	size_t sizes[8], n = 8;
	int codes[8];
	int64_t lengths[8];
	static const int want[] = {0, -600, -600, -600, 0, 0, -600, -600};
	static const int64_t want_get[] = {32, -600, -600, -600, 32, 32, -600, -600};
	static const int want_exist[] = {1, -600, -600, -600, 1, 1, 0, 0};
	for (size_t i = 0; i < n; i++) {
		fill_bytes(memory[i], 32, keys[i] ? keys[i] : "");
		bufs[i] = i == 6 ? NULL : memory[i];
		sizes[i] = i == 7 ? 0 : 32;
	}
	assert_int_equal(kvstore_batch_put_from(store, keys, bufs, sizes, n, NULL, codes), 0);
	assert_memory_equal(codes, want, sizeof(want));
	assert_int_equal(kvstore_batch_get_into(store, keys, bufs, sizes, n, lengths), 0);
	assert_memory_equal(lengths, want_get, sizeof(want_get));
	assert_int_equal(kvstore_batch_is_exist(store, keys, n, codes), 0);
	assert_memory_equal(codes, want_exist, sizeof(want_exist));
	assert_int_equal(kvstore_is_exist(store, ""), -600);
	assert_int_equal(kvstore_remove(store, too_long, 0), -600);
	assert_int_equal(kvstore_get_size(store, ""), -600);
	assert_int_equal(kvstore_put(store, "", "x", 1, NULL), -600);
}

static void nulls_and_empty_lists(void **state)
{
	kvstore_t *store = store_of(state);
	const char *keys[] = {"a", "b"};
	int codes[2] = {7, 7};
	int64_t lengths[2] = {7, 7};
	kvstore_replica_lists_t *lists;
	assert_int_equal(kvstore_batch_put_from_multi_buffers(store, keys, NULL, NULL, NULL, 2, NULL, codes), 0);
	assert_int_equal(codes[0], -600);
	assert_int_equal(codes[1], -600);
	assert_int_equal(kvstore_batch_get_into_multi_buffers(store, keys, NULL, NULL, NULL, 2, lengths), 0);
	assert_int_equal(lengths[0], -600);
	assert_int_equal(lengths[1], -600);
	assert_int_equal(kvstore_batch_put_from(store, keys, NULL, NULL, 2, NULL, codes), 0);
	assert_int_equal(codes[1], -600);
	assert_int_equal(kvstore_batch_get_into(store, keys, NULL, NULL, 2, lengths), 0);
	assert_int_equal(lengths[1], -600);
	assert_int_equal(kvstore_batch_put_from_multi_buffers(store, NULL, NULL, NULL, NULL, 2, NULL, codes), -1);
	assert_int_equal(kvstore_batch_is_exist(store, keys, 2, NULL), -1);
	assert_int_equal(kvstore_batch_get_replica_desc(store, keys, 2, NULL), -1);
	/* a call that did not run leaves nothing in the results that looks like an answer */
	codes[0] = codes[1] = 0;
	assert_int_equal(kvstore_batch_is_exist(NULL, keys, 2, codes), -1);
	assert_true(codes[0] == -1 && codes[1] == -1);
	codes[0] = codes[1] = 0;
	assert_int_equal(kvstore_batch_put_from(store, NULL, NULL, NULL, 2, NULL, codes), -1);
	assert_true(codes[0] == -1 && codes[1] == -1);
	lengths[0] = lengths[1] = 0;
	assert_int_equal(kvstore_batch_get_into(store, NULL, NULL, NULL, 2, lengths), -1);
	assert_true(lengths[0] == -1 && lengths[1] == -1);
	lengths[0] = lengths[1] = 0;
	assert_int_equal(kvstore_batch_get_into_multi_buffers(NULL, keys, NULL, NULL, NULL, 2, lengths), -1);
	assert_true(lengths[0] == -1 && lengths[1] == -1);
	assert_int_equal(kvstore_batch_put_from_multi_buffers(store, keys, NULL, NULL, NULL, 0, NULL, codes), 0);
	assert_int_equal(kvstore_batch_get_into_multi_buffers(store, keys, NULL, NULL, NULL, 0, lengths), 0);
	assert_int_equal(kvstore_batch_is_exist(store, keys, 0, codes), 0);
	assert_int_equal(kvstore_batch_get_replica_desc(store, keys, 0, &lists), 0);
	assert_int_equal(lists->n_keys, 0);
	kvstore_replica_lists_free(lists);
	assert_int_equal(kvstore_put(store, "null.value", NULL, 5, NULL), -600);
	assert_int_equal(kvstore_put(store, "empty.value", "", 0, NULL), -600);
}

/* More keys than a call takes: each fails, and nothing is sent. */
static void too_many_keys(void **state)
{
	enum { N = 262145 };
	kvstore_t *store = store_of(state);
	const char **keys = calloc(N, sizeof(*keys));
	int *codes = calloc(N, sizeof(*codes));
	assert_non_null(keys);
	assert_non_null(codes);
	for (size_t i = 0; i < N; i++)
		keys[i] = "many";
	assert_int_equal(put_object(store, "many", 10, 1), 0);
	assert_int_equal(kvstore_batch_is_exist(store, keys, N, codes), 0);
	for (size_t i = 0; i < N; i++)
		assert_int_equal(codes[i], -600);
	assert_int_equal(kvstore_batch_is_exist(store, keys, N - 1, codes), 0);
	for (size_t i = 0; i < N - 1; i++)
		assert_int_equal(codes[i], 1);
	free(keys);
	free(codes);
}

static void configs(void **state)
{
	kvstore_t *store = store_of(state);
	kvstore_replicate_config_t good = {.struct_size = sizeof(good), .replica_num = 1}, config = good;
	char where[300];
	const char *preferred[] = {where};
	uint8_t value[16] = "0123456789abcde";

	assert_int_equal(kvstore_get_hostname(store, where, sizeof(where)), 0);
	assert_int_equal(kvstore_put_from(store, "cfg.1", value, 16, &config), 0);
	config.replica_num = 0;
	assert_int_equal(kvstore_put_from(store, "cfg.2", value, 16, &config), -600);
	config.replica_num = 1000; /* as many as there are */
	assert_int_equal(kvstore_put_from(store, "cfg.3", value, 16, &config), 0);
	config = good;
	config.prefer_alloc_in_same_node = 1;
	assert_int_equal(kvstore_put_from(store, "cfg.4", value, 16, &config), -600);
	assert_int_equal(kvstore_put(store, "cfg.4", value, 16, &config), -600);
	const char *key = "cfg.5";
	void *buf = value;
	void *const *bufs = &buf;
	size_t size = 16, one = 1;
	const size_t *sizes = &size;
	int code = 1;
	assert_int_equal(kvstore_batch_put_from(store, &key, &buf, &size, 1, &config, &code), 0);
	assert_int_equal(code, -600);
	assert_int_equal(kvstore_batch_put_from_multi_buffers(store, &key, &bufs, &sizes, &one, 1, &config, &code),
	                 0);
	assert_int_equal(code, 0);
	config = good;
	config.soft_pin_ttl_ms = 1000;
	assert_int_equal(kvstore_put_from(store, "cfg.6", value, 16, &config), -600);
	config.soft_pin_action = 1;
	assert_int_equal(kvstore_put_from(store, "cfg.6", value, 16, &config), 0);
	config = good;
	config.soft_pin_action = 3;
	assert_int_equal(kvstore_put_from(store, "cfg.7", value, 16, &config), -600);
	config = good;
	config.with_soft_pin = config.with_hard_pin = 1;
	assert_int_equal(kvstore_put_from(store, "cfg.8", value, 16, &config), 0);
	config = good;
	config.preferred_segments = preferred;
	config.preferred_segments_count = 1;
	assert_int_equal(kvstore_put_from(store, "cfg.9", value, 16, &config), 0);
	config.preferred_segments_count = 65;
	assert_int_equal(kvstore_put_from(store, "cfg.10", value, 16, &config), -600);
	config = good;
	config.struct_size = 0;
	assert_int_equal(kvstore_put_from(store, "cfg.11", value, 16, &config), -600);
	/* a caller that was built with a shorter struct */
	config.struct_size = offsetof(kvstore_replicate_config_t, with_hard_pin);
	config.prefer_alloc_in_same_node = 1;
	assert_int_equal(kvstore_put_from(store, "cfg.12", value, 16, &config), 0);
}

static void leases_and_removal(void **state)
{
	kvstore_t *store = store_of(state);
	assert_true(kvstore_remove_all(store, 1) >= 0);
	assert_int_equal(put_object(store, "l.1", 64, 1), 0);
	assert_int_equal(kvstore_remove(store, "l.1", 0), 0); /* no one asked for it: no lease */
	assert_int_equal(kvstore_remove(store, "l.1", 0), KV_OBJECT_NOT_FOUND);
	assert_int_equal(put_object(store, "l.1", 64, 1), 0);
	assert_int_equal(put_object(store, "l.2", 64, 1), 0);
	assert_int_equal(put_object(store, "l.3", 64, 1), 0);
	assert_int_equal(kvstore_is_exist(store, "l.1"), 1);
	assert_int_equal(kvstore_remove(store, "l.1", 0), KV_OBJECT_HAS_LEASE);
	assert_int_equal(get_object(store, "l.2", 64, 1), 64);
	assert_int_equal(kvstore_remove(store, "l.2", 0), KV_OBJECT_HAS_LEASE);
	assert_int_equal(kvstore_remove_all(store, 0), 1); /* l.3 */
	assert_int_equal(kvstore_remove(store, "l.1", 1), 0);
	assert_int_equal(kvstore_remove_all(store, 1), 1);
	assert_int_equal(kvstore_remove_all(store, 1), 0);
}

static void replica_descriptions(void **state)
{
	struct pool *pool = *state;
	const char *keys[] = {"desc.1", "desc.absent", "", "desc.2"};
	kvstore_replica_lists_t *lists;
	char where[300];
	assert_int_equal(put_object(pool->store, "desc.1", 1000, 4), 0);
	assert_int_equal(put_object(pool->store, "desc.2", 2000, 4), 0);
	assert_int_equal(kvstore_get_hostname(pool->store, where, sizeof(where)), 0);
	assert_int_equal(kvstore_batch_get_replica_desc(pool->store, keys, 4, &lists), 0);
	assert_int_equal(lists->n_keys, 4);
	assert_int_equal(lists->status[0], 0);
	assert_int_equal(lists->status[1], KV_OBJECT_NOT_FOUND);
	assert_int_equal(lists->status[2], KV_INVALID_PARAMS);
	assert_int_equal(lists->status[3], 0);
	assert_int_equal(lists->count[0], 1);
	assert_int_equal(lists->count[1], 0);
	assert_int_equal(lists->count[3], 1);
	const kvstore_replica_desc_t *desc = &lists->list[3][0];
	assert_int_equal(desc->type, KVSTORE_REPLICA_MEMORY);
	assert_int_equal(desc->status, KVSTORE_REPLICA_COMPLETE);
	assert_int_equal(desc->size, 2000);
	assert_string_equal(desc->endpoint, pool->remote ? pool->worker.address : where);
	assert_true(desc->address != 0);
	if (!pool->remote) /* the address is in this very process */
		assert_true(is_filled((void *)(uintptr_t)desc->address, 2000, "desc.2"));
	kvstore_replica_lists_free(lists);
}

/* Hard-pinned objects are never evicted: the pool fills up. */
static void full_pool(void **state)
{
	enum { N = 40 };
	kvstore_t *store = store_of(state);
	kvstore_replicate_config_t config = {.struct_size = sizeof(config), .replica_num = 1, .with_hard_pin = 1};
	static char names[N][16];
	static const char *keys[N];
	static void *bufs[N];
	static size_t sizes[N];
	static int codes[N];
	uint8_t *memory = malloc(2 * MIB);
	int stored = 0, full = 0;
	assert_non_null(memory);
	fill_bytes(memory, 2 * MIB, "full");
	assert_true(kvstore_remove_all(store, 1) >= 0);
	for (size_t i = 0; i < N; i++) {
		snprintf(names[i], sizeof(names[i]), "full.%zu", i);
		keys[i] = names[i];
		bufs[i] = memory;
		sizes[i] = 2 * MIB;
	}
	assert_int_equal(kvstore_batch_put_from(store, keys, bufs, sizes, N, &config, codes), 0);
	for (size_t i = 0; i < N; i++) {
		stored += codes[i] == 0;
		full += codes[i] == KV_NO_AVAILABLE_HANDLE;
		assert_int_equal(kvstore_is_exist(store, keys[i]), codes[i] == 0);
	}
	assert_int_equal(stored + full, N);
	assert_true(full >= N - 32);
	assert_true(stored >= 24);
	assert_int_equal(kvstore_put(store, "full.too", memory, 2 * MIB, NULL), KV_NO_AVAILABLE_HANDLE);
	assert_int_equal(kvstore_remove_all(store, 1), stored);
	assert_int_equal(kvstore_put(store, "full.too", memory, 2 * MIB, NULL), 0);
	free(memory);
}

static void local_buffer_is_full(void **state)
{
	kvstore_t *store = store_of(state);
	uint8_t *memory = malloc(9 * MIB);
	assert_non_null(memory);
	memset(memory, 1, 9 * MIB);
	assert_int_equal(kvstore_put(store, "too.big", memory, 9 * MIB, NULL), KV_INVALID_PARAMS);
	assert_int_equal(kvstore_put(store, "fits", memory, 8 * MIB, NULL), 0);
	assert_int_equal(kvstore_remove(store, "fits", 1), 0);
	free(memory);
}

static void buffers(void **state)
{
	kvstore_t *store = store_of(state);
	static uint8_t memory[8192];
	assert_int_equal(kvstore_register_buffer(store, memory, 4096), 0);
	assert_int_equal(kvstore_register_buffer(store, memory, 4096), -600);
	assert_int_equal(kvstore_register_buffer(store, memory + 4095, 10), -600);
	assert_int_equal(kvstore_register_buffer(store, memory + 4096, 4096), 0);
	assert_int_equal(kvstore_register_buffer(store, NULL, 10), -600);
	assert_int_equal(kvstore_register_buffer(store, memory, 0), -600);
	assert_int_equal(kvstore_register_buffer(store, memory, SIZE_MAX), -600);
	assert_int_equal(kvstore_unregister_buffer(store, memory + 1), -600);
	assert_int_equal(kvstore_unregister_buffer(store, memory), 0);
	assert_int_equal(kvstore_unregister_buffer(store, memory), -600);
	assert_int_equal(kvstore_register_buffer(store, memory, 4000), 0);
	assert_int_equal(kvstore_unregister_buffer(store, memory), 0);
	assert_int_equal(kvstore_unregister_buffer(store, memory + 4096), 0);
}

static void health(void **state)
{
	kvstore_t *store = store_of(state);
	char name[300], tiny[4];
	assert_int_equal(kvstore_health_check(store), 0);
	assert_int_equal(kvstore_get_hostname(store, name, sizeof(name)), 0);
	assert_memory_equal(name, "127.0.0.1:", 10);
	assert_int_equal(kvstore_get_hostname(store, tiny, sizeof(tiny)), -1);
}

#define OVER(test, way)                                                                                              \
	{                                                                                                            \
#test " over " #way, test, open_##way, close_pool, NULL                                              \
	}
#define OVER_ALL(test) OVER(test, memcpy), OVER(test, loopback), OVER(test, remote)

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
	        OVER_ALL(sizes_and_fragments),
	        OVER_ALL(a_larger_buffer_is_filled_in_part),
	        OVER_ALL(large_batch),
	        OVER_ALL(single_calls),
	        OVER_ALL(first_writer_wins),
	        OVER_ALL(the_same_key_twice),
	        OVER_ALL(one_bad_key_of_each_kind),
	        OVER_ALL(nulls_and_empty_lists),
	        OVER_ALL(too_many_keys),
	        OVER_ALL(configs),
	        OVER_ALL(leases_and_removal),
	        OVER_ALL(replica_descriptions),
	        OVER_ALL(full_pool),
	        OVER_ALL(local_buffer_is_full),
	        OVER_ALL(buffers),
	        OVER_ALL(health),
	};
	return TEST_MAIN(tests);
}
