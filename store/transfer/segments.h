/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The memory of this process that peers can reach: segments, named by an id, whose ranges are counted from their
 * start; and windows, all of the nil id, whose ranges are named by their addresses here. A segment or window is
 * pinned while bytes move in or out of it, so that its memory can be unmapped safely once segments_remove or
 * segments_conceal has returned. Thread-safe.
 */
#ifndef KV_SEGMENTS_H
#define KV_SEGMENTS_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "store/base/bytes.h"
#include "store/transfer/buffers.h"
#include "store/wire/wire.h"

#define SEGMENTS_MAX 64

struct local_segment {
	struct kv_id id; /* nil: a window */
	uint8_t *base;
	uint64_t size;
	uint64_t origin; /* what a range that begins at base has for its offset: 0, of a window its address */
	uint32_t pins;
	bool leaving; /* no new pins */
};

struct segments {
	pthread_mutex_t lock;
	pthread_cond_t unpinned;
	struct local_segment *list[SEGMENTS_MAX]; /* without the windows */
	uint32_t count;
	struct buffers windows; /* owner: the local_segment */
};

/* A range of a request, found. */
struct pinned_range {
	struct local_segment *segment; /* NULL: an earlier range of the request holds it */
	void *memory;
};

void segments_init(struct segments *segments);
/* Frees what is left; nothing may be pinned. */
void segments_destroy(struct segments *segments);
/* 0; KV_SEGMENT_ALREADY_EXISTS; KV_INVALID_PARAMS: the nil id, or beyond SEGMENTS_MAX; KV_INTERNAL_ERROR without
 * memory. */
int segments_add(struct segments *segments, struct kv_id id, void *base, uint64_t size);
/* Refuses new pins, waits for those there are (bounded by the transports' deadlines), forgets the segment. */
void segments_remove(struct segments *segments, struct kv_id id);
/* Makes a window of [base, base + size). 0; KV_INVALID_PARAMS: NULL, size 0, wrap-around, overlap with another
 * window, more than BUFFERS_MAX; KV_INTERNAL_ERROR without memory. */
int segments_expose(struct segments *segments, void *base, uint64_t size);
/* As segments_remove, for the window that begins at base. 0, or KV_INVALID_PARAMS: there is none, or another thread
 * is already at it. */
int segments_conceal(struct segments *segments, const void *base);

/* NULL: not one of ours. */
struct local_segment *segments_pin(struct segments *segments, struct kv_id id);
void segments_unpin(struct segments *segments, struct local_segment *segment);
bool segments_has(struct segments *segments, struct kv_id id);
/* The memory of a range, or NULL if it is not wholly inside. */
void *segment_range(const struct local_segment *segment, uint64_t offset, uint64_t size);

/* Find and pin all ranges of a request. out has room for count. 0, or with nothing pinned: KV_SEGMENT_NOT_FOUND;
 * KV_INVALID_PARAMS: a range is not wholly inside the segment, or inside one window. */
int segments_pin_ranges(struct segments *segments, struct kv_id id, const struct kvm_range *ranges, size_t count,
                        struct pinned_range *out);
void segments_unpin_ranges(struct segments *segments, const struct pinned_range *ranges, size_t count);

#endif
