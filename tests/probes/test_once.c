/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every public call of the C API, and every error exit of it that a store with an embedded master can take:
 * each fires the call's own key exactly once, with the result that the caller got.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "tests/probes/once.h"

#define MIB     (1u << 20)
#define SEGMENT (32u * MIB)
#define LOCAL   (4u * MIB)
#define SIZE    8192u
#define N       3
#define BUFFER  (SEGMENT + MIB)

struct world {
	kvstore_t *store;
	char *memory; /* registered, BUFFER bytes */
};

static int set_up(kvstore_t *store, uint64_t segment, uint64_t local, const char *master)
{
	return kvstore_setup(store, "127.0.0.1", "P2PHANDSHAKE", segment, local, "tcp", "", master);
}

static int world_begin(void **state)
{
	struct world *world = calloc(1, sizeof(*world));
	if (!world)
		return -1;
	world->store = kvstore_create();
	world->memory = malloc(BUFFER);
	if (!world->store || !world->memory || set_up(world->store, SEGMENT, LOCAL, "embedded") != KV_OK ||
	    kvstore_register_buffer(world->store, world->memory, BUFFER) != KV_OK)
		return -1;
	memset(world->memory, 'm', BUFFER);
	*state = world;
	return 0;
}

static int world_end(void **state)
{
	struct world *world = *state;
	recorder_clear();
	kvstore_destroy(world->store);
	free(world->memory);
	free(world);
	return 0;
}

/* N objects of two fragments each. */
struct batch {
	const char *keys[N];
	void *flat[N];
	size_t flat_sizes[N];
	void *fragment[N][2];
	size_t fragment_size[N][2];
	void *const *bufs[N];
	const size_t *sizes[N];
	size_t nbufs[N];
	int status[N];
	int64_t length[N];
};

static void batch_fill(struct batch *batch, char *memory, const char *const keys[N])
{
	for (size_t i = 0; i < N; i++) {
		char *start = memory + i * SIZE;
		batch->keys[i] = keys[i];
		batch->flat[i] = start;
		batch->flat_sizes[i] = SIZE;
		batch->fragment[i][0] = start;
		batch->fragment[i][1] = start + SIZE / 4;
		batch->fragment_size[i][0] = SIZE / 4;
		batch->fragment_size[i][1] = SIZE - SIZE / 4;
		batch->bufs[i] = batch->fragment[i];
		batch->sizes[i] = batch->fragment_size[i];
		batch->nbufs[i] = 2;
	}
}

static int put_multi(kvstore_t *store, struct batch *batch, const kvstore_replicate_config_t *config)
{
	return kvstore_batch_put_from_multi_buffers(store, batch->keys, batch->bufs, batch->sizes, batch->nbufs, N,
	                                            config, batch->status);
}

static int get_multi(kvstore_t *store, struct batch *batch)
{
	return kvstore_batch_get_into_multi_buffers(store, batch->keys, batch->bufs, batch->sizes, batch->nbufs, N,
	                                            batch->length);
}

static void expect_status(const struct batch *batch, int first, int second, int third)
{
	assert_int_equal(batch->status[0], first);
	assert_int_equal(batch->status[1], second);
	assert_int_equal(batch->status[2], third);
}

static void expect_length(const struct batch *batch, int64_t first, int64_t second, int64_t third)
{
	assert_int_equal(batch->length[0], first);
	assert_int_equal(batch->length[1], second);
	assert_int_equal(batch->length[2], third);
}

/* --- life ------------------------------------------------------------------------------------------- */

