/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Hands out ranges of a segment. The memory is somebody else's, so everything about it is kept here: a list of
 * all blocks in address order, for coalescing, and lists of the free ones by size.
 *
 * Free blocks are binned by size with 32 bins per power of two. An allocation takes the best fit of its own
 * bin, else the first block of the next bin that has one: both in constant time but for the own bin's scan,
 * which is bounded as long as a larger block exists. It fails only if no free block is large enough.
 * A freed block joins its free neighbours at once.
 *
 * Fragmentation: sizes and offsets are multiples of RANGE_ALIGN, so an object wastes at most 63 bytes, and
 * objects of one size never fragment. Churn of random sizes from 64 KiB to 16 MiB in 1 GiB (64 of the largest)
 * first refuses a request at 86 % used on average; tests/unit/test_meta_range.c holds it above 80 %.
 *
 * Not thread-safe: the owner locks.
 */
#ifndef KV_META_RANGE_ALLOC_H
#define KV_META_RANGE_ALLOC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "store/base/loglin.h"

#define RANGE_ALIGN 64u
#define RANGE_NONE  UINT32_MAX

struct range_block;
struct range_alloc {
	struct range_block *blocks;
	uint32_t n_blocks, room; /* blocks in use so far, allocated */
	uint32_t unused;         /* list of returned blocks */
	uint64_t capacity;       /* bytes, a multiple of RANGE_ALIGN */
	uint64_t used;           /* bytes */
	uint64_t levels;         /* bit: some bin of the level has a block */
	uint32_t bins[LOGLIN_LEVELS];
	uint32_t first[LOGLIN_LEVELS][LOGLIN_BINS];
};

/* One free block of size bytes (rounded down to RANGE_ALIGN). False without memory. */
bool range_init(struct range_alloc *ranges, uint64_t size);
void range_destroy(struct range_alloc *ranges);
/* What an object of size bytes takes; 0 if that is more than any segment can have. */
uint64_t range_rounded(uint64_t size);
/* A range of at least size (> 0) bytes: its offset, and the handle to free it with. False: no block is large
 * enough, or no memory for the bookkeeping. */
bool range_take(struct range_alloc *ranges, uint64_t size, uint64_t *offset, uint32_t *handle);
void range_free(struct range_alloc *ranges, uint32_t handle);
/* Bytes of the largest free block, by walking all of them; for tests and reports. */
uint64_t range_largest_free(const struct range_alloc *ranges);
/* True if the lists agree with each other; walks everything, for tests. */
bool range_check(const struct range_alloc *ranges);

#endif
