/* SPDX-License-Identifier: Apache-2.0 */
/* The buckets that the metrics expose, counted exactly: of rows that are kept and of those that are not. */
#ifndef KV_XFER_HISTOGRAMS_H
#define KV_XFER_HISTOGRAMS_H

#include <stdint.h>

#include "store/stats/transfer_stats.h"

#define XFER_TIME_BOUNDS       12u
#define XFER_BYTES_BOUNDS      12u
#define XFER_DESCRIPTOR_BOUNDS 14u

/* An upper bound, inclusive, and how it is written in an le label: as the Python client writes it, so that the series
 * are the same whichever of the two exposes them. */
struct xfer_bound {
	double value;
	const char *le;
};

extern const struct xfer_bound xfer_time_bounds[XFER_TIME_BOUNDS]; /* seconds */
extern const struct xfer_bound xfer_bytes_bounds[XFER_BYTES_BOUNDS];
extern const struct xfer_bound xfer_descriptor_bounds[XFER_DESCRIPTOR_BOUNDS];

/* Rows per bucket, not cumulative; the last is above every bound. */
struct xfer_histograms {
	uint64_t time[XFER_TIME_BOUNDS + 1];
	uint64_t bytes[XFER_BYTES_BOUNDS + 1];
	uint64_t descriptors[XFER_DESCRIPTOR_BOUNDS + 1];
};

void xfer_histograms_push(struct xfer_histograms *histograms, const struct xfer_row *row);
void xfer_histograms_add(struct xfer_histograms *into, const struct xfer_histograms *from);

#endif
