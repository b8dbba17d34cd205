/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The memory that this process contributes. A segment is pinned while bytes move in or out of it, so that
 * its memory can be unmapped safely once segments_remove has returned.
 */
#ifndef KV_SEGMENTS_H
#define KV_SEGMENTS_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "store/base/bytes.h"

#define SEGMENTS_MAX 64

struct local_segment {
	struct kv_id id;
	uint8_t *base;
	uint64_t size;
	uint32_t pins;
	bool leaving; /* no new pins */
};

struct segments {
	pthread_mutex_t lock;
	pthread_cond_t unpinned;
	struct local_segment *list[SEGMENTS_MAX];
	uint32_t count;
};

void segments_init(struct segments *segments);
/* Frees what is left; nothing may be pinned. */
void segments_destroy(struct segments *segments);
/* 0; KV_SEGMENT_ALREADY_EXISTS; KV_INVALID_PARAMS beyond SEGMENTS_MAX; KV_INTERNAL_ERROR without memory. */
int segments_add(struct segments *segments, struct kv_id id, void *base, uint64_t size);
/* Refuses new pins, waits for those there are (bounded by the transports' deadlines), forgets the segment. */
void segments_remove(struct segments *segments, struct kv_id id);
/* NULL: not one of ours. */
struct local_segment *segments_pin(struct segments *segments, struct kv_id id);
void segments_unpin(struct segments *segments, struct local_segment *segment);
bool segments_has(struct segments *segments, struct kv_id id);
/* The memory of a range, or NULL if it is not wholly inside. */
void *segment_range(const struct local_segment *segment, uint64_t offset, uint64_t size);

#endif
