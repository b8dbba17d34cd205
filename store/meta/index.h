/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The objects of one shard by key: open addressing with linear probing, at most three quarters full, grows by
 * doubling. Not thread-safe: the shard's lock covers it.
 */
#ifndef KV_META_INDEX_H
#define KV_META_INDEX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "store/base/bytes.h"

struct object;
struct index_slot {
	uint64_t hash;
	struct object *object; /* NULL: free */
};
struct index {
	struct index_slot *slots;
	size_t capacity; /* 0 or a power of two */
	size_t count;
};

#define INDEX_NONE SIZE_MAX

/* The hash of a key: its top bits choose the shard, its low bits the slot. */
uint64_t index_hash(struct kv_str key);
/* The slot of a key, or INDEX_NONE. */
size_t index_find(const struct index *index, uint64_t hash, struct kv_str key);
/* Add an object whose key is not in it. False without memory. */
bool index_add(struct index *index, uint64_t hash, struct object *object);
/* Empty a slot. Later objects may move into it, so a walk looks at the same slot again. */
void index_remove(struct index *index, size_t slot);
void index_destroy(struct index *index);

#endif
