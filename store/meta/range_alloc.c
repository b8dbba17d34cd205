/* SPDX-License-Identifier: Apache-2.0 */
#include "store/meta/range_alloc.h"

#include <stdlib.h>
#include <string.h>

#define OWN_BIN_SCAN 64 /* blocks looked at in the own bin while a larger one exists */
#define FIRST_ROOM   64u

/* Sizes are in units of RANGE_ALIGN in here. */
struct range_block {
	uint64_t offset, size;
	uint32_t below, above;  /* neighbours in the segment */
	uint32_t before, after; /* in the list of the bin, or of unused blocks (after) */
	bool used;
};

struct bin {
	uint32_t level, index;
};

static struct bin bin_of(uint64_t size)
{
	uint32_t bucket = loglin_bucket(size);
	return (struct bin){bucket / LOGLIN_BINS, bucket % LOGLIN_BINS};
}

static void link_free(struct range_alloc *ranges, uint32_t id)
{
	struct range_block *block = &ranges->blocks[id];
	struct bin bin = bin_of(block->size);
	uint32_t *first = &ranges->first[bin.level][bin.index];
	block->used = false;
	block->before = RANGE_NONE;
	block->after = *first;
	if (*first != RANGE_NONE)
		ranges->blocks[*first].before = id;
	*first = id;
	ranges->bins[bin.level] |= 1u << bin.index;
	ranges->levels |= 1ull << bin.level;
}

static void unlink_free(struct range_alloc *ranges, uint32_t id)
{
	struct range_block *block = &ranges->blocks[id];
	struct bin bin = bin_of(block->size);
	if (block->after != RANGE_NONE)
		ranges->blocks[block->after].before = block->before;
	if (block->before != RANGE_NONE) {
		ranges->blocks[block->before].after = block->after;
		return;
	}
	ranges->first[bin.level][bin.index] = block->after;
	if (block->after == RANGE_NONE) {
		ranges->bins[bin.level] &= ~(1u << bin.index);
		if (ranges->bins[bin.level] == 0)
			ranges->levels &= ~(1ull << bin.level);
	}
}

/* A block that is in no list yet, or RANGE_NONE without memory. Moves the array. */
static uint32_t new_block(struct range_alloc *ranges)
{
	uint32_t id = ranges->unused;
	if (id != RANGE_NONE) {
		ranges->unused = ranges->blocks[id].after;
		return id;
	}
	if (ranges->n_blocks == ranges->room) {
		uint32_t room = ranges->room ? ranges->room * 2 : FIRST_ROOM;
		if (room < ranges->room)
			return RANGE_NONE;
		struct range_block *blocks = realloc(ranges->blocks, room * sizeof(*blocks));
		if (!blocks)
			return RANGE_NONE;
		ranges->blocks = blocks;
		ranges->room = room;
	}
	return ranges->n_blocks++;
}

static void drop_block(struct range_alloc *ranges, uint32_t id)
{
	ranges->blocks[id].size = 0;
	ranges->blocks[id].after = ranges->unused;
	ranges->unused = id;
}

bool range_init(struct range_alloc *ranges, uint64_t size)
{
	memset(ranges, 0, sizeof(*ranges));
	memset(ranges->first, 0xff, sizeof(ranges->first));
	ranges->unused = RANGE_NONE;
	uint32_t id = new_block(ranges);
	if (id == RANGE_NONE)
		return false;
	ranges->capacity = size / RANGE_ALIGN * RANGE_ALIGN;
	ranges->blocks[id] = (struct range_block){
	        .size = size / RANGE_ALIGN, .below = RANGE_NONE, .above = RANGE_NONE, .used = true};
	if (ranges->capacity > 0)
		link_free(ranges, id);
	return true;
}

void range_destroy(struct range_alloc *ranges)
{
	free(ranges->blocks);
	ranges->blocks = NULL;
}

uint64_t range_rounded(uint64_t size)
{
	if (size > UINT64_MAX - RANGE_ALIGN)
		return 0;
	return (size + RANGE_ALIGN - 1) / RANGE_ALIGN * RANGE_ALIGN;
}

/* The best fit among the first `most` blocks of a bin. */
static uint32_t best_of_bin(const struct range_alloc *ranges, struct bin bin, uint64_t size, uint32_t most)
{
	uint32_t best = RANGE_NONE;
	uint32_t id = ranges->first[bin.level][bin.index];
	for (; id != RANGE_NONE && most > 0; id = ranges->blocks[id].after, most--) {
		uint64_t have = ranges->blocks[id].size;
		if (have == size)
			return id;
		if (have > size && (best == RANGE_NONE || have < ranges->blocks[best].size))
			best = id;
	}
	return best;
}

/* The first block of the next bin above that has any: all of its blocks are large enough. */
static uint32_t first_above(const struct range_alloc *ranges, struct bin bin)
{
	uint32_t bins = bin.index + 1 < LOGLIN_BINS ? ranges->bins[bin.level] & (~0u << (bin.index + 1)) : 0;
	uint32_t level = bin.level;
	if (!bins) {
		uint64_t levels = ranges->levels & (~0ull << (level + 1));
		if (!levels)
			return RANGE_NONE;
		level = (uint32_t)__builtin_ctzll(levels);
		bins = ranges->bins[level];
	}
	return ranges->first[level][__builtin_ctz(bins)];
}

