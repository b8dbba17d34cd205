/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory for one request: many small pieces, one release. Blocks are kept between uses, so a thread that
 * serves requests in a loop does not allocate in the steady state. Owned by one thread at a time.
 */
#ifndef KV_BASE_ARENA_H
#define KV_BASE_ARENA_H

#include <stdbool.h>
#include <stddef.h>

struct kv_arena_block;
/* Zero-initialised is empty. */
struct kv_arena {
	struct kv_arena_block *first, *current;
	size_t used;  /* in current */
	size_t limit; /* total bytes that may be held; 0: no limit */
	size_t held;
};

/* size bytes, 16-byte aligned, uninitialised; NULL beyond the limit or without memory. size 0 gives a valid
 * pointer. */
void *kv_arena_alloc(struct kv_arena *arena, size_t size);
/* count * size bytes of zeros; checks the product. */
void *kv_arena_calloc(struct kv_arena *arena, size_t count, size_t size);
/* Forget all pieces, keep at most keep bytes of blocks. */
void kv_arena_reset(struct kv_arena *arena, size_t keep);
void kv_arena_free(struct kv_arena *arena);
/* The calling thread's arena for one public call, freed when the thread ends. Nested users must not reset it;
 * the outermost caller resets it when its call ends. */
struct kv_arena *kv_arena_thread(void);

#endif
