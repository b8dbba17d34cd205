/* SPDX-License-Identifier: Apache-2.0 */
/* Inside of store/meta. */
#ifndef KV_META_PRIVATE_H
#define KV_META_PRIVATE_H

#include <pthread.h>
#include <stdatomic.h>

#include "kvstore_status.h"
#include "store/meta/index.h"
#include "store/meta/meta.h"
#include "store/meta/object.h"
#include "store/meta/pool.h"

#define META_SHARD_BITS 10
#define META_SHARDS     (1u << META_SHARD_BITS)

struct shard {
	_Alignas(128) pthread_mutex_t lock;
	struct index index;
	struct object *inflight;
};

struct meta {
	struct meta_config config;
	struct pool pool;
	_Atomic uint64_t n_objects;
	atomic_bool allocation_failed; /* since the last eviction */
	/* Puts whose key was taken over. Their space waits for the release timeout. */
	pthread_mutex_t discarded_lock;
	struct object *discarded;
	uint64_t n_discarded;
	struct shard shards[META_SHARDS];
};

static inline struct shard *shard_of(struct meta *meta, uint64_t hash)
{
	return &meta->shards[hash >> (64 - META_SHARD_BITS)];
}

/* All of these under the shard's lock. */

/* The slot of a key whose object has a live replica, or INDEX_NONE. What has none left is dropped here. */
size_t shard_find(struct meta *meta, struct shard *shard, uint64_t hash, struct kv_str key);
/* Take the object out of the index and the list of puts in flight; it is the caller's then. */
struct object *shard_take(struct meta *meta, struct shard *shard, size_t slot);
void shard_drop(struct meta *meta, struct shard *shard, size_t slot);
bool shard_add(struct meta *meta, struct shard *shard, uint64_t hash, struct object *object);
void shard_land(struct shard *shard, struct object *object); /* no longer in flight */

/* Put the replicas into *out. False without memory. */
bool reply_replicas(struct meta_reply *reply, const struct object *object, struct kvm_key_replicas *out);

static inline bool object_is_leased(const struct object *object, uint64_t now_ns)
{
	return object->lease_until_ns > now_ns;
}

static inline void object_grant_lease(struct object *object, uint64_t until_ns)
{
	if (object->lease_until_ns < until_ns)
		object->lease_until_ns = until_ns;
}

/* How long the put has been in flight. */
static inline uint64_t object_age(const struct object *object, uint64_t now_ns)
{
	return now_ns > object->started_ns ? now_ns - object->started_ns : 0;
}

#endif
