/* SPDX-License-Identifier: Apache-2.0 */
/* Creation, the shards, lookup and removal. */
#include "store/meta/meta_private.h"

#include <stdlib.h>

#include "store/base/clock.h"

struct meta *meta_create(const struct meta_config *config)
{
	struct meta *meta = aligned_alloc(_Alignof(struct meta), sizeof(*meta));
	if (!meta)
		return NULL;
	memset(meta, 0, sizeof(*meta));
	meta->config = *config;
	if (!pool_init(&meta->pool)) {
		pool_destroy(&meta->pool);
		free(meta);
		return NULL;
	}
	pthread_mutex_init(&meta->discarded_lock, NULL);
	for (size_t i = 0; i < META_SHARDS; i++)
		pthread_mutex_init(&meta->shards[i].lock, NULL);
	return meta;
}

void meta_destroy(struct meta *meta)
{
	if (!meta)
		return;
	for (size_t i = 0; i < META_SHARDS; i++) {
		struct index *index = &meta->shards[i].index;
		for (size_t slot = 0; slot < index->capacity; slot++) {
			if (index->slots[slot].object)
				object_destroy(index->slots[slot].object);
		}
		index_destroy(index);
		pthread_mutex_destroy(&meta->shards[i].lock);
	}
	while (meta->discarded) {
		struct object *object = meta->discarded;
		meta->discarded = object->after;
		object_destroy(object);
	}
	pthread_mutex_destroy(&meta->discarded_lock);
	pool_destroy(&meta->pool);
	free(meta);
}

int meta_check_key(struct kv_str key)
{
	if (key.len == 0 || key.len > KVW_MAX_KEY || memchr(key.ptr, '\0', key.len))
		return KV_INVALID_PARAMS;
	return KV_OK;
}

/* --- shards ------------------------------------------------------------------------------------- */

bool shard_add(struct meta *meta, struct shard *shard, uint64_t hash, struct object *object)
{
	if (!index_add(&shard->index, hash, object))
		return false;
	object->before = NULL;
	object->after = shard->inflight;
	if (shard->inflight)
		shard->inflight->before = object;
	shard->inflight = object;
	atomic_fetch_add_explicit(&meta->n_objects, 1, memory_order_relaxed);
	return true;
}

void shard_land(struct shard *shard, struct object *object)
{
	if (object->after)
		object->after->before = object->before;
	if (object->before)
		object->before->after = object->after;
	else
		shard->inflight = object->after;
	object->before = object->after = NULL;
}

struct object *shard_take(struct meta *meta, struct shard *shard, size_t slot)
{
	struct object *object = shard->index.slots[slot].object;
	if (!object->complete)
		shard_land(shard, object);
	index_remove(&shard->index, slot);
	atomic_fetch_sub_explicit(&meta->n_objects, 1, memory_order_relaxed);
	return object;
}

void shard_drop(struct meta *meta, struct shard *shard, size_t slot)
{
	object_destroy(shard_take(meta, shard, slot));
}

size_t shard_find(struct meta *meta, struct shard *shard, uint64_t hash, struct kv_str key)
{
	size_t slot = index_find(&shard->index, hash, key);
	if (slot != INDEX_NONE && object_drop_dead(shard->index.slots[slot].object) == 0) {
		shard_drop(meta, shard, slot);
		slot = INDEX_NONE;
	}
	return slot;
}

/* --- lookup ------------------------------------------------------------------------------------- */

int meta_exist(struct meta *meta, const struct meta_caller *caller, struct kv_str key)
{
	int status = meta_check_key(key);
	if (status)
		return status;
	uint64_t hash = index_hash(key);
	struct shard *shard = shard_of(meta, hash);
	int found = 0;
	pthread_mutex_lock(&shard->lock);
	size_t slot = shard_find(meta, shard, hash, key);
	if (slot != INDEX_NONE && shard->index.slots[slot].object->complete) {
		object_grant_lease(shard->index.slots[slot].object, caller->now_ns + meta->config.lease_ttl_ns);
		found = 1;
	}
	pthread_mutex_unlock(&shard->lock);
	return found;
}

