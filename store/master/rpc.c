/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One function per kind of request, one table from the request's type to it and to its probe.
 *
 * What the MASTER_RPC_ probes report: n_keys is the number of keys of the request (REMOVE_ALL: the number
 * removed; 0 for segments and pings), n_failed the keys with a negative result, rc the first of those or the
 * status of the whole request. bytes is 0, but for MOUNT_SEGMENT the bytes that were mounted: the master moves
 * no data.
 */
#include <inttypes.h>
#include <stddef.h>
#include <string.h>

#include "kvstore_status.h"
#include "probes/perf_points.h"
#include "store/base/clock.h"
#include "store/base/log.h"
#include "store/master/master_private.h"

/* One request being served. The handler fills in response and what the probe says. */
struct rpc {
	struct meta *meta;
	const struct master *master;
	struct meta_caller caller;
	struct kv_arena *arena;
	const void *request;
	void *response;
	bool single; /* exactly one key, not a batch */
	uint64_t bytes, n_keys, n_failed;
	int rc;
};

static void count_result(struct rpc *rpc, int code)
{
	if (code >= 0)
		return;
	rpc->n_failed++;
	if (rpc->rc == 0)
		rpc->rc = code;
}

/* The whole request fails. */
static void fail_all(struct rpc *rpc, int32_t *status, int code)
{
	*status = code;
	rpc->rc = code;
	rpc->n_failed = rpc->n_keys;
}

/* A response of zeros, or NULL. */
static void *make_response(struct rpc *rpc, size_t size)
{
	rpc->response = kv_arena_calloc(rpc->arena, 1, size);
	return rpc->response;
}

/* --- keys ---------------------------------------------------------------------------------------- */

static uint64_t keys_of_put_start(const void *request)
{
	return ((const struct kvm_put_start_req *)request)->n_keys;
}

static uint64_t keys_of_keys(const void *request)
{
	return ((const struct kvm_keys_req *)request)->n_keys;
}

static uint64_t keys_one(const void *request)
{
	(void)request;
	return 1;
}

static uint64_t keys_none(const void *request)
{
	(void)request;
	return 0;
}

static bool wrong_count(const struct rpc *rpc)
{
	return rpc->single && rpc->n_keys != 1;
}

/* Room for one key's replicas each. False without memory. */
static bool make_replica_lists(struct rpc *rpc, struct kvm_replicas_resp *response)
{
	response->keys = kv_arena_alloc(rpc->arena, rpc->n_keys * sizeof(*response->keys));
	response->n_keys = (uint32_t)rpc->n_keys;
	return response->keys != NULL;
}

static void take_segments(struct kvm_replicas_resp *response, const struct meta_reply *reply)
{
	response->segments = reply->segments;
	response->n_segments = reply->n_segments;
}

/* Could the answer be longer than a frame? That is asked before anything is reserved: space whose place the
 * client never learns would be lost, and its keys taken, until the timeouts of abandoned puts. */
static bool answer_too_long(const struct meta_put_call *call, uint64_t n_keys)
{
	uint64_t per_key = call->replica_num < call->n_segments ? call->replica_num : call->n_segments;
	uint64_t replicas = n_keys * per_key;
	uint64_t segments = replicas < call->n_segments ? replicas : call->n_segments;
	return kvw_replicas_resp_most(n_keys, replicas, segments) > KVW_MAX_PAYLOAD;
}

static int serve_put_start(struct rpc *rpc)
{
	const struct kvm_put_start_req *request = rpc->request;
	struct kvm_replicas_resp *response = make_response(rpc, sizeof(*response));
	if (!response)
		return KV_INTERNAL_ERROR;
	rpc->caller.client = request->client;
	if (wrong_count(rpc)) {
		fail_all(rpc, &response->status, KV_INVALID_PARAMS);
		return KV_OK;
	}
	if (!make_replica_lists(rpc, response))
		return KV_INTERNAL_ERROR;
	const struct meta_placement placement = {.replica_num = request->replica_num,
	                                         .hard_pin = request->hard_pin,
	                                         .same_node = request->same_node,
	                                         .soft_pin_action = request->soft_pin_action,
	                                         .soft_pin_ttl_ns =
	                                                 request->soft_pin_ttl_ms > UINT64_MAX / KV_NS_PER_MS
	                                                         ? UINT64_MAX
	                                                         : request->soft_pin_ttl_ms * KV_NS_PER_MS,
	                                         .preferred = request->preferred,
	                                         .n_preferred = request->n_preferred};
	struct meta_put_call call;
	struct meta_reply reply;
	meta_reply_init(&reply, rpc->arena);
	int unusable = meta_put_open(&call, rpc->meta, &rpc->caller, &placement, rpc->arena);
	if (!unusable && answer_too_long(&call, rpc->n_keys)) {
		meta_put_close(&call);
		response->n_keys = 0;
		fail_all(rpc, &response->status, KV_BUFFER_OVERFLOW);
		return KV_OK;
	}
	for (uint32_t i = 0; i < request->n_keys; i++) {
		struct kvm_key_replicas *out = &response->keys[i];
		if (unusable)
			*out = (struct kvm_key_replicas){.code = unusable};
		else
			meta_put_start(&call, request->keys[i].key, request->keys[i].size, &reply, out);
		count_result(rpc, out->code);
	}
	if (!unusable)
		meta_put_close(&call);
	take_segments(response, &reply);
	return KV_OK;
}

