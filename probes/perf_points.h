/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How a site is instrumented. These macros are the only way to fire a probe.
 *
 *   int rc_remove(struct real_client *rc, uint64_t op_id, ...)
 *   {
 *       PERF_SCOPE(RC_REMOVE, perf, op_id, 1, 0);      // begin
 *       if (bad)
 *           return perf_result(&perf, 0, 1, KV_INVALID_PARAMS);
 *       ...
 *       perf_set(&perf, bytes, n_keys, n_failed, rc);  // what the done probe will say
 *       return 0;
 *   }                                                   // end: fires whatever the way out
 *
 * A scope ends with its block (attribute cleanup), so no return, goto or break can leave it open (only what is
 * driven by events, like a connect under way, begins and ends by PERF_BEGIN and PERF_END). It
 * starts out as failed (rc KV_INTERNAL_ERROR, every key failed): a way out that forgets to say its
 * result is seen as a failure, never as a success.
 *
 * Cost of a site that no one watches: at begin and at end one load, one test, one branch. The two
 * semaphores of a key (done, start) lie side by side so that one 32-bit load tests both.
 *
 * Thread-safety: a scope belongs to the thread that began it.
 */
#ifndef KVPROBE_PERF_POINTS_H
#define KVPROBE_PERF_POINTS_H

#include <stdbool.h>
#include <stdint.h>

enum perf_layer {
	PERF_LAYER_PY = 1,
	PERF_LAYER_RC,
	PERF_LAYER_CLIENT,
	PERF_LAYER_TRANSFER,
	PERF_LAYER_MASTER,
	PERF_LAYER_XFER,
};

enum perf_level {
	PERF_LEVEL_SUB_SYSTEM = 1,
	PERF_LEVEL_KEY_MODULE = 2,
	PERF_LEVEL_MODULE = 3,
	PERF_LEVEL_DEBUG = 4,
};

#define KVP_HIDDEN      __attribute__((visibility("hidden")))
#define KVP_INLINE      static inline __attribute__((always_inline, unused))
#define KVP_UNLIKELY(x) __builtin_expect(!!(x), 0)

/* What one begun call knows; made by PERF_SCOPE, read by the end of its block. */
struct perf_scope {
	uint64_t start_ns; /* CLOCK_MONOTONIC; 0: no one watched when the call began */
	uint64_t op_id;
	uint64_t n_keys;
	uint64_t bytes;
	uint64_t n_failed;
	int64_t rc;
};

/* Set what the done probe reports: bytes moved for keys that succeeded, keys of the call, keys with a
 * negative result, the first negative per-key code or 0. */
KVP_INLINE void perf_set(struct perf_scope *scope, uint64_t bytes, uint64_t n_keys, uint64_t n_failed, int64_t rc)
{
	scope->bytes = bytes;
	scope->n_keys = n_keys;
	scope->n_failed = n_failed;
	scope->rc = rc;
}

/* The same for a call with at most one result: returns rc, so that it can stand in a return statement.
 * n_failed follows from rc. */
KVP_INLINE int64_t perf_result(struct perf_scope *scope, uint64_t bytes, uint64_t n_keys, int64_t rc)
{
	perf_set(scope, bytes, n_keys, rc < 0 ? n_keys : 0, rc < 0 ? rc : 0);
	return rc;
}

#ifndef KVPROBE_NO_PROBES

