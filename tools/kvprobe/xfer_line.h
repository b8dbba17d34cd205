/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The nine figures of a worker's KV transfers, from what the kernel counted, and the line that the worker's own
 * logging writes of them.
 */
#ifndef KVPROBE_XFER_LINE_H
#define KVPROBE_XFER_LINE_H

#include <stdbool.h>
#include <stdint.h>

#include "tools/kvprobe/hist.h"

/* What was counted: of one worker or of several, in one interval or since the start. */
struct xfer_counts {
	struct kvp_cell moved; /* XFER_WRITE and XFER_READ together */
	uint64_t failed_recvs, expired_reqs;
};

/* The figures as they are printed: rounded. Those of transfers are 0 without a success. */
struct xfer_figures {
	uint64_t successes;
	double avg_ms, p90_ms; /* P90 within KVP_HIST_ERROR */
	double avg_mib, mib_per_s, avg_descriptors;
	uint64_t failed_transfers, failed_recvs, expired_reqs;
	uint64_t bytes, descriptors, sum_ns; /* not rounded */
};

void xfer_counts_add(struct xfer_counts *dst, const struct xfer_counts *src);
/* Neither a transfer nor a failure: the worker's own logging writes nothing then. */
bool xfer_counts_is_empty(const struct xfer_counts *counts);
void xfer_figures_of(struct xfer_figures *out, const struct xfer_counts *counts);

#define XFER_LINE_MAX 640
/* "KV Transfer metrics: Num successful transfers=..., ..." without an end of line. Returns its length. */
int xfer_line_format(char out[XFER_LINE_MAX], const struct xfer_figures *figures);

#endif
