/* SPDX-License-Identifier: Apache-2.0 */
/* Ranges of memory that are known by their addresses, such as the registered local buffers: disjoint, looked up by
 * any address inside. Thread-safe. */
#ifndef KV_BUFFERS_H
#define KV_BUFFERS_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define BUFFERS_MAX 65536u

struct buffer_range {
	uintptr_t start;
	size_t size;
	void *owner;
};

struct buffers {
	pthread_rwlock_t lock;
	struct buffer_range *sorted;
	size_t count, capacity;
};

void buffers_init(struct buffers *buffers);
void buffers_destroy(struct buffers *buffers);
/* owner: what buffers_owner finds; not looked into. 0; KV_INVALID_PARAMS: NULL, size 0, wrap-around, overlap, more
 * than BUFFERS_MAX; KV_INTERNAL_ERROR. */
int buffers_add(struct buffers *buffers, const void *ptr, size_t size, void *owner);
/* ptr is a start given to buffers_add. *size gets its size. 0 or KV_INVALID_PARAMS. */
int buffers_remove(struct buffers *buffers, const void *ptr, size_t *size);
/* The whole of [ptr, ptr + size) lies in one buffer. */
bool buffers_cover(struct buffers *buffers, const void *ptr, size_t size);
/* The owner of the buffer that the whole of [ptr, ptr + size) lies in, or NULL. */
void *buffers_owner(struct buffers *buffers, const void *ptr, size_t size);

#endif
