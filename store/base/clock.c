/* SPDX-License-Identifier: Apache-2.0 */
#include "store/base/clock.h"

#include <limits.h>
#include <time.h>

static uint64_t read_clock(clockid_t id)
{
	struct timespec ts;
	clock_gettime(id, &ts);
	return (uint64_t)ts.tv_sec * KV_NS_PER_S + (uint64_t)ts.tv_nsec;
}

uint64_t kv_now_ns(void)
{
	return read_clock(CLOCK_MONOTONIC);
}

uint64_t kv_wall_ns(void)
{
	return read_clock(CLOCK_REALTIME);
}

int kv_ms_until(uint64_t deadline_ns)
{
	uint64_t now = kv_now_ns();
	if (deadline_ns <= now)
		return 0;
	/* Rounded up: a wait must not end before the deadline and spin. */
	uint64_t left = deadline_ns - now;
	uint64_t ms = left / KV_NS_PER_MS + (left % KV_NS_PER_MS != 0);
	return ms > INT_MAX ? INT_MAX : (int)ms;
}
