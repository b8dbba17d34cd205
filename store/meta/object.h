/* SPDX-License-Identifier: Apache-2.0 */
/* What the master knows about one key. Changed under its shard's lock only. */
#ifndef KV_META_OBJECT_H
#define KV_META_OBJECT_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "store/base/bytes.h"
#include "store/meta/pool.h"

struct replica {
	struct segment *segment; /* a counted reference */
	uint64_t offset;
	uint32_t handle; /* of the range */
};

struct object {
	struct object *before, *after; /* list of puts in flight, or of discarded puts (after) */
	uint64_t size;
	uint64_t lease_until_ns; /* not evicted before; the order of eviction */
	uint64_t soft_pin_until_ns;
	uint64_t soft_pin_ns; /* how long, from put end; 0: no pin */
	uint64_t started_ns;
	uint64_t op_id; /* of the put */
	struct kv_id client;
	uint32_t key_len;
	uint8_t n_replicas;
	bool complete; /* else its put is in flight */
	bool hard_pin;
	const char *key;
	struct replica replicas[];
};

static inline bool object_has_key(const struct object *object, struct kv_str key)
{
	return object->key_len == key.len && memcmp(object->key, key.ptr, key.len) == 0;
}

/* With the replicas, whose references it takes over. NULL without memory. */
struct object *object_create(struct kv_str key, const struct replica *replicas, uint32_t n_replicas);
/* Give the space back and free it. */
void object_destroy(struct object *object);
void replicas_release(struct replica *replicas, uint32_t count);
/* Let go of the replicas on dead segments; how many are left. */
uint32_t object_drop_dead(struct object *object);
/* Bytes it takes in the pool. */
uint64_t object_pool_bytes(const struct object *object);

#endif
