/* SPDX-License-Identifier: Apache-2.0 */
/* Put start, end and revoke. */
#include "store/meta/meta_private.h"

#include "probes/perf_points.h"

#define MOST_TRIED 100u /* segments beyond the preferred ones */

/* --- one call ----------------------------------------------------------------------------------- */

static bool is_named(const struct segment *segment, struct kv_str endpoint)
{
	return segment->endpoint_len == endpoint.len && memcmp(segment->endpoint, endpoint.ptr, endpoint.len) == 0;
}

static bool is_listed(const struct meta_put_call *call, const struct segment *segment)
{
	for (uint32_t i = 0; i < call->n_first; i++) {
		if (call->first[i] == segment)
			return true;
	}
	return false;
}

/* The segments to be tried first, in order: the preferred ones, then the caller's own. */
static void list_first(struct meta_put_call *call, const struct meta_placement *placement)
{
	const struct segment_set *set = call->set;
	for (uint32_t p = 0; p < placement->n_preferred; p++) {
		for (uint32_t i = 0; i < set->count && call->n_first < KVW_MAX_REPLICAS; i++) {
			if (is_named(set->list[i], placement->preferred[p].key) && !is_listed(call, set->list[i]))
				call->first[call->n_first++] = set->list[i];
		}
	}
	for (uint32_t i = 0; placement->same_node && i < set->count && call->n_first < KVW_MAX_REPLICAS; i++) {
		if (kv_id_equal(set->list[i]->client, call->caller.client) && !is_listed(call, set->list[i]))
			call->first[call->n_first++] = set->list[i];
	}
}

static int soft_pin_of(const struct meta *meta, const struct meta_placement *placement, uint64_t *ns)
{
	*ns = 0;
	if (placement->soft_pin_action > META_SOFT_PIN_DISABLE)
		return KV_INVALID_PARAMS;
	if (placement->soft_pin_action != META_SOFT_PIN_ENABLE)
		return placement->soft_pin_ttl_ns ? KV_INVALID_PARAMS : KV_OK;
	if (placement->soft_pin_ttl_ns > meta->config.max_soft_pin_ttl_ns)
		return KV_INVALID_PARAMS;
	*ns = placement->soft_pin_ttl_ns ? placement->soft_pin_ttl_ns : meta->config.soft_pin_ttl_ns;
	return KV_OK;
}

int meta_put_open(struct meta_put_call *call, struct meta *meta, const struct meta_caller *caller,
                  const struct meta_placement *placement, struct kv_arena *arena)
{
	*call = (struct meta_put_call){.meta = meta,
	                               .caller = *caller,
	                               .replica_num = placement->replica_num,
	                               .hard_pin = placement->hard_pin};
	if (placement->replica_num < 1 || placement->replica_num > KVW_MAX_REPLICAS)
		return KV_INVALID_PARAMS;
	int status = soft_pin_of(meta, placement, &call->soft_pin_ns);
	if (status)
		return status;
	call->first = kv_arena_alloc(arena, KVW_MAX_REPLICAS * sizeof(struct segment *));
	if (!call->first)
		return KV_INTERNAL_ERROR;
	call->set = pool_segments(&meta->pool);
	call->n_segments = call->set->count;
	list_first(call, placement);
	return KV_OK;
}

void meta_put_close(struct meta_put_call *call)
{
	segment_set_unref(call->set);
	call->set = NULL;
}

/* --- placing one object -------------------------------------------------------------------------- */

struct placed {
	struct replica replicas[KVW_MAX_REPLICAS];
	uint32_t count;
};

static bool is_placed(const struct placed *placed, const struct segment *segment)
{
	for (uint32_t i = 0; i < placed->count; i++) {
		if (placed->replicas[i].segment == segment)
			return true;
	}
	return false;
}

