/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Proves of one public call what it fired: its own key exactly once with the expected result, nothing twice,
 * nothing left open, all under one op id. Built on the recorder.
 */
#ifndef KVPROBE_TEST_ONCE_H
#define KVPROBE_TEST_ONCE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kvstore.h"
#include "tests/probes/recorder.h"

/* What the call's own key has to report. */
struct outcome {
	enum recorded_key key;
	uint64_t bytes, n_keys, n_failed;
	int64_t rc;
};

/* Fails the test unless the firings since the last recorder_clear() are those of one call with this outcome. */
void expect_call(const char *what, struct outcome outcome);

/* Begin with a clean record, make the call, compare its return value and what it fired. */
#define CALL(expression, returns, ...)                                                                               \
	do {                                                                                                         \
		recorder_clear();                                                                                    \
		assert_int_equal((int64_t)(expression), (int64_t)(returns));                                         \
		expect_call(#expression, (struct outcome){__VA_ARGS__});                                             \
	} while (0)

/* The keys that have fired their done probe since the program began are kept here by expect_call. */
bool ever_fired(enum recorded_key key);
/* Take in what was recorded since the last clear, for calls that are not checked one by one. */
void remember_firings(void);

/* Every public call on a store that cannot do it, each with one good key where it takes keys: each has to report
 * code, once. What setup and close do is not part of it. */
void every_call_fails(kvstore_t *store, int code);

#endif
