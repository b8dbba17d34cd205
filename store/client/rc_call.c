/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>

#include "kvstore_status.h"
#include "store/client/rc_internal.h"
#include "store/wire/wire.h"

#define ARENA_KEEP ((size_t)4 << 20)

/* Memory that calls of one thread use; a call inside a call (from an allocation callback) shares it. */
struct rc_thread {
	struct kv_arena arena;
	unsigned depth;
	bool known; /* freed when the thread ends */
};

static __thread struct rc_thread this_thread;
static __thread uint64_t last_bytes;
static pthread_key_t thread_key;
static bool thread_key_made;
uint32_t rc_fork_generation;

static void free_thread(void *thread)
{
	struct rc_thread *self = thread;
	kv_arena_free(&self->arena);
	self->known = false;
}

static void count_fork(void)
{
	rc_fork_generation++;
}

__attribute__((constructor)) static void prepare(void)
{
	thread_key_made = pthread_key_create(&thread_key, free_thread) == 0;
	pthread_atfork(NULL, NULL, count_fork);
}

/* --- enter and leave ----------------------------------------------------------------------------------- */

static int enter_status(struct real_client *rc)
{
	if (atomic_load(&rc->state) != RC_OPEN)
		return KV_INVALID_PARAMS;
	return rc->fork_generation == rc_fork_generation ? KV_OK : KV_UNAVAILABLE_IN_CURRENT_STATUS;
}

static void leave_client(struct real_client *rc)
{
	if (atomic_fetch_sub(&rc->in_flight, 1) == 1 && atomic_load(&rc->state) == RC_CLOSING) {
		pthread_mutex_lock(&rc->drain_lock);
		pthread_cond_broadcast(&rc->drained);
		pthread_mutex_unlock(&rc->drain_lock);
	}
}

struct rc_call rc_enter(struct real_client *rc)
{
	struct rc_thread *thread = &this_thread;
	struct rc_call call = {.rc = rc, .arena = &thread->arena, .status = KV_INVALID_PARAMS};

	if (!thread->known && thread_key_made)
		thread->known = pthread_setspecific(thread_key, thread) == 0;
	thread->depth++;
	if (!rc)
		return call;
	/* Counted first, looked at second: a close that begins meanwhile waits for this call. */
	atomic_fetch_add(&rc->in_flight, 1);
	call.counted = true;
	call.status = enter_status(rc);
	return call;
}

void rc_leave(struct rc_call *call)
{
	struct rc_thread *thread = &this_thread;
	if (--thread->depth == 0)
		kv_arena_reset(&thread->arena, ARENA_KEEP);
	if (call->counted)
		leave_client(call->rc);
}

uint64_t rc_last_bytes(void)
{
	return last_bytes;
}

void rc_set_last_bytes(uint64_t bytes)
{
	last_bytes = bytes;
}

/* --- checks ------------------------------------------------------------------------------------------------ */

int rc_key_status(const struct rc_key *key)
{
	if (key->status)
		return key->status;
	if (!key->ptr || key->len == 0 || key->len > KVW_MAX_KEY || memchr(key->ptr, '\0', key->len))
		return KV_INVALID_PARAMS;
	return KV_OK;
}

void rc_config_default(struct rc_config *config)
{
	*config = (struct rc_config){.replica_num = 1};
}

int rc_config_status(const struct rc_config *config, bool multi)
{
	if (config->replica_num == 0 || config->soft_pin_action < 0 || config->soft_pin_action > 2)
		return KV_INVALID_PARAMS;
	if (config->has_soft_pin_ttl && config->soft_pin_action != 1)
		return KV_INVALID_PARAMS;
	if (config->same_node && !multi)
		return KV_INVALID_PARAMS;
	if (config->n_preferred > KVW_MAX_REPLICAS)
		return KV_INVALID_PARAMS;
	for (size_t i = 0; i < config->n_preferred; i++)
		if (!config->preferred[i].ptr || config->preferred[i].len > KVW_MAX_ENDPOINT)
			return KV_INVALID_PARAMS;
	return KV_OK;
}

/* Total of an object's fragments, or KV_INVALID_PARAMS for one that cannot be. */
static int measure(struct kv_bufs bufs, uint64_t *size)
{
	*size = 0;
	if (bufs.count && !bufs.frag)
		return KV_INVALID_PARAMS;
	for (size_t i = 0; i < bufs.count; i++)
		if ((!bufs.frag[i].ptr && bufs.frag[i].len) || __builtin_add_overflow(*size, bufs.frag[i].len, size))
			return KV_INVALID_PARAMS;
	return *size && *size <= INT64_MAX ? KV_OK : KV_INVALID_PARAMS;
}

struct client_object *rc_make_objects(struct kv_arena *arena, const struct rc_key *keys, const struct kv_bufs *bufs,
                                      size_t count)
{
	struct client_object *objects = kv_arena_calloc(arena, count, sizeof(*objects));
	for (size_t i = 0; objects && i < count; i++) {
		struct client_object *object = &objects[i];
		object->status = count > KVW_MAX_KEYS ? KV_INVALID_PARAMS : rc_key_status(&keys[i]);
		if (object->status == KV_OK)
			object->key = (struct kv_str){keys[i].ptr, (uint32_t)keys[i].len};
		if (!bufs)
			continue;
		object->bufs = bufs[i];
		int status = measure(bufs[i], &object->size);
		if (object->status == KV_OK)
			object->status = status;
	}
	return objects;
}

struct kv_bufs *rc_single_fragments(struct kv_arena *arena, const struct kv_buf *bufs, size_t count)
{
	struct kv_bufs *lists = kv_arena_alloc(arena, count * sizeof(*lists));
	for (size_t i = 0; lists && i < count; i++)
		lists[i] = (struct kv_bufs){&bufs[i], 1};
	return lists;
}

struct client_call rc_client_call(const struct rc_call *call, uint64_t op_id, struct client_object *objects,
                                  size_t count)
{
	return (struct client_call){.service = &call->rc->service,
	                            .op_id = op_id,
	                            .arena = call->arena,
	                            .objects = objects,
	                            .count = count};
}

uint64_t rc_total_size(const struct kv_bufs *bufs, size_t count)
{
	uint64_t total = 0;
	for (size_t i = 0; i < count; i++)
		for (size_t j = 0; bufs[i].frag && j < bufs[i].count; j++)
			if (__builtin_add_overflow(total, bufs[i].frag[j].len, &total))
				return UINT64_MAX;
	return total;
}
