/* SPDX-License-Identifier: Apache-2.0 */
/* MooncakeDistributedStore: the class, its life, and the calls on the store as a whole. */
#include "store/python/store_py.h"

#include <pthread.h>
#include <structmember.h>

#include "store/base/net.h"

/* --- life ------------------------------------------------------------------------------------------- */

static unsigned fork_generation;

static void count_fork(void)
{
	fork_generation++;
}

bool store_is_parents(const struct store_object *store)
{
	return store->fork_generation != fork_generation;
}

static PyObject *store_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
	if (PyTuple_Size(args) != 0 || (kwargs && PyDict_Size(kwargs) != 0)) {
		PyErr_SetString(PyExc_TypeError, "MooncakeDistributedStore() takes no arguments; see setup()");
		return NULL;
	}
	struct store_object *store = (struct store_object *)PyType_GenericAlloc(type, 0);
	if (!store)
		return NULL;
	store->fork_generation = fork_generation;
	store->rc = rc_create();
	if (!store->rc) {
		Py_DECREF(store);
		return PyErr_NoMemory();
	}
	return (PyObject *)store;
}

/* No call can be in flight: each holds a reference. In a forked child the client is left alone, memory and all;
 * closing it would speak on the parent's connections. */
static void store_dealloc(PyObject *self)
{
	struct store_object *store = (struct store_object *)self;
	PyTypeObject *type = Py_TYPE(self);
	if (store->weak_references)
		PyObject_ClearWeakRefs(self);
	if (store->rc && !store_is_parents(store)) {
		Py_BEGIN_ALLOW_THREADS;
		rc_destroy(store->rc);
		Py_END_ALLOW_THREADS;
	}
	((freefunc)PyType_GetSlot(type, Py_tp_free))(self);
	Py_DECREF(type);
}

/* --- the store as a whole ------------------------------------------------------------------------------- */

static STORE_METHOD(setup)
{
	struct store_object *store = (struct store_object *)self;
	uint64_t op_id = kv_op_id_new();
	PERF_SCOPE(STORE_PY_SETUP, perf, op_id, 0, 0);
	struct py_setup setup;
	PyObject *result;
	if (py_setup_parse(&setup, STORE_CALL_ARGS) == 0) {
		int rc = setup.status;
		if (rc == KV_OK)
			STORE_CALL(store, rc, rc_setup(store->rc, op_id, &setup.rc));
		result = store_result(&perf, 0, 0, rc);
	} else {
		result = store_raised(&perf);
	}
	py_setup_free(&setup);
	return result;
}

static PyObject *store_close(PyObject *self, PyObject *none)
{
	struct store_object *store = (struct store_object *)self;
	uint64_t op_id = kv_op_id_new();
	PERF_SCOPE(STORE_PY_CLOSE, perf, op_id, 0, 0);
	(void)none;
	int rc;
	STORE_CALL(store, rc, rc_close(store->rc, op_id));
	return store_result(&perf, 0, 0, rc);
}

/* A store that is the parent's is one that this process has not set up. */
static PyObject *store_health_check(PyObject *self, PyObject *none)
{
	struct store_object *store = (struct store_object *)self;
	(void)none;
	int rc;
	STORE_CALL(store, rc, rc_health_check(store->rc, kv_op_id_new()));
	return PyLong_FromLong(rc < 0 ? 1 : rc);
}

static PyObject *store_get_hostname(PyObject *self, PyObject *none)
{
	struct store_object *store = (struct store_object *)self;
	char name[KV_ENDPOINT_MAX] = "";
	(void)none;
	int rc;
	STORE_CALL(store, rc, rc_get_hostname(store->rc, name, sizeof(name)));
	return PyUnicode_FromString(rc == KV_OK ? name : "");
}

static STORE_METHOD(register_buffer)
{
	PY_SIGNATURE("register_buffer", 2, "buffer_ptr", "size");
	struct py_where ptr_where = PY_ARGUMENT("register_buffer", "buffer_ptr");
	struct py_where size_where = PY_ARGUMENT("register_buffer", "size");
	struct store_object *store = (struct store_object *)self;
	uint64_t op_id = kv_op_id_new();
	PERF_SCOPE(STORE_PY_REGISTER_BUFFER, perf, op_id, 0, py_peek_sum(py_peek(&signature, STORE_CALL_ARGS, 1)));
	PyObject *arg[2];
	uint64_t address, size;
	if (py_bind(&signature, STORE_CALL_ARGS, arg) != 0 || py_u64(arg[0], &ptr_where, &address) != 0 ||
	    py_u64(arg[1], &size_where, &size) != 0)
		return store_raised(&perf);
	int rc;
	STORE_CALL(store, rc, rc_register_buffer(store->rc, op_id, (void *)(uintptr_t)address, (size_t)size));
	return store_result(&perf, rc == KV_OK ? size : 0, 0, rc);
}

