/* SPDX-License-Identifier: Apache-2.0 */
/* Buckets that are linear within each power of two: 32 of them, so a bucket's width is at most 1/32 of its value. */
#ifndef KV_BASE_LOGLIN_H
#define KV_BASE_LOGLIN_H

#include <stdint.h>

#define LOGLIN_BINS    32u
#define LOGLIN_LEVELS  60u
#define LOGLIN_BUCKETS (LOGLIN_LEVELS * LOGLIN_BINS)

static inline uint32_t loglin_bucket(uint64_t value)
{
	if (value < LOGLIN_BINS)
		return (uint32_t)value;
	uint32_t top = 63u - (uint32_t)__builtin_clzll(value);
	return (top - 4) * LOGLIN_BINS + ((uint32_t)(value >> (top - 5)) & (LOGLIN_BINS - 1));
}

/* The middle of a bucket: within 1/64 of every value in it. */
static inline double loglin_middle(uint32_t bucket)
{
	if (bucket < 2 * LOGLIN_BINS)
		return bucket;
	uint32_t shift = bucket / LOGLIN_BINS - 1;
	uint64_t low = (uint64_t)(LOGLIN_BINS + bucket % LOGLIN_BINS) << shift;
	return (double)low + ((double)((uint64_t)1 << shift) - 1) / 2;
}

#endif