static void before_setup_and_after_close(void **state)
{
	(void)state;
	kvstore_t *store = kvstore_create();
	assert_non_null(store);
	every_call_fails(store, KV_INVALID_PARAMS);
	CALL(set_up(store, 1000, LOCAL, "embedded"), KV_INVALID_PARAMS, KEY_RC_SETUP_REAL, 0, 0, 0,
	     KV_INVALID_PARAMS);
	CALL(set_up(store, SEGMENT, 1000, "embedded"), KV_INVALID_PARAMS, KEY_RC_SETUP_REAL, 0, 0, 0,
	     KV_INVALID_PARAMS);
	CALL(set_up(store, SEGMENT, LOCAL, "embedded"), KV_OK, KEY_RC_SETUP_REAL, 0, 0, 0, 0);
	assert_int_equal(recorder_count(KEY_RC_SETUP_INTERNAL, NULL), 1);
	CALL(set_up(store, SEGMENT, LOCAL, "embedded"), KV_INVALID_PARAMS, KEY_RC_SETUP_REAL, 0, 0, 0,
	     KV_INVALID_PARAMS);
	CALL(kvstore_close(store), KV_OK, KEY_RC_TEARDOWN_ALL, 0, 0, 0, 0);
	assert_int_equal(recorder_count(KEY_RC_TEARDOWN_ALL_INTERNAL, NULL), 1);
	CALL(kvstore_close(store), KV_OK, KEY_RC_TEARDOWN_ALL, 0, 0, 0, 0);
	every_call_fails(store, KV_INVALID_PARAMS);
	kvstore_destroy(store);
}

static void no_one_answers_setup(void **state)
{
	(void)state;
	kvstore_t *store = kvstore_create();
	assert_non_null(store);
	CALL(set_up(store, SEGMENT, LOCAL, "127.0.0.1:1"), KV_RPC_FAIL, KEY_RC_SETUP_REAL, 0, 0, 0, KV_RPC_FAIL);
	kvstore_destroy(store);
}

static void buffers(void **state)
{
	kvstore_t *store = ((struct world *)*state)->store;
	static char memory[SIZE];
	CALL(kvstore_register_buffer(store, NULL, SIZE), KV_INVALID_PARAMS, KEY_RC_REGISTER_BUFFER, 0, 0, 0,
	     KV_INVALID_PARAMS);
	CALL(kvstore_register_buffer(store, memory, 0), KV_INVALID_PARAMS, KEY_RC_REGISTER_BUFFER, 0, 0, 0,
	     KV_INVALID_PARAMS);
	CALL(kvstore_register_buffer(store, memory, SIZE), KV_OK, KEY_RC_REGISTER_BUFFER, SIZE, 0, 0, 0);
	assert_int_equal(recorder_count(KEY_RC_REGISTER_BUFFER_INTERNAL, NULL), 1);
	CALL(kvstore_register_buffer(store, memory + 1, 1), KV_INVALID_PARAMS, KEY_RC_REGISTER_BUFFER, 0, 0, 0,
	     KV_INVALID_PARAMS);
	CALL(kvstore_unregister_buffer(store, memory + 1), KV_INVALID_PARAMS, KEY_RC_UNREGISTER_BUFFER, 0, 0, 0,
	     KV_INVALID_PARAMS);
	CALL(kvstore_unregister_buffer(store, memory), KV_OK, KEY_RC_UNREGISTER_BUFFER, 0, 0, 0, 0);
}

/* --- one object -------------------------------------------------------------------------------------- */

static void put(void **state)
{
	struct world *world = *state;
	kvstore_t *store = world->store;
	kvstore_replicate_config_t near = {
	        .struct_size = sizeof(near), .replica_num = 1, .prefer_alloc_in_same_node = 1};
	kvstore_replicate_config_t ttl = {.struct_size = sizeof(ttl), .replica_num = 1, .soft_pin_ttl_ms = 5};
	char *long_key = calloc(1, 4098);
	assert_non_null(long_key);
	memset(long_key, 'k', 4097);

	CALL(kvstore_put(store, "put", world->memory, SIZE, NULL), KV_OK, KEY_PUT_INTERNAL_FULL, SIZE, 1, 0, 0);
	assert_int_equal(recorder_count(KEY_PUT_SINGLE_FULL, NULL), 1);
	CALL(kvstore_put(store, "put", world->memory, SIZE, NULL), KV_OK, KEY_PUT_INTERNAL_FULL, 0, 1, 0, 0);
	CALL(kvstore_put(store, "none", world->memory, 0, NULL), KV_INVALID_PARAMS, KEY_PUT_INTERNAL_FULL, 0, 1, 1,
	     KV_INVALID_PARAMS);
	CALL(kvstore_put(store, "", world->memory, SIZE, NULL), KV_INVALID_PARAMS, KEY_PUT_INTERNAL_FULL, 0, 1, 1,
	     KV_INVALID_PARAMS);
	CALL(kvstore_put(store, long_key, world->memory, SIZE, NULL), KV_INVALID_PARAMS, KEY_PUT_INTERNAL_FULL, 0, 1,
	     1, KV_INVALID_PARAMS);
	CALL(kvstore_put(store, "big", world->memory, LOCAL + 1, NULL), KV_INVALID_PARAMS, KEY_PUT_INTERNAL_FULL, 0,
	     1, 1, KV_INVALID_PARAMS);
	CALL(kvstore_put(store, "near", world->memory, SIZE, &near), KV_INVALID_PARAMS, KEY_PUT_INTERNAL_FULL, 0, 1,
	     1, KV_INVALID_PARAMS);
	CALL(kvstore_put(store, "ttl", world->memory, SIZE, &ttl), KV_INVALID_PARAMS, KEY_PUT_INTERNAL_FULL, 0, 1, 1,
	     KV_INVALID_PARAMS);
	free(long_key);
}