static int serve_get(struct rpc *rpc)
{
	const struct kvm_keys_req *request = rpc->request;
	struct kvm_replicas_resp *response = make_response(rpc, sizeof(*response));
	if (!response)
		return KV_INTERNAL_ERROR;
	rpc->caller.client = request->client;
	if (wrong_count(rpc)) {
		fail_all(rpc, &response->status, KV_INVALID_PARAMS);
		return KV_OK;
	}
	if (!make_replica_lists(rpc, response))
		return KV_INTERNAL_ERROR;
	response->lease_ms = meta_lease_ms(rpc->meta);
	struct meta_reply reply;
	meta_reply_init(&reply, rpc->arena);
	for (uint32_t i = 0; i < request->n_keys; i++) {
		meta_get(rpc->meta, &rpc->caller, request->keys[i].key, &reply, &response->keys[i]);
		count_result(rpc, response->keys[i].code);
	}
	take_segments(response, &reply);
	return KV_OK;
}

/* Requests whose answer is one number per key. */
static int serve_keys(struct rpc *rpc,
                      int (*one)(struct meta *meta, const struct meta_caller *caller, struct kv_str key))
{
	const struct kvm_keys_req *request = rpc->request;
	struct kvm_results_resp *response = make_response(rpc, sizeof(*response));
	if (!response)
		return KV_INTERNAL_ERROR;
	rpc->caller.client = request->client;
	if (wrong_count(rpc)) {
		fail_all(rpc, &response->status, KV_INVALID_PARAMS);
		return KV_OK;
	}
	response->results = kv_arena_alloc(rpc->arena, rpc->n_keys * sizeof(*response->results));
	if (!response->results)
		return KV_INTERNAL_ERROR;
	response->n_results = request->n_keys;
	for (uint32_t i = 0; i < request->n_keys; i++) {
		response->results[i].code = one(rpc->meta, &rpc->caller, request->keys[i].key);
		count_result(rpc, response->results[i].code);
	}
	return KV_OK;
}

static int serve_put_end(struct rpc *rpc)
{
	return serve_keys(rpc, meta_put_end);
}

static int serve_put_revoke(struct rpc *rpc)
{
	return serve_keys(rpc, meta_put_revoke);
}

static int serve_exist(struct rpc *rpc)
{
	return serve_keys(rpc, meta_exist);
}

static int serve_remove(struct rpc *rpc)
{
	const struct kvm_remove_req *request = rpc->request;
	struct kvm_count_resp *response = make_response(rpc, sizeof(*response));
	if (!response)
		return KV_INTERNAL_ERROR;
	rpc->caller.client = request->client;
	response->status = meta_remove(rpc->meta, &rpc->caller, request->key, request->force);
	response->count = response->status == KV_OK;
	count_result(rpc, response->status);
	return KV_OK;
}

static int serve_remove_all(struct rpc *rpc)
{
	const struct kvm_remove_req *request = rpc->request;
	struct kvm_count_resp *response = make_response(rpc, sizeof(*response));
	if (!response)
		return KV_INTERNAL_ERROR;
	rpc->caller.client = request->client;
	if (request->key.len > 0) {
		fail_all(rpc, &response->status, KV_INVALID_PARAMS);
		return KV_OK;
	}
	rpc->n_keys = meta_remove_all(rpc->meta, &rpc->caller, request->force);
	response->count = (int64_t)rpc->n_keys;
	return KV_OK;
}

/* --- segments and clients ------------------------------------------------------------------------ */

static void log_mount(const struct kv_id *client, const struct kvm_segment *segments, uint32_t count, int status)
{
	for (uint32_t i = 0; i < count; i++) {
		kv_info("client %016" PRIx64 "%016" PRIx64 " mounts %" PRIu64 " bytes at %.*s", client->hi,
		        client->lo, segments[i].size, (int)segments[i].endpoint.len, segments[i].endpoint.ptr);
	}
	if (status)
		kv_warn("client %016" PRIx64 "%016" PRIx64 ": mount failed with %d", client->hi, client->lo, status);
}

static int serve_mount(struct rpc *rpc)
{
	const struct kvm_mount_req *request = rpc->request;
	struct kvm_count_resp *response = make_response(rpc, sizeof(*response));
	if (!response)
		return KV_INTERNAL_ERROR;
	rpc->caller.client = request->client;
	uint32_t mounted;
	response->status = meta_mount(rpc->meta, &rpc->caller, request->segments, request->n_segments, &mounted);
	response->count = mounted;
	for (uint32_t i = 0; response->status == KV_OK && i < request->n_segments; i++)
		rpc->bytes += request->segments[i].size;
	rpc->rc = response->status;
	log_mount(&request->client, request->segments, request->n_segments, response->status);
	return KV_OK;
}

