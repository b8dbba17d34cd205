/* SPDX-License-Identifier: Apache-2.0 */
/* The public operations on keys that move no data. */
#include "kvstore_status.h"
#include "store/base/log.h"
#include "store/client/op_log.h"
#include "store/client/rc_internal.h"
#include "store/client/replica_lists.h"

/* --- existence --------------------------------------------------------------------------------------------- */

struct batch_exist {
	const struct rc_key *keys;
	size_t count;
	int *results;
};

static void fill_exist(struct perf_scope *perf, const struct batch_exist *exist, const struct client_object *objects,
                       int status)
{
	uint64_t failed = 0;
	int first = KV_OK;
	for (size_t i = 0; i < exist->count; i++) {
		int result = objects ? objects[i].status : exist->keys[i].status ? exist->keys[i].status : status;
		exist->results[i] = result;
		failed += result < 0;
		if (first == KV_OK && result < 0)
			first = result;
	}
	perf_set(perf, 0, exist->count, failed, first);
}

static void exist_internal(const struct rc_call *call, uint64_t op_id, const struct batch_exist *exist,
                           struct perf_scope *public_perf)
{
	PERF_SCOPE(RC_BATCH_IS_EXIST_INTERNAL, perf, op_id, exist->count, 0);
	struct client_object *objects = rc_make_objects(call->arena, exist->keys, NULL, exist->count);
	if (objects) {
		struct client_call client = rc_client_call(call, op_id, objects, exist->count);
		client_batch_exist(&client);
	}
	fill_exist(&perf, exist, objects, KV_INTERNAL_ERROR);
	perf_set(public_perf, 0, perf.n_keys, perf.n_failed, perf.rc);
}

static void record_of_exist(const void *context, size_t i, struct op_record *out)
{
	const struct batch_exist *exist = context;
	*out = (struct op_record){.key = exist->keys[i].ptr,
	                          .key_len = exist->keys[i].ptr ? exist->keys[i].len : 0,
	                          .success = exist->results[i] == 1,
	                          .rc = exist->results[i] < 0 ? exist->results[i] : 0};
}

int rc_batch_is_exist(struct real_client *rc, uint64_t op_id, const struct rc_key *keys, size_t count, int *results)
{
	RC_CALL(call, rc);
	struct op_log log = op_log_begin(KVP_OP_IS_EXIST, op_id);
	PERF_SCOPE_TIMED(RC_BATCH_IS_EXIST, perf, op_id, count, 0, log.probe || log.text);
	struct batch_exist exist = {keys, count, results};

	if (count && (!keys || !results))
		return (int)perf_result(&perf, 0, count, KV_INTERNAL_ERROR);
	if (call.status)
		fill_exist(&perf, &exist, NULL, call.status);
	else if (count)
		exist_internal(&call, op_id, &exist, &perf);
	else
		perf_set(&perf, 0, 0, 0, KV_OK);
	op_log_end(&log, perf.start_ns, count, 0, count, record_of_exist, &exist);
	return KV_OK;
}

int rc_is_exist(struct real_client *rc, uint64_t op_id, struct rc_key key)
{
	RC_CALL(call, rc);
	PERF_SCOPE(RC_IS_EXIST, perf, op_id, 1, 0);

	int status = call.status ? call.status : rc_key_status(&key);
	if (status)
		return (int)perf_result(&perf, 0, 1, status);
	struct client_object *object = rc_make_objects(call.arena, &key, NULL, 1);
	if (!object)
		return (int)perf_result(&perf, 0, 1, KV_INTERNAL_ERROR);
	struct client_call client = rc_client_call(&call, op_id, object, 1);
	client_exist(&client);
	if (object->status < 0) {
		/* Callers take any number but 0 for "there": a master that does not answer must not read so. */
		kv_warn("is_exist: the master does not answer (%d); taken as absent", object->status);
		object->status = 0;
	}
	return (int)perf_result(&perf, 0, 1, object->status);
}

/* --- size and removal ---------------------------------------------------------------------------------------- */

int64_t rc_get_size(struct real_client *rc, uint64_t op_id, struct rc_key key)
{
	RC_CALL(call, rc);
	PERF_SCOPE(RC_GET_SIZE, perf, op_id, 1, 0);

	if (call.status)
		return perf_result(&perf, 0, 1, call.status);
	struct client_object *object = rc_make_objects(call.arena, &key, NULL, 1);
	if (!object)
		return perf_result(&perf, 0, 1, KV_INTERNAL_ERROR);
	struct client_call client = rc_client_call(&call, op_id, object, 1);
	client_query(&client);
	client_choose(client.service, object);
	return perf_result(&perf, 0, 1, object->status ? object->status : (int64_t)object->chosen->size);
}

