/* SPDX-License-Identifier: Apache-2.0 */
/* The calls that ask the master only: lookup, existence, removal. */
#include "kvstore_status.h"
#include "store/base/clock.h"
#include "store/base/log.h"
#include "store/client/client_rpc.h"

/* The master grants the lease after the question was sent: counting from then never runs longer than it does. */
static uint64_t lease_end(uint64_t sent_ns, uint64_t lease_ms)
{
	uint64_t length, end;
	if (__builtin_mul_overflow(lease_ms, KV_NS_PER_MS, &length) || __builtin_add_overflow(sent_ns, length, &end))
		return UINT64_MAX;
	return end;
}

static void query_members(struct client_call *call, uint16_t type, const struct client_members *members)
{
	uint64_t sent_ns = kv_now_ns();
	void *message;
	int status = client_ask(call, CLIENT_RPC_LIMIT, type, members, &message);
	if (status == KV_OK) {
		const struct kvm_replicas_resp *response = message;
		call->lease_until_ns = lease_end(sent_ns, response->lease_ms);
		status = client_take_replicas(call, members, response);
	}
	if (status)
		client_fail_members(members, status);
}

/* The members of a call, or none: then every object has its status. */
static bool begin(struct client_call *call, struct client_members *members)
{
	if (client_members_of(call, members))
		return members->count > 0;
	for (size_t i = 0; i < call->count; i++)
		if (call->objects[i].status == KV_OK)
			call->objects[i].status = KV_INTERNAL_ERROR;
	return false;
}

void client_batch_query(struct client_call *call)
{
	PERF_SCOPE(CLIENT_BATCH_QUERY, perf, call->op_id, call->count, 0);
	struct client_members members;
	if (begin(call, &members))
		query_members(call, KVW_BATCH_GET_REPLICA, &members);
	client_perf_objects(&perf, call);
}

void client_query(struct client_call *call)
{
	struct client_members members;
	if (begin(call, &members))
		query_members(call, KVW_GET_REPLICA_LIST, &members);
}

static void exist(struct client_call *call, uint16_t type)
{
	struct client_members members;
	const struct kvm_result *codes;
	if (!begin(call, &members))
		return;
	int status = client_call_keys(call, CLIENT_RPC_LIMIT, type, &members, &codes);
	for (uint32_t i = 0; i < members.count; i++)
		members.list[i]->status = status ? status : codes[i].code > 0 ? 1 : codes[i].code;
}

void client_batch_exist(struct client_call *call)
{
	exist(call, KVW_BATCH_EXIST_KEY);
}

void client_exist(struct client_call *call)
{
	exist(call, KVW_EXIST_KEY);
}

static int64_t remove_call(const struct client_service *service, uint16_t type, uint64_t op_id, struct kv_str key,
                           bool force, struct kv_arena *arena)
{
	struct kvm_remove_req request = {.client = service->client, .key = key, .force = force};
	void *message;
	int status = master_conn_call(service->master, type, op_id, &request, &message, arena);
	if (status)
		return status;
	const struct kvm_count_resp *response = message;
	if (response->status < 0)
		return response->status;
	return response->count < 0 ? KV_RPC_FAIL : response->count;
}

int client_remove(const struct client_service *service, uint64_t op_id, struct kv_str key, bool force,
                  struct kv_arena *arena)
{
	int64_t result = remove_call(service, KVW_REMOVE, op_id, key, force, arena);
	return result < 0 ? (int)result : KV_OK;
}

int64_t client_remove_all(const struct client_service *service, uint64_t op_id, bool force, struct kv_arena *arena)
{
	return remove_call(service, KVW_REMOVE_ALL, op_id, (struct kv_str){"", 0}, force, arena);
}