static void put_from(void **state)
{
	struct world *world = *state;
	kvstore_t *store = world->store;
	kvstore_replicate_config_t near = {
	        .struct_size = sizeof(near), .replica_num = 1, .prefer_alloc_in_same_node = 1};
	CALL(kvstore_put_from(store, "from", world->memory, SIZE, NULL), KV_OK, KEY_RC_PUT_FROM, SIZE, 1, 0, 0);
	CALL(kvstore_put_from(store, "from", world->memory, SIZE, NULL), KV_OK, KEY_RC_PUT_FROM, 0, 1, 0, 0);
	CALL(kvstore_put_from(store, "nothing", world->memory, 0, NULL), KV_OK, KEY_RC_PUT_FROM, 0, 1, 0, 0);
	CALL(kvstore_put_from(store, "", world->memory, SIZE, NULL), KV_INVALID_PARAMS, KEY_RC_PUT_FROM, 0, 1, 1,
	     KV_INVALID_PARAMS);
	CALL(kvstore_put_from(store, "null", NULL, SIZE, NULL), KV_INVALID_PARAMS, KEY_RC_PUT_FROM, 0, 1, 1,
	     KV_INVALID_PARAMS);
	CALL(kvstore_put_from(store, "near", world->memory, SIZE, &near), KV_INVALID_PARAMS, KEY_RC_PUT_FROM, 0, 1, 1,
	     KV_INVALID_PARAMS);
	CALL(kvstore_put_from(store, "huge", world->memory, BUFFER, NULL), KV_NO_AVAILABLE_HANDLE, KEY_RC_PUT_FROM, 0,
	     1, 1, KV_NO_AVAILABLE_HANDLE);
}

static void get_into(void **state)
{
	struct world *world = *state;
	kvstore_t *store = world->store;
	assert_int_equal(kvstore_put_from(store, "one", world->memory, SIZE, NULL), KV_OK);
	CALL(kvstore_get_into(store, "one", world->memory, SIZE), SIZE, KEY_GET_INTO_INTERNAL, SIZE, 1, 0, 0);
	CALL(kvstore_get_into(store, "none", world->memory, SIZE), KV_OBJECT_NOT_FOUND, KEY_GET_INTO_INTERNAL, 0, 1,
	     1, KV_OBJECT_NOT_FOUND);
	CALL(kvstore_get_into(store, "one", world->memory, SIZE - 1), KV_INVALID_PARAMS, KEY_GET_INTO_INTERNAL, 0, 1,
	     1, KV_INVALID_PARAMS);
	CALL(kvstore_get_into(store, "one", NULL, SIZE), KV_INVALID_PARAMS, KEY_GET_INTO_INTERNAL, 0, 1, 1,
	     KV_INVALID_PARAMS);
	CALL(kvstore_get_into(store, "", world->memory, SIZE), KV_INVALID_PARAMS, KEY_GET_INTO_INTERNAL, 0, 1, 1,
	     KV_INVALID_PARAMS);
}

static void get_buffer(void **state)
{
	struct world *world = *state;
	void *copy = NULL;
	assert_int_equal(kvstore_put_from(world->store, "one", world->memory, SIZE, NULL), KV_OK);
	CALL(kvstore_get_buffer(world->store, "one", &copy), SIZE, KEY_GET_BUFFER_INTERNAL_FULL, SIZE, 1, 0, 0);
	assert_memory_equal(copy, world->memory, SIZE);
	free(copy);
	CALL(kvstore_get_buffer(world->store, "none", &copy), KV_OBJECT_NOT_FOUND, KEY_GET_BUFFER_INTERNAL_FULL, 0, 1,
	     1, KV_OBJECT_NOT_FOUND);
	assert_null(copy);
	CALL(kvstore_get_buffer(world->store, "", &copy), KV_INVALID_PARAMS, KEY_GET_BUFFER_INTERNAL_FULL, 0, 1, 1,
	     KV_INVALID_PARAMS);
}

