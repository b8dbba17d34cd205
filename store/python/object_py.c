/* SPDX-License-Identifier: Apache-2.0 */
/* Calls on one object. */
#include "store/python/store_py.h"

/* --- put -------------------------------------------------------------------------------------------- */

/* A key and a config together: what is wrong with either becomes the key's status. */
struct target {
	struct rc_key key;
	PyObject *hold;
	struct py_config config;
};

static int target_parse(struct target *target, PyObject *key, PyObject *config, const char *function)
{
	struct py_where where = PY_ARGUMENT(function, "key");
	if (py_key(key, &where, &target->key, &target->hold) != 0 ||
	    py_config_use(&target->config, config, function) != 0)
		return -1;
	if (target->key.status == KV_OK)
		target->key.status = target->config.status;
	return 0;
}

static void target_free(struct target *target)
{
	py_config_release(&target->config);
	Py_XDECREF(target->hold);
}

static PyObject *put_value(struct store_object *store, uint64_t op_id, struct perf_scope *perf,
                           const struct target *target, PyObject *value)
{
	struct py_where where = PY_ARGUMENT("put", "value");
	if (!PyObject_CheckBuffer(value)) {
		py_type_error(&where, "bytes-like", value);
		return store_raised(perf);
	}
	Py_buffer view;
	if (PyObject_GetBuffer(value, &view, PyBUF_SIMPLE) != 0)
		return store_raised(perf);
	int rc;
	STORE_CALL(store, rc, rc_put(store->rc, op_id, target->key, view.buf, (size_t)view.len, &target->config.rc));
	PyBuffer_Release(&view);
	return store_result(perf, rc == KV_OK ? rc_last_bytes() : 0, 1, rc);
}

/* For the start probe, before the value is looked at: the usual types only. */
static uint64_t value_size(PyObject *value)
{
	if (value && PyBytes_Check(value))
		return (uint64_t)PyBytes_Size(value);
	if (value && PyByteArray_Check(value))
		return (uint64_t)PyByteArray_Size(value);
	return 0;
}

STORE_METHOD(put)
{
	PY_SIGNATURE("put", 2, "key", "value", "config");
	uint64_t op_id = kv_op_id_new();
	PERF_SCOPE(PUT_STORE_PY_PUT, perf, op_id, 1, value_size(py_peek(&signature, STORE_CALL_ARGS, 1)));
	PyObject *arg[3];
	struct target target = {0};
	PyObject *result =
	        py_bind(&signature, STORE_CALL_ARGS, arg) == 0 && target_parse(&target, arg[0], arg[2], "put") == 0
	                ? put_value((struct store_object *)self, op_id, &perf, &target, arg[1])
	                : store_raised(&perf);
	target_free(&target);
	return result;
}

/* The buffer of put_from and get_into. */
static int buffer_parse(struct kv_buf *buffer, PyObject *ptr, PyObject *size, const char *function)
{
	struct py_where ptr_where = PY_ARGUMENT(function, "buffer_ptr");
	struct py_where size_where = PY_ARGUMENT(function, "size");
	uint64_t address, length;
	if (py_u64(ptr, &ptr_where, &address) != 0 || py_u64(size, &size_where, &length) != 0)
		return -1;
	*buffer = (struct kv_buf){(void *)(uintptr_t)address, (size_t)length};
	return 0;
}

static PyObject *put_buffer(struct store_object *store, uint64_t op_id, struct perf_scope *perf,
                            const struct target *target, struct kv_buf buffer)
{
	int rc;
	STORE_CALL(store, rc, rc_put_from(store->rc, op_id, target->key, buffer.ptr, buffer.len, &target->config.rc));
	return store_result(perf, rc == KV_OK ? rc_last_bytes() : 0, 1, rc);
}

STORE_METHOD(put_from)
{
	PY_SIGNATURE("put_from", 3, "key", "buffer_ptr", "size", "config");
	uint64_t op_id = kv_op_id_new();
	PERF_SCOPE(STORE_PY_PUT_FROM, perf, op_id, 1, py_peek_sum(py_peek(&signature, STORE_CALL_ARGS, 2)));
	PyObject *arg[4];
	struct target target = {0};
	struct kv_buf buffer;
	PyObject *result = py_bind(&signature, STORE_CALL_ARGS, arg) == 0 &&
	                                   target_parse(&target, arg[0], arg[3], "put_from") == 0 &&
	                                   buffer_parse(&buffer, arg[1], arg[2], "put_from") == 0
	                           ? put_buffer((struct store_object *)self, op_id, &perf, &target, buffer)
	                           : store_raised(&perf);
	target_free(&target);
	return result;
}

/* --- get -------------------------------------------------------------------------------------------- */

/* The client asks for memory in the thread that called it, so the GIL is taken back with that thread's own
 * state: PyGILState_Ensure would be wrong in a subinterpreter. */
struct get_call {
	PyThreadState *thread;
	PyObject *value;
};

static void *get_alloc(void *ctx, size_t size)
{
	struct get_call *get = ctx;
	if (size > PY_SSIZE_T_MAX)
		return NULL;
	PyEval_RestoreThread(get->thread);
	Py_XDECREF(get->value);
	get->value = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)size);
	void *memory = get->value ? PyBytes_AsString(get->value) : NULL;
	if (!get->value)
		PyErr_Clear(); /* the call's result says it */
	get->thread = PyEval_SaveThread();
	return memory;
}

