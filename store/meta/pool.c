/* SPDX-License-Identifier: Apache-2.0 */
#include "store/meta/pool.h"

#include <stdlib.h>
#include <string.h>

#include "kvstore_status.h"

struct pool_client {
	struct pool_client *next;
	struct kv_id id;
	uint64_t seen_ns;
};

/* --- segments ---------------------------------------------------------------------------------- */

static struct segment *segment_create(struct pool *pool, struct kv_id client, const struct kvm_segment *from)
{
	struct segment *segment = calloc(1, sizeof(*segment));
	if (!segment)
		return NULL;
	if (!range_init(&segment->ranges, from->size)) {
		free(segment);
		return NULL;
	}
	atomic_init(&segment->refs, 1);
	atomic_init(&segment->live, true);
	segment->id = from->id;
	segment->client = client;
	segment->base = from->base;
	segment->size = from->size;
	segment->rkey = from->rkey;
	segment->transports = from->transports;
	segment->endpoint_len = from->endpoint.len;
	memcpy(segment->endpoint, from->endpoint.ptr, from->endpoint.len);
	segment->pool = pool;
	pthread_mutex_init(&segment->lock, NULL);
	return segment;
}

void segment_ref(struct segment *segment)
{
	atomic_fetch_add_explicit(&segment->refs, 1, memory_order_relaxed);
}

void segment_unref(struct segment *segment)
{
	if (atomic_fetch_sub_explicit(&segment->refs, 1, memory_order_acq_rel) != 1)
		return;
	pthread_mutex_destroy(&segment->lock);
	range_destroy(&segment->ranges);
	free(segment);
}

bool segment_take(struct segment *segment, uint64_t size, uint64_t *offset, uint32_t *handle)
{
	pthread_mutex_lock(&segment->lock);
	uint64_t before = segment->ranges.used;
	bool taken = segment_is_live(segment) && range_take(&segment->ranges, size, offset, handle);
	if (taken)
		atomic_fetch_add_explicit(&segment->pool->used, segment->ranges.used - before, memory_order_relaxed);
	pthread_mutex_unlock(&segment->lock);
	return taken;
}

void segment_give_back(struct segment *segment, uint32_t handle)
{
	pthread_mutex_lock(&segment->lock);
	uint64_t before = segment->ranges.used;
	range_free(&segment->ranges, handle);
	/* A dead segment's bytes left the count when it died. */
	if (segment_is_live(segment))
		atomic_fetch_sub_explicit(&segment->pool->used, before - segment->ranges.used, memory_order_relaxed);
	pthread_mutex_unlock(&segment->lock);
}

static void segment_kill(struct segment *segment)
{
	struct pool *pool = segment->pool;
	pthread_mutex_lock(&segment->lock);
	atomic_store_explicit(&segment->live, false, memory_order_release);
	atomic_fetch_sub_explicit(&pool->used, segment->ranges.used, memory_order_relaxed);
	atomic_fetch_sub_explicit(&pool->capacity, segment->ranges.capacity, memory_order_relaxed);
	pthread_mutex_unlock(&segment->lock);
}

/* --- the set ------------------------------------------------------------------------------------ */

/* Room for `room` segments, with one reference and none in it. */
static struct segment_set *set_create(uint32_t room)
{
	struct segment_set *set = calloc(1, sizeof(*set) + room * sizeof(set->list[0]));
	if (set)
		atomic_init(&set->refs, 1);
	return set;
}

static void set_add(struct segment_set *set, struct segment *segment)
{
	segment_ref(segment);
	set->list[set->count++] = segment;
	if (segment->size > set->largest)
		set->largest = segment->size;
}

void segment_set_unref(struct segment_set *set)
{
	if (atomic_fetch_sub_explicit(&set->refs, 1, memory_order_acq_rel) != 1)
		return;
	for (uint32_t i = 0; i < set->count; i++)
		segment_unref(set->list[i]);
	free(set);
}

struct segment_set *pool_segments(struct pool *pool)
{
	pthread_mutex_lock(&pool->lock);
	struct segment_set *set = pool->set;
	atomic_fetch_add_explicit(&set->refs, 1, memory_order_relaxed);
	pthread_mutex_unlock(&pool->lock);
	return set;
}

