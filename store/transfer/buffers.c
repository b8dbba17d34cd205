/* SPDX-License-Identifier: Apache-2.0 */
#include "store/transfer/buffers.h"

#include <stdlib.h>
#include <string.h>

#include "kvstore_status.h"

void buffers_init(struct buffers *buffers)
{
	*buffers = (struct buffers){0};
	pthread_rwlock_init(&buffers->lock, NULL);
}

void buffers_destroy(struct buffers *buffers)
{
	free(buffers->sorted);
	pthread_rwlock_destroy(&buffers->lock);
}

/* How many buffers start at or below the address. */
static size_t starts_up_to(const struct buffers *buffers, uintptr_t address)
{
	size_t low = 0, high = buffers->count;
	while (low < high) {
		size_t middle = low + (high - low) / 2;
		if (buffers->sorted[middle].start <= address)
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

static int add_locked(struct buffers *buffers, uintptr_t start, size_t size, void *owner)
{
	size_t at = starts_up_to(buffers, start);
	struct buffer_range *sorted = buffers->sorted;

	if (at > 0 && start - sorted[at - 1].start < sorted[at - 1].size)
		return KV_INVALID_PARAMS;
	if (at < buffers->count && sorted[at].start - start < size)
		return KV_INVALID_PARAMS;
	if (buffers->count == BUFFERS_MAX)
		return KV_INVALID_PARAMS;
	if (buffers->count == buffers->capacity) {
		size_t capacity = buffers->capacity ? buffers->capacity * 2 : 16;
		sorted = realloc(sorted, capacity * sizeof(*sorted));
		if (!sorted)
			return KV_INTERNAL_ERROR;
		buffers->sorted = sorted;
		buffers->capacity = capacity;
	}
	memmove(sorted + at + 1, sorted + at, (buffers->count - at) * sizeof(*sorted));
	sorted[at] = (struct buffer_range){start, size, owner};
	buffers->count++;
	return KV_OK;
}

int buffers_add(struct buffers *buffers, const void *ptr, size_t size, void *owner)
{
	uintptr_t start = (uintptr_t)ptr;
	if (!ptr || size == 0 || size > UINTPTR_MAX - start)
		return KV_INVALID_PARAMS;
	pthread_rwlock_wrlock(&buffers->lock);
	int status = add_locked(buffers, start, size, owner);
	pthread_rwlock_unlock(&buffers->lock);
	return status;
}

int buffers_remove(struct buffers *buffers, const void *ptr, size_t *size)
{
	int status = KV_INVALID_PARAMS;
	pthread_rwlock_wrlock(&buffers->lock);
	size_t at = starts_up_to(buffers, (uintptr_t)ptr);
	if (at > 0 && buffers->sorted[at - 1].start == (uintptr_t)ptr) {
		*size = buffers->sorted[at - 1].size;
		memmove(buffers->sorted + at - 1, buffers->sorted + at,
		        (buffers->count - at) * sizeof(*buffers->sorted));
		buffers->count--;
		status = KV_OK;
	}
	pthread_rwlock_unlock(&buffers->lock);
	return status;
}

/* The buffer that the whole range lies in, or NULL. The lock is held. */
static const struct buffer_range *covering(const struct buffers *buffers, uintptr_t start, size_t size)
{
	size_t at = starts_up_to(buffers, start);
	if (at == 0)
		return NULL;
	const struct buffer_range *range = &buffers->sorted[at - 1];
	size_t inside = start - range->start;
	return inside <= range->size && size <= range->size - inside ? range : NULL;
}

bool buffers_cover(struct buffers *buffers, const void *ptr, size_t size)
{
	pthread_rwlock_rdlock(&buffers->lock);
	bool covered = covering(buffers, (uintptr_t)ptr, size);
	pthread_rwlock_unlock(&buffers->lock);
	return covered;
}

void *buffers_owner(struct buffers *buffers, const void *ptr, size_t size)
{
	pthread_rwlock_rdlock(&buffers->lock);
	const struct buffer_range *range = covering(buffers, (uintptr_t)ptr, size);
	void *owner = range ? range->owner : NULL;
	pthread_rwlock_unlock(&buffers->lock);
	return owner;
}
