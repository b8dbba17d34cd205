/* SPDX-License-Identifier: Apache-2.0 */
/* Reading: choose replicas, start all transfers, wait, and see that the leases still held. */
#include <string.h>

#include "kvstore_status.h"
#include "store/base/clock.h"
#include "store/client/client_rpc.h"

/* The reads of one call. */
struct reads {
	struct client_members members; /* requests[i] is for members.list[i] */
	struct transfer_request *requests;
	struct transfer_batch *batch;
	uint64_t deadline_ns;
};

static bool is_own(const struct client_service *service, const struct client_replica *replica)
{
	struct kv_str endpoint = replica->target->endpoint;
	return endpoint.len == service->endpoint.len &&
	       memcmp(endpoint.ptr, service->endpoint.ptr, endpoint.len) == 0;
}

void client_choose(const struct client_service *service, struct client_object *object)
{
	const struct client_replica *memory = NULL;
	bool complete = false;

	if (object->status || object->chosen)
		return;
	for (uint32_t i = 0; i < object->n_replicas; i++) {
		const struct client_replica *replica = &object->replicas[i];
		if (replica->status != KVSTORE_REPLICA_COMPLETE)
			continue;
		complete = true;
		if (replica->type != KVSTORE_REPLICA_MEMORY)
			continue;
		if (!memory || is_own(service, replica))
			memory = replica;
		if (is_own(service, memory))
			break;
	}
	object->chosen = memory;
	if (!memory)
		object->status = complete ? KV_NOT_SUPPORTED : KV_REPLICA_IS_NOT_READY;
}

/* The fragments cut to the object's size; they are longer in total. */
static bool cut_fragments(struct kv_bufs *out, struct kv_bufs in, uint64_t size, struct kv_arena *arena)
{
	struct kv_buf *cut = kv_arena_alloc(arena, in.count * sizeof(*cut));
	size_t n = 0;
	if (!cut)
		return false;
	for (; size; n++) {
		cut[n] = in.frag[n];
		if (cut[n].len > size)
			cut[n].len = size;
		size -= cut[n].len;
	}
	*out = (struct kv_bufs){cut, n};
	return true;
}

/* The read of a chosen replica into the object's buffers. */
static void make_read(struct client_object *object, struct transfer_request *request, struct kv_arena *arena)
{
	const struct client_replica *replica = object->chosen;

	*request = (struct transfer_request){.direction = TRANSFER_READ,
	                                     .target = replica->target,
	                                     .offset = replica->offset,
	                                     .local = object->bufs};
	if (replica->size == 0)
		object->status = KV_INVALID_REPLICA;
	else if (object->size < replica->size)
		object->status = KV_INVALID_PARAMS;
	else if (object->size > replica->size && !cut_fragments(&request->local, object->bufs, replica->size, arena))
		object->status = KV_INTERNAL_ERROR;
}

/* Choose and check; what remains are the members. */
static void find_replicas(struct client_call *call, struct reads *reads)
{
	reads->requests = kv_arena_alloc(call->arena, call->count * sizeof(*reads->requests));
	reads->members.list = kv_arena_alloc(call->arena, call->count * sizeof(*reads->members.list));
	for (size_t i = 0; i < call->count; i++) {
		struct client_object *object = &call->objects[i];
		if (object->status == KV_OK && (!reads->requests || !reads->members.list))
			object->status = KV_INTERNAL_ERROR;
		client_choose(call->service, object);
		if (object->status)
			continue;
		make_read(object, &reads->requests[reads->members.count], call->arena);
		if (object->status == KV_OK)
			reads->members.list[reads->members.count++] = object;
	}
}

static void submit_reads(struct client_call *call, struct reads *reads)
{
	reads->deadline_ns = kv_now_ns() + call->service->transfer_ns;
	int status = transfer_submit(call->service->transfer, reads->requests, reads->members.count, call->op_id,
	                             reads->deadline_ns, call->arena, &reads->batch);
	if (status)
		client_fail_members(&reads->members, status);
}

static void wait_for_reads(struct client_call *call, struct reads *reads)
{
	if (!reads->batch)
		return;
	transfer_wait(call->service->transfer, reads->batch, reads->deadline_ns);
	/* Whoever read on after the lease ended may have read another object's bytes. */
	bool too_late = kv_now_ns() > call->lease_until_ns;
	for (uint32_t i = 0; i < reads->members.count; i++) {
		struct client_object *object = reads->members.list[i];
		object->status = reads->requests[i].status;
		if (object->status == KV_OK && too_late)
			object->status = KV_LEASE_EXPIRED;
		if (object->status == KV_OK)
			object->bytes = object->chosen->size;
	}
}

void client_batch_get(struct client_call *call)
{
	PERF_SCOPE(GET_BATCH_FULL, full, call->op_id, call->count, 0);
	struct reads reads = {0};
	{
		PERF_SCOPE(GET_BATCH_FIND_REPLICA, perf, call->op_id, call->count, 0);
		find_replicas(call, &reads);
		client_perf_objects(&perf, call);
	}
	if (reads.members.count) {
		{
			PERF_SCOPE(GET_BATCH_SUBMIT, perf, call->op_id, reads.members.count, 0);
			submit_reads(call, &reads);
			client_perf_members(&perf, &reads.members);
		}
		PERF_SCOPE(GET_BATCH_WAIT, perf, call->op_id, reads.members.count, 0);
		wait_for_reads(call, &reads);
		client_perf_members(&perf, &reads.members);
	}
	client_perf_objects(&full, call);
}

static void read_single(struct client_call *call, struct reads *reads)
{
	PERF_SCOPE(GET_SINGLE_TRANSFER_READ, perf, call->op_id, 1, 0);
	{
		PERF_SCOPE(GET_SINGLE_TRANSFER_SUBMIT, submit, call->op_id, 1, 0);
		submit_reads(call, reads);
		client_perf_members(&submit, &reads->members);
	}
	{
		PERF_SCOPE(GET_SINGLE_TRANSFER_WAIT, wait, call->op_id, 1, 0);
		wait_for_reads(call, reads);
		client_perf_members(&wait, &reads->members);
	}
	client_perf_members(&perf, &reads->members);
}

void client_get(struct client_call *call)
{
	PERF_SCOPE(GET_SINGLE_FULL, full, call->op_id, call->count, 0);
	struct reads reads = {0};
	{
		PERF_SCOPE(GET_SINGLE_FIND_REPLICA, perf, call->op_id, call->count, 0);
		find_replicas(call, &reads);
		client_perf_objects(&perf, call);
	}
	if (reads.members.count)
		read_single(call, &reads);
	client_perf_objects(&full, call);
}
