/* SPDX-License-Identifier: Apache-2.0 */
#include "store/stats/sketch.h"

#include <math.h>
#include <stdlib.h>

#define NS_MAX 9.2e18 /* what fits, with room to spare */

uint64_t xfer_row_ns(const struct xfer_row *row)
{
	double ns = row->duration_s * 1e9;
	if (!(ns > 0))
		return 0;
	return ns < NS_MAX ? (uint64_t)rint(ns) : (uint64_t)NS_MAX;
}

void xfer_sums_push(struct xfer_sums *sums, const struct xfer_row *row)
{
	sums->seconds += row->duration_s;
	sums->bytes += (uint64_t)row->bytes;
	sums->descriptors += row->descriptors;
}

void xfer_sums_add(struct xfer_sums *into, const struct xfer_sums *from)
{
	into->seconds += from->seconds;
	into->bytes += from->bytes;
	into->descriptors += from->descriptors;
}

struct xfer_sketch *xfer_sketch_new(void)
{
	return calloc(1, sizeof(struct xfer_sketch));
}

void xfer_sketch_push(struct xfer_sketch *sketch, const struct xfer_row *row)
{
	sketch->rows++;
	xfer_sums_push(&sketch->sums, row);
	xfer_histograms_push(&sketch->histograms, row);
	sketch->ns[loglin_bucket(xfer_row_ns(row))]++;
}

void xfer_sketch_add(struct xfer_sketch *into, const struct xfer_sketch *from)
{
	into->rows += from->rows;
	xfer_sums_add(&into->sums, &from->sums);
	xfer_histograms_add(&into->histograms, &from->histograms);
	for (uint32_t i = 0; i < LOGLIN_BUCKETS; i++)
		into->ns[i] += from->ns[i];
}

/* The value at a rank that counts from 0. */
static double value_at(const uint64_t *counts, uint64_t rank)
{
	uint64_t seen = 0;
	uint32_t last = 0;
	for (uint32_t i = 0; i < LOGLIN_BUCKETS; i++) {
		if (counts[i] == 0)
			continue;
		last = i;
		seen += counts[i];
		if (seen > rank)
			break;
	}
	return loglin_middle(last);
}

double xfer_sketch_quantile(const uint64_t *counts, uint64_t n, double q)
{
	double position = q * (double)(n - 1);
	uint64_t rank = (uint64_t)position;
	double low = value_at(counts, rank);
	double high = rank + 1 < n ? value_at(counts, rank + 1) : low;
	return low + (high - low) * (position - (double)rank);
}
