/* SPDX-License-Identifier: Apache-2.0 */
/* Calls on many objects: one result per key, in the order of the keys. */
#include "store/python/store_py.h"

#include <stdlib.h>

/* Everything that one batch call parses and allocates; zero-initialised is empty. */
struct batch {
	struct py_keys keys;
	struct py_buffers buffers;
	struct py_config config;
	int *status;     /* results of puts and questions */
	int64_t *length; /* results of gets */
};

static void batch_free(struct batch *batch)
{
	free(batch->status);
	free(batch->length);
	py_config_release(&batch->config);
	py_buffers_free(&batch->buffers);
	py_keys_free(&batch->keys);
}

static int alloc_results(struct batch *batch, bool lengths)
{
	size_t count = batch->keys.count ? batch->keys.count : 1;
	if (lengths)
		batch->length = calloc(count, sizeof(*batch->length));
	else
		batch->status = calloc(count, sizeof(*batch->status));
	if (batch->length || batch->status)
		return 0;
	PyErr_NoMemory();
	return -1;
}

/* A call that did not run at all failed for each of its keys. */
static void fill_results(struct batch *batch, int rc)
{
	for (size_t i = 0; i < batch->keys.count; i++) {
		if (batch->length)
			batch->length[i] = rc;
		else
			batch->status[i] = rc;
	}
}

static int64_t result_at(const struct batch *batch, size_t i)
{
	return batch->length ? batch->length[i] : batch->status[i];
}

/* What the done probe says about per-key results. */
static void set_perf(struct perf_scope *perf, const struct batch *batch, uint64_t bytes)
{
	uint64_t failed = 0;
	int64_t first = KV_OK;
	for (size_t i = 0; i < batch->keys.count; i++) {
		if (result_at(batch, i) >= 0)
			continue;
		if (failed++ == 0)
			first = result_at(batch, i);
	}
	perf_set(perf, bytes, batch->keys.count, failed, first);
}

/* For `return`: the results as a list of int. */
static PyObject *result_list(struct perf_scope *perf, const struct batch *batch, uint64_t bytes)
{
	PyObject *list = PyList_New((Py_ssize_t)batch->keys.count);
	for (size_t i = 0; list && i < batch->keys.count; i++) {
		PyObject *value = PyLong_FromLongLong(result_at(batch, i));
		if (!value || PyList_SetItem(list, (Py_ssize_t)i, value) != 0)
			Py_CLEAR(list);
	}
	if (!list)
		return store_raised(perf);
	set_perf(perf, batch, bytes);
	return list;
}

/* --- puts --------------------------------------------------------------------------------------------- */

typedef int (*parse_buffers_fn)(struct py_buffers *, struct py_keys *, PyObject *, PyObject *,
                                const struct py_signature *);

/* arg: keys, pointers, sizes, config. */
static int put_parse(struct batch *batch, struct py_call call, const struct py_signature *signature,
                     parse_buffers_fn parse_buffers)
{
	PyObject *arg[4];
	if (py_bind(signature, call, arg) != 0 || py_keys_parse(&batch->keys, arg[0], signature->function) != 0 ||
	    parse_buffers(&batch->buffers, &batch->keys, arg[1], arg[2], signature) != 0 ||
	    py_config_use(&batch->config, arg[3], signature->function) != 0 || alloc_results(batch, false) != 0)
		return -1;
	for (size_t i = 0; i < batch->keys.count; i++)
		if (batch->keys.key[i].status == KV_OK)
			batch->keys.key[i].status = batch->config.status;
	return 0;
}

STORE_METHOD(batch_put_from)
{
	PY_SIGNATURE("batch_put_from", 3, "keys", "buffer_ptrs", "sizes", "config");
	struct store_object *store = (struct store_object *)self;
	struct py_call call = STORE_CALL_ARGS;
	uint64_t op_id = kv_op_id_new();
	PERF_SCOPE(STORE_PY_BATCH_PUT_FROM, perf, op_id, py_peek_count(py_peek(&signature, call, 0)),
	           PERF_START_WATCHED(STORE_PY_BATCH_PUT_FROM) ? py_peek_sum(py_peek(&signature, call, 2)) : 0);
	struct batch batch = {0};
	PyObject *list = NULL;
	if (put_parse(&batch, call, &signature, py_buffers_parse) == 0) {
		int rc;
		STORE_CALL(store, rc,
		           rc_batch_put_from(store->rc, op_id, batch.keys.key,
		                             batch.buffers.mismatch ? NULL : batch.buffers.flat, batch.keys.count,
		                             &batch.config.rc, batch.status));
		if (rc < 0)
			fill_results(&batch, rc);
		list = result_list(&perf, &batch, rc < 0 ? 0 : rc_last_bytes());
	} else {
		store_raised(&perf);
	}
	batch_free(&batch);
	return list;
}

/* Without setup the list is empty: callers tell "no store" from "every key failed" by that. */
static PyObject *no_results(struct perf_scope *perf, const struct batch *batch)
{
	set_perf(perf, batch, 0);
	return PyList_New(0);
}

