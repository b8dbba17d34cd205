/* SPDX-License-Identifier: Apache-2.0 */
#include "store/base/arena.h"

#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define ALIGNMENT   16u
#define FIRST_BLOCK ((size_t)16 << 10)
#define LAST_BLOCK  ((size_t)4 << 20) /* blocks double up to this size */

struct kv_arena_block {
	struct kv_arena_block *next;
	size_t size; /* of data */
	_Alignas(ALIGNMENT) char data[];
};

/* A new block behind the current one, big enough for need bytes. */
static struct kv_arena_block *add_block(struct kv_arena *arena, size_t need)
{
	size_t size = arena->current ? arena->current->size * 2 : FIRST_BLOCK;
	if (size > LAST_BLOCK)
		size = LAST_BLOCK;
	if (arena->limit) {
		size_t left = arena->limit > arena->held ? arena->limit - arena->held : 0;
		if (left < sizeof(struct kv_arena_block) || need > left - sizeof(struct kv_arena_block))
			return NULL;
		if (size > left - sizeof(struct kv_arena_block))
			size = left - sizeof(struct kv_arena_block);
	}
	if (size < need)
		size = need;
	struct kv_arena_block *block = malloc(sizeof(*block) + size);
	if (!block)
		return NULL;
	block->size = size;
	arena->held += sizeof(*block) + size;
	if (arena->current) {
		block->next = arena->current->next;
		arena->current->next = block;
	} else {
		block->next = arena->first;
		arena->first = block;
	}
	return block;
}

void *kv_arena_alloc(struct kv_arena *arena, size_t size)
{
	if (size > PTRDIFF_MAX / 2) /* nobody has as much; keeps the sums below from wrapping */
		return NULL;
	size_t need = size ? (size + ALIGNMENT - 1) & ~(size_t)(ALIGNMENT - 1) : ALIGNMENT;

	struct kv_arena_block *block = arena->current;
	if (!block || block->size < arena->used || need > block->size - arena->used) {
		/* A kept block that is too small for this piece is left out until the next reset. */
		block = block ? block->next : arena->first;
		while (block && block->size < need)
			block = block->next;
		if (!block)
			block = add_block(arena, need);
		if (!block)
			return NULL;
		arena->current = block;
		arena->used = 0;
	}
	void *piece = block->data + arena->used;
	arena->used += need;
	return piece;
}

void *kv_arena_calloc(struct kv_arena *arena, size_t count, size_t size)
{
	size_t total;
	if (__builtin_mul_overflow(count, size, &total))
		return NULL;
	void *piece = kv_arena_alloc(arena, total);
	if (piece)
		memset(piece, 0, total);
	return piece;
}

void kv_arena_reset(struct kv_arena *arena, size_t keep)
{
	struct kv_arena_block **link = &arena->first;
	size_t kept = 0;
	while (*link) {
		struct kv_arena_block *block = *link;
		size_t bytes = sizeof(*block) + block->size;
		if (bytes <= keep - kept) {
			kept += bytes;
			link = &block->next;
		} else {
			*link = block->next;
			free(block);
		}
	}
	arena->held = kept;
	arena->current = NULL;
	arena->used = 0;
}

void kv_arena_free(struct kv_arena *arena)
{
	kv_arena_reset(arena, 0);
}

static pthread_once_t thread_key_once = PTHREAD_ONCE_INIT;
static pthread_key_t thread_key;
static bool thread_key_made;
static __thread struct kv_arena thread_arena;
static __thread bool thread_arena_known;

static void free_thread_arena(void *arena)
{
	kv_arena_free(arena);
	/* A later destructor of the same thread may use the arena again: it is then registered anew. */
	thread_arena_known = false;
}

static void make_thread_key(void)
{
	thread_key_made = pthread_key_create(&thread_key, free_thread_arena) == 0;
}

struct kv_arena *kv_arena_thread(void)
{
	if (!thread_arena_known) {
		pthread_once(&thread_key_once, make_thread_key);
		if (thread_key_made && pthread_setspecific(thread_key, &thread_arena) == 0)
			thread_arena_known = true;
	}
	return &thread_arena;
}