static void try_segment(struct placed *placed, struct segment *segment, uint64_t size)
{
	struct replica *replica = &placed->replicas[placed->count];
	if (is_placed(placed, segment) || !segment_take(segment, size, &replica->offset, &replica->handle))
		return;
	segment_ref(segment);
	replica->segment = segment;
	placed->count++;
}

/* A number that is random enough and the same when the operation is replayed. */
static uint64_t draw(uint64_t hash, uint64_t now_ns)
{
	uint64_t mixed = (hash ^ now_ns) * 0x9e3779b97f4a7c15ull;
	return mixed ^ mixed >> 32;
}

/* Fires once per object that a put start has to find space for. */
static int place(struct meta_put_call *call, uint64_t hash, uint64_t size, struct placed *placed)
{
	uint64_t rounded = range_rounded(size);
	uint64_t wanted = rounded <= call->set->largest ? rounded * call->replica_num : 0;
	PERF_SCOPE(MASTER_PUT_ALLOCATE_MEM, perf, call->caller.op_id, 1, wanted);
	placed->count = 0;
	for (uint32_t i = 0; i < call->n_first && placed->count < call->replica_num; i++)
		try_segment(placed, call->first[i], size);

	const struct segment_set *set = call->set;
	uint32_t tried = set->count < MOST_TRIED ? set->count : MOST_TRIED;
	uint32_t at = set->count ? (uint32_t)(draw(hash, call->caller.now_ns) % set->count) : 0;
	for (; tried > 0 && placed->count < call->replica_num; tried--) {
		try_segment(placed, set->list[at], size);
		at = at + 1 < set->count ? at + 1 : 0;
	}
	if (placed->count > 0)
		return (int)perf_result(&perf, rounded * placed->count, 1, KV_OK);
	/* No eviction helps an object that no segment could ever hold. */
	if (size <= set->largest)
		atomic_store_explicit(&call->meta->allocation_failed, true, memory_order_relaxed);
	return (int)perf_result(&perf, 0, 1, KV_NO_AVAILABLE_HANDLE);
}

static struct object *make_object(const struct meta_put_call *call, struct kv_str key, uint64_t size,
                                  struct placed *placed)
{
	struct object *object = object_create(key, placed->replicas, placed->count);
	if (!object) {
		replicas_release(placed->replicas, placed->count);
		return NULL;
	}
	object->size = size;
	object->soft_pin_ns = call->soft_pin_ns;
	object->hard_pin = call->hard_pin;
	object->started_ns = call->caller.now_ns;
	object->op_id = call->caller.op_id;
	object->client = call->caller.client;
	return object;
}

/* --- start --------------------------------------------------------------------------------------- */

static bool may_take_over(const struct meta_put_call *call, const struct object *object)
{
	return !object->complete && object_age(object, call->caller.now_ns) >= call->meta->config.discard_ns;
}

/* Keep an abandoned put's space until its writer can no longer be writing. */
static void discard(struct meta *meta, struct object *object)
{
	pthread_mutex_lock(&meta->discarded_lock);
	object->after = meta->discarded;
	meta->discarded = object;
	meta->n_discarded++;
	pthread_mutex_unlock(&meta->discarded_lock);
}

static int start_locked(struct meta_put_call *call, struct shard *shard, uint64_t hash, struct kv_str key,
                        uint64_t size, struct meta_reply *reply, struct kvm_key_replicas *out)
{
	struct meta *meta = call->meta;
	size_t slot = shard_find(meta, shard, hash, key);
	if (slot != INDEX_NONE && !may_take_over(call, shard->index.slots[slot].object))
		return KV_OBJECT_ALREADY_EXISTS;
	struct placed placed;
	int status = place(call, hash, size, &placed);
	if (status)
		return status;
	struct object *object = make_object(call, key, size, &placed);
	if (!object)
		return KV_INTERNAL_ERROR;
	if (!reply_replicas(reply, object, out)) {
		object_destroy(object);
		return KV_INTERNAL_ERROR;
	}
	if (slot != INDEX_NONE)
		discard(meta, shard_take(meta, shard, slot));
	if (!shard_add(meta, shard, hash, object)) {
		object_destroy(object);
		*out = (struct kvm_key_replicas){.code = KV_INTERNAL_ERROR};
		return KV_INTERNAL_ERROR;
	}
	return KV_OK;
}

