/* SPDX-License-Identifier: Apache-2.0 */
#include "store/transfer/segments.h"

#include <stdlib.h>

#include "kvstore_status.h"

void segments_init(struct segments *segments)
{
	pthread_mutex_init(&segments->lock, NULL);
	pthread_cond_init(&segments->unpinned, NULL);
	segments->count = 0;
	buffers_init(&segments->windows);
}

void segments_destroy(struct segments *segments)
{
	for (uint32_t i = 0; i < segments->count; i++)
		free(segments->list[i]);
	for (size_t i = 0; i < segments->windows.count; i++)
		free(segments->windows.sorted[i].owner);
	buffers_destroy(&segments->windows);
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

/* The nil id: absolute addresses. */
static bool names_windows(struct kv_id id)
{
	return id.hi == 0 && id.lo == 0;
}

static struct local_segment *new_segment(struct kv_id id, void *base, uint64_t size)
{
	struct local_segment *segment = malloc(sizeof(*segment));
	if (segment)
		*segment = (struct local_segment){.id = id,
		                                  .base = base,
		                                  .size = size,
		                                  .origin = names_windows(id) ? (uint64_t)(uintptr_t)base : 0};
	return segment;
}

/* --- segments ------------------------------------------------------------------------------------------- */

static int add_locked(struct segments *segments, struct kv_id id, void *base, uint64_t size)
{
	if (position(segments, id) < segments->count)
		return KV_SEGMENT_ALREADY_EXISTS;
	if (names_windows(id) || segments->count == SEGMENTS_MAX)
		return KV_INVALID_PARAMS;
	struct local_segment *segment = new_segment(id, base, size);
	if (!segment)
		return KV_INTERNAL_ERROR;
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

/* Refuse new pins and wait until there are none. False: another thread is at it. The lock is held, but not all the
 * time. */
static bool let_go(struct segments *segments, struct local_segment *segment)
{
	if (segment->leaving)
		return false;
	segment->leaving = true;
	while (segment->pins)
		pthread_cond_wait(&segments->unpinned, &segments->lock);
	return true;
}

void segments_remove(struct segments *segments, struct kv_id id)
{
	pthread_mutex_lock(&segments->lock);
	uint32_t at = position(segments, id);
	struct local_segment *segment = at < segments->count ? segments->list[at] : NULL;
	if (segment && let_go(segments, segment)) {
		at = position(segments, id);
		segments->list[at] = segments->list[--segments->count];
		free(segment);
	}
	pthread_mutex_unlock(&segments->lock);
}

/* --- windows --------------------------------------------------------------------------------------------- */

int segments_expose(struct segments *segments, void *base, uint64_t size)
{
	struct local_segment *window = new_segment((struct kv_id){0}, base, size);
	if (!window)
		return KV_INTERNAL_ERROR;
	int status = buffers_add(&segments->windows, base, size, window);
	if (status)
		free(window);
	return status;
}

int segments_conceal(struct segments *segments, const void *base)
{
	int status = KV_INVALID_PARAMS;
	size_t size;
	pthread_mutex_lock(&segments->lock);
	struct local_segment *window = buffers_owner(&segments->windows, base, 1);
	if (window && window->base == base && let_go(segments, window)) {
		status = buffers_remove(&segments->windows, base, &size);
		free(window);
	}
	pthread_mutex_unlock(&segments->lock);
	return status;
}

/* --- pins -------------------------------------------------------------------------------------------------- */

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

/* The segment of a range, or NULL. The lock is held. */
static struct local_segment *holder_of(struct segments *segments, struct kv_id id, const struct kvm_range *range)
{
	struct local_segment *segment = NULL;
	if (names_windows(id)) {
		segment = buffers_owner(&segments->windows, (void *)(uintptr_t)range->offset, range->size);
	} else {
		uint32_t at = position(segments, id);
		if (at < segments->count)
			segment = segments->list[at];
	}
	return segment && !segment->leaving ? segment : NULL;
}

static void unpin_ranges_locked(struct segments *segments, const struct pinned_range *ranges, size_t count)
{
	for (size_t i = 0; i < count; i++) {
		struct local_segment *segment = ranges[i].segment;
		if (segment && --segment->pins == 0 && segment->leaving)
			pthread_cond_broadcast(&segments->unpinned);
	}
}

/* Neighbours mostly lie in the same segment: it is looked for, and pinned, once per run of them. */
static int pin_ranges_locked(struct segments *segments, struct kv_id id, const struct kvm_range *ranges, size_t count,
                             struct pinned_range *out)
{
	struct local_segment *last = NULL;
	for (size_t i = 0; i < count; i++) {
		void *memory = last ? segment_range(last, ranges[i].offset, ranges[i].size) : NULL;
		out[i] = (struct pinned_range){.memory = memory};
		if (memory)
			continue;
		last = holder_of(segments, id, &ranges[i]);
		out[i].memory = last ? segment_range(last, ranges[i].offset, ranges[i].size) : NULL;
		if (!out[i].memory) {
			unpin_ranges_locked(segments, out, i);
			return last || names_windows(id) ? KV_INVALID_PARAMS : KV_SEGMENT_NOT_FOUND;
		}
		out[i].segment = last;
		last->pins++;
	}
	return KV_OK;
}

int segments_pin_ranges(struct segments *segments, struct kv_id id, const struct kvm_range *ranges, size_t count,
                        struct pinned_range *out)
{
	pthread_mutex_lock(&segments->lock);
	int status = pin_ranges_locked(segments, id, ranges, count, out);
	pthread_mutex_unlock(&segments->lock);
	return status;
}

void segments_unpin_ranges(struct segments *segments, const struct pinned_range *ranges, size_t count)
{
	pthread_mutex_lock(&segments->lock);
	unpin_ranges_locked(segments, ranges, count);
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
	if (offset < segment->origin)
		return NULL;
	uint64_t at = offset - segment->origin;
	if (at > segment->size || size > segment->size - at)
		return NULL;
	return segment->base + at;
}
