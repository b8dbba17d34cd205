/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Making room: eviction of complete objects, and releasing the space of abandoned puts.
 *
 * The order of eviction is by lease expiry, over all shards. A first walk counts the bytes of the candidates
 * by how long ago their lease expired, in buckets of 3 %; that gives the age from which objects have to go. A
 * second walk frees them. Neither holds more than one shard, and no list has to be kept up on every read.
 */
#include "store/meta/meta_private.h"

#include "probes/perf_points.h"
#include "store/base/loglin.h"

/* The candidates of one kind, by age of their lease's end. */
struct ages {
	uint64_t bytes[LOGLIN_BUCKETS];
	uint64_t total;
	/* What the second walk takes: all above the bucket, and of the bucket itself as much as is in quota. */
	uint32_t bucket;
	uint64_t quota;
};

struct eviction {
	uint64_t now_ns;
	struct ages plain, soft_pinned;
	uint64_t bytes, objects; /* freed */
};

bool meta_evict_due(const struct meta *meta)
{
	struct meta *m = (struct meta *)(uintptr_t)meta;
	uint64_t capacity = atomic_load_explicit(&m->pool.capacity, memory_order_relaxed);
	uint64_t used = atomic_load_explicit(&m->pool.used, memory_order_relaxed);
	if (capacity == 0)
		return false;
	return atomic_load_explicit(&m->allocation_failed, memory_order_relaxed) ||
	       (double)used > meta->config.eviction_high_watermark * (double)capacity;
}

/* Not for this eviction: in flight, pinned for good, or leased. */
static struct ages *kind_of(struct eviction *eviction, const struct object *object)
{
	if (!object->complete || object->hard_pin || object_is_leased(object, eviction->now_ns))
		return NULL;
	return object->soft_pin_until_ns > eviction->now_ns ? &eviction->soft_pinned : &eviction->plain;
}

static uint32_t age_bucket(const struct eviction *eviction, const struct object *object)
{
	return loglin_bucket(eviction->now_ns - object->lease_until_ns);
}

static void count_candidates(struct shard *shard, struct eviction *eviction)
{
	pthread_mutex_lock(&shard->lock);
	for (size_t slot = 0; slot < shard->index.capacity; slot++) {
		const struct object *object = shard->index.slots[slot].object;
		struct ages *ages = object ? kind_of(eviction, object) : NULL;
		if (ages) {
			uint64_t bytes = object_pool_bytes(object);
			ages->bytes[age_bucket(eviction, object)] += bytes;
			ages->total += bytes;
		}
	}
	pthread_mutex_unlock(&shard->lock);
}

/* From the oldest on, as many as make up `bytes`, or all. */
static void choose(struct ages *ages, uint64_t bytes)
{
	ages->bucket = LOGLIN_BUCKETS;
	ages->quota = 0;
	while (ages->bucket > 0 && bytes > 0) {
		uint64_t here = ages->bytes[--ages->bucket];
		ages->quota = bytes;
		bytes -= here < bytes ? here : bytes;
	}
}

static bool is_chosen(struct ages *ages, uint32_t bucket, uint64_t bytes)
{
	if (bucket > ages->bucket)
		return true;
	if (bucket < ages->bucket || ages->quota == 0)
		return false;
	ages->quota -= bytes < ages->quota ? bytes : ages->quota;
	return true;
}

static void free_chosen(struct meta *meta, struct shard *shard, struct eviction *eviction)
{
	pthread_mutex_lock(&shard->lock);
	for (size_t slot = 0; slot < shard->index.capacity;) {
		const struct object *object = shard->index.slots[slot].object;
		struct ages *ages = object ? kind_of(eviction, object) : NULL;
		uint64_t bytes = ages ? object_pool_bytes(object) : 0;
		if (ages && is_chosen(ages, age_bucket(eviction, object), bytes)) {
			shard_drop(meta, shard, slot);
			eviction->bytes += bytes;
			eviction->objects++;
		} else {
			slot++;
		}
	}
	pthread_mutex_unlock(&shard->lock);
}

