/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/kvprobe/xfer_line.h"

#include <inttypes.h>
#include <stdio.h>

#include "tools/kvprobe/python_number.h"

#define MIB          1048576.0 /* what the line calls MB */
#define NS_PER_MS    1e6
#define NS_PER_S     1e9
#define P90          0.9
#define DIGITS       3 /* of durations, sizes and rates */
#define DIGITS_DESCS 1
#define ZERO_BUCKET  1 /* a duration of 0 is fired as 1 ns, since 0 means that there is none */

void xfer_counts_add(struct xfer_counts *dst, const struct xfer_counts *src)
{
	cell_add(&dst->moved, &src->moved);
	dst->failed_recvs += src->failed_recvs;
	dst->expired_reqs += src->expired_reqs;
}

bool xfer_counts_is_empty(const struct xfer_counts *counts)
{
	return hist_timed(counts->moved.hist) == 0 && counts->moved.failed_calls == 0 && counts->failed_recvs == 0 &&
	       counts->expired_reqs == 0;
}

static void set_averages(struct xfer_figures *out, const struct kvp_cell *moved)
{
	const double n = (double)out->successes, mib = (double)out->bytes / MIB;
	out->avg_ms = python_round((double)out->sum_ns / n / NS_PER_MS, DIGITS);
	out->p90_ms = python_round(cell_quantile_linear(moved, P90) / NS_PER_MS, DIGITS);
	out->avg_mib = python_round(mib / n, DIGITS);
	if (out->sum_ns)
		out->mib_per_s = python_round(mib / ((double)out->sum_ns / NS_PER_S), DIGITS);
	out->avg_descriptors = python_round((double)out->descriptors / n, DIGITS_DESCS);
}

void xfer_figures_of(struct xfer_figures *out, const struct xfer_counts *counts)
{
	const struct kvp_cell *moved = &counts->moved;
	const uint64_t zeros = moved->hist[ZERO_BUCKET];
	*out = (struct xfer_figures){
	        .successes = hist_timed(moved->hist),
	        .failed_transfers = moved->failed_calls,
	        .failed_recvs = counts->failed_recvs,
	        .expired_reqs = counts->expired_reqs,
	        .bytes = moved->bytes,
	        .descriptors = moved->keys,
	        .sum_ns = moved->sum_ns > zeros ? moved->sum_ns - zeros : 0,
	};
	if (out->successes)
		set_averages(out, moved);
}

int xfer_line_format(char out[XFER_LINE_MAX], const struct xfer_figures *figures)
{
	static const char *const names[] = {"Avg xfer time (ms)", "P90 xfer time (ms)", "Avg MB per transfer",
	                                    "Throughput (MB/s)", "Avg number of descriptors"};
	const double values[] = {figures->avg_ms, figures->p90_ms, figures->avg_mib, figures->mib_per_s,
	                         figures->avg_descriptors};
	int length = snprintf(out, XFER_LINE_MAX, "KV Transfer metrics: Num successful transfers=%" PRIu64,
	                      figures->successes);
	for (size_t i = 0; i < sizeof(values) / sizeof(values[0]); i++) {
		char number[PYTHON_NUMBER_MAX] = "0"; /* without a success the figures are the integer 0 */
		if (figures->successes)
			python_repr(values[i], number);
		length += snprintf(out + length, XFER_LINE_MAX - (size_t)length, ", %s=%s", names[i], number);
	}
	length += snprintf(out + length, XFER_LINE_MAX - (size_t)length,
	                   ", Num failed transfers=%" PRIu64 ", Num failed recvs=%" PRIu64
	                   ", Num KV expired reqs=%" PRIu64,
	                   figures->failed_transfers, figures->failed_recvs, figures->expired_reqs);
	return length;
}
