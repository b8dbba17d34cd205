/* SPDX-License-Identifier: Apache-2.0 */
#include "store/client/local_buffer.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "kvstore_status.h"

int local_buffer_init(struct local_buffer *buffer, size_t size)
{
	*buffer = (struct local_buffer){.mem = {.fd = -1}};
	if (size) {
		buffer->used = malloc(LOCAL_BUFFER_PIECES * sizeof(*buffer->used));
		if (!buffer->used)
			return KV_INTERNAL_ERROR;
		int status = kv_mem_map(&buffer->mem, size, -1, "kvstore-local");
		if (status) {
			free(buffer->used);
			buffer->used = NULL;
			return status;
		}
	}
	pthread_mutex_init(&buffer->lock, NULL);
	return KV_OK;
}

void local_buffer_destroy(struct local_buffer *buffer)
{
	kv_mem_unmap(&buffer->mem);
	free(buffer->used);
	buffer->used = NULL;
	pthread_mutex_destroy(&buffer->lock);
}

/* The first gap of at least size bytes: where it starts and before which used piece it lies. */
static int find_gap(const struct local_buffer *buffer, size_t size, size_t *offset, size_t *before)
{
	size_t start = 0;
	for (size_t i = 0; i <= buffer->n_used; i++) {
		size_t end = i < buffer->n_used ? buffer->used[i].offset : buffer->mem.size;
		if (start <= end && size <= end - start) {
			*offset = start;
			*before = i;
			return KV_OK;
		}
		if (i < buffer->n_used)
			start = (buffer->used[i].offset + buffer->used[i].size + LOCAL_BUFFER_ALIGN - 1) &
			        ~(size_t)(LOCAL_BUFFER_ALIGN - 1);
	}
	return KV_BUFFER_OVERFLOW;
}

void *local_buffer_take(struct local_buffer *buffer, size_t size)
{
	size_t offset, at;
	void *piece = NULL;

	pthread_mutex_lock(&buffer->lock);
	if (size && buffer->n_used < LOCAL_BUFFER_PIECES && find_gap(buffer, size, &offset, &at) == KV_OK) {
		memmove(buffer->used + at + 1, buffer->used + at, (buffer->n_used - at) * sizeof(*buffer->used));
		buffer->used[at] = (struct local_piece){offset, size};
		buffer->n_used++;
		piece = (char *)buffer->mem.base + offset;
	}
	pthread_mutex_unlock(&buffer->lock);
	return piece;
}

void local_buffer_give(struct local_buffer *buffer, void *piece)
{
	size_t offset = (size_t)((char *)piece - (char *)buffer->mem.base);
	pthread_mutex_lock(&buffer->lock);
	for (size_t i = 0; i < buffer->n_used; i++) {
		if (buffer->used[i].offset != offset)
			continue;
		buffer->n_used--;
		memmove(buffer->used + i, buffer->used + i + 1, (buffer->n_used - i) * sizeof(*buffer->used));
		break;
	}
	pthread_mutex_unlock(&buffer->lock);
}