/* Under the pool's lock. */
static void replace_set(struct pool *pool, struct segment_set *set)
{
	struct segment_set *old = pool->set;
	pool->set = set;
	segment_set_unref(old);
}

bool pool_init(struct pool *pool)
{
	memset(pool, 0, sizeof(*pool));
	pthread_mutex_init(&pool->lock, NULL);
	pool->set = set_create(0);
	return pool->set != NULL;
}

void pool_destroy(struct pool *pool)
{
	if (pool->set)
		segment_set_unref(pool->set);
	for (size_t i = 0; i < POOL_CLIENT_BUCKETS; i++) {
		while (pool->clients[i]) {
			struct pool_client *client = pool->clients[i];
			pool->clients[i] = client->next;
			free(client);
		}
	}
	pthread_mutex_destroy(&pool->lock);
}

/* --- clients ------------------------------------------------------------------------------------ */

static struct pool_client **bucket_of(struct pool *pool, struct kv_id id)
{
	uint64_t mixed = (id.hi ^ id.lo) * 0x9e3779b97f4a7c15ull;
	return &pool->clients[mixed >> 32 & (POOL_CLIENT_BUCKETS - 1)];
}

static struct pool_client *find_client(struct pool *pool, struct kv_id id)
{
	struct pool_client *client = *bucket_of(pool, id);
	while (client && !kv_id_equal(client->id, id))
		client = client->next;
	return client;
}

bool pool_ping(struct pool *pool, struct kv_id id, uint64_t now_ns)
{
	pthread_mutex_lock(&pool->lock);
	struct pool_client *client = find_client(pool, id);
	if (client && client->seen_ns < now_ns)
		client->seen_ns = now_ns;
	pthread_mutex_unlock(&pool->lock);
	return client != NULL;
}

static int join_locked(struct pool *pool, struct kv_id id, uint64_t now_ns)
{
	struct pool_client *client = find_client(pool, id);
	if (client) {
		if (client->seen_ns < now_ns)
			client->seen_ns = now_ns;
		return KV_OK;
	}
	if (pool->n_clients >= POOL_MAX_CLIENTS)
		return KV_UNAVAILABLE_IN_CURRENT_STATUS;
	client = malloc(sizeof(*client));
	if (!client)
		return KV_INTERNAL_ERROR;
	struct pool_client **bucket = bucket_of(pool, id);
	*client = (struct pool_client){.next = *bucket, .id = id, .seen_ns = now_ns};
	*bucket = client;
	pool->n_clients++;
	return KV_OK;
}

int pool_join(struct pool *pool, struct kv_id client, uint64_t now_ns)
{
	if (client.hi == 0 && client.lo == 0)
		return KV_INVALID_PARAMS;
	pthread_mutex_lock(&pool->lock);
	int status = join_locked(pool, client, now_ns);
	pthread_mutex_unlock(&pool->lock);
	return status;
}

/* --- mounting ----------------------------------------------------------------------------------- */

static struct segment *find_segment(const struct pool *pool, struct kv_id id)
{
	for (uint32_t i = 0; i < pool->set->count; i++) {
		if (kv_id_equal(pool->set->list[i]->id, id))
			return pool->set->list[i];
	}
	return NULL;
}

static bool valid_segment(const struct kvm_segment *segment)
{
	return (segment->id.hi || segment->id.lo) && segment->endpoint.len > 0 &&
	       segment->endpoint.len <= KVW_MAX_ENDPOINT && segment->size >= RANGE_ALIGN &&
	       segment->size <= POOL_MAX_SEGMENT && segment->base <= UINT64_MAX - segment->size;
}

static bool same_segment(const struct segment *have, struct kv_id client, const struct kvm_segment *segment)
{
	return kv_id_equal(have->client, client) && have->base == segment->base && have->size == segment->size &&
	       have->rkey == segment->rkey && have->endpoint_len == segment->endpoint.len &&
	       memcmp(have->endpoint, segment->endpoint.ptr, have->endpoint_len) == 0;
}

