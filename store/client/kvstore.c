/* SPDX-License-Identifier: Apache-2.0 */
/* The C API: C strings and parallel arrays in, real_client.h's types out. */
#include "kvstore.h"

#include <stdlib.h>
#include <string.h>

#include "store/base/arena.h"
#include "store/base/op_id.h"
#include "store/base/status.h"
#include "store/client/real_client.h"
#include "store/wire/wire.h"

#define ARENA_KEEP ((size_t)4 << 20)

/* A store is its client: the public name is opaque. */
static struct real_client *client_of(kvstore_t *store)
{
	return (struct real_client *)store;
}

/* The calling thread's arena for the arrays of one call. */
static void end_call(struct kv_arena **arena)
{
	kv_arena_reset(*arena, ARENA_KEEP);
}
#define CALL_ARENA(arena) struct kv_arena *arena __attribute__((cleanup(end_call))) = kv_arena_thread()

/* A call that did not run: a caller that looks at the results alone must not find what he had put there. */
static int fill_int(int status, int *results, size_t count)
{
	for (size_t i = 0; status < 0 && results && i < count; i++)
		results[i] = status;
	return status;
}

static int fill_int64(int status, int64_t *results, size_t count)
{
	for (size_t i = 0; status < 0 && results && i < count; i++)
		results[i] = status;
	return status;
}

/* --- conversions -------------------------------------------------------------------------------------------- */

static struct rc_key make_key(const char *text)
{
	if (!text)
		return (struct rc_key){.status = KV_INVALID_PARAMS};
	return (struct rc_key){.ptr = text, .len = strnlen(text, KVW_MAX_KEY + 1)};
}

/* NULL for NULL, or without memory. */
static struct rc_key *make_keys(struct kv_arena *arena, const char *const *texts, size_t count)
{
	struct rc_key *keys = texts ? kv_arena_calloc(arena, count, sizeof(*keys)) : NULL;
	for (size_t i = 0; keys && i < count; i++)
		keys[i] = make_key(texts[i]);
	return keys;
}

static struct kv_buf *make_bufs(struct kv_arena *arena, void *const *ptrs, const size_t *sizes, size_t count)
{
	struct kv_buf *bufs = ptrs && sizes ? kv_arena_calloc(arena, count, sizeof(*bufs)) : NULL;
	for (size_t i = 0; bufs && i < count; i++)
		bufs[i] = (struct kv_buf){ptrs[i], sizes[i]};
	return bufs;
}

static struct kv_bufs *make_lists(struct kv_arena *arena, void *const *const *ptrs, const size_t *const *sizes,
                                  const size_t *nbufs, size_t count)
{
	struct kv_bufs *lists = ptrs && sizes && nbufs ? kv_arena_calloc(arena, count, sizeof(*lists)) : NULL;
	for (size_t i = 0; lists && i < count; i++) {
		lists[i].count = nbufs[i];
		lists[i].frag = nbufs[i] ? make_bufs(arena, ptrs[i], sizes[i], nbufs[i]) : NULL;
	}
	return lists;
}

/* What the caller's struct has of ours; the rest are zeros. */
static bool read_config(kvstore_replicate_config_t *out, const kvstore_replicate_config_t *in)
{
	memset(out, 0, sizeof(*out));
	if (in->struct_size < offsetof(kvstore_replicate_config_t, with_soft_pin))
		return false;
	memcpy(out, in, in->struct_size < sizeof(*out) ? in->struct_size : sizeof(*out));
	return !out->preferred_segments_count || out->preferred_segments;
}

/* A config that cannot be is handed on as one that the client refuses: it knows what to log and to return. */
static void make_config(struct rc_config *out, struct kv_arena *arena, const kvstore_replicate_config_t *in)
{
	kvstore_replicate_config_t config;
	rc_config_default(out);
	if (!in)
		return;
	out->soft_pin_action = -1;
	if (!read_config(&config, in) || config.preferred_segments_count > KVW_MAX_REPLICAS)
		return;
	struct kv_str *preferred = kv_arena_calloc(arena, config.preferred_segments_count, sizeof(*preferred));
	if (!preferred)
		return;
	for (size_t i = 0; i < config.preferred_segments_count; i++)
		if (config.preferred_segments[i])
			preferred[i] = kv_str(config.preferred_segments[i]);
	out->replica_num = config.replica_num < KVW_MAX_REPLICAS ? (uint32_t)config.replica_num : KVW_MAX_REPLICAS;
	out->hard_pin = config.with_hard_pin;
	out->soft_pin_action = config.with_soft_pin ? 1 : config.soft_pin_action;
	out->has_soft_pin_ttl = config.soft_pin_ttl_ms != 0;
	out->soft_pin_ttl_ms = config.soft_pin_ttl_ms;
	out->same_node = config.prefer_alloc_in_same_node;
	out->preferred = preferred;
	out->n_preferred = config.preferred_segments_count;
}