/* Per key: the pair of semaphores, and the two cold functions of the probe unit (perf_unit.c). */
#define PERF_POINT(NAME, LAYER, LEVEL, site, meaning)                                                                \
	extern const volatile uint32_t kvp_watched_##NAME KVP_HIDDEN;                                                \
	KVP_HIDDEN uint64_t kvp_start_##NAME(uint64_t op_id, uint64_t n_keys, uint64_t bytes_offered);               \
	KVP_HIDDEN void kvp_done_##NAME(uint64_t start_ns, uint64_t bytes, uint64_t n_keys, uint64_t n_failed,       \
	                                int64_t rc, uint64_t op_id);                                                 \
	KVP_INLINE struct perf_scope perf_begin_##NAME(uint64_t op_id, uint64_t n_keys, uint64_t bytes_offered,      \
	                                               bool timed) {                                                 \
		struct perf_scope scope = {.op_id = op_id, .n_keys = n_keys, .n_failed = n_keys, .rc = -1};          \
		if (KVP_UNLIKELY(kvp_watched_##NAME || timed))                                                       \
			scope.start_ns = kvp_start_##NAME(op_id, n_keys, bytes_offered);                             \
		return scope;                                                                                        \
	} KVP_INLINE void perf_end_##NAME(struct perf_scope *scope)                                                  \
	{                                                                                                            \
		if (KVP_UNLIKELY(kvp_watched_##NAME))                                                                \
			kvp_done_##NAME(scope->start_ns, scope->bytes, scope->n_keys, scope->n_failed, scope->rc,    \
			                scope->op_id);                                                               \
	}
#include "perf_points.def"
#undef PERF_POINT

/* What someone else has measured, in the XFER layer: fires start and done at once, with these arguments. op_id is
 * evaluated only while someone watches. */
#define PERF_POINT(NAME, LAYER, LEVEL, site, meaning) KVP_RECORD_##LAYER(NAME)
#define KVP_RECORD_PY(NAME)
#define KVP_RECORD_RC(NAME)
#define KVP_RECORD_CLIENT(NAME)
#define KVP_RECORD_TRANSFER(NAME)
#define KVP_RECORD_MASTER(NAME)
#define KVP_RECORD_XFER(NAME)                                                                                        \
	KVP_HIDDEN void kvp_record_##NAME(uint64_t elapsed_ns, uint64_t bytes, uint64_t n_keys, uint64_t n_failed,   \
	                                  int64_t rc, uint64_t op_id);
#include "perf_points.def"
#undef PERF_POINT
#define PERF_RECORD(NAME, elapsed_ns, bytes, n_keys, n_failed, rc, op_id)                                            \
	do {                                                                                                         \
		if (KVP_UNLIKELY(kvp_watched_##NAME))                                                                \
			kvp_record_##NAME((elapsed_ns), (bytes), (n_keys), (n_failed), (rc), (op_id));               \
	} while (0)

/* The same in two halves, for what ends in another function than it began in; who holds the scope ends it once. */
#define PERF_BEGIN(NAME, op_id, n_keys, bytes_offered) perf_begin_##NAME((op_id), (n_keys), (bytes_offered), false)
#define PERF_END(NAME, scope)                          perf_end_##NAME(scope)

/* True while someone watches NAME__start: only then are bytes_offered worth adding up for it alone. */
#define PERF_START_WATCHED(NAME) KVP_UNLIKELY(kvp_watched_##NAME >> 16)

#define PERF_SCOPE_TIMED(NAME, var, op_id, n_keys, bytes_offered, timed)                                             \
	struct perf_scope var __attribute__((cleanup(perf_end_##NAME))) =                                            \
	        perf_begin_##NAME((op_id), (n_keys), (bytes_offered), (timed))

/* True while someone watches op_log: the RealClient layer then packs a block for each logged call. */
extern const volatile uint16_t kvstore_op_log_semaphore KVP_HIDDEN;
KVP_INLINE bool perf_op_log_watched(void)
{
	return KVP_UNLIKELY(kvstore_op_log_semaphore);
}

/* Fires op_log. block may be NULL with block_bytes 0: a call that began before anyone watched, which the
 * collector counts as partial (elapsed_ns is 0 then). op: enum kvp_op of probe_abi.h. */
KVP_HIDDEN void kvp_op_log(const void *block, uint64_t block_bytes, uint64_t op_id, uint64_t elapsed_ns, uint64_t op,
                           uint64_t n_keys);

#else /* probes compiled out, to measure against; a scope that asks to be timed (the in-process log) still is */

uint64_t perf_clock_ns(void);
KVP_INLINE void perf_end_none(struct perf_scope *scope)
{
	(void)scope;
}
#define PERF_START_WATCHED(NAME) false
#define PERF_SCOPE_TIMED(NAME, var, op, keys, bytes_offered, timed)                                                  \
	struct perf_scope var __attribute__((cleanup(perf_end_none), unused)) = {                                    \
	        .op_id = (op), .n_keys = (keys), .start_ns = (timed) ? perf_clock_ns() : ((void)(bytes_offered), 0)}
#define PERF_BEGIN(NAME, op, keys, bytes_offered)                                                                    \
	((void)(bytes_offered), (struct perf_scope){.op_id = (op), .n_keys = (keys)})
#define PERF_END(NAME, scope) perf_end_none(scope)
#define PERF_RECORD(NAME, elapsed_ns, bytes, n_keys, n_failed, rc, op_id)                                            \
	((void)(elapsed_ns), (void)(bytes), (void)(n_keys), (void)(n_failed), (void)(rc), (void)sizeof(op_id))
KVP_INLINE bool perf_op_log_watched(void)
{
	return false;
}
KVP_INLINE void kvp_op_log(const void *block, uint64_t block_bytes, uint64_t op_id, uint64_t elapsed_ns, uint64_t op,
                           uint64_t n_keys)
{
	(void)block, (void)block_bytes, (void)op_id, (void)elapsed_ns, (void)op, (void)n_keys;
}

#endif

/* Begin a site: declares `var`, which ends with the enclosing block. */
#define PERF_SCOPE(NAME, var, op_id, n_keys, bytes_offered)                                                          \
	PERF_SCOPE_TIMED(NAME, var, op_id, n_keys, bytes_offered, false)

#endif
