/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A probe unit that records instead of firing: linked into a test in place of probes/perf_unit.c, it sees every
 * firing of every key with its arguments, in order, and needs no kernel for it. Every key is watched.
 */
#ifndef KVPROBE_TEST_RECORDER_H
#define KVPROBE_TEST_RECORDER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum recorded_key {
#define PERF_POINT(NAME, LAYER, LEVEL, site, meaning) KEY_##NAME,
#include "perf_points.def"
#undef PERF_POINT
	KEY_COUNT,
};

struct firing {
	enum recorded_key key;
	bool start; /* K__start; then bytes is bytes_offered, and n_failed and rc are 0 */
	bool timed;
	uint64_t bytes, n_keys, n_failed, op_id;
	int64_t rc;
};

const char *recorder_name(enum recorded_key key);
/* The level of a key: enum perf_level. */
int recorder_level(enum recorded_key key);
/* The layer of a key: enum perf_layer. */
int recorder_layer(enum recorded_key key);

/* Forget what was recorded so far. */
void recorder_clear(void);
/* How often a key fired its done probe, and the last of these firings into *last (which may be NULL). */
size_t recorder_count(enum recorded_key key, struct firing *last);
/* The same of its start probe. */
size_t recorder_starts(enum recorded_key key, struct firing *last);
/* Copy what was recorded, done and start, oldest first; returns how many there are (may exceed max). */
size_t recorder_copy(struct firing *out, size_t max);

#endif
