/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The class's methods, in three files by what they work on: the store (store_py.c), one object (object_py.c),
 * a batch of objects (batch_py.c). Each makes the call's op id, fires its STORE_PY key once, whatever the way
 * out, and drops the GIL around the client's call.
 */
#ifndef KV_PYTHON_STORE_PY_H
#define KV_PYTHON_STORE_PY_H

#include "store/python/binding.h"

#include "probes/perf_points.h"
#include "store/base/op_id.h"

struct store_object {
	PyObject_HEAD struct real_client *rc;
	unsigned fork_generation;
	PyObject *weak_references;
};

/* True in a child forked after the store was made: its threads and connections are the parent's, so the child
 * must not touch it. Every call then fails with KV_UNAVAILABLE_IN_CURRENT_STATUS. */
bool store_is_parents(const struct store_object *store);

/* result = the client's call without the GIL, unless the store is the parent's. */
#define STORE_CALL(store, result, call) PY_CALL_UNLESS(store_is_parents(store), result, call)

/* For `return`: the call raises, and its key says so. */
static inline PyObject *store_raised(struct perf_scope *perf)
{
	perf_set(perf, 0, 0, 0, KV_INVALID_PARAMS);
	return NULL;
}

/* For `return`: the call's one result. */
static inline PyObject *store_result(struct perf_scope *perf, uint64_t bytes, uint64_t n_keys, int64_t rc)
{
	return PyLong_FromLongLong(perf_result(perf, bytes, n_keys, rc));
}

#define STORE_METHOD(name)                                                                                           \
	PyObject *store_##name(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
#define STORE_CALL_ARGS ((struct py_call){args, nargs, kwnames})

STORE_METHOD(put);
STORE_METHOD(put_from);
STORE_METHOD(get);
STORE_METHOD(get_into);
STORE_METHOD(is_exist);
STORE_METHOD(get_size);
STORE_METHOD(remove);

STORE_METHOD(batch_put_from);
STORE_METHOD(batch_put_from_multi_buffers);
STORE_METHOD(batch_get_into);
STORE_METHOD(batch_get_into_multi_buffers);
STORE_METHOD(batch_is_exist);
STORE_METHOD(get_replica_desc);
STORE_METHOD(batch_get_replica_desc);

#endif