static STORE_METHOD(unregister_buffer)
{
	PY_SIGNATURE("unregister_buffer", 1, "buffer_ptr");
	struct py_where where = PY_ARGUMENT("unregister_buffer", "buffer_ptr");
	struct store_object *store = (struct store_object *)self;
	uint64_t op_id = kv_op_id_new();
	PERF_SCOPE(STORE_PY_UNREGISTER_BUFFER, perf, op_id, 0, 0);
	PyObject *arg[1];
	uint64_t address;
	if (py_bind(&signature, STORE_CALL_ARGS, arg) != 0 || py_u64(arg[0], &where, &address) != 0)
		return store_raised(&perf);
	int rc;
	STORE_CALL(store, rc, rc_unregister_buffer(store->rc, op_id, (void *)(uintptr_t)address));
	return store_result(&perf, 0, 0, rc);
}

static STORE_METHOD(remove_all)
{
	PY_SIGNATURE("remove_all", 0, "force");
	struct store_object *store = (struct store_object *)self;
	uint64_t op_id = kv_op_id_new();
	PERF_SCOPE(STORE_PY_REMOVE_ALL, perf, op_id, 0, 0);
	PyObject *arg[1];
	bool force = false;
	if (py_bind(&signature, STORE_CALL_ARGS, arg) != 0 || (arg[0] && py_bool(arg[0], &force) != 0))
		return store_raised(&perf);
	int64_t rc;
	STORE_CALL(store, rc, rc_remove_all(store->rc, op_id, force));
	return store_result(&perf, 0, rc > 0 ? (uint64_t)rc : 0, rc);
}

/* --- the type --------------------------------------------------------------------------------------------- */

#define METHOD(name, doc)                                                                                            \
	{                                                                                                            \
#name, PY_FAST(store_##name), METH_FASTCALL | METH_KEYWORDS, doc                                     \
	}
#define CODES_PUT                                                                                                    \
	"-200: the pool is full. -600: bad key (1 to 4096 bytes, no NUL), size or config. -800: transfer failed.\n"  \
	"-900, -901: no answer from the master. -1012: the config asks for what is not supported. A key that\n"      \
	"exists already: 0, and nothing is written."
#define CODES_GET                                                                                                    \
	"-600: bad key, or the buffer is smaller than the object. -703: the put is not complete. -704: no such\n"    \
	"key. -707: the lease ended during the read. -800: transfer failed. -900, -901: no answer from the master."

