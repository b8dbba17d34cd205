/* SPDX-License-Identifier: Apache-2.0 */
/* The public puts. */
#include <string.h>

#include "kvstore_status.h"
#include "store/base/log.h"
#include "store/client/op_log.h"
#include "store/client/rc_internal.h"

/* A batch put with everything that its probes and its log say. */
struct batch_put {
	const struct rc_key *keys;
	const struct kv_bufs *bufs; /* NULL: the caller's lists did not match */
	size_t count;
	int *results;
};

static const struct rc_config *config_or_default(const struct rc_config *config, struct rc_config *storage)
{
	if (config)
		return config;
	rc_config_default(storage);
	return storage;
}

/* The results and what the probe says of them. */
static void fill_results(struct perf_scope *perf, const struct client_object *objects, size_t count, int *results)
{
	uint64_t bytes = 0, failed = 0;
	int first = KV_OK;
	for (size_t i = 0; i < count; i++) {
		results[i] = objects[i].status;
		bytes += results[i] == KV_OK ? objects[i].bytes : 0;
		failed += results[i] < 0;
		if (first == KV_OK)
			first = results[i];
	}
	perf_set(perf, bytes, count, failed, first);
	rc_set_last_bytes(bytes);
}

/* Every key fails with the status, except those that failed before by themselves. */
static void fail_all(struct perf_scope *perf, const struct batch_put *put, int status)
{
	int first = KV_OK;
	for (size_t i = 0; i < put->count; i++) {
		put->results[i] = put->keys[i].status ? put->keys[i].status : status;
		if (first == KV_OK)
			first = put->results[i];
	}
	perf_set(perf, 0, put->count, put->count, first);
	rc_set_last_bytes(0);
}

/* Why the call cannot be tried, or KV_OK. */
static int put_status(const struct rc_call *call, const struct batch_put *put, const struct rc_config *config,
                      bool multi)
{
	if (call->status)
		return call->status;
	return put->bufs ? rc_config_status(config, multi) : KV_INVALID_PARAMS;
}

static struct client_object *run_put(const struct rc_call *call, uint64_t op_id, const struct batch_put *put,
                                     const struct rc_config *config)
{
	struct client_object *objects = rc_make_objects(call->arena, put->keys, put->bufs, put->count);
	if (objects) {
		struct client_call client = rc_client_call(call, op_id, objects, put->count);
		client_batch_put(&client, config);
	}
	return objects;
}

static void put_multi_internal(const struct rc_call *call, uint64_t op_id, const struct batch_put *put,
                               const struct rc_config *config, struct perf_scope *public_perf)
{
	PERF_SCOPE(RC_BATCH_PUT_MULTI_INTERNAL, perf, op_id, put->count, 0);
	const struct client_object *objects = run_put(call, op_id, put, config);
	if (objects)
		fill_results(&perf, objects, put->count, put->results);
	else
		fail_all(&perf, put, KV_INTERNAL_ERROR);
	perf_set(public_perf, perf.bytes, perf.n_keys, perf.n_failed, perf.rc);
}

static void record_of_put(const void *context, size_t i, struct op_record *out)
{
	const struct batch_put *put = context;
	*out = (struct op_record){.key = put->keys[i].ptr,
	                          .key_len = put->keys[i].ptr ? put->keys[i].len : 0,
	                          .success = put->results[i] == KV_OK,
	                          .has_size = put->bufs && put->bufs[i].count, /* no fragments: lists that differ */
	                          .size = put->bufs ? rc_total_size(&put->bufs[i], 1) : 0,
	                          .rc = put->results[i]};
}

int rc_batch_put_multi(struct real_client *rc, uint64_t op_id, const struct rc_key *keys, const struct kv_bufs *bufs,
                       size_t count, const struct rc_config *config, int *results)
{
	RC_CALL(call, rc);
	struct op_log log = op_log_begin(KVP_OP_PUT, op_id);
	bool listens = log.probe || log.text;
	uint64_t offered =
	        bufs && (listens || PERF_START_WATCHED(RC_BATCH_PUT_MULTI)) ? rc_total_size(bufs, count) : 0;
	PERF_SCOPE_TIMED(RC_BATCH_PUT_MULTI, perf, op_id, count, offered, listens);
	struct batch_put put = {keys, bufs, count, results};
	struct rc_config storage;
	config = config_or_default(config, &storage);

	rc_set_last_bytes(0);
	if (count && (!keys || !results))
		return (int)perf_result(&perf, 0, count, KV_INTERNAL_ERROR);
	int status = put_status(&call, &put, config, true);
	if (status)
		fail_all(&perf, &put, status);
	else if (count)
		put_multi_internal(&call, op_id, &put, config, &perf);
	else
		perf_set(&perf, 0, 0, 0, KV_OK);
	op_log_end(&log, perf.start_ns, count, offered, count, record_of_put, &put);
	return KV_OK;
}