static void questions(void **state)
{
	struct world *world = *state;
	kvstore_t *store = world->store;
	assert_int_equal(kvstore_put_from(store, "one", world->memory, SIZE, NULL), KV_OK);
	CALL(kvstore_is_exist(store, "one"), 1, KEY_RC_IS_EXIST, 0, 1, 0, 0);
	CALL(kvstore_is_exist(store, "none"), 0, KEY_RC_IS_EXIST, 0, 1, 0, 0);
	CALL(kvstore_get_size(store, "one"), SIZE, KEY_RC_GET_SIZE, 0, 1, 0, 0);
	CALL(kvstore_get_size(store, "none"), KV_OBJECT_NOT_FOUND, KEY_RC_GET_SIZE, 0, 1, 1, KV_OBJECT_NOT_FOUND);
	CALL(kvstore_get_size(store, ""), KV_INVALID_PARAMS, KEY_RC_GET_SIZE, 0, 1, 1, KV_INVALID_PARAMS);
}

static void removal(void **state)
{
	struct world *world = *state;
	kvstore_t *store = world->store;
	assert_true(kvstore_remove_all(store, 1) >= 0);
	for (int i = 0; i < 3; i++) {
		const char *const keys[] = {"a", "b", "c"};
		assert_int_equal(kvstore_put_from(store, keys[i], world->memory, SIZE, NULL), KV_OK);
	}
	CALL(kvstore_remove(store, "a", 0), KV_OK, KEY_RC_REMOVE, 0, 1, 0, 0);
	CALL(kvstore_remove(store, "a", 0), KV_OBJECT_NOT_FOUND, KEY_RC_REMOVE, 0, 1, 1, KV_OBJECT_NOT_FOUND);
	CALL(kvstore_remove(store, "", 0), KV_INVALID_PARAMS, KEY_RC_REMOVE, 0, 1, 1, KV_INVALID_PARAMS);
	assert_int_equal(kvstore_is_exist(store, "b"), 1);
	CALL(kvstore_remove(store, "b", 0), KV_OBJECT_HAS_LEASE, KEY_RC_REMOVE, 0, 1, 1, KV_OBJECT_HAS_LEASE);
	CALL(kvstore_remove_all(store, 0), 1, KEY_RC_REMOVE_ALL, 0, 1, 0, 0);
	CALL(kvstore_remove_all(store, 1), 1, KEY_RC_REMOVE_ALL, 0, 1, 0, 0);
	assert_int_equal(recorder_count(KEY_RC_REMOVE_ALL_INTERNAL, NULL), 1);
	CALL(kvstore_remove_all(store, 1), 0, KEY_RC_REMOVE_ALL, 0, 0, 0, 0);
}

/* --- batches -------------------------------------------------------------------------------------------- */

static void batch_put_from(void **state)
{
	struct world *world = *state;
	kvstore_t *store = world->store;
	struct batch batch;
	batch_fill(&batch, world->memory, (const char *const[N]){"f.0", "f.1", "f.2"});
	CALL(kvstore_batch_put_from(store, batch.keys, batch.flat, batch.flat_sizes, N, NULL, batch.status), 0,
	     KEY_RC_BATCH_PUT_FROM, N * SIZE, N, 0, 0);
	expect_status(&batch, 0, 0, 0);
	assert_int_equal(recorder_count(KEY_PUT_BATCH_FULL, NULL), 1);
	batch_fill(&batch, world->memory, (const char *const[N]){"f.0", "", "f.3"});
	CALL(kvstore_batch_put_from(store, batch.keys, batch.flat, batch.flat_sizes, N, NULL, batch.status), 0,
	     KEY_RC_BATCH_PUT_FROM, SIZE, N, 1, KV_INVALID_PARAMS);
	expect_status(&batch, 0, KV_INVALID_PARAMS, 0);
	CALL(kvstore_batch_put_from(store, batch.keys, NULL, batch.flat_sizes, N, NULL, batch.status), 0,
	     KEY_RC_BATCH_PUT_FROM, 0, N, N, KV_INVALID_PARAMS);
	CALL(kvstore_batch_put_from(store, batch.keys, batch.flat, batch.flat_sizes, 0, NULL, batch.status), 0,
	     KEY_RC_BATCH_PUT_FROM, 0, 0, 0, 0);
}

