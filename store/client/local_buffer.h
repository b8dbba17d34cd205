/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The memory that put() copies values into. First fit among the gaps between the pieces in use, which are
 * as few as there are puts in flight. Thread-safe.
 */
#ifndef KV_LOCAL_BUFFER_H
#define KV_LOCAL_BUFFER_H

#include <pthread.h>
#include <stddef.h>

#include "store/base/mem.h"

#define LOCAL_BUFFER_PIECES 4096u
#define LOCAL_BUFFER_ALIGN  64u

struct local_piece {
	size_t offset, size;
};

struct local_buffer {
	struct kv_mem mem;
	pthread_mutex_t lock;
	struct local_piece *used; /* by offset */
	size_t n_used;
};

/* size 0: an empty buffer, from which nothing can be taken. 0 or KV_INTERNAL_ERROR. */
int local_buffer_init(struct local_buffer *buffer, size_t size);
void local_buffer_destroy(struct local_buffer *buffer);
/* NULL: no room. */
void *local_buffer_take(struct local_buffer *buffer, size_t size);
void local_buffer_give(struct local_buffer *buffer, void *piece);

#endif