/* Fires once per key of a put start. */
static void lock_shard(struct shard *shard, uint64_t op_id)
{
	PERF_SCOPE(MASTER_PUT_SHARD_LOCK, perf, op_id, 1, 0);
	pthread_mutex_lock(&shard->lock);
	perf_set(&perf, 0, 1, 0, KV_OK);
}

void meta_put_start(struct meta_put_call *call, struct kv_str key, uint64_t size, struct meta_reply *reply,
                    struct kvm_key_replicas *out)
{
	*out = (struct kvm_key_replicas){.code = size > 0 ? meta_check_key(key) : KV_INVALID_PARAMS};
	if (out->code)
		return;
	uint64_t hash = index_hash(key);
	struct shard *shard = shard_of(call->meta, hash);
	lock_shard(shard, call->caller.op_id);
	out->code = start_locked(call, shard, hash, key, size, reply, out);
	pthread_mutex_unlock(&shard->lock);
}

/* --- end and revoke ------------------------------------------------------------------------------- */

/* May this caller end or revoke the put of this object? */
static int owns_put(const struct meta_caller *caller, const struct object *object)
{
	if (!kv_id_equal(object->client, caller->client))
		return KV_ILLEGAL_CLIENT;
	/* Calls of one client may meet at a key: one gave a put up, or revokes what it does not know to have begun,
	 * while another writes. */
	if (!object->complete && object->op_id != caller->op_id)
		return KV_INVALID_WRITE;
	return KV_OK;
}

static void complete(struct shard *shard, struct object *object, uint64_t now_ns)
{
	shard_land(shard, object);
	object->complete = true;
	object_grant_lease(object, now_ns); /* none, but its place in the order of eviction */
	if (object->soft_pin_ns)
		object->soft_pin_until_ns = now_ns + object->soft_pin_ns;
}

static int end_locked(struct meta *meta, struct shard *shard, size_t slot, uint64_t now_ns)
{
	(void)meta;
	struct object *object = shard->index.slots[slot].object;
	if (!object->complete)
		complete(shard, object, now_ns);
	return KV_OK;
}

static int revoke_locked(struct meta *meta, struct shard *shard, size_t slot, uint64_t now_ns)
{
	(void)now_ns;
	if (shard->index.slots[slot].object->complete)
		return KV_INVALID_WRITE;
	shard_drop(meta, shard, slot);
	return KV_OK;
}

/* `act` on the caller's own put of the key, under the shard's lock. */
static int on_own_put(struct meta *meta, const struct meta_caller *caller, struct kv_str key,
                      int (*act)(struct meta *meta, struct shard *shard, size_t slot, uint64_t now_ns))
{
	int status = meta_check_key(key);
	if (status)
		return status;
	uint64_t hash = index_hash(key);
	struct shard *shard = shard_of(meta, hash);
	pthread_mutex_lock(&shard->lock);
	size_t slot = shard_find(meta, shard, hash, key);
	status = slot == INDEX_NONE ? KV_OBJECT_NOT_FOUND : owns_put(caller, shard->index.slots[slot].object);
	if (status == KV_OK)
		status = act(meta, shard, slot, caller->now_ns);
	pthread_mutex_unlock(&shard->lock);
	return status;
}

int meta_put_end(struct meta *meta, const struct meta_caller *caller, struct kv_str key)
{
	return on_own_put(meta, caller, key, end_locked);
}

int meta_put_revoke(struct meta *meta, const struct meta_caller *caller, struct kv_str key)
{
	return on_own_put(meta, caller, key, revoke_locked);
}