static void batch_put_multi(void **state)
{
	struct world *world = *state;
	kvstore_t *store = world->store;
	struct batch batch;
	kvstore_replicate_config_t ttl = {.struct_size = sizeof(ttl), .replica_num = 1, .soft_pin_ttl_ms = 5};
	batch_fill(&batch, world->memory, (const char *const[N]){"m.0", "m.1", "m.2"});
	CALL(put_multi(store, &batch, &ttl), 0, KEY_RC_BATCH_PUT_MULTI, 0, N, N, KV_INVALID_PARAMS);
	CALL(put_multi(store, &batch, NULL), 0, KEY_RC_BATCH_PUT_MULTI, N * SIZE, N, 0, 0);
	expect_status(&batch, 0, 0, 0);
	assert_int_equal(recorder_count(KEY_RC_BATCH_PUT_MULTI_INTERNAL, NULL), 1);
	assert_int_equal(recorder_count(KEY_PUT_BATCH_FULL, NULL), 1);
	CALL(put_multi(store, &batch, NULL), 0, KEY_RC_BATCH_PUT_MULTI, 0, N, 0, 0);
	batch_fill(&batch, world->memory, (const char *const[N]){"m.3", "huge", "m.0"});
	batch.fragment[1][0] = world->memory;
	batch.fragment_size[1][0] = BUFFER;
	batch.nbufs[1] = 1;
	CALL(put_multi(store, &batch, NULL), 0, KEY_RC_BATCH_PUT_MULTI, SIZE, N, 1, KV_NO_AVAILABLE_HANDLE);
	expect_status(&batch, 0, KV_NO_AVAILABLE_HANDLE, 0);
	CALL(kvstore_batch_put_from_multi_buffers(store, batch.keys, NULL, NULL, NULL, N, NULL, batch.status), 0,
	     KEY_RC_BATCH_PUT_MULTI, 0, N, N, KV_INVALID_PARAMS);
	expect_status(&batch, KV_INVALID_PARAMS, KV_INVALID_PARAMS, KV_INVALID_PARAMS);
}

static void batch_gets(void **state)
{
	struct world *world = *state;
	kvstore_t *store = world->store;
	struct batch batch;
	batch_fill(&batch, world->memory, (const char *const[N]){"g.0", "g.1", "g.2"});
	assert_int_equal(put_multi(store, &batch, NULL), 0);
	expect_status(&batch, 0, 0, 0);
	CALL(get_multi(store, &batch), 0, KEY_RC_BATCH_GET_INTO_MULTI, N * SIZE, N, 0, 0);
	expect_length(&batch, SIZE, SIZE, SIZE);
	assert_int_equal(recorder_count(KEY_RC_BATCH_GET_INTO_MULTI_INTERNAL, NULL), 1);
	assert_int_equal(recorder_count(KEY_CLIENT_BATCH_QUERY, NULL), 1);
	assert_int_equal(recorder_count(KEY_GET_BATCH_FULL, NULL), 1);
	CALL(kvstore_batch_get_into(store, batch.keys, batch.flat, batch.flat_sizes, N, batch.length), 0,
	     KEY_GET_BATCH_INTO_INTERNAL, N * SIZE, N, 0, 0);
	expect_length(&batch, SIZE, SIZE, SIZE);

	batch_fill(&batch, world->memory, (const char *const[N]){"none", "g.1", ""});
	CALL(get_multi(store, &batch), 0, KEY_RC_BATCH_GET_INTO_MULTI, SIZE, N, 2, KV_OBJECT_NOT_FOUND);
	expect_length(&batch, KV_OBJECT_NOT_FOUND, SIZE, KV_INVALID_PARAMS);
	CALL(kvstore_batch_get_into(store, batch.keys, batch.flat, batch.flat_sizes, N, batch.length), 0,
	     KEY_GET_BATCH_INTO_INTERNAL, SIZE, N, 2, KV_OBJECT_NOT_FOUND);
	batch.keys[0] = batch.keys[2] = "g.0";
	batch.fragment_size[2][1]--;
	CALL(get_multi(store, &batch), 0, KEY_RC_BATCH_GET_INTO_MULTI, 2 * SIZE, N, 1, KV_INVALID_PARAMS);
	expect_length(&batch, SIZE, SIZE, KV_INVALID_PARAMS);
	CALL(kvstore_batch_get_into_multi_buffers(store, batch.keys, NULL, NULL, NULL, N, batch.length), 0,
	     KEY_RC_BATCH_GET_INTO_MULTI, 0, N, N, KV_INVALID_PARAMS);
	CALL(kvstore_batch_get_into(store, batch.keys, NULL, batch.flat_sizes, N, batch.length), 0,
	     KEY_GET_BATCH_INTO_INTERNAL, 0, N, N, KV_INVALID_PARAMS);
}

