/* SPDX-License-Identifier: Apache-2.0 */
#include "store/transfer/segments.h"

#include <stdlib.h>

#include "kvstore_status.h"

void segments_init(struct segments *segments)
{
	pthread_mutex_init(&segments->lock, NULL);
	pthread_cond_init(&segments->unpinned, NULL);
	segments->count = 0;
}

void segments_destroy(struct segments *segments)
{
	for (uint32_t i = 0; i < segments->count; i++)
		free(segments->list[i]);
	segments->count = 0;
	pthread_cond_destroy(&segments->unpinned);
	pthread_mutex_destroy(&segments->lock);
}

/* Position in the list, or count. The lock is held. */
static uint32_t position(const struct segments *segments, struct kv_id id)
{
	uint32_t i = 0;
	while (i < segments->count && !kv_id_equal(segments->list[i]->id, id))
		i++;
	return i;
}

static int add_locked(struct segments *segments, struct kv_id id, void *base, uint64_t size)
{
	if (position(segments, id) < segments->count)
		return KV_SEGMENT_ALREADY_EXISTS;
	if (segments->count == SEGMENTS_MAX)
		return KV_INVALID_PARAMS;
	struct local_segment *segment = malloc(sizeof(*segment));
	if (!segment)
		return KV_INTERNAL_ERROR;
	*segment = (struct local_segment){.id = id, .base = base, .size = size};
	segments->list[segments->count++] = segment;
	return KV_OK;
}

int segments_add(struct segments *segments, struct kv_id id, void *base, uint64_t size)
{
	pthread_mutex_lock(&segments->lock);
	int status = add_locked(segments, id, base, size);
	pthread_mutex_unlock(&segments->lock);
	return status;
}

void segments_remove(struct segments *segments, struct kv_id id)
{
	pthread_mutex_lock(&segments->lock);
	uint32_t at = position(segments, id);
	if (at < segments->count && !segments->list[at]->leaving) {
		struct local_segment *segment = segments->list[at];
		segment->leaving = true;
		while (segment->pins)
			pthread_cond_wait(&segments->unpinned, &segments->lock);
		at = position(segments, id);
		segments->list[at] = segments->list[--segments->count];
		free(segment);
	}
	pthread_mutex_unlock(&segments->lock);
}

struct local_segment *segments_pin(struct segments *segments, struct kv_id id)
{
	struct local_segment *segment = NULL;
	pthread_mutex_lock(&segments->lock);
	uint32_t at = position(segments, id);
	if (at < segments->count && !segments->list[at]->leaving) {
		segment = segments->list[at];
		segment->pins++;
	}
	pthread_mutex_unlock(&segments->lock);
	return segment;
}

void segments_unpin(struct segments *segments, struct local_segment *segment)
{
	pthread_mutex_lock(&segments->lock);
	if (--segment->pins == 0 && segment->leaving)
		pthread_cond_broadcast(&segments->unpinned);
	pthread_mutex_unlock(&segments->lock);
}

bool segments_has(struct segments *segments, struct kv_id id)
{
	pthread_mutex_lock(&segments->lock);
	bool has = position(segments, id) < segments->count;
	pthread_mutex_unlock(&segments->lock);
	return has;
}

void *segment_range(const struct local_segment *segment, uint64_t offset, uint64_t size)
{
	if (offset > segment->size || size > segment->size - offset)
		return NULL;
	return segment->base + offset;
}
