/* SPDX-License-Identifier: Apache-2.0 */
/* Reading a duration histogram (bpf/hist_math.h): quantiles of a whole run, or of an interval. */
#ifndef KVPROBE_HIST_H
#define KVPROBE_HIST_H

#include "bpf/kvprobe_bpf.h"

/* What a row of a table is made from: a cell, or the difference of two readings of it. */
struct cell_summary {
	uint64_t calls, failed_calls, keys, failed_keys, bytes, untimed;
	uint64_t avg_ns, p50_ns, p99_ns, p999_ns, max_ns; /* 0 if no call was timed */
};

/* Calls that have a duration. Those of bucket 0 are events, which have none (kvprobe_bpf.h). */
uint64_t hist_timed(const uint64_t *hist);
/* The value at a quantile by nearest rank: the middle of the bucket that holds it, within 3.2 %. 0 if empty. */
uint64_t hist_quantile(const uint64_t *hist, double quantile);

/* dst += src: the cells of several workers as one. Minimum and maximum combine too. */
void cell_add(struct kvp_cell *dst, const struct kvp_cell *src);
/* out = now - before. The maximum is the upper edge of the highest bucket that grew, at most the total's: the
 * exact one of an interval is not known. The minimum is not known at all: 0. */
void cell_subtract(struct kvp_cell *out, const struct kvp_cell *now, const struct kvp_cell *before);
/* The value at a quantile by linear interpolation between the neighbours of rank quantile * (n - 1): nanoseconds,
 * within KVP_HIST_ERROR of that of the calls themselves. 0 if none is timed. */
double cell_quantile_linear(const struct kvp_cell *cell, double quantile);
/* Calls of every kind: timed, untimed and events. */
uint64_t cell_calls(const struct kvp_cell *cell);
void cell_summarize(struct cell_summary *out, const struct kvp_cell *cell);

#endif
