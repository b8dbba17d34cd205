/* SPDX-License-Identifier: Apache-2.0 */
/* The public gets. */
#include "kvstore_status.h"
#include "store/client/op_log.h"
#include "store/client/rc_internal.h"

struct batch_get {
	const struct rc_key *keys;
	const struct kv_bufs *bufs; /* NULL: the caller's lists did not match */
	size_t count;
	int64_t *results;
	const struct client_object *objects; /* NULL: not tried */
};

static int64_t result_of(const struct client_object *object)
{
	return object->status ? object->status : (int64_t)object->bytes;
}

static void fill_results(struct perf_scope *perf, const struct batch_get *get)
{
	uint64_t bytes = 0, failed = 0;
	int64_t first = KV_OK;
	for (size_t i = 0; i < get->count; i++) {
		int64_t result = result_of(&get->objects[i]);
		get->results[i] = result;
		if (result >= 0) {
			bytes += (uint64_t)result;
			continue;
		}
		failed++;
		if (first == KV_OK)
			first = result;
	}
	perf_set(perf, bytes, get->count, failed, first);
}

static void fail_all(struct perf_scope *perf, const struct batch_get *get, int status)
{
	int first = KV_OK;
	for (size_t i = 0; i < get->count; i++) {
		int code = get->keys[i].status ? get->keys[i].status : status;
		get->results[i] = code;
		if (first == KV_OK)
			first = code;
	}
	perf_set(perf, 0, get->count, get->count, first);
}

static void get_multi_internal(const struct rc_call *call, uint64_t op_id, struct batch_get *get,
                               struct perf_scope *public_perf)
{
	PERF_SCOPE(RC_BATCH_GET_INTO_MULTI_INTERNAL, perf, op_id, get->count, 0);
	struct client_object *objects = rc_make_objects(call->arena, get->keys, get->bufs, get->count);
	if (objects) {
		struct client_call client = rc_client_call(call, op_id, objects, get->count);
		client_batch_query(&client);
		client_batch_get(&client);
		get->objects = objects;
		fill_results(&perf, get);
	} else {
		fail_all(&perf, get, KV_INTERNAL_ERROR);
	}
	perf_set(public_perf, perf.bytes, perf.n_keys, perf.n_failed, perf.rc);
}

static void record_of_get(const void *context, size_t i, struct op_record *out)
{
	const struct batch_get *get = context;
	*out = (struct op_record){.key = get->keys[i].ptr,
	                          .key_len = get->keys[i].ptr ? get->keys[i].len : 0,
	                          .success = get->results[i] > 0,
	                          .has_size = get->bufs && get->bufs[i].count}; /* no fragments: lists that differ */
	if (!out->success) {
		out->rc = (int32_t)get->results[i];
		out->size = get->bufs ? rc_total_size(&get->bufs[i], 1) : 0;
		return;
	}
	const struct client_replica *replica = get->objects[i].chosen;
	out->size = (uint64_t)get->results[i];
	out->replica = (enum kvp_replica_type)replica->type;
	out->endpoint = replica->target->endpoint.ptr;
	out->endpoint_len = replica->target->endpoint.len;
}

int rc_batch_get_into_multi(struct real_client *rc, uint64_t op_id, const struct rc_key *keys,
                            const struct kv_bufs *bufs, size_t count, int64_t *results)
{
	RC_CALL(call, rc);
	struct op_log log = op_log_begin(KVP_OP_GET, op_id);
	bool listens = log.probe || log.text;
	uint64_t offered = bufs && PERF_START_WATCHED(RC_BATCH_GET_INTO_MULTI) ? rc_total_size(bufs, count) : 0;
	PERF_SCOPE_TIMED(RC_BATCH_GET_INTO_MULTI, perf, op_id, count, offered, listens);
	struct batch_get get = {keys, bufs, count, results, NULL};

	if (count && (!keys || !results))
		return (int)perf_result(&perf, 0, count, KV_INTERNAL_ERROR);
	int status = call.status ? call.status : bufs || !count ? KV_OK : KV_INVALID_PARAMS;
	if (status)
		fail_all(&perf, &get, status);
	else if (count)
		get_multi_internal(&call, op_id, &get, &perf);
	else
		perf_set(&perf, 0, 0, 0, KV_OK);
	op_log_end(&log, perf.start_ns, count, 0, count, record_of_get, &get);
	return KV_OK;
}

/* --- batch_get_into -------------------------------------------------------------------------------------- */

static void query_batch(struct client_call *client)
{
	PERF_SCOPE(GET_BATCH_INTO_INTERNAL_QUERY, perf, client->op_id, client->count, 0);
	client_batch_query(client);
	client_perf_objects(&perf, client);
}

static void select_batch(struct client_call *client)
{
	PERF_SCOPE(GET_BATCH_INTO_INTERNAL_SELECT_REPLICA, perf, client->op_id, client->count, 0);
	for (size_t i = 0; i < client->count; i++)
		client_choose(client->service, &client->objects[i]);
	client_perf_objects(&perf, client);
}

static void read_batch(struct client_call *client)
{
	PERF_SCOPE(GET_BATCH_INTO_INTERNAL_MEM_READ, perf, client->op_id, client->count, 0);
	client_batch_get(client);
	client_perf_objects(&perf, client);
}

