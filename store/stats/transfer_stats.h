/* SPDX-License-Identifier: Apache-2.0 */
/*
 * KV transfer stats: what a KV connector records of its transfers, a row per success and a count per kind of failure,
 * from any number of threads, and what becomes of it at the end of an interval.
 *
 * Data flow: xfer_stats_record_* (writers, any thread) -> xfer_stats_take (one atomic cut) -> struct xfer_snapshot,
 * which belongs to one thread -> xfer_snapshot_add (merge), xfer_snapshot_reduce, the metrics (prom_text.h).
 *
 * Writers are spread over shards, each with its own lock, so that they hardly ever wait for one another; a row is
 * written whole under its shard's lock. A cut holds every shard's lock for as long as it takes to exchange pointers:
 * nothing that was recorded before it is missing, nothing is in two cuts. Rows of one thread keep their order.
 *
 * Memory is bounded: up to row_limit rows between two cuts are kept as they are. Beyond it only sums, counts and a
 * log-linear sketch of the durations go on: averages and throughput stay exact, P90 is within XFER_SKETCH_ERROR of
 * the exact one, and `approximate` says so.
 */
#ifndef KV_TRANSFER_STATS_H
#define KV_TRANSFER_STATS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define XFER_ROW_LIMIT    1000000u
#define XFER_SKETCH_ERROR 0.015625 /* relative; a duration below 32 ns is exact to 1 ns */

struct xfer_row {
	double duration_s;
	int64_t bytes;
	uint32_t descriptors;
};

enum xfer_direction { XFER_DIRECTION_WRITE, XFER_DIRECTION_READ };
enum xfer_failure { XFER_FAILED_TRANSFER, XFER_FAILED_RECV, XFER_EXPIRED_REQ, XFER_FAILURES };

struct xfer_stats;  /* opaque, thread-safe */
struct xfer_sketch; /* rows beyond the limit, summed up: sketch.h */

/* A cut, or a merge of several: plain data of one thread. */
struct xfer_snapshot {
	struct xfer_row *rows;
	size_t n_rows, room;
	uint64_t failures[XFER_FAILURES];
	size_t row_limit;
	struct xfer_sketch *overflow; /* NULL: every row is in rows */
};

/* The nine figures, unrounded; those of rows are 0 without a success. */
struct xfer_reduced {
	uint64_t successes;
	double avg_ms, p90_ms, avg_mib, mib_per_s, avg_descriptors;
	uint64_t failures[XFER_FAILURES];
	bool approximate; /* P90 is from the sketch */
};

/* row_limit 0: XFER_ROW_LIMIT. NULL without memory. */
struct xfer_stats *xfer_stats_new(size_t row_limit);
/* No other call may be running. NULL is allowed. */
void xfer_stats_free(struct xfer_stats *stats);

/* One transfer that succeeded. Fires XFER_WRITE or XFER_READ: elapsed_ns max(1, round(duration_s * 1e9)) with
 * halves to even, bytes, n_keys = descriptors, n_failed 0, rc 0. Returns 0; KV_INVALID_PARAMS for a duration that is
 * not finite or bytes below 0; KV_INTERNAL_ERROR without memory. Nothing is recorded and nothing fires then. */
int xfer_stats_record(struct xfer_stats *stats, enum xfer_direction direction, const struct xfer_row *row);
/* One failure. Fires XFER_WRITE or XFER_READ (by direction), XFER_RECV_FAILED or XFER_REQ_EXPIRED with elapsed_ns 0,
 * bytes 0, n_keys 0, n_failed 1 and rc KV_TRANSFER_FAIL (-800), for an expired request KV_RPC_TIMEOUT (-901). */
void xfer_stats_record_failure(struct xfer_stats *stats, enum xfer_direction direction, enum xfer_failure failure);

/* Everything recorded since the last take, in one atomic cut; *out is overwritten and to be freed with
 * xfer_snapshot_free. KV_INTERNAL_ERROR without memory: nothing was taken. */
int xfer_stats_take(struct xfer_stats *stats, struct xfer_snapshot *out);
/* The same without taking anything away. KV_INTERNAL_ERROR without memory. */
int xfer_stats_copy(struct xfer_stats *stats, struct xfer_snapshot *out);
/* Neither a success nor a failure is there. */
bool xfer_stats_is_empty(struct xfer_stats *stats);
uint64_t xfer_stats_successes(struct xfer_stats *stats);
/* There are rows beyond the limit. */
bool xfer_stats_is_approximate(struct xfer_stats *stats);
/* Count a snapshot's content in as well (a merge into a live object). Fires nothing. KV_INTERNAL_ERROR without
 * memory: a part may have been added. */
int xfer_stats_add(struct xfer_stats *stats, const struct xfer_snapshot *from);

/* Zeroed snapshots are empty. */
void xfer_snapshot_free(struct xfer_snapshot *snapshot);
/* Append a row; beyond the limit (row_limit, 0: XFER_ROW_LIMIT) to the sketch. KV_INTERNAL_ERROR without memory. */
int xfer_snapshot_push(struct xfer_snapshot *snapshot, const struct xfer_row *row);
/* Append another's content. KV_INTERNAL_ERROR without memory: *into may hold a part of it. */
int xfer_snapshot_add(struct xfer_snapshot *into, const struct xfer_snapshot *from);
uint64_t xfer_snapshot_successes(const struct xfer_snapshot *snapshot);
bool xfer_snapshot_is_empty(const struct xfer_snapshot *snapshot);

/* P90 is that of numpy.percentile (linear between neighbours). Throughput divides by the sum of the durations, and is
 * 0 where that is not positive. KV_INTERNAL_ERROR without memory for the sort. */
int xfer_snapshot_reduce(const struct xfer_snapshot *snapshot, struct xfer_reduced *out);

#endif
