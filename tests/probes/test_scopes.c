/* SPDX-License-Identifier: Apache-2.0 */
/* A scope ends exactly once, whatever the way out of its block; one that says nothing has failed. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "probes/perf_points.h"
#include "tests/probes/recorder.h"

#define OP_ID   77
#define N_KEYS  5
#define OFFERED 4096

static void expect_one(enum recorded_key key, uint64_t bytes, uint64_t n_failed, int64_t rc)
{
	struct firing start, done;
	assert_int_equal(recorder_starts(key, &start), 1);
	assert_int_equal(recorder_count(key, &done), 1);
	assert_int_equal(start.op_id, OP_ID);
	assert_int_equal(start.n_keys, N_KEYS);
	assert_int_equal(start.bytes, OFFERED);
	assert_true(done.timed);
	assert_int_equal(done.op_id, OP_ID);
	assert_int_equal(done.n_keys, N_KEYS);
	assert_int_equal(done.bytes, bytes);
	assert_int_equal(done.n_failed, n_failed);
	assert_int_equal(done.rc, rc);
}

static void falls_off_the_end(void)
{
	PERF_SCOPE(RC_REMOVE, perf, OP_ID, N_KEYS, OFFERED);
	(void)perf;
}

static int64_t returns_from_depth(int depth)
{
	PERF_SCOPE(RC_REMOVE, perf, OP_ID, N_KEYS, OFFERED);
	for (int i = 0; i < 10; i++) {
		if (i < depth)
			continue;
		switch (i) {
		case 3:
			return perf_result(&perf, 0, N_KEYS, -704);
		default:
			perf_set(&perf, 123, N_KEYS, 2, -800);
			return 1;
		}
	}
	return 0;
}

static void leaves_by_goto(void)
{
	{
		PERF_SCOPE(RC_REMOVE, perf, OP_ID, N_KEYS, OFFERED);
		perf_set(&perf, 1, N_KEYS, 0, 0);
		goto out;
	}
out:
	assert_int_equal(recorder_count(KEY_RC_REMOVE, NULL), 1);
}

static void no_result_is_a_failure(void **state)
{
	(void)state;
	recorder_clear();
	falls_off_the_end();
	expect_one(KEY_RC_REMOVE, 0, N_KEYS, -1);
}

static void early_returns(void **state)
{
	(void)state;
	recorder_clear();
	assert_int_equal(returns_from_depth(3), -704);
	expect_one(KEY_RC_REMOVE, 0, N_KEYS, -704);
	recorder_clear();
	assert_int_equal(returns_from_depth(4), 1);
	expect_one(KEY_RC_REMOVE, 123, 2, -800);
	recorder_clear();
	assert_int_equal(returns_from_depth(10), 0);
	expect_one(KEY_RC_REMOVE, 0, N_KEYS, -1);
}

static void goto_out_of_the_block(void **state)
{
	(void)state;
	recorder_clear();
	leaves_by_goto();
	expect_one(KEY_RC_REMOVE, 1, 0, 0);
}

static void break_and_continue(void **state)
{
	(void)state;
	recorder_clear();
	for (int i = 0; i < 10; i++) {
		PERF_SCOPE(RC_REMOVE, perf, (uint64_t)i, N_KEYS, OFFERED);
		perf_set(&perf, 0, N_KEYS, 0, 0);
		if (i == 6)
			break;
		if (i % 2)
			continue;
	}
	assert_int_equal(recorder_count(KEY_RC_REMOVE, NULL), 7);
	assert_int_equal(recorder_starts(KEY_RC_REMOVE, NULL), 7);
}

static void nested_scopes_end_inside_out(void **state)
{
	(void)state;
	struct firing seen[8];
	recorder_clear();
	{
		PERF_SCOPE(RC_REMOVE_ALL, outer, OP_ID, N_KEYS, OFFERED);
		PERF_SCOPE(RC_REMOVE_ALL_INTERNAL, inner, OP_ID, N_KEYS, OFFERED);
		perf_set(&inner, 2, N_KEYS, 0, 0);
		perf_set(&outer, 1, N_KEYS, 0, 0);
	}
	assert_int_equal(recorder_copy(seen, 8), 4);
	assert_int_equal(seen[0].key, KEY_RC_REMOVE_ALL);
	assert_int_equal(seen[1].key, KEY_RC_REMOVE_ALL_INTERNAL);
	assert_int_equal(seen[2].key, KEY_RC_REMOVE_ALL_INTERNAL);
	assert_int_equal(seen[3].key, KEY_RC_REMOVE_ALL);
	expect_one(KEY_RC_REMOVE_ALL_INTERNAL, 2, 0, 0);
	expect_one(KEY_RC_REMOVE_ALL, 1, 0, 0);
}

static void result_of_a_success_has_no_code(void **state)
{
	(void)state;
	recorder_clear();
	{
		PERF_SCOPE(RC_GET_SIZE, perf, OP_ID, N_KEYS, OFFERED);
		assert_int_equal(perf_result(&perf, 10, N_KEYS, 4096), 4096);
	}
	expect_one(KEY_RC_GET_SIZE, 10, 0, 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(no_result_is_a_failure),       cmocka_unit_test(early_returns),
	        cmocka_unit_test(goto_out_of_the_block),        cmocka_unit_test(break_and_continue),
	        cmocka_unit_test(nested_scopes_end_inside_out), cmocka_unit_test(result_of_a_success_has_no_code),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