/* --- life ------------------------------------------------------------------------------------------------------ */

kvstore_t *kvstore_create(void)
{
	return (kvstore_t *)rc_create();
}

void kvstore_destroy(kvstore_t *store)
{
	rc_destroy(client_of(store));
}

int kvstore_setup(kvstore_t *store, const char *local_hostname, const char *metadata_server,
                  uint64_t global_segment_size, uint64_t local_buffer_size, const char *protocol,
                  const char *device_name, const char *master_server_addr)
{
	struct rc_setup setup = {.local_hostname = local_hostname,
	                         .metadata_server = metadata_server,
	                         .global_segment_size = global_segment_size,
	                         .local_buffer_size = local_buffer_size,
	                         .protocol = protocol,
	                         .device_name = device_name,
	                         .master_server_addr = master_server_addr};
	return store ? rc_setup(client_of(store), kv_op_id_new(), &setup) : KV_INTERNAL_ERROR;
}

int kvstore_close(kvstore_t *store)
{
	return store ? rc_close(client_of(store), kv_op_id_new()) : KV_INTERNAL_ERROR;
}

int kvstore_health_check(kvstore_t *store)
{
	return store ? rc_health_check(client_of(store), kv_op_id_new()) : KV_INTERNAL_ERROR;
}

int kvstore_get_hostname(kvstore_t *store, char *buf, size_t len)
{
	return store ? rc_get_hostname(client_of(store), buf, len) : KV_INTERNAL_ERROR;
}

int kvstore_register_buffer(kvstore_t *store, void *ptr, size_t size)
{
	return store ? rc_register_buffer(client_of(store), kv_op_id_new(), ptr, size) : KV_INTERNAL_ERROR;
}

int kvstore_unregister_buffer(kvstore_t *store, void *ptr)
{
	return store ? rc_unregister_buffer(client_of(store), kv_op_id_new(), ptr) : KV_INTERNAL_ERROR;
}

/* --- put ------------------------------------------------------------------------------------------------------- */

int kvstore_put(kvstore_t *store, const char *key, const void *value, size_t size,
                const kvstore_replicate_config_t *config)
{
	CALL_ARENA(arena);
	struct rc_config placed;
	if (!store)
		return KV_INTERNAL_ERROR;
	make_config(&placed, arena, config);
	return rc_put(client_of(store), kv_op_id_new(), make_key(key), value, size, &placed);
}

int kvstore_put_from(kvstore_t *store, const char *key, void *buffer, size_t size,
                     const kvstore_replicate_config_t *config)
{
	CALL_ARENA(arena);
	struct rc_config placed;
	if (!store)
		return KV_INTERNAL_ERROR;
	make_config(&placed, arena, config);
	return rc_put_from(client_of(store), kv_op_id_new(), make_key(key), buffer, size, &placed);
}

int kvstore_batch_put_from(kvstore_t *store, const char *const *keys, void *const *buffers, const size_t *sizes,
                           size_t count, const kvstore_replicate_config_t *config, int *results)
{
	CALL_ARENA(arena);
	struct rc_config placed;
	if (!store)
		return fill_int(KV_INTERNAL_ERROR, results, count);
	make_config(&placed, arena, config);
	int status = rc_batch_put_from(client_of(store), kv_op_id_new(), make_keys(arena, keys, count),
	                               make_bufs(arena, buffers, sizes, count), count, &placed, results);
	return fill_int(status, results, count);
}

