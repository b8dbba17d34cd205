/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Storing: allocate at the master, write every replica, complete what was written, revoke what was not.
 * The batch and the single put are the same steps under other keys.
 */
#include "kvstore_status.h"
#include "store/base/clock.h"
#include "store/base/log.h"
#include "store/client/client_rpc.h"

/* That a revoke takes at most once the master did not answer the put's start. */
#define REVOKE_LIMIT_NS KV_NS_PER_S

/* A put on its way. The lists are of objects, each a subset of the one before. */
struct put {
	struct client_call *call;
	const struct rc_config *config;
	struct kvm_put_start_req request;
	struct client_members offered; /* asked for at the master */
	struct client_members started; /* allocated: these must be completed or revoked */
	struct client_members written;
	struct client_members failed;      /* allocated, not to be completed */
	bool unanswered;                   /* whether failed were allocated is not known */
	struct transfer_request *requests; /* the started objects' replicas, in order */
	size_t n_requests;
	struct transfer_batch *batch;
	uint64_t deadline_ns;
};

static bool new_list(struct client_call *call, struct client_members *members, uint32_t room)
{
	members->count = 0;
	members->list = kv_arena_alloc(call->arena, room * sizeof(*members->list));
	return members->list;
}

/* What the master is asked for. False without memory. */
static bool make_request(struct put *put)
{
	struct client_call *call = put->call;
	const struct rc_config *config = put->config;
	struct kvm_put_start_req *request = &put->request;

	*request =
	        (struct kvm_put_start_req){.client = call->service->client,
	                                   .replica_num = config->replica_num,
	                                   .hard_pin = config->hard_pin,
	                                   .soft_pin_action = (uint8_t)config->soft_pin_action,
	                                   .same_node = config->same_node,
	                                   .soft_pin_ttl_ms = config->has_soft_pin_ttl ? config->soft_pin_ttl_ms : 0,
	                                   .n_preferred = (uint32_t)config->n_preferred,
	                                   .n_keys = put->offered.count};
	request->keys = kv_arena_alloc(call->arena, put->offered.count * sizeof(*request->keys));
	request->preferred = kv_arena_alloc(call->arena, config->n_preferred * sizeof(*request->preferred));
	if (!request->keys || !request->preferred)
		return false;
	for (size_t i = 0; i < config->n_preferred; i++)
		request->preferred[i].key = config->preferred[i];
	for (uint32_t i = 0; i < put->offered.count; i++)
		request->keys[i] = (struct kvm_put_key){put->offered.list[i]->key, put->offered.list[i]->size};
	return true;
}

/* False: nothing to ask for; every object has its status. */
static bool create_ops(struct put *put)
{
	struct client_call *call = put->call;
	if (!client_members_of(call, &put->offered)) {
		for (size_t i = 0; i < call->count; i++)
			if (call->objects[i].status == KV_OK)
				call->objects[i].status = KV_INTERNAL_ERROR;
		return false;
	}
	if (!new_list(call, &put->started, put->offered.count) ||
	    !new_list(call, &put->written, put->offered.count) || !new_list(call, &put->failed, put->offered.count) ||
	    !make_request(put)) {
		client_fail_members(&put->offered, KV_INTERNAL_ERROR);
		return false;
	}
	return put->offered.count > 0;
}

/* The answer for one key: allocated, there already (a success that writes nothing), or failed. */
static void sort_answer(struct put *put, struct client_object *object)
{
	if (object->status == KV_OBJECT_ALREADY_EXISTS) {
		object->status = KV_OK;
		return;
	}
	if (object->status == KV_INVALID_REPLICA) {
		put->failed.list[put->failed.count++] = object;
		return;
	}
	if (object->status)
		return;
	for (uint32_t i = 0; i < object->n_replicas; i++)
		if (object->replicas[i].size != object->size || object->replicas[i].type != KVSTORE_REPLICA_MEMORY)
			object->status = KV_INVALID_REPLICA;
	if (object->n_replicas == 0)
		object->status = KV_INVALID_REPLICA;
	if (object->status)
		put->failed.list[put->failed.count++] = object;
	else
		put->started.list[put->started.count++] = object;
}