static PyMethodDef store_methods[] = {
        METHOD(setup, py_setup_doc),
        {"close", store_close, METH_NOARGS,
         "close($self)\n--\n\n"
         "Leave the pool: the segment and what is in it are gone. Returns 0; a second close also.\n"
         "Calls in flight end first."},
        {"health_check", store_health_check, METH_NOARGS,
         "health_check($self)\n--\n\n"
         "0: well. 1: not set up, or closed. 2: the master does not answer."},
        {"get_hostname", store_get_hostname, METH_NOARGS,
         "get_hostname($self)\n--\n\n"
         "The host:port under which others reach this worker; '' without setup."},
        METHOD(register_buffer, "register_buffer($self, buffer_ptr, size)\n--\n\n"
                                "Make the memory at address buffer_ptr usable for transfers. It must stay where it\n"
                                "is until unregister_buffer. Returns 0; -600: address or size 0, or it overlaps a\n"
                                "registered buffer."),
        METHOD(unregister_buffer, "unregister_buffer($self, buffer_ptr)\n--\n\n"
                                  "Undo register_buffer of that address. Returns 0; -600: not registered."),
        METHOD(put, "put($self, key, value, config=None)\n--\n\n"
                    "Store the bytes-like value under key, copied by way of the local buffer. Returns 0.\n" CODES_PUT
                    "\n-600 also without a local buffer, when it is full, or for an empty value."),
        METHOD(put_from, "put_from($self, key, buffer_ptr, size, config=None)\n--\n\n"
                         "Store size bytes at address buffer_ptr (registered memory) under key, without a copy.\n"
                         "Returns 0; size 0 stores nothing and returns 0 with a warning.\n" CODES_PUT),
        METHOD(batch_put_from, "batch_put_from($self, keys, buffer_ptrs, sizes, config=None)\n--\n\n"
                               "put_from for each key. Returns a list with 0 or a code per key; lists of different\n"
                               "lengths: -600 for each.\n" CODES_PUT),
        METHOD(batch_put_from_multi_buffers,
               "batch_put_from_multi_buffers($self, keys, all_buffer_ptrs, all_sizes, config=None)\n--\n\n"
               "Store one object per key: the fragments at all_buffer_ptrs[i] of all_sizes[i] bytes, one after\n"
               "the other. Returns a list with 0 or a code per key, [] without setup. Outer lists of different\n"
               "lengths: -600 for each key; inner ones: -600 for that key.\n" CODES_PUT),
        METHOD(get, "get($self, key)\n--\n\n"
                    "The object as bytes; b'' if there is none or on any failure."),
        METHOD(get_into, "get_into($self, key, buffer_ptr, size)\n--\n\n"
                         "Read the object to address buffer_ptr. Returns the bytes read.\n" CODES_GET),
        METHOD(batch_get_into,
               "batch_get_into($self, keys, buffer_ptrs, sizes)\n--\n\n"
               "get_into for each key. Returns a list with the bytes read or a code per key; lists of\n"
               "different lengths: -600 for each.\n" CODES_GET),
        METHOD(batch_get_into_multi_buffers,
               "batch_get_into_multi_buffers($self, keys, all_buffer_ptrs, all_sizes, "
               "prefer_alloc_in_same_node=False)\n--\n\n"
               "Read each object into its fragments, one after the other. Returns a list with the bytes read or a\n"
               "code per key. Outer lists of different lengths: -600 for each key; inner ones: -600 for that key.\n"
               "Reads are grouped by owner whatever prefer_alloc_in_same_node says.\n" CODES_GET),
        METHOD(is_exist, "is_exist($self, key)\n--\n\n"
                         "1 or 0. Also 0, with a warning on stderr, when the master does not answer: callers take\n"
                         "any other number for yes. A key that exists gets a read lease."),
        METHOD(batch_is_exist, "batch_is_exist($self, keys)\n--\n\n"
                               "A list with 1, 0 or a negative code per key. Keys that exist get a read lease."),
        METHOD(get_size,
               "get_size($self, key)\n--\n\n"
               "Bytes of the object, or -704: no such key, -703: the put is not complete, -600, -900, -901."),
        METHOD(remove, "remove($self, key, force=False)\n--\n\n"
                       "Remove the object. Returns 0; -704: no such key; -706: it has a read lease and force is\n"
                       "False; -703: the put is not complete."),
        METHOD(remove_all, "remove_all($self, force=False)\n--\n\n"
                           "Remove every object without a read lease, with force those that have one too. Returns\n"
                           "the number removed, or a negative code."),
        METHOD(get_replica_desc, "get_replica_desc($self, key)\n--\n\n"
                                 "The object's replicas: a list of ReplicaDescriptor, empty if there are none."),
        METHOD(batch_get_replica_desc, "batch_get_replica_desc($self, keys)\n--\n\n"
                                       "{key: [ReplicaDescriptor, ...]}; a key without an object is not in it."),
        {NULL, NULL, 0, NULL},
};

static PyMemberDef store_members[] = {
        {"__weaklistoffset__", T_PYSSIZET, offsetof(struct store_object, weak_references), READONLY, NULL},
        {NULL, 0, 0, 0, NULL},
};

static PyType_Slot store_slots[] = {
        {Py_tp_new, store_new},
        {Py_tp_dealloc, store_dealloc},
        {Py_tp_methods, store_methods},
        {Py_tp_members, store_members},
        {Py_tp_doc,
         "MooncakeDistributedStore()\n--\n\n"
         "A worker's access to the pool. setup() first; close() leaves the pool, and so does the end of the\n"
         "object. Every method may be called from any thread; none holds the GIL while it waits. Store failures\n"
         "are returned as negative codes, wrong types raise TypeError. After a fork the child needs a store of\n"
         "its own: with the parent's, every call fails (-1010)."},
        {0, NULL},
};

static PyType_Spec store_spec = {
        .name = "kvprobe.store.MooncakeDistributedStore",
        .basicsize = sizeof(struct store_object),
        .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE,
        .slots = store_slots,
};

int py_store_add_type(PyObject *module)
{
	int error = pthread_atfork(NULL, NULL, count_fork);
	if (error) {
		PyErr_NoMemory();
		return -1;
	}
	PyObject *type = PyType_FromSpec(&store_spec);
	int result = type ? PyModule_AddObjectRef(module, "MooncakeDistributedStore", type) : -1;
	Py_XDECREF(type);
	return result;
}
