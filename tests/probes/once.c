/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "probes/perf_points.h"
#include "tests/probes/once.h"

#define FIRINGS_MAX 65536

static bool fired[KEY_COUNT];

bool ever_fired(enum recorded_key key)
{
	return fired[key];
}

void remember_firings(void)
{
	for (int key = 0; key < KEY_COUNT; key++)
		if (recorder_count((enum recorded_key)key, NULL) > 0)
			fired[key] = true;
}

/* Keys that fire by themselves, whatever is called. */
static bool is_background(enum recorded_key key)
{
	return key == KEY_MASTER_RPC_PING || strncmp(recorder_name(key), "MASTER_BG_", 10) == 0;
}

/* Keys of a step that a call may take several times: per object at the master, per connection. */
static bool may_repeat(enum recorded_key key)
{
	if (recorder_level(key) == PERF_LEVEL_DEBUG)
		return true;
	return recorder_layer(key) == PERF_LAYER_MASTER && recorder_level(key) != PERF_LEVEL_KEY_MODULE;
}

void expect_call(const char *what, struct outcome outcome)
{
	static struct firing seen[FIRINGS_MAX];
	size_t starts[KEY_COUNT] = {0}, dones[KEY_COUNT] = {0};
	struct firing own;
	if (recorder_count(outcome.key, &own) != 1 || recorder_starts(outcome.key, NULL) != 1)
		fail_msg("%s: %s fired %zu times, began %zu times", what, recorder_name(outcome.key),
		         recorder_count(outcome.key, NULL), recorder_starts(outcome.key, NULL));
	if (own.bytes != outcome.bytes || own.n_keys != outcome.n_keys || own.n_failed != outcome.n_failed ||
	    own.rc != outcome.rc)
		fail_msg("%s: %s reports bytes=%lu n_keys=%lu n_failed=%lu rc=%ld, expected %lu %lu %lu %ld", what,
		         recorder_name(outcome.key), own.bytes, own.n_keys, own.n_failed, own.rc, outcome.bytes,
		         outcome.n_keys, outcome.n_failed, outcome.rc);
	assert_true(own.timed);
	assert_int_not_equal(own.op_id, 0);

	size_t n = recorder_copy(seen, FIRINGS_MAX);
	for (size_t i = 0; i < n; i++) {
		if (is_background(seen[i].key))
			continue;
		if (seen[i].op_id != own.op_id)
			fail_msg("%s: %s fired under another op id", what, recorder_name(seen[i].key));
		(seen[i].start ? starts : dones)[seen[i].key]++;
		if (seen[i].n_failed > seen[i].n_keys || (seen[i].rc > 0))
			fail_msg("%s: %s reports n_keys=%lu n_failed=%lu rc=%ld", what, recorder_name(seen[i].key),
			         seen[i].n_keys, seen[i].n_failed, seen[i].rc);
	}
	for (int key = 0; key < KEY_COUNT; key++) {
		if (starts[key] != dones[key])
			fail_msg("%s: %s began %zu times and ended %zu times", what,
			         recorder_name((enum recorded_key)key), starts[key], dones[key]);
		if (dones[key] > 1 && !may_repeat((enum recorded_key)key))
			fail_msg("%s: %s fired %zu times in one call", what, recorder_name((enum recorded_key)key),
			         dones[key]);
	}
	remember_firings();
}

#define SIZE 4096

void every_call_fails(kvstore_t *store, int code)
{
	static char memory[SIZE];
	void *buffer = memory;
	const char *key = "a key";
	const size_t size = SIZE, one = 1;
	void *const *fragments = &buffer;
	const size_t *sizes = &size;
	int result = 0;
	int64_t length = 0;
	void *copy = NULL;
	kvstore_replica_lists_t *lists = NULL;

	CALL(kvstore_put(store, key, memory, SIZE, NULL), code, KEY_PUT_INTERNAL_FULL, 0, 1, 1, code);
	CALL(kvstore_put_from(store, key, memory, SIZE, NULL), code, KEY_RC_PUT_FROM, 0, 1, 1, code);
	CALL(kvstore_batch_put_from(store, &key, &buffer, &size, 1, NULL, &result), 0, KEY_RC_BATCH_PUT_FROM, 0, 1, 1,
	     code);
	assert_int_equal(result, code);
	CALL(kvstore_batch_put_from_multi_buffers(store, &key, &fragments, &sizes, &one, 1, NULL, &result), 0,
	     KEY_RC_BATCH_PUT_MULTI, 0, 1, 1, code);
	assert_int_equal(result, code);
	CALL(kvstore_get_into(store, key, memory, SIZE), code, KEY_GET_INTO_INTERNAL, 0, 1, 1, code);
	CALL(kvstore_batch_get_into(store, &key, &buffer, &size, 1, &length), 0, KEY_GET_BATCH_INTO_INTERNAL, 0, 1, 1,
	     code);
	assert_int_equal(length, code);
	CALL(kvstore_batch_get_into_multi_buffers(store, &key, &fragments, &sizes, &one, 1, &length), 0,
	     KEY_RC_BATCH_GET_INTO_MULTI, 0, 1, 1, code);
	assert_int_equal(length, code);
	CALL(kvstore_get_buffer(store, key, &copy), code, KEY_GET_BUFFER_INTERNAL_FULL, 0, 1, 1, code);
	assert_null(copy);
	CALL(kvstore_batch_is_exist(store, &key, 1, &result), 0, KEY_RC_BATCH_IS_EXIST, 0, 1, 1, code);
	assert_int_equal(result, code);
	CALL(kvstore_get_size(store, key), code, KEY_RC_GET_SIZE, 0, 1, 1, code);
	CALL(kvstore_remove(store, key, 0), code, KEY_RC_REMOVE, 0, 1, 1, code);
	CALL(kvstore_remove_all(store, 0), code, KEY_RC_REMOVE_ALL, 0, 0, 0, code);
	CALL(kvstore_batch_get_replica_desc(store, &key, 1, &lists), code, KEY_RC_BATCH_GET_REPLICA_DESC, 0, 1, 1,
	     code);
	assert_null(lists);
	/* The scalar form answers "no" where it cannot ask. */
	recorder_clear();
	int exists = kvstore_is_exist(store, key);
	assert_true(exists == 0 || exists == code);
	expect_call("kvstore_is_exist", (struct outcome){KEY_RC_IS_EXIST, 0, 1, exists < 0, exists});
}