int rc_batch_put_from(struct real_client *rc, uint64_t op_id, const struct rc_key *keys, const struct kv_buf *bufs,
                      size_t count, const struct rc_config *config, int *results)
{
	RC_CALL(call, rc);
	PERF_SCOPE(RC_BATCH_PUT_FROM, perf, op_id, count, 0);
	struct rc_config storage;
	config = config_or_default(config, &storage);

	rc_set_last_bytes(0);
	if (count && (!keys || !results))
		return (int)perf_result(&perf, 0, count, KV_INTERNAL_ERROR);
	struct batch_put put = {keys, bufs ? rc_single_fragments(call.arena, bufs, count) : NULL, count, results};
	const struct client_object *objects = NULL;
	int status = bufs && !put.bufs ? KV_INTERNAL_ERROR : put_status(&call, &put, config, false);
	if (status == KV_OK && !(objects = run_put(&call, op_id, &put, config)))
		status = KV_INTERNAL_ERROR;
	if (status)
		fail_all(&perf, &put, status);
	else
		fill_results(&perf, objects, count, results);
	return KV_OK;
}

/* --- one object ------------------------------------------------------------------------------------------ */

/* Put one object from where it lies. */
static int put_one(const struct rc_call *call, uint64_t op_id, const struct rc_key *key, const struct kv_buf *value,
                   const struct rc_config *config, uint64_t *bytes)
{
	struct kv_bufs bufs = {value, 1};
	struct client_object *object = rc_make_objects(call->arena, key, &bufs, 1);
	if (!object)
		return KV_INTERNAL_ERROR;
	struct client_call client = rc_client_call(call, op_id, object, 1);
	client_put(&client, config);
	*bytes = object->status == KV_OK ? object->bytes : 0;
	rc_set_last_bytes(*bytes);
	return object->status;
}

int rc_put_from(struct real_client *rc, uint64_t op_id, struct rc_key key, void *buffer, size_t size,
                const struct rc_config *config)
{
	RC_CALL(call, rc);
	PERF_SCOPE(RC_PUT_FROM, perf, op_id, 1, size);
	struct kv_buf value = {buffer, size};
	struct rc_config storage;
	uint64_t bytes = 0;
	config = config_or_default(config, &storage);

	rc_set_last_bytes(0);
	int status = call.status ? call.status : rc_key_status(&key);
	if (status == KV_OK)
		status = rc_config_status(config, false);
	if (status)
		return (int)perf_result(&perf, 0, 1, status);
	if (size == 0) {
		kv_warn("put_from of 0 bytes: nothing is stored");
		return (int)perf_result(&perf, 0, 1, KV_OK);
	}
	status = put_one(&call, op_id, &key, &value, config, &bytes);
	return (int)perf_result(&perf, bytes, 1, status);
}

/* Room in the local buffer for a value. NULL: KV_INVALID_PARAMS. */
static void *take_room(struct real_client *rc, uint64_t op_id, size_t size)
{
	PERF_SCOPE(PUT_INTERNAL_ALLOC_BUFFER, perf, op_id, 1, size);
	void *room = local_buffer_take(&rc->local, size);
	perf_result(&perf, 0, 1, room ? KV_OK : KV_INVALID_PARAMS);
	return room;
}

static void copy_value(uint64_t op_id, void *room, const void *value, size_t size)
{
	PERF_SCOPE(PUT_INTERNAL_MEM_COPY, perf, op_id, 1, size);
	memcpy(room, value, size);
	perf_result(&perf, size, 1, KV_OK);
}

int rc_put(struct real_client *rc, uint64_t op_id, struct rc_key key, const void *value, size_t size,
           const struct rc_config *config)
{
	RC_CALL(call, rc);
	PERF_SCOPE(PUT_INTERNAL_FULL, perf, op_id, 1, size);
	struct rc_config storage;
	uint64_t bytes = 0;
	config = config_or_default(config, &storage);

	rc_set_last_bytes(0);
	int status = call.status ? call.status : rc_key_status(&key);
	if (status == KV_OK)
		status = !value || size == 0 ? KV_INVALID_PARAMS : rc_config_status(config, false);
	if (status)
		return (int)perf_result(&perf, 0, 1, status);
	struct kv_buf copy = {take_room(rc, op_id, size), size};
	if (!copy.ptr)
		return (int)perf_result(&perf, 0, 1, KV_INVALID_PARAMS);
	copy_value(op_id, copy.ptr, value, size);
	status = put_one(&call, op_id, &key, &copy, config, &bytes);
	local_buffer_give(&rc->local, copy.ptr);
	return (int)perf_result(&perf, bytes, 1, status);
}
