/* SPDX-License-Identifier: Apache-2.0 */
/* Buckets that are linear within each power of two: 32 of them, so a bucket's width is at most 1/32 of its value. */
#ifndef KV_META_LOGLIN_H
#define KV_META_LOGLIN_H

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

#endif