static int64_t get_value(struct store_object *store, uint64_t op_id, struct rc_key key, struct get_call *get)
{
	if (store_is_parents(store))
		return KV_UNAVAILABLE_IN_CURRENT_STATUS;
	get->thread = PyEval_SaveThread();
	int64_t rc = rc_get_buffer(store->rc, op_id, key, get_alloc, get);
	PyEval_RestoreThread(get->thread);
	return rc;
}

STORE_METHOD(get)
{
	PY_SIGNATURE("get", 1, "key");
	struct py_where where = PY_ARGUMENT("get", "key");
	uint64_t op_id = kv_op_id_new();
	PERF_SCOPE(GET_STORE_PY_GET, perf, op_id, 1, 0);
	PyObject *arg[1], *hold = NULL;
	struct rc_key key;
	if (py_bind(&signature, STORE_CALL_ARGS, arg) != 0 || py_key(arg[0], &where, &key, &hold) != 0)
		return store_raised(&perf);
	struct get_call get = {NULL, NULL};
	int64_t rc = get_value((struct store_object *)self, op_id, key, &get);
	Py_XDECREF(hold);
	perf_result(&perf, rc > 0 ? (uint64_t)rc : 0, 1, rc);
	if (rc > 0 && get.value && rc == PyBytes_Size(get.value))
		return get.value;
	Py_XDECREF(get.value);
	return PyBytes_FromStringAndSize("", 0);
}

STORE_METHOD(get_into)
{
	PY_SIGNATURE("get_into", 3, "key", "buffer_ptr", "size");
	struct py_where where = PY_ARGUMENT("get_into", "key");
	struct store_object *store = (struct store_object *)self;
	uint64_t op_id = kv_op_id_new();
	PERF_SCOPE(STORE_PY_GET_INTO, perf, op_id, 1, py_peek_sum(py_peek(&signature, STORE_CALL_ARGS, 2)));
	PyObject *arg[3], *hold = NULL;
	struct rc_key key;
	struct kv_buf buffer;
	if (py_bind(&signature, STORE_CALL_ARGS, arg) != 0 ||
	    buffer_parse(&buffer, arg[1], arg[2], "get_into") != 0 || py_key(arg[0], &where, &key, &hold) != 0)
		return store_raised(&perf);
	int64_t rc;
	STORE_CALL(store, rc, rc_get_into(store->rc, op_id, key, buffer.ptr, buffer.len));
	Py_XDECREF(hold);
	return store_result(&perf, rc > 0 ? (uint64_t)rc : 0, 1, rc);
}

/* --- questions and removal --------------------------------------------------------------------------- */

STORE_METHOD(is_exist)
{
	PY_SIGNATURE("is_exist", 1, "key");
	struct py_where where = PY_ARGUMENT("is_exist", "key");
	struct store_object *store = (struct store_object *)self;
	uint64_t op_id = kv_op_id_new();
	PERF_SCOPE(STORE_PY_IS_EXIST, perf, op_id, 1, 0);
	PyObject *arg[1], *hold = NULL;
	struct rc_key key;
	if (py_bind(&signature, STORE_CALL_ARGS, arg) != 0 || py_key(arg[0], &where, &key, &hold) != 0)
		return store_raised(&perf);
	int rc;
	STORE_CALL(store, rc, rc_is_exist(store->rc, op_id, key));
	Py_XDECREF(hold);
	return store_result(&perf, 0, 1, rc);
}

STORE_METHOD(get_size)
{
	PY_SIGNATURE("get_size", 1, "key");
	struct py_where where = PY_ARGUMENT("get_size", "key");
	struct store_object *store = (struct store_object *)self;
	uint64_t op_id = kv_op_id_new();
	PERF_SCOPE(STORE_PY_GET_SIZE, perf, op_id, 1, 0);
	PyObject *arg[1], *hold = NULL;
	struct rc_key key;
	if (py_bind(&signature, STORE_CALL_ARGS, arg) != 0 || py_key(arg[0], &where, &key, &hold) != 0)
		return store_raised(&perf);
	int64_t rc;
	STORE_CALL(store, rc, rc_get_size(store->rc, op_id, key));
	Py_XDECREF(hold);
	return store_result(&perf, 0, 1, rc);
}

STORE_METHOD(remove)
{
	PY_SIGNATURE("remove", 1, "key", "force");
	struct py_where where = PY_ARGUMENT("remove", "key");
	struct store_object *store = (struct store_object *)self;
	uint64_t op_id = kv_op_id_new();
	PERF_SCOPE(STORE_PY_REMOVE, perf, op_id, 1, 0);
	PyObject *arg[2], *hold = NULL;
	struct rc_key key;
	bool force = false;
	if (py_bind(&signature, STORE_CALL_ARGS, arg) != 0 || (arg[1] && py_bool(arg[1], &force) != 0) ||
	    py_key(arg[0], &where, &key, &hold) != 0)
		return store_raised(&perf);
	int rc;
	STORE_CALL(store, rc, rc_remove(store->rc, op_id, key, force));
	Py_XDECREF(hold);
	return store_result(&perf, 0, 1, rc);
}