static void put_start(struct put *put, uint16_t type)
{
	struct client_call *call = put->call;
	void *message;
	int status = master_conn_call(call->service->master, type, call->op_id, &put->request, &message, call->arena);
	if (status == KV_OK)
		status = client_take_replicas(call, &put->offered, message);
	if (status) {
		client_fail_members(&put->offered, status);
		put->unanswered = status == KV_RPC_TIMEOUT;
	}
	/* What the master may have begun all the same would make others' puts of these keys look done. */
	for (uint32_t i = 0; put->unanswered && i < put->offered.count; i++)
		put->failed.list[put->failed.count++] = put->offered.list[i];
	for (uint32_t i = 0; !status && i < put->offered.count; i++)
		sort_answer(put, put->offered.list[i]);
}

static bool make_writes(struct put *put)
{
	size_t n = 0;
	for (uint32_t i = 0; i < put->started.count; i++)
		n += put->started.list[i]->n_replicas;
	put->requests = kv_arena_alloc(put->call->arena, n * sizeof(*put->requests));
	if (!put->requests)
		return false;
	for (uint32_t i = 0; i < put->started.count; i++) {
		const struct client_object *object = put->started.list[i];
		for (uint32_t r = 0; r < object->n_replicas; r++)
			put->requests[put->n_requests++] =
			        (struct transfer_request){.direction = TRANSFER_WRITE,
			                                  .target = object->replicas[r].target,
			                                  .offset = object->replicas[r].offset,
			                                  .local = object->bufs};
	}
	return true;
}

static void submit_writes(struct put *put)
{
	struct client_call *call = put->call;
	int status = KV_INTERNAL_ERROR;
	put->deadline_ns = kv_now_ns() + call->service->transfer_ns;
	if (make_writes(put))
		status = transfer_submit(call->service->transfer, put->requests, put->n_requests, call->op_id,
		                         put->deadline_ns, call->arena, &put->batch);
	if (status)
		client_fail_members(&put->started, status);
}

/* The first error of an object's replicas: all of them must be written. */
static int status_of_writes(const struct transfer_request *requests, uint32_t count)
{
	for (uint32_t i = 0; i < count; i++)
		if (requests[i].status)
			return requests[i].status;
	return KV_OK;
}

static void wait_for_writes(struct put *put)
{
	const struct transfer_request *requests = put->requests;
	if (put->batch)
		transfer_wait(put->call->service->transfer, put->batch, put->deadline_ns);
	for (uint32_t i = 0; i < put->started.count; i++) {
		struct client_object *object = put->started.list[i];
		if (put->batch)
			object->status = status_of_writes(requests, object->n_replicas);
		requests += put->batch ? object->n_replicas : 0;
		if (object->status == KV_OK)
			object->bytes = object->size;
		struct client_members *next = object->status ? &put->failed : &put->written;
		next->list[next->count++] = object;
	}
}

static void put_end(struct put *put, uint16_t type)
{
	const struct kvm_result *codes = NULL;
	int status = client_call_keys(put->call, CLIENT_RPC_LIMIT, type, &put->written, &codes);
	for (uint32_t i = 0; i < put->written.count; i++) {
		struct client_object *object = put->written.list[i];
		object->status = status ? status : codes[i].code > 0 ? KV_RPC_FAIL : codes[i].code;
	}
}

/* The objects keep the code they failed with, whatever the master says about the revoke. */
static void put_revoke(struct put *put, uint16_t type, struct perf_scope *perf)
{
	const struct kvm_result *codes;
	uint32_t refused = 0;
	uint64_t limit_ns = put->unanswered ? REVOKE_LIMIT_NS : CLIENT_RPC_LIMIT;
	int status = client_call_keys(put->call, limit_ns, type, &put->failed, &codes);
	int first = status;
	for (uint32_t i = 0; i < put->failed.count; i++) {
		int code = status ? status : codes[i].code;
		refused += code < 0;
		if (first == KV_OK)
			first = code;
	}
	/* Of puts that may never have begun, each refusal is as good as a revoke. */
	if (refused && (status || !put->unanswered))
		kv_warn("%u puts that failed could not be revoked (%d); the master discards them in time", refused,
		        first);
	perf_set(perf, 0, put->failed.count, refused, first);
}