static uint32_t find_free(const struct range_alloc *ranges, uint64_t size)
{
	struct bin bin = bin_of(size);
	uint32_t id = best_of_bin(ranges, bin, size, OWN_BIN_SCAN);
	if (id == RANGE_NONE)
		id = first_above(ranges, bin);
	if (id == RANGE_NONE)
		id = best_of_bin(ranges, bin, size, UINT32_MAX);
	return id;
}

/* Cut `size` off the low end of the block `id`: the cut part's block, or RANGE_NONE without memory. */
static uint32_t split(struct range_alloc *ranges, uint32_t id, uint64_t size)
{
	uint32_t other = new_block(ranges);
	if (other == RANGE_NONE)
		return RANGE_NONE;
	struct range_block *rest = &ranges->blocks[id], *cut = &ranges->blocks[other];
	*cut = (struct range_block){.size = size, .used = true};
	cut->offset = rest->offset;
	rest->offset += size;
	rest->size -= size;
	cut->below = rest->below;
	cut->above = id;
	if (cut->below != RANGE_NONE)
		ranges->blocks[cut->below].above = other;
	rest->below = other;
	return other;
}

bool range_take(struct range_alloc *ranges, uint64_t size, uint64_t *offset, uint32_t *handle)
{
	uint64_t bytes = range_rounded(size);
	if (bytes == 0 || bytes > ranges->capacity - ranges->used)
		return false;
	size = bytes / RANGE_ALIGN;
	uint32_t id = find_free(ranges, size);
	if (id == RANGE_NONE)
		return false;
	unlink_free(ranges, id);
	uint32_t taken = id;
	if (ranges->blocks[id].size > size) {
		taken = split(ranges, id, size);
		link_free(ranges, id);
		if (taken == RANGE_NONE)
			return false;
	}
	ranges->blocks[taken].used = true;
	ranges->used += bytes;
	*offset = ranges->blocks[taken].offset * RANGE_ALIGN;
	*handle = taken;
	return true;
}

/* Make the free block `upper`, just above `lower`, a part of it. Both are in no bin. */
static void join(struct range_alloc *ranges, uint32_t lower, uint32_t upper)
{
	struct range_block *low = &ranges->blocks[lower], *high = &ranges->blocks[upper];
	low->size += high->size;
	low->above = high->above;
	if (low->above != RANGE_NONE)
		ranges->blocks[low->above].below = lower;
	drop_block(ranges, upper);
}

void range_free(struct range_alloc *ranges, uint32_t handle)
{
	struct range_block *blocks = ranges->blocks;
	uint32_t id = handle, above = blocks[id].above, below = blocks[id].below;
	ranges->used -= blocks[id].size * RANGE_ALIGN;
	if (above != RANGE_NONE && !blocks[above].used) {
		unlink_free(ranges, above);
		join(ranges, id, above);
	}
	if (below != RANGE_NONE && !blocks[below].used) {
		unlink_free(ranges, below);
		join(ranges, below, id);
		id = below;
	}
	link_free(ranges, id);
}

uint64_t range_largest_free(const struct range_alloc *ranges)
{
	uint64_t largest = 0;
	for (uint32_t level = 0; level < LOGLIN_LEVELS; level++) {
		for (uint32_t index = 0; index < LOGLIN_BINS; index++) {
			uint32_t id = ranges->first[level][index];
			for (; id != RANGE_NONE; id = ranges->blocks[id].after) {
				if (ranges->blocks[id].size > largest)
					largest = ranges->blocks[id].size;
			}
		}
	}
	return largest * RANGE_ALIGN;
}

/* Free blocks and their bytes, by the bins. False if a bin holds a block that is not its own. */
static bool sum_of_bins(const struct range_alloc *ranges, uint64_t *blocks, uint64_t *size)
{
	*blocks = *size = 0;
	for (uint32_t level = 0; level < LOGLIN_LEVELS; level++) {
		if (!(ranges->levels & 1ull << level) != !ranges->bins[level])
			return false;
		for (uint32_t index = 0; index < LOGLIN_BINS; index++) {
			uint32_t id = ranges->first[level][index];
			if (!(ranges->bins[level] & 1u << index) != (id == RANGE_NONE))
				return false;
			for (; id != RANGE_NONE; id = ranges->blocks[id].after) {
				struct bin bin = bin_of(ranges->blocks[id].size);
				if (ranges->blocks[id].used || bin.level != level || bin.index != index)
					return false;
				*blocks += 1;
				*size += ranges->blocks[id].size;
			}
		}
	}
	return true;
}

bool range_check(const struct range_alloc *ranges)
{
	uint64_t at = 0, n_free = 0, free_size = 0, bin_blocks, bin_size;
	uint32_t below = RANGE_NONE, id = 0;
	while (ranges->blocks[id].size == 0 && ranges->capacity > 0)
		id++; /* returned */
	while (ranges->blocks[id].below != RANGE_NONE)
		id = ranges->blocks[id].below;
	for (; id != RANGE_NONE; below = id, id = ranges->blocks[id].above) {
		const struct range_block *block = &ranges->blocks[id];
		bool two_free = below != RANGE_NONE && !block->used && !ranges->blocks[below].used;
		if (block->below != below || block->offset != at || two_free)
			return false;
		at += block->size;
		if (!block->used) {
			n_free++;
			free_size += block->size;
		}
	}
	return at * RANGE_ALIGN == ranges->capacity && sum_of_bins(ranges, &bin_blocks, &bin_size) &&
	       bin_blocks == n_free && bin_size == free_size &&
	       ranges->used == ranges->capacity - free_size * RANGE_ALIGN;
}
