/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The in-process MC_LOG: calls' blocks go into a bounded queue, one thread of the process writes their text
 * to $MC_LOG_DIR/kvstore.<pid>.log or to stderr. The caller never waits for the disk: when the queue is
 * full the whole call is dropped, counted, and the count is reported on stderr.
 *
 * On with MC_LOG_ENABLE; MC_LOG_DIR, MC_LOG_LEVEL and MC_HIFREQ_LOG_SAMPLE_RATE are honoured. All are read
 * once, at the first mc_log_open. A forked child writes a file of its own from a thread of its own; what was
 * in the queue at the fork is the parent's to write.
 */
#ifndef KV_MC_LOG_SINK_H
#define KV_MC_LOG_SINK_H

#include <stdbool.h>
#include <stdint.h>

#include "probes/probe_abi.h"

#define MC_LOG_QUEUE_BYTES ((size_t)64 << 20)
#define MC_LOG_QUEUE_CALLS 65536u

/* 0: off. Else a call is taken if a hash of its id is at most this: one draw per call, no shared state. */
extern uint64_t mc_log_threshold;

/* Read the environment. Idempotent, thread-safe. */
void mc_log_open(void);
bool mc_log_draw(uint64_t op_id);
/* Queue a copy of the block; NULL: there was no memory for it, the call counts as lost. */
void mc_log_submit(const struct kvp_block *block, uint64_t n_keys);
/* Until all that was queued is written, or the time is over. Reports losses. False: not all is written. */
bool mc_log_flush(uint64_t limit_ns);

static inline bool mc_log_takes(uint64_t op_id)
{
	uint64_t threshold = __atomic_load_n(&mc_log_threshold, __ATOMIC_RELAXED);
	return __builtin_expect(threshold != 0, 0) && mc_log_draw(op_id);
}

#endif
