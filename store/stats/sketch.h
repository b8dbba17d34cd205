/* SPDX-License-Identifier: Apache-2.0 */
/* What is kept of rows beyond the limit: exact counts and sums, the buckets of the metrics, and a log-linear
 * histogram of the durations for P90. */
#ifndef KV_XFER_SKETCH_H
#define KV_XFER_SKETCH_H

#include "store/base/loglin.h"
#include "store/stats/histograms.h"
#include "store/stats/transfer_stats.h"

struct xfer_sums {
	long double seconds;
	unsigned __int128 bytes, descriptors;
};

struct xfer_sketch {
	uint64_t rows;
	struct xfer_sums sums;
	struct xfer_histograms histograms;
	uint64_t ns[LOGLIN_BUCKETS]; /* a negative duration counts as 0 */
};

/* The duration of a row in whole nanoseconds, at least 0; a half goes to the even one, as Python rounds. */
uint64_t xfer_row_ns(const struct xfer_row *row);

void xfer_sums_push(struct xfer_sums *sums, const struct xfer_row *row);
void xfer_sums_add(struct xfer_sums *into, const struct xfer_sums *from);

/* An empty sketch, to be freed with free(). NULL without memory. */
struct xfer_sketch *xfer_sketch_new(void);
void xfer_sketch_push(struct xfer_sketch *sketch, const struct xfer_row *row);
void xfer_sketch_add(struct xfer_sketch *into, const struct xfer_sketch *from);
/* The q-quantile (0 to 1) of the durations in the histogram, in ns, interpolated between ranks as numpy does; n is
 * the sum of the counts, above 0. */
double xfer_sketch_quantile(const uint64_t *counts, uint64_t n, double q);

#endif
