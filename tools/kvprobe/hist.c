/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/kvprobe/hist.h"

#include <math.h>

uint64_t hist_timed(const uint64_t *hist)
{
	uint64_t count = 0;
	for (unsigned int i = 1; i < KVP_HIST_BUCKETS; i++)
		count += hist[i];
	return count;
}

static uint64_t middle_of(unsigned int bucket)
{
	uint64_t low = kvp_hist_low(bucket);
	return low + (kvp_hist_high(bucket) - low) / 2;
}

uint64_t hist_quantile(const uint64_t *hist, double quantile)
{
	uint64_t count = hist_timed(hist), seen = 0;
	if (count == 0)
		return 0;
	uint64_t rank = (uint64_t)ceil(quantile * (double)count);
	if (rank < 1)
		rank = 1;
	if (rank > count)
		rank = count;
	for (unsigned int i = 1; i < KVP_HIST_BUCKETS; i++) {
		seen += hist[i];
		if (seen >= rank)
			return middle_of(i);
	}
	return 0;
}

void cell_add(struct kvp_cell *dst, const struct kvp_cell *src)
{
	dst->failed_calls += src->failed_calls;
	dst->keys += src->keys;
	dst->failed_keys += src->failed_keys;
	dst->bytes += src->bytes;
	dst->untimed += src->untimed;
	dst->sum_ns += src->sum_ns;
	if (src->min_ns && (!dst->min_ns || src->min_ns < dst->min_ns))
		dst->min_ns = src->min_ns;
	if (src->max_ns > dst->max_ns)
		dst->max_ns = src->max_ns;
	for (unsigned int i = 0; i < KVP_HIST_BUCKETS; i++)
		dst->hist[i] += src->hist[i];
}

void cell_subtract(struct kvp_cell *out, const struct kvp_cell *now, const struct kvp_cell *before)
{
	uint64_t highest = 0;
	out->failed_calls = now->failed_calls - before->failed_calls;
	out->keys = now->keys - before->keys;
	out->failed_keys = now->failed_keys - before->failed_keys;
	out->bytes = now->bytes - before->bytes;
	out->untimed = now->untimed - before->untimed;
	out->sum_ns = now->sum_ns - before->sum_ns;
	out->min_ns = 0;
	for (unsigned int i = 0; i < KVP_HIST_BUCKETS; i++) {
		out->hist[i] = now->hist[i] - before->hist[i];
		if (out->hist[i]) /* bucket 0 holds no duration, and its edge is 0 */
			highest = i == KVP_HIST_BUCKETS - 1 ? now->max_ns : kvp_hist_high(i);
	}
	out->max_ns = highest < now->max_ns ? highest : now->max_ns;
}

/* The middle of a bucket, or what the cell knows better. */
static uint64_t within(uint64_t value, const struct kvp_cell *cell)
{
	if (cell->max_ns && value > cell->max_ns)
		value = cell->max_ns;
	return value < cell->min_ns ? cell->min_ns : value;
}

/* The value of the call of a rank, counted from 0 in the order of durations. */
static uint64_t value_at(const struct kvp_cell *cell, uint64_t rank)
{
	uint64_t seen = 0;
	unsigned int i = 1;
	for (; i < KVP_HIST_BUCKETS - 1; i++) {
		seen += cell->hist[i];
		if (seen > rank)
			break;
	}
	return within(middle_of(i), cell);
}

double cell_quantile_linear(const struct kvp_cell *cell, double quantile)
{
	uint64_t count = hist_timed(cell->hist);
	if (count == 0)
		return 0;
	double position = quantile * (double)(count - 1);
	uint64_t rank = (uint64_t)position;
	double low = (double)value_at(cell, rank);
	double high = rank + 1 < count ? (double)value_at(cell, rank + 1) : low;
	return low + (position - (double)rank) * (high - low);
}

uint64_t cell_calls(const struct kvp_cell *cell)
{
	return hist_timed(cell->hist) + cell->hist[0] + cell->untimed;
}

void cell_summarize(struct cell_summary *out, const struct kvp_cell *cell)
{
	uint64_t timed = hist_timed(cell->hist);
	*out = (struct cell_summary){
	        .calls = cell_calls(cell),
	        .failed_calls = cell->failed_calls,
	        .keys = cell->keys,
	        .failed_keys = cell->failed_keys,
	        .bytes = cell->bytes,
	        .untimed = cell->untimed,
	};
	if (timed == 0)
		return;
	out->avg_ns = cell->sum_ns / timed;
	out->max_ns = cell->max_ns;
	out->p50_ns = within(hist_quantile(cell->hist, 0.5), cell);
	out->p99_ns = within(hist_quantile(cell->hist, 0.99), cell);
	out->p999_ns = within(hist_quantile(cell->hist, 0.999), cell);
}