int kvstore_batch_put_from_multi_buffers(kvstore_t *store, const char *const *keys, void *const *const *bufs,
                                         const size_t *const *sizes, const size_t *nbufs, size_t count,
                                         const kvstore_replicate_config_t *config, int *results)
{
	CALL_ARENA(arena);
	struct rc_config placed;
	if (!store)
		return fill_int(KV_INTERNAL_ERROR, results, count);
	make_config(&placed, arena, config);
	int status = rc_batch_put_multi(client_of(store), kv_op_id_new(), make_keys(arena, keys, count),
	                                make_lists(arena, bufs, sizes, nbufs, count), count, &placed, results);
	return fill_int(status, results, count);
}

/* --- get ------------------------------------------------------------------------------------------------------- */

int64_t kvstore_get_into(kvstore_t *store, const char *key, void *buffer, size_t size)
{
	if (!store)
		return KV_INTERNAL_ERROR;
	return rc_get_into(client_of(store), kv_op_id_new(), make_key(key), buffer, size);
}

int kvstore_batch_get_into(kvstore_t *store, const char *const *keys, void *const *buffers, const size_t *sizes,
                           size_t count, int64_t *results)
{
	CALL_ARENA(arena);
	if (!store)
		return fill_int64(KV_INTERNAL_ERROR, results, count);
	int status = rc_batch_get_into(client_of(store), kv_op_id_new(), make_keys(arena, keys, count),
	                               make_bufs(arena, buffers, sizes, count), count, results);
	return fill_int64(status, results, count);
}

int kvstore_batch_get_into_multi_buffers(kvstore_t *store, const char *const *keys, void *const *const *bufs,
                                         const size_t *const *sizes, const size_t *nbufs, size_t count,
                                         int64_t *results)
{
	CALL_ARENA(arena);
	if (!store)
		return fill_int64(KV_INTERNAL_ERROR, results, count);
	int status = rc_batch_get_into_multi(client_of(store), kv_op_id_new(), make_keys(arena, keys, count),
	                                     make_lists(arena, bufs, sizes, nbufs, count), count, results);
	return fill_int64(status, results, count);
}

static void *allocate(void *ctx, size_t size)
{
	void **out = ctx;
	*out = malloc(size);
	return *out;
}

int64_t kvstore_get_buffer(kvstore_t *store, const char *key, void **out)
{
	void *memory = NULL;
	if (!store || !out)
		return KV_INTERNAL_ERROR;
	*out = NULL;
	int64_t result = rc_get_buffer(client_of(store), kv_op_id_new(), make_key(key), allocate, &memory);
	if (result < 0)
		free(memory);
	else
		*out = memory;
	return result;
}

/* --- keys --------------------------------------------------------------------------------------------------------
 */

int kvstore_is_exist(kvstore_t *store, const char *key)
{
	return store ? rc_is_exist(client_of(store), kv_op_id_new(), make_key(key)) : KV_INTERNAL_ERROR;
}

int kvstore_batch_is_exist(kvstore_t *store, const char *const *keys, size_t count, int *results)
{
	CALL_ARENA(arena);
	if (!store)
		return fill_int(KV_INTERNAL_ERROR, results, count);
	int status =
	        rc_batch_is_exist(client_of(store), kv_op_id_new(), make_keys(arena, keys, count), count, results);
	return fill_int(status, results, count);
}

int64_t kvstore_get_size(kvstore_t *store, const char *key)
{
	return store ? rc_get_size(client_of(store), kv_op_id_new(), make_key(key)) : KV_INTERNAL_ERROR;
}

int kvstore_remove(kvstore_t *store, const char *key, int force)
{
	return store ? rc_remove(client_of(store), kv_op_id_new(), make_key(key), force) : KV_INTERNAL_ERROR;
}

int64_t kvstore_remove_all(kvstore_t *store, int force)
{
	return store ? rc_remove_all(client_of(store), kv_op_id_new(), force) : KV_INTERNAL_ERROR;
}

int kvstore_batch_get_replica_desc(kvstore_t *store, const char *const *keys, size_t count,
                                   kvstore_replica_lists_t **out)
{
	CALL_ARENA(arena);
	if (!store)
		return KV_INTERNAL_ERROR;
	return rc_batch_get_replica_desc(client_of(store), kv_op_id_new(), make_keys(arena, keys, count), count, out);
}

void kvstore_replica_lists_free(kvstore_replica_lists_t *lists)
{
	free(lists);
}

const char *kvstore_strerror(int status)
{
	return kv_status_text(status);
}

const char *kvstore_version(void)
{
	return KVPROBE_VERSION;
}