static int mount_locked(struct pool *pool, struct kv_id client, const struct kvm_segment *from)
{
	if (!find_client(pool, client))
		return KV_CLIENT_NOT_FOUND;
	struct segment *have = find_segment(pool, from->id);
	if (have)
		return same_segment(have, client, from) ? KV_OK : KV_SEGMENT_ALREADY_EXISTS;
	if (pool->set->count >= KVW_MAX_SEGMENTS)
		return KV_UNAVAILABLE_IN_CURRENT_STATUS;
	struct segment *segment = segment_create(pool, client, from);
	struct segment_set *set = set_create(pool->set->count + 1);
	if (!segment || !set) {
		if (segment)
			segment_unref(segment);
		free(set);
		return KV_INTERNAL_ERROR;
	}
	for (uint32_t i = 0; i < pool->set->count; i++)
		set_add(set, pool->set->list[i]);
	set_add(set, segment);
	segment_unref(segment); /* the set's reference is the one that stays */
	atomic_fetch_add_explicit(&pool->capacity, segment->ranges.capacity, memory_order_relaxed);
	replace_set(pool, set);
	return KV_OK;
}

int pool_mount(struct pool *pool, struct kv_id client, const struct kvm_segment *segment)
{
	if (!valid_segment(segment))
		return KV_INVALID_PARAMS;
	pthread_mutex_lock(&pool->lock);
	int status = mount_locked(pool, client, segment);
	pthread_mutex_unlock(&pool->lock);
	return status;
}

/* Kill what `leaves` picks. Under the pool's lock. False without memory: nothing has changed then. */
static bool remove_segments(struct pool *pool, bool (*leaves)(const struct segment *segment, struct kv_id id),
                            struct kv_id id, struct pool_loss *loss)
{
	struct segment_set *set = set_create(pool->set->count);
	if (!set)
		return false;
	for (uint32_t i = 0; i < pool->set->count; i++) {
		struct segment *segment = pool->set->list[i];
		if (leaves(segment, id)) {
			segment_kill(segment);
			loss->segments++;
			loss->bytes += segment->size;
		} else {
			set_add(set, segment);
		}
	}
	replace_set(pool, set);
	return true;
}

static bool is_segment(const struct segment *segment, struct kv_id id)
{
	return kv_id_equal(segment->id, id);
}

static bool is_of_client(const struct segment *segment, struct kv_id id)
{
	return kv_id_equal(segment->client, id);
}

int pool_unmount(struct pool *pool, struct kv_id client, struct kv_id id)
{
	struct pool_loss loss = {.client = client};
	int status = KV_OK;
	pthread_mutex_lock(&pool->lock);
	const struct segment *segment = find_segment(pool, id);
	if (!segment)
		status = KV_SEGMENT_NOT_FOUND;
	else if (!kv_id_equal(segment->client, client))
		status = KV_ILLEGAL_CLIENT;
	else if (!remove_segments(pool, is_segment, id, &loss))
		status = KV_INTERNAL_ERROR;
	pthread_mutex_unlock(&pool->lock);
	return status;
}

static struct pool_client **find_silent(struct pool *pool, uint64_t now_ns, uint64_t ttl_ns)
{
	for (size_t i = 0; i < POOL_CLIENT_BUCKETS; i++) {
		for (struct pool_client **link = &pool->clients[i]; *link; link = &(*link)->next) {
			if (now_ns > (*link)->seen_ns && now_ns - (*link)->seen_ns > ttl_ns)
				return link;
		}
	}
	return NULL;
}

bool pool_forget_dead(struct pool *pool, uint64_t now_ns, uint64_t ttl_ns, struct pool_loss *loss)
{
	*loss = (struct pool_loss){.segments = 0};
	pthread_mutex_lock(&pool->lock);
	struct pool_client **link = find_silent(pool, now_ns, ttl_ns);
	bool found = false;
	if (link) {
		struct pool_client *client = *link;
		loss->client = client->id;
		/* Without memory it stays and is tried again at the next check. */
		found = remove_segments(pool, is_of_client, client->id, loss);
		if (found) {
			*link = client->next;
			free(client);
			pool->n_clients--;
		}
	}
	pthread_mutex_unlock(&pool->lock);
	return found;
}