int rc_batch_get_into(struct real_client *rc, uint64_t op_id, const struct rc_key *keys, const struct kv_buf *bufs,
                      size_t count, int64_t *results)
{
	RC_CALL(call, rc);
	PERF_SCOPE(GET_BATCH_INTO_INTERNAL, perf, op_id, count, 0);

	if (count && (!keys || !results))
		return (int)perf_result(&perf, 0, count, KV_INTERNAL_ERROR);
	struct batch_get get = {keys, bufs ? rc_single_fragments(call.arena, bufs, count) : NULL, count, results,
	                        NULL};
	int status = call.status ? call.status : bufs || !count ? KV_OK : KV_INVALID_PARAMS;
	struct client_object *objects = NULL;
	if (status == KV_OK && !(objects = rc_make_objects(call.arena, keys, get.bufs, count)))
		status = KV_INTERNAL_ERROR;
	if (status || (bufs && !get.bufs)) {
		fail_all(&perf, &get, status ? status : KV_INTERNAL_ERROR);
		return KV_OK;
	}
	struct client_call client = rc_client_call(&call, op_id, objects, count);
	if (count) {
		query_batch(&client);
		select_batch(&client);
		read_batch(&client);
	}
	get.objects = objects;
	fill_results(&perf, &get);
	return KV_OK;
}

/* --- one object ---------------------------------------------------------------------------------------------- */

int64_t rc_get_into(struct real_client *rc, uint64_t op_id, struct rc_key key, void *buffer, size_t size)
{
	RC_CALL(call, rc);
	PERF_SCOPE(GET_INTO_INTERNAL, full, op_id, 1, size);
	struct kv_buf fragment = {buffer, size};
	struct kv_bufs bufs = {&fragment, 1};

	if (call.status)
		return perf_result(&full, 0, 1, call.status);
	struct client_object *object = rc_make_objects(call.arena, &key, &bufs, 1);
	if (!object)
		return perf_result(&full, 0, 1, KV_INTERNAL_ERROR);
	struct client_call client = rc_client_call(&call, op_id, object, 1);
	if (object->status == KV_OK) {
		PERF_SCOPE(GET_INTO_INTERNAL_QUERY, perf, op_id, 1, 0);
		client_query(&client);
		perf_result(&perf, 0, 1, object->status);
	}
	if (object->status == KV_OK) {
		PERF_SCOPE(GET_INTO_INTERNAL_SELECT_REPLICA, perf, op_id, 1, 0);
		client_choose(client.service, object);
		perf_result(&perf, 0, 1, object->status);
	}
	if (object->status == KV_OK) {
		PERF_SCOPE(GET_INTO_INTERNAL_MEM_READ, perf, op_id, 1, 0);
		client_get(&client);
		perf_result(&perf, object->bytes, 1, object->status);
	}
	return perf_result(&full, object->bytes, 1, result_of(object));
}

/* Memory from the binding for the object's bytes. */
static void take_room(uint64_t op_id, struct client_object *object, struct kv_buf *fragment,
                      void *(*alloc)(void *ctx, size_t size), void *ctx)
{
	PERF_SCOPE(GET_INTERNAL_ALLOC_BUFFER, perf, op_id, 1, 0);
	object->size = object->chosen->size;
	*fragment = (struct kv_buf){alloc(ctx, object->size), object->size};
	object->bufs = (struct kv_bufs){fragment, 1};
	if (!fragment->ptr)
		object->status = KV_INTERNAL_ERROR;
	perf_result(&perf, 0, 1, object->status);
}

int64_t rc_get_buffer(struct real_client *rc, uint64_t op_id, struct rc_key key,
                      void *(*alloc)(void *ctx, size_t size), void *ctx)
{
	RC_CALL(call, rc);
	PERF_SCOPE(GET_BUFFER_INTERNAL_FULL, full, op_id, 1, 0);
	struct kv_buf fragment;

	if (call.status)
		return perf_result(&full, 0, 1, call.status);
	struct client_object *object = rc_make_objects(call.arena, &key, NULL, 1);
	if (!object)
		return perf_result(&full, 0, 1, KV_INTERNAL_ERROR);
	struct client_call client = rc_client_call(&call, op_id, object, 1);
	if (object->status == KV_OK) {
		PERF_SCOPE(GET_INTERNAL_QUERY, perf, op_id, 1, 0);
		client_query(&client);
		perf_result(&perf, 0, 1, object->status);
	}
	if (object->status == KV_OK) {
		PERF_SCOPE(GET_INTERNAL_SELECT_REPLICA, perf, op_id, 1, 0);
		client_choose(client.service, object);
		perf_result(&perf, 0, 1, object->status);
	}
	if (object->status == KV_OK)
		take_room(op_id, object, &fragment, alloc, ctx);
	if (object->status == KV_OK) {
		PERF_SCOPE(GET_INTERNAL_MEM_READ, perf, op_id, 1, 0);
		client_get(&client);
		perf_result(&perf, object->bytes, 1, object->status);
	}
	return perf_result(&full, object->bytes, 1, result_of(object));
}