STORE_METHOD(batch_put_from_multi_buffers)
{
	PY_SIGNATURE("batch_put_from_multi_buffers", 3, "keys", "all_buffer_ptrs", "all_sizes", "config");
	struct store_object *store = (struct store_object *)self;
	struct py_call call = STORE_CALL_ARGS;
	uint64_t op_id = kv_op_id_new();
	PERF_SCOPE(STORE_PY_BATCH_PUT_MULTI, perf, op_id, py_peek_count(py_peek(&signature, call, 0)),
	           PERF_START_WATCHED(STORE_PY_BATCH_PUT_MULTI) ? py_peek_sum(py_peek(&signature, call, 2)) : 0);
	struct batch batch = {0};
	PyObject *list = NULL;
	if (put_parse(&batch, call, &signature, py_buffers_parse_multi) == 0) {
		bool set_up = store_is_parents(store) || rc_is_set_up(store->rc);
		int rc;
		STORE_CALL(store, rc,
		           rc_batch_put_multi(store->rc, op_id, batch.keys.key,
		                              batch.buffers.mismatch ? NULL : batch.buffers.object, batch.keys.count,
		                              &batch.config.rc, batch.status));
		if (rc < 0)
			fill_results(&batch, rc);
		list = set_up ? result_list(&perf, &batch, rc < 0 ? 0 : rc_last_bytes()) : no_results(&perf, &batch);
	} else {
		store_raised(&perf);
	}
	batch_free(&batch);
	return list;
}

/* --- gets --------------------------------------------------------------------------------------------- */

/* arg: keys, pointers, sizes, and for the multi form prefer_alloc_in_same_node. */
static int get_parse(struct batch *batch, struct py_call call, const struct py_signature *signature,
                     parse_buffers_fn parse_buffers)
{
	PyObject *arg[4] = {NULL};
	bool same_node;
	if (py_bind(signature, call, arg) != 0 || py_keys_parse(&batch->keys, arg[0], signature->function) != 0 ||
	    parse_buffers(&batch->buffers, &batch->keys, arg[1], arg[2], signature) != 0 ||
	    alloc_results(batch, true) != 0)
		return -1;
	/* Reads are grouped by owner in any case, so the hint changes nothing. */
	return arg[3] ? py_bool(arg[3], &same_node) : 0;
}

static PyObject *get_results(struct perf_scope *perf, struct batch *batch, int rc)
{
	uint64_t bytes = 0;
	if (rc < 0)
		fill_results(batch, rc);
	for (size_t i = 0; i < batch->keys.count; i++)
		if (batch->length[i] > 0)
			bytes += (uint64_t)batch->length[i];
	return result_list(perf, batch, bytes);
}

STORE_METHOD(batch_get_into)
{
	PY_SIGNATURE("batch_get_into", 3, "keys", "buffer_ptrs", "sizes");
	struct store_object *store = (struct store_object *)self;
	struct py_call call = STORE_CALL_ARGS;
	uint64_t op_id = kv_op_id_new();
	PERF_SCOPE(STORE_PY_BATCH_GET_INTO, perf, op_id, py_peek_count(py_peek(&signature, call, 0)),
	           PERF_START_WATCHED(STORE_PY_BATCH_GET_INTO) ? py_peek_sum(py_peek(&signature, call, 2)) : 0);
	struct batch batch = {0};
	PyObject *list = NULL;
	if (get_parse(&batch, call, &signature, py_buffers_parse) == 0) {
		int rc;
		STORE_CALL(store, rc,
		           rc_batch_get_into(store->rc, op_id, batch.keys.key,
		                             batch.buffers.mismatch ? NULL : batch.buffers.flat, batch.keys.count,
		                             batch.length));
		list = get_results(&perf, &batch, rc);
	} else {
		store_raised(&perf);
	}
	batch_free(&batch);
	return list;
}

STORE_METHOD(batch_get_into_multi_buffers)
{
	PY_SIGNATURE("batch_get_into_multi_buffers", 3, "keys", "all_buffer_ptrs", "all_sizes",
	             "prefer_alloc_in_same_node");
	struct store_object *store = (struct store_object *)self;
	struct py_call call = STORE_CALL_ARGS;
	uint64_t op_id = kv_op_id_new();
	PERF_SCOPE(STORE_PY_BATCH_GET_INTO_MULTI, perf, op_id, py_peek_count(py_peek(&signature, call, 0)),
	           PERF_START_WATCHED(STORE_PY_BATCH_GET_INTO_MULTI) ? py_peek_sum(py_peek(&signature, call, 2)) : 0);
	struct batch batch = {0};
	PyObject *list = NULL;
	if (get_parse(&batch, call, &signature, py_buffers_parse_multi) == 0) {
		int rc;
		STORE_CALL(store, rc,
		           rc_batch_get_into_multi(store->rc, op_id, batch.keys.key,
		                                   batch.buffers.mismatch ? NULL : batch.buffers.object,
		                                   batch.keys.count, batch.length));
		list = get_results(&perf, &batch, rc);
	} else {
		store_raised(&perf);
	}
	batch_free(&batch);
	return list;
}

/* --- questions ------------------------------------------------------------------------------------------ */