int rc_remove(struct real_client *rc, uint64_t op_id, struct rc_key key, bool force)
{
	RC_CALL(call, rc);
	PERF_SCOPE(RC_REMOVE, perf, op_id, 1, 0);

	int status = call.status ? call.status : rc_key_status(&key);
	if (status == KV_OK)
		status = client_remove(&rc->service, op_id, (struct kv_str){key.ptr, (uint32_t)key.len}, force,
		                       call.arena);
	return (int)perf_result(&perf, 0, 1, status);
}

static int64_t remove_all_internal(const struct rc_call *call, uint64_t op_id, bool force)
{
	PERF_SCOPE(RC_REMOVE_ALL_INTERNAL, perf, op_id, 0, 0);
	int64_t removed = client_remove_all(&call->rc->service, op_id, force, call->arena);
	return perf_result(&perf, 0, removed > 0 ? (uint64_t)removed : 0, removed);
}

int64_t rc_remove_all(struct real_client *rc, uint64_t op_id, bool force)
{
	RC_CALL(call, rc);
	PERF_SCOPE(RC_REMOVE_ALL, perf, op_id, 0, 0);
	int64_t removed = call.status ? call.status : remove_all_internal(&call, op_id, force);
	return perf_result(&perf, 0, removed > 0 ? (uint64_t)removed : 0, removed);
}

/* --- replica descriptions -------------------------------------------------------------------------------------- */

struct batch_desc {
	const struct rc_key *keys;
	const struct client_object *objects; /* NULL: not tried */
	int status;                          /* of the whole */
};

/* The replica that the log names. */
static const struct client_replica *complete_replica(const struct client_object *object)
{
	for (uint32_t i = 0; object->status == KV_OK && i < object->n_replicas; i++)
		if (object->replicas[i].status == KVSTORE_REPLICA_COMPLETE)
			return &object->replicas[i];
	return NULL;
}

static void record_of_desc(const void *context, size_t i, struct op_record *out)
{
	const struct batch_desc *desc = context;
	const struct client_object *object = desc->objects ? &desc->objects[i] : NULL;
	const struct client_replica *replica = object ? complete_replica(object) : NULL;

	*out = (struct op_record){.key = desc->keys[i].ptr,
	                          .key_len = desc->keys[i].ptr ? desc->keys[i].len : 0,
	                          .success = replica,
	                          .rc = object ? object->status : desc->status};
	if (!replica)
		return;
	out->has_size = true;
	out->size = replica->size;
	out->replica = (enum kvp_replica_type)replica->type;
	out->endpoint = replica->target->endpoint.ptr;
	out->endpoint_len = replica->target->endpoint.len;
}

/* An answer that failed for the same reason for every key, not for the keys' own: that of the whole call. */
static int status_of_whole(const struct client_object *objects, size_t count)
{
	for (size_t i = 0; i < count; i++)
		if (objects[i].status == KV_RPC_FAIL || objects[i].status == KV_RPC_TIMEOUT ||
		    objects[i].status == KV_INTERNAL_ERROR)
			return objects[i].status;
	return KV_OK;
}

static int describe(const struct rc_call *call, uint64_t op_id, struct batch_desc *desc, size_t count,
                    struct perf_scope *perf, kvstore_replica_lists_t **out)
{
	struct client_object *objects = rc_make_objects(call->arena, desc->keys, NULL, count);
	if (!objects)
		return KV_INTERNAL_ERROR;
	struct client_call client = rc_client_call(call, op_id, objects, count);
	if (count)
		client_batch_query(&client);
	desc->objects = objects;
	client_perf_objects(perf, &client);
	int status = status_of_whole(objects, count);
	if (status == KV_OK && !(*out = replica_lists_make(objects, count)))
		status = KV_INTERNAL_ERROR;
	return status;
}

int rc_batch_get_replica_desc(struct real_client *rc, uint64_t op_id, const struct rc_key *keys, size_t count,
                              kvstore_replica_lists_t **out)
{
	RC_CALL(call, rc);
	struct op_log log = op_log_begin(KVP_OP_REPLICA_DESC, op_id);
	PERF_SCOPE_TIMED(RC_BATCH_GET_REPLICA_DESC, perf, op_id, count, 0, log.probe || log.text);
	struct batch_desc desc = {.keys = keys};

	if (!out || (count && !keys))
		return (int)perf_result(&perf, 0, count, KV_INTERNAL_ERROR);
	*out = NULL;
	desc.status = call.status ? call.status : describe(&call, op_id, &desc, count, &perf, out);
	if (desc.status)
		perf_set(&perf, 0, count, count, desc.status);
	op_log_end(&log, perf.start_ns, count, 0, count, record_of_desc, &desc);
	return desc.status;
}
