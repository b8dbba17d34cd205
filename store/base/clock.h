/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KV_BASE_CLOCK_H
#define KV_BASE_CLOCK_H

#include <stdint.h>

#define KV_NS_PER_MS 1000000ull
#define KV_NS_PER_S  1000000000ull

/* CLOCK_MONOTONIC in ns; what every deadline is measured by. */
uint64_t kv_now_ns(void);
/* CLOCK_REALTIME in ns; for text only. */
uint64_t kv_wall_ns(void);
/* Milliseconds from now until the deadline for poll(): 0 if past, rounded up, at most INT_MAX. */
int kv_ms_until(uint64_t deadline_ns);

#endif
