/* SPDX-License-Identifier: Apache-2.0 */
#include "store/client/client_rpc.h"

#include "kvstore_status.h"
#include "store/base/log.h"

bool client_members_of(struct client_call *call, struct client_members *members)
{
	members->count = 0;
	members->list = kv_arena_alloc(call->arena, call->count * sizeof(*members->list));
	if (!members->list)
		return false;
	for (size_t i = 0; i < call->count; i++)
		if (call->objects[i].status == KV_OK)
			members->list[members->count++] = &call->objects[i];
	return true;
}

void client_fail_members(const struct client_members *members, int status)
{
	for (uint32_t i = 0; i < members->count; i++)
		members->list[i]->status = status;
}

struct kvm_key *client_key_list(const struct client_call *call, const struct client_members *members)
{
	struct kvm_key *keys = kv_arena_alloc(call->arena, members->count * sizeof(*keys));
	for (uint32_t i = 0; keys && i < members->count; i++)
		keys[i].key = members->list[i]->key;
	return keys;
}

int client_ask(struct client_call *call, uint64_t limit_ns, uint16_t type, const struct client_members *members,
               void **response)
{
	struct kvm_keys_req request = {
	        .client = call->service->client, .keys = client_key_list(call, members), .n_keys = members->count};
	if (!request.keys)
		return KV_INTERNAL_ERROR;
	return master_conn_call_within(call->service->master, limit_ns, type, call->op_id, &request, response,
	                               call->arena);
}

int client_call_keys(struct client_call *call, uint64_t limit_ns, uint16_t type, const struct client_members *members,
                     const struct kvm_result **codes)
{
	void *message;
	int status = client_ask(call, limit_ns, type, members, &message);
	if (status)
		return status;
	const struct kvm_results_resp *response = message;
	if (response->status < 0)
		return response->status;
	if (response->n_results != members->count) {
		kv_warn("%s: %u results for %u keys", kvw_type_name(type), response->n_results, members->count);
		return KV_RPC_FAIL;
	}
	*codes = response->results;
	return KV_OK;
}

/* The segments of a response as targets of transfers; NULL without memory. */
static struct transfer_target *make_targets(struct kv_arena *arena, const struct kvm_replicas_resp *response)
{
	struct transfer_target *targets = kv_arena_alloc(arena, response->n_segments * sizeof(*targets));
	for (uint32_t i = 0; targets && i < response->n_segments; i++) {
		const struct kvm_segment *segment = &response->segments[i];
		targets[i] = (struct transfer_target){.segment = segment->id,
		                                      .endpoint = segment->endpoint,
		                                      .base = segment->base,
		                                      .size = segment->size,
		                                      .rkey = segment->rkey,
		                                      .transports = segment->transports};
	}
	return targets;
}

/* KV_OK, or KV_INVALID_REPLICA for one that lies outside its segment. */
static int take_replica(struct client_replica *out, const struct kvm_replica *in,
                        const struct kvm_replicas_resp *response, const struct transfer_target *targets)
{
	if (in->segment >= response->n_segments)
		return KV_INVALID_REPLICA;
	const struct transfer_target *target = &targets[in->segment];
	if (in->offset > target->size || in->size > target->size - in->offset)
		return KV_INVALID_REPLICA;
	*out = (struct client_replica){
	        .target = target, .offset = in->offset, .size = in->size, .type = in->type, .status = in->status};
	return KV_OK;
}

static void take_object(struct client_object *object, const struct kvm_key_replicas *in, struct kv_arena *arena,
                        const struct kvm_replicas_resp *response, const struct transfer_target *targets)
{
	object->status = in->code > 0 ? KV_RPC_FAIL : in->code;
	if (in->code)
		return;
	struct client_replica *replicas = kv_arena_alloc(arena, in->n_replicas * sizeof(*replicas));
	if (!replicas)
		object->status = KV_INTERNAL_ERROR;
	for (uint32_t i = 0; i < in->n_replicas && object->status == KV_OK; i++)
		object->status = take_replica(&replicas[i], &in->replicas[i], response, targets);
	if (object->status)
		return;
	object->replicas = replicas;
	object->n_replicas = in->n_replicas;
}

int client_take_replicas(struct client_call *call, const struct client_members *members,
                         const struct kvm_replicas_resp *response)
{
	if (response->status < 0)
		return response->status;
	if (response->n_keys != members->count) {
		kv_warn("%u answers for %u keys", response->n_keys, members->count);
		return KV_RPC_FAIL;
	}
	struct transfer_target *targets = make_targets(call->arena, response);
	if (!targets)
		return KV_INTERNAL_ERROR;
	for (uint32_t i = 0; i < members->count; i++)
		take_object(members->list[i], &response->keys[i], call->arena, response, targets);
	return KV_OK;
}

/* Add one object to what a probe says. */
static void perf_add(struct perf_scope *perf, const struct client_object *object)
{
	perf->n_keys++;
	perf->bytes += object->status == KV_OK ? object->bytes : 0;
	if (object->status >= 0)
		return;
	perf->n_failed++;
	if (perf->rc == 0)
		perf->rc = object->status;
}

void client_perf_objects(struct perf_scope *perf, const struct client_call *call)
{
	perf_set(perf, 0, 0, 0, 0);
	for (size_t i = 0; i < call->count; i++)
		perf_add(perf, &call->objects[i]);
}

void client_perf_members(struct perf_scope *perf, const struct client_members *members)
{
	perf_set(perf, 0, 0, 0, 0);
	for (uint32_t i = 0; i < members->count; i++)
		perf_add(perf, members->list[i]);
}