/* How many bytes to free, and with how many a run is content. */
static void set_goals(const struct meta *meta, uint64_t used, uint64_t capacity, uint64_t *target, uint64_t *least)
{
	double over = (double)used / (double)capacity - meta->config.eviction_high_watermark;
	double ratio = meta->config.eviction_ratio;
	double goal = over + ratio > ratio ? over + ratio : ratio;
	double bound = goal / 2 > over ? goal / 2 : over;
	*target = (uint64_t)(goal * (double)capacity);
	*least = (uint64_t)(bound * (double)capacity);
}

uint64_t meta_evict(struct meta *meta, uint64_t op_id, uint64_t now_ns)
{
	PERF_SCOPE(MASTER_BG_BATCH_EVICT, perf, op_id, 0, 0);
	struct eviction eviction = {.now_ns = now_ns};
	uint64_t used = atomic_load_explicit(&meta->pool.used, memory_order_relaxed);
	uint64_t capacity = atomic_load_explicit(&meta->pool.capacity, memory_order_relaxed);
	uint64_t target = 0, least = 0;
	atomic_store_explicit(&meta->allocation_failed, false, memory_order_relaxed);
	if (capacity > 0)
		set_goals(meta, used, capacity, &target, &least);

	for (size_t i = 0; i < META_SHARDS; i++)
		count_candidates(&meta->shards[i], &eviction);
	choose(&eviction.plain, target);
	bool needs_pinned = eviction.plain.total < least && meta->config.evict_soft_pinned;
	choose(&eviction.soft_pinned, needs_pinned ? least - eviction.plain.total : 0);
	for (size_t i = 0; i < META_SHARDS; i++)
		free_chosen(meta, &meta->shards[i], &eviction);

	/* Too little: everything else is leased, pinned or in flight. */
	int status = eviction.bytes < least ? KV_NO_AVAILABLE_HANDLE : KV_OK;
	perf_set(&perf, eviction.bytes, eviction.objects, 0, status);
	return eviction.bytes;
}

/* --- abandoned puts ------------------------------------------------------------------------------- */

struct release {
	uint64_t objects, bytes;
};

static void count_release(struct release *release, const struct object *object)
{
	release->objects++;
	release->bytes += object_pool_bytes(object);
}

/* Puts in flight that no other has taken over. */
static void release_inflight(struct meta *meta, struct shard *shard, uint64_t now_ns, struct release *release)
{
	pthread_mutex_lock(&shard->lock);
	struct object *after;
	for (struct object *object = shard->inflight; object; object = after) {
		after = object->after;
		if (object_age(object, now_ns) < meta->config.release_ns)
			continue;
		struct kv_str key = {object->key, object->key_len};
		count_release(release, object);
		shard_drop(meta, shard, index_find(&shard->index, index_hash(key), key));
	}
	pthread_mutex_unlock(&shard->lock);
}

static void release_discarded(struct meta *meta, uint64_t now_ns, struct release *release)
{
	pthread_mutex_lock(&meta->discarded_lock);
	for (struct object **link = &meta->discarded; *link;) {
		struct object *object = *link;
		if (object_age(object, now_ns) < meta->config.release_ns) {
			link = &object->after;
			continue;
		}
		*link = object->after;
		meta->n_discarded--;
		count_release(release, object);
		object_destroy(object);
	}
	pthread_mutex_unlock(&meta->discarded_lock);
}

uint64_t meta_discard_expired(struct meta *meta, uint64_t op_id, uint64_t now_ns)
{
	PERF_SCOPE(MASTER_BG_DISCARD_EXPIRED, perf, op_id, 0, 0);
	struct release release = {.objects = 0};
	for (size_t i = 0; i < META_SHARDS; i++)
		release_inflight(meta, &meta->shards[i], now_ns, &release);
	release_discarded(meta, now_ns, &release);
	perf_set(&perf, release.bytes, release.objects, 0, KV_OK);
	return release.objects;
}