static int serve_unmount(struct rpc *rpc)
{
	const struct kvm_unmount_req *request = rpc->request;
	struct kvm_count_resp *response = make_response(rpc, sizeof(*response));
	if (!response)
		return KV_INTERNAL_ERROR;
	rpc->caller.client = request->client;
	uint64_t lost;
	response->status = meta_unmount(rpc->meta, &rpc->caller, request->segment, &lost);
	response->count = (int64_t)lost;
	rpc->rc = response->status;
	kv_info("client %016" PRIx64 "%016" PRIx64 " unmounts a segment: status %d, %" PRIu64 " objects gone",
	        request->client.hi, request->client.lo, response->status, lost);
	return KV_OK;
}

static int serve_ping(struct rpc *rpc)
{
	const struct kvm_client_req *request = rpc->request;
	struct kvm_ping_resp *response = make_response(rpc, sizeof(*response));
	if (!response)
		return KV_INTERNAL_ERROR;
	rpc->caller.client = request->client;
	response->need_remount = meta_ping(rpc->meta, &rpc->caller);
	response->master = rpc->master->id;
	return KV_OK;
}

/* --- the table ------------------------------------------------------------------------------------ */

/* type and probe, handler, what counts the request's keys, exactly one key */
#define MASTER_RPCS(RPC)                                                                                             \
	RPC(PUT_START, serve_put_start, keys_of_put_start, true)                                                     \
	RPC(PUT_END, serve_put_end, keys_of_keys, true)                                                              \
	RPC(PUT_REVOKE, serve_put_revoke, keys_of_keys, true)                                                        \
	RPC(GET_REPLICA_LIST, serve_get, keys_of_keys, true)                                                         \
	RPC(EXIST_KEY, serve_exist, keys_of_keys, true)                                                              \
	RPC(BATCH_PUT_START, serve_put_start, keys_of_put_start, false)                                              \
	RPC(BATCH_PUT_END, serve_put_end, keys_of_keys, false)                                                       \
	RPC(BATCH_PUT_REVOKE, serve_put_revoke, keys_of_keys, false)                                                 \
	RPC(BATCH_GET_REPLICA, serve_get, keys_of_keys, false)                                                       \
	RPC(BATCH_EXIST_KEY, serve_exist, keys_of_keys, false)                                                       \
	RPC(REMOVE, serve_remove, keys_one, false)                                                                   \
	RPC(REMOVE_ALL, serve_remove_all, keys_none, false)                                                          \
	RPC(MOUNT_SEGMENT, serve_mount, keys_none, false)                                                            \
	RPC(UNMOUNT_SEGMENT, serve_unmount, keys_none, false)                                                        \
	RPC(PING, serve_ping, keys_none, false)

/* A scope needs its key's name, so every type has a function of its own around its handler. */
#define RPC(NAME, handler, count_keys, one_key)                                                                      \
	static int probed_##NAME(struct rpc *rpc)                                                                    \
	{                                                                                                            \
		rpc->n_keys = count_keys(rpc->request);                                                              \
		rpc->single = one_key;                                                                               \
		PERF_SCOPE(MASTER_RPC_##NAME, perf, rpc->caller.op_id, rpc->n_keys, 0);                              \
		int status = handler(rpc);                                                                           \
		if (status == KV_OK)                                                                                 \
			perf_set(&perf, rpc->bytes, rpc->n_keys, rpc->n_failed, rpc->rc);                            \
		return status;                                                                                       \
	}
MASTER_RPCS(RPC)
#undef RPC

int master_call(struct master *master, uint16_t type, uint64_t op_id, const void *request, void **response,
                struct kv_arena *arena)
{
	struct rpc rpc = {.meta = master->meta,
	                  .master = master,
	                  .caller = {.op_id = op_id, .now_ns = kv_now_ns()},
	                  .arena = arena,
	                  .request = request};
	int status;
	*response = NULL;
	switch (type) {
#define RPC(NAME, handler, count_keys, one_key)                                                                      \
	case KVW_##NAME:                                                                                             \
		status = probed_##NAME(&rpc);                                                                        \
		break;
		MASTER_RPCS(RPC)
#undef RPC
	default:
		return KV_INVALID_PARAMS;
	}
	if (status == KV_OK)
		*response = rpc.response;
	return status;
}

/* --- failures -------------------------------------------------------------------------------------- */

_Static_assert(offsetof(struct kvm_replicas_resp, status) == 0, "the status comes first");
_Static_assert(offsetof(struct kvm_results_resp, status) == 0, "the status comes first");
_Static_assert(offsetof(struct kvm_count_resp, status) == 0, "the status comes first");
_Static_assert(offsetof(struct kvm_ping_resp, status) == 0, "the status comes first");

void *master_failure_response(int status, struct kv_arena *arena)
{
	union {
		struct kvm_replicas_resp replicas;
		struct kvm_results_resp results;
		struct kvm_count_resp count;
		struct kvm_ping_resp ping;
	} *response = kv_arena_calloc(arena, 1, sizeof(*response));
	if (response)
		response->count.status = status;
	return response;
}