void client_batch_put(struct client_call *call, const struct rc_config *config)
{
	PERF_SCOPE(PUT_BATCH_FULL, full, call->op_id, call->count, 0);
	struct put put = {.call = call, .config = config};
	bool any;
	{
		PERF_SCOPE(PUT_BATCH_CREATE_OPS, perf, call->op_id, call->count, 0);
		any = create_ops(&put);
		client_perf_objects(&perf, call);
	}
	if (any) {
		PERF_SCOPE(PUT_BATCH_PUT_START, perf, call->op_id, put.offered.count, 0);
		put_start(&put, KVW_BATCH_PUT_START);
		client_perf_members(&perf, &put.offered);
	}
	if (put.started.count) {
		PERF_SCOPE(PUT_BATCH_SUBMIT, perf, call->op_id, put.started.count, 0);
		submit_writes(&put);
		client_perf_members(&perf, &put.started);
	}
	if (put.started.count) {
		PERF_SCOPE(PUT_BATCH_WAIT, perf, call->op_id, put.started.count, 0);
		wait_for_writes(&put);
		client_perf_members(&perf, &put.started);
	}
	if (put.written.count) {
		PERF_SCOPE(PUT_BATCH_PUT_END, perf, call->op_id, put.written.count, 0);
		put_end(&put, KVW_BATCH_PUT_END);
		client_perf_members(&perf, &put.written);
	}
	if (put.failed.count) {
		PERF_SCOPE(PUT_BATCH_PUT_REVOKE, perf, call->op_id, put.failed.count, 0);
		put_revoke(&put, KVW_BATCH_PUT_REVOKE, &perf);
	}
	PERF_SCOPE(PUT_BATCH_COLLECT_RESULTS, perf, call->op_id, call->count, 0);
	client_perf_objects(&perf, call);
	perf_set(&full, perf.bytes, perf.n_keys, perf.n_failed, perf.rc);
}

static void write_single(struct put *put)
{
	uint64_t op_id = put->call->op_id;
	PERF_SCOPE(PUT_SINGLE_TRANSFER_WRITE, perf, op_id, 1, 0);
	{
		PERF_SCOPE(PUT_SINGLE_TRANSFER_SUBMIT, submit, op_id, 1, 0);
		submit_writes(put);
		client_perf_members(&submit, &put->started);
	}
	{
		PERF_SCOPE(PUT_SINGLE_TRANSFER_WAIT, wait, op_id, 1, 0);
		wait_for_writes(put);
		client_perf_members(&wait, &put->started);
	}
	client_perf_members(&perf, &put->started);
}

void client_put(struct client_call *call, const struct rc_config *config)
{
	PERF_SCOPE(PUT_SINGLE_FULL, full, call->op_id, call->count, 0);
	struct put put = {.call = call, .config = config};
	if (create_ops(&put)) {
		PERF_SCOPE(PUT_SINGLE_PUT_START, perf, call->op_id, put.offered.count, 0);
		put_start(&put, KVW_PUT_START);
		client_perf_members(&perf, &put.offered);
	}
	if (put.started.count)
		write_single(&put);
	if (put.written.count) {
		PERF_SCOPE(PUT_SINGLE_PUT_END, perf, call->op_id, put.written.count, 0);
		put_end(&put, KVW_PUT_END);
		client_perf_members(&perf, &put.written);
	}
	if (put.failed.count) {
		PERF_SCOPE(PUT_SINGLE_PUT_REVOKE, perf, call->op_id, put.failed.count, 0);
		put_revoke(&put, KVW_PUT_REVOKE, &perf);
	}
	client_perf_objects(&full, call);
}