static void batch_questions(void **state)
{
	struct world *world = *state;
	kvstore_t *store = world->store;
	struct batch batch;
	kvstore_replica_lists_t *lists = NULL;
	assert_int_equal(kvstore_put_from(store, "q", world->memory, SIZE, NULL), KV_OK);
	batch_fill(&batch, world->memory, (const char *const[N]){"q", "none", ""});
	CALL(kvstore_batch_is_exist(store, batch.keys, 2, batch.status), 0, KEY_RC_BATCH_IS_EXIST, 0, 2, 0, 0);
	assert_int_equal(batch.status[0], 1);
	assert_int_equal(batch.status[1], 0);
	CALL(kvstore_batch_is_exist(store, batch.keys, N, batch.status), 0, KEY_RC_BATCH_IS_EXIST, 0, N, 1,
	     KV_INVALID_PARAMS);
	assert_int_equal(recorder_count(KEY_RC_BATCH_IS_EXIST_INTERNAL, NULL), 1);
	CALL(kvstore_batch_is_exist(store, batch.keys, 0, batch.status), 0, KEY_RC_BATCH_IS_EXIST, 0, 0, 0, 0);
	CALL(kvstore_batch_get_replica_desc(store, batch.keys, N, &lists), 0, KEY_RC_BATCH_GET_REPLICA_DESC, 0, N, 2,
	     KV_OBJECT_NOT_FOUND);
	assert_int_equal(lists->count[0], 1);
	assert_int_equal(lists->list[0][0].size, SIZE);
	kvstore_replica_lists_free(lists);
}

/* --- silence ------------------------------------------------------------------------------------------ */

static void nothing_fires_when_nothing_is_called(void **state)
{
	static struct firing seen[4096];
	(void)state;
	recorder_clear();
	usleep(1500000); /* longer than every background thread's period */
	size_t n = recorder_copy(seen, 4096);
	for (size_t i = 0; i < n; i++) {
		const char *name = recorder_name(seen[i].key);
		if (seen[i].key != KEY_MASTER_RPC_PING && strncmp(name, "MASTER_BG_", 10) != 0)
			fail_msg("%s fired, and nothing was called", name);
	}
	/* The calls that carry no key fire none of their own either. */
	char name[64];
	recorder_clear();
	assert_int_equal(kvstore_get_hostname(((struct world *)*state)->store, name, sizeof(name)), 0);
	for (int key = 0; key < KEY_COUNT; key++)
		if (recorder_layer((enum recorded_key)key) == 2)
			assert_int_equal(recorder_count((enum recorded_key)key, NULL), 0);
}

#define IN_WORLD(name) cmocka_unit_test_setup_teardown(name, world_begin, world_end)

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(before_setup_and_after_close),
	        cmocka_unit_test(no_one_answers_setup),
	        IN_WORLD(buffers),
	        IN_WORLD(put),
	        IN_WORLD(put_from),
	        IN_WORLD(get_into),
	        IN_WORLD(get_buffer),
	        IN_WORLD(questions),
	        IN_WORLD(removal),
	        IN_WORLD(batch_put_from),
	        IN_WORLD(batch_put_multi),
	        IN_WORLD(batch_gets),
	        IN_WORLD(batch_questions),
	        IN_WORLD(nothing_fires_when_nothing_is_called),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