static int get_locked(struct meta *meta, struct shard *shard, size_t slot, const struct meta_caller *caller,
                      struct meta_reply *reply, struct kvm_key_replicas *out)
{
	if (slot == INDEX_NONE)
		return KV_OBJECT_NOT_FOUND;
	struct object *object = shard->index.slots[slot].object;
	if (!object->complete)
		return KV_REPLICA_IS_NOT_READY;
	if (!reply_replicas(reply, object, out))
		return KV_INTERNAL_ERROR;
	object_grant_lease(object, caller->now_ns + meta->config.lease_ttl_ns);
	return KV_OK;
}

void meta_get(struct meta *meta, const struct meta_caller *caller, struct kv_str key, struct meta_reply *reply,
              struct kvm_key_replicas *out)
{
	*out = (struct kvm_key_replicas){.code = meta_check_key(key)};
	if (out->code)
		return;
	uint64_t hash = index_hash(key);
	struct shard *shard = shard_of(meta, hash);
	pthread_mutex_lock(&shard->lock);
	out->code = get_locked(meta, shard, shard_find(meta, shard, hash, key), caller, reply, out);
	pthread_mutex_unlock(&shard->lock);
}

uint64_t meta_lease_ms(const struct meta *meta)
{
	return meta->config.lease_ttl_ns / KV_NS_PER_MS;
}

/* --- remove ------------------------------------------------------------------------------------- */

static int removable(const struct object *object, uint64_t now_ns, bool force)
{
	if (!object->complete)
		return KV_REPLICA_IS_NOT_READY;
	if (!force && object_is_leased(object, now_ns))
		return KV_OBJECT_HAS_LEASE;
	return KV_OK;
}

int meta_remove(struct meta *meta, const struct meta_caller *caller, struct kv_str key, bool force)
{
	int status = meta_check_key(key);
	if (status)
		return status;
	uint64_t hash = index_hash(key);
	struct shard *shard = shard_of(meta, hash);
	pthread_mutex_lock(&shard->lock);
	size_t slot = shard_find(meta, shard, hash, key);
	status = slot == INDEX_NONE ? KV_OBJECT_NOT_FOUND
	                            : removable(shard->index.slots[slot].object, caller->now_ns, force);
	if (status == KV_OK)
		shard_drop(meta, shard, slot);
	pthread_mutex_unlock(&shard->lock);
	return status;
}

uint64_t meta_remove_all(struct meta *meta, const struct meta_caller *caller, bool force)
{
	uint64_t removed = 0;
	for (size_t i = 0; i < META_SHARDS; i++) {
		struct shard *shard = &meta->shards[i];
		pthread_mutex_lock(&shard->lock);
		for (size_t slot = 0; slot < shard->index.capacity;) {
			struct object *object = shard->index.slots[slot].object;
			bool gone = object && object_drop_dead(object) == 0;
			if (gone || (object && removable(object, caller->now_ns, force) == KV_OK)) {
				shard_drop(meta, shard, slot); /* the slot may have got another object */
				removed += !gone;
			} else {
				slot++;
			}
		}
		pthread_mutex_unlock(&shard->lock);
	}
	return removed;
}

/* --- figures ------------------------------------------------------------------------------------ */

void meta_get_stats(struct meta *meta, struct meta_stats *stats)
{
	*stats = (struct meta_stats){.objects = atomic_load(&meta->n_objects),
	                             .used = atomic_load(&meta->pool.used),
	                             .capacity = atomic_load(&meta->pool.capacity)};
	pthread_mutex_lock(&meta->pool.lock);
	stats->segments = meta->pool.set->count;
	stats->clients = meta->pool.n_clients;
	pthread_mutex_unlock(&meta->pool.lock);
	pthread_mutex_lock(&meta->discarded_lock);
	stats->discarded = meta->n_discarded;
	pthread_mutex_unlock(&meta->discarded_lock);
}