STORE_METHOD(batch_is_exist)
{
	PY_SIGNATURE("batch_is_exist", 1, "keys");
	struct store_object *store = (struct store_object *)self;
	struct py_call call = STORE_CALL_ARGS;
	uint64_t op_id = kv_op_id_new();
	PERF_SCOPE(STORE_PY_BATCH_IS_EXIST, perf, op_id, py_peek_count(py_peek(&signature, call, 0)), 0);
	PyObject *arg[1], *list = NULL;
	struct batch batch = {0};
	if (py_bind(&signature, call, arg) == 0 && py_keys_parse(&batch.keys, arg[0], signature.function) == 0 &&
	    alloc_results(&batch, false) == 0) {
		int rc;
		STORE_CALL(store, rc,
		           rc_batch_is_exist(store->rc, op_id, batch.keys.key, batch.keys.count, batch.status));
		if (rc < 0)
			fill_results(&batch, rc);
		list = result_list(&perf, &batch, 0);
	} else {
		store_raised(&perf);
	}
	batch_free(&batch);
	return list;
}

/* The lists per key. batch->status gets the per-key codes; what failed has no list. *lists may be NULL. */
static void query_replicas(struct store_object *store, uint64_t op_id, struct batch *batch,
                           kvstore_replica_lists_t **lists)
{
	int rc;
	*lists = NULL;
	STORE_CALL(store, rc, rc_batch_get_replica_desc(store->rc, op_id, batch->keys.key, batch->keys.count, lists));
	if (rc < 0 || !*lists) {
		fill_results(batch, rc < 0 ? rc : KV_INTERNAL_ERROR);
		return;
	}
	for (size_t i = 0; i < batch->keys.count; i++)
		batch->status[i] = i < (*lists)->n_keys ? (*lists)->status[i] : KV_INTERNAL_ERROR;
}

static void free_lists(kvstore_replica_lists_t *lists)
{
	if (lists)
		kvstore_replica_lists_free(lists);
}

static PyObject *replicas_of(const kvstore_replica_lists_t *lists, const struct batch *batch, size_t i)
{
	return batch->status[i] < 0 ? PyList_New(0) : py_replica_list(lists->list[i], lists->count[i]);
}

static PyObject *replica_dict(const kvstore_replica_lists_t *lists, const struct batch *batch)
{
	PyObject *dict = PyDict_New();
	for (size_t i = 0; dict && i < batch->keys.count; i++) {
		if (batch->status[i] < 0)
			continue;
		PyObject *list = replicas_of(lists, batch, i);
		if (!list || PyDict_SetItem(dict, PyTuple_GetItem(batch->keys.items, (Py_ssize_t)i), list) != 0)
			Py_CLEAR(dict);
		Py_XDECREF(list);
	}
	return dict;
}

STORE_METHOD(batch_get_replica_desc)
{
	PY_SIGNATURE("batch_get_replica_desc", 1, "keys");
	struct py_call call = STORE_CALL_ARGS;
	uint64_t op_id = kv_op_id_new();
	PERF_SCOPE(STORE_PY_BATCH_GET_REPLICA_DESC, perf, op_id, py_peek_count(py_peek(&signature, call, 0)), 0);
	PyObject *arg[1], *dict = NULL;
	struct batch batch = {0};
	if (py_bind(&signature, call, arg) == 0 && py_keys_parse(&batch.keys, arg[0], signature.function) == 0 &&
	    alloc_results(&batch, false) == 0) {
		kvstore_replica_lists_t *lists;
		query_replicas((struct store_object *)self, op_id, &batch, &lists);
		dict = replica_dict(lists, &batch);
		free_lists(lists);
	}
	if (dict)
		set_perf(&perf, &batch, 0);
	else
		store_raised(&perf);
	batch_free(&batch);
	return dict;
}

/* A batch of one: the same key of the Python layer as of the layers below. */
STORE_METHOD(get_replica_desc)
{
	PY_SIGNATURE("get_replica_desc", 1, "key");
	struct py_call call = STORE_CALL_ARGS;
	uint64_t op_id = kv_op_id_new();
	PERF_SCOPE(STORE_PY_BATCH_GET_REPLICA_DESC, perf, op_id, 1, 0);
	PyObject *arg[1], *list = NULL;
	struct batch batch = {0};
	struct py_where where = PY_ARGUMENT(signature.function, "key");
	PyObject *key = py_bind(&signature, call, arg) == 0 ? arg[0] : NULL;
	if (key && !PyUnicode_Check(key))
		py_type_error(&where, "a str", key);
	PyObject *keys = key && PyUnicode_Check(key) ? PyTuple_Pack(1, key) : NULL;
	if (keys && py_keys_parse(&batch.keys, keys, signature.function) == 0 && alloc_results(&batch, false) == 0) {
		kvstore_replica_lists_t *lists;
		query_replicas((struct store_object *)self, op_id, &batch, &lists);
		list = replicas_of(lists, &batch, 0);
		free_lists(lists);
	}
	if (list)
		set_perf(&perf, &batch, 0);
	else
		store_raised(&perf);
	Py_XDECREF(keys);
	batch_free(&batch);
	return list;
}
