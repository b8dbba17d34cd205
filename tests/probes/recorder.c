/* SPDX-License-Identifier: Apache-2.0 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "probes/perf_points.h"
#include "tests/probes/recorder.h"

#define FIRINGS_MAX 65536

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct firing firings[FIRINGS_MAX];
static size_t n_firings;

static const struct {
	const char *name;
	int layer, level;
} keys[KEY_COUNT] = {
#define PERF_POINT(NAME, LAYER, LEVEL, site, meaning) {#NAME, PERF_LAYER_##LAYER, PERF_LEVEL_##LEVEL},
#include "perf_points.def"
#undef PERF_POINT
};

const char *recorder_name(enum recorded_key key)
{
	return keys[key].name;
}

int recorder_level(enum recorded_key key)
{
	return keys[key].level;
}

int recorder_layer(enum recorded_key key)
{
	return keys[key].layer;
}

static void record(struct firing firing)
{
	pthread_mutex_lock(&lock);
	if (n_firings == FIRINGS_MAX) {
		fprintf(stderr, "recorder: more than %d firings between two clears\n", FIRINGS_MAX);
		abort();
	}
	firings[n_firings++] = firing;
	pthread_mutex_unlock(&lock);
}

void recorder_clear(void)
{
	pthread_mutex_lock(&lock);
	n_firings = 0;
	pthread_mutex_unlock(&lock);
}

static size_t count(enum recorded_key key, bool start, struct firing *last)
{
	size_t n = 0;
	pthread_mutex_lock(&lock);
	for (size_t i = 0; i < n_firings; i++) {
		if (firings[i].key != key || firings[i].start != start)
			continue;
		n++;
		if (last)
			*last = firings[i];
	}
	pthread_mutex_unlock(&lock);
	return n;
}

size_t recorder_count(enum recorded_key key, struct firing *last)
{
	return count(key, false, last);
}

size_t recorder_starts(enum recorded_key key, struct firing *last)
{
	return count(key, true, last);
}

size_t recorder_copy(struct firing *out, size_t max)
{
	pthread_mutex_lock(&lock);
	size_t n = n_firings;
	for (size_t i = 0; i < n && i < max; i++)
		out[i] = firings[i];
	pthread_mutex_unlock(&lock);
	return n;
}

/* --- what perf_unit.c would define ------------------------------------------------------------- */

uint64_t perf_clock_ns(void);
uint64_t perf_clock_ns(void)
{
	struct timespec ts;
	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

/* Both semaphores of the pair are on. */
#define PERF_POINT(NAME, LAYER, LEVEL, site, meaning)                                                                \
	const volatile uint32_t kvp_watched_##NAME = 0x00010001;                                                     \
	uint64_t kvp_start_##NAME(uint64_t op_id, uint64_t n_keys, uint64_t bytes_offered)                           \
	{                                                                                                            \
		record((struct firing){.key = KEY_##NAME,                                                            \
		                       .start = true,                                                                \
		                       .bytes = bytes_offered,                                                       \
		                       .n_keys = n_keys,                                                             \
		                       .op_id = op_id});                                                             \
		return perf_clock_ns();                                                                              \
	}                                                                                                            \
	void kvp_done_##NAME(uint64_t start_ns, uint64_t bytes, uint64_t n_keys, uint64_t n_failed, int64_t rc,      \
	                     uint64_t op_id)                                                                         \
	{                                                                                                            \
		record((struct firing){.key = KEY_##NAME,                                                            \
		                       .timed = start_ns != 0,                                                       \
		                       .bytes = bytes,                                                               \
		                       .n_keys = n_keys,                                                             \
		                       .n_failed = n_failed,                                                         \
		                       .rc = rc,                                                                     \
		                       .op_id = op_id});                                                             \
	}
#include "perf_points.def"
#undef PERF_POINT

const volatile uint16_t kvstore_op_log_semaphore = 0;
void kvp_op_log(const void *block, uint64_t block_bytes, uint64_t op_id, uint64_t elapsed_ns, uint64_t op,
                uint64_t n_keys)
{
	(void)block, (void)block_bytes, (void)op_id, (void)elapsed_ns, (void)op, (void)n_keys;
}
