/* SPDX-License-Identifier: Apache-2.0 */
/* The extension kvprobe._engine: TransferEngine over kvengine.h. */
#include "store/python/args.h"

#include <stdlib.h>
#include <string.h>
#include <structmember.h>

#include "kvengine.h"
#include "store/base/log.h"
#include "store/base/net.h"

_Static_assert(sizeof(size_t) == sizeof(uint64_t), "sizes are taken for size_t as they come");

enum engine_state { ENGINE_NEW, ENGINE_STARTING, ENGINE_READY };

struct engine_object {
	PyObject_HEAD kvengine_t *engine; /* while ENGINE_READY */
	enum engine_state state;          /* changed with the GIL held */
	PyObject *weak_references;
};

#define ENGINE_METHOD(name)                                                                                          \
	static PyObject *engine_##name(PyObject *object, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
#define ENGINE_CALL_ARGS ((struct py_call){args, nargs, kwnames})

/* result = the engine's call without the GIL, unless there is no engine yet. */
#define ENGINE_CALL(self, result, call) PY_CALL_UNLESS((self)->state != ENGINE_READY, result, call)

/* --- life --------------------------------------------------------------------------------------------------- */

static PyObject *engine_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
	if (PyTuple_Size(args) != 0 || (kwargs && PyDict_Size(kwargs) != 0)) {
		PyErr_SetString(PyExc_TypeError, "TransferEngine() takes no arguments; see initialize()");
		return NULL;
	}
	return PyType_GenericAlloc(type, 0);
}

/* No call can be in flight: each holds a reference. */
static void engine_dealloc(PyObject *object)
{
	struct engine_object *self = (struct engine_object *)object;
	PyTypeObject *type = Py_TYPE(object);
	if (self->weak_references)
		PyObject_ClearWeakRefs(object);
	if (self->engine) {
		Py_BEGIN_ALLOW_THREADS;
		kvengine_destroy(self->engine);
		Py_END_ALLOW_THREADS;
	}
	((freefunc)PyType_GetSlot(type, Py_tp_free))(object);
	Py_DECREF(type);
}

static int create_engine(struct engine_object *self, const char *hostname, const char *protocol)
{
	kvengine_config_t config = {.struct_size = sizeof(config), .host = hostname, .protocol = protocol};
	int rc;
	if (self->state != ENGINE_NEW) {
		kv_warn("initialize: this engine is initialized already");
		return KV_INVALID_PARAMS;
	}
	self->state = ENGINE_STARTING;
	Py_BEGIN_ALLOW_THREADS;
	rc = kvengine_create(&self->engine, &config);
	Py_END_ALLOW_THREADS;
	self->state = rc == KV_OK ? ENGINE_READY : ENGINE_NEW;
	return rc;
}

static int take_text(PyObject *value, const char *name, const char *fallback, const char **out)
{
	struct py_where where = PY_ARGUMENT("initialize", name);
	*out = value ? py_text(value, &where) : fallback;
	return *out ? 0 : -1;
}

ENGINE_METHOD(initialize)
{
	PY_SIGNATURE("initialize", 1, "hostname", "metadata_server", "protocol", "device_name");
	PyObject *arg[4];
	const char *hostname, *metadata_server, *protocol, *device_name;
	if (py_bind(&signature, ENGINE_CALL_ARGS, arg) != 0 ||
	    take_text(arg[0], signature_names[0], "", &hostname) != 0 ||
	    take_text(arg[1], signature_names[1], "P2PHANDSHAKE", &metadata_server) != 0 ||
	    take_text(arg[2], signature_names[2], "tcp", &protocol) != 0 ||
	    take_text(arg[3], signature_names[3], "", &device_name) != 0)
		return NULL;
	if (strcmp(metadata_server, "P2PHANDSHAKE") != 0) {
		kv_warn("initialize: metadata_server %.64s is not supported, only P2PHANDSHAKE", metadata_server);
		return PyLong_FromLong(KV_NOT_SUPPORTED);
	}
	if (*device_name)
		kv_info("initialize: device_name %.64s is not used by tcp", device_name);
	return PyLong_FromLong(create_engine((struct engine_object *)object, hostname, protocol));
}

static PyObject *engine_get_rpc_port(PyObject *object, PyObject *none)
{
	struct engine_object *self = (struct engine_object *)object;
	(void)none;
	return PyLong_FromLong(self->state == ENGINE_READY ? kvengine_rpc_port(self->engine)
	                                                   : KV_UNAVAILABLE_IN_CURRENT_STATUS);
}

/* --- memory ------------------------------------------------------------------------------------------------- */

ENGINE_METHOD(register_memory)
{
	PY_SIGNATURE("register_memory", 2, "ptr", "length");
	struct py_where ptr_where = PY_ARGUMENT("register_memory", "ptr");
	struct py_where length_where = PY_ARGUMENT("register_memory", "length");
	struct engine_object *self = (struct engine_object *)object;
	PyObject *arg[2];
	uint64_t ptr, length;
	int rc;
	if (py_bind(&signature, ENGINE_CALL_ARGS, arg) != 0 || py_u64(arg[0], &ptr_where, &ptr) != 0 ||
	    py_u64(arg[1], &length_where, &length) != 0)
		return NULL;
	ENGINE_CALL(self, rc, kvengine_register(self->engine, (void *)(uintptr_t)ptr, length));
	return PyLong_FromLong(rc);
}

ENGINE_METHOD(unregister_memory)
{
	PY_SIGNATURE("unregister_memory", 1, "ptr");
	struct py_where where = PY_ARGUMENT("unregister_memory", "ptr");
	struct engine_object *self = (struct engine_object *)object;
	PyObject *arg[1];
	uint64_t ptr;
	int rc;
	if (py_bind(&signature, ENGINE_CALL_ARGS, arg) != 0 || py_u64(arg[0], &where, &ptr) != 0)
		return NULL;
	ENGINE_CALL(self, rc, kvengine_unregister(self->engine, (void *)(uintptr_t)ptr));
	return PyLong_FromLong(rc);
}

/* All of them, or with the first one's code none. */
static int register_all(kvengine_t *engine, const uint64_t *ptrs, const uint64_t *lens, size_t count)
{
	int rc = KV_OK;
	size_t done = 0;
	while (done < count && rc == KV_OK) {
		rc = kvengine_register(engine, (void *)(uintptr_t)ptrs[done], lens[done]);
		done += rc == KV_OK;
	}
	while (rc != KV_OK && done > 0)
		kvengine_unregister(engine, (void *)(uintptr_t)ptrs[--done]);
	return rc;
}

/* As many as can be; the first failure's code. */
static int unregister_all(kvengine_t *engine, const uint64_t *ptrs, size_t count)
{
	int first = KV_OK;
	for (size_t i = 0; i < count; i++) {
		int rc = kvengine_unregister(engine, (void *)(uintptr_t)ptrs[i]);
		if (first == KV_OK)
			first = rc;
	}
	return first;
}

ENGINE_METHOD(batch_register_memory)
{
	PY_SIGNATURE("batch_register_memory", 2, "ptrs", "lens");
	struct py_where ptrs_where = PY_ARGUMENT("batch_register_memory", "ptrs");
	struct py_where lens_where = PY_ARGUMENT("batch_register_memory", "lens");
	struct engine_object *self = (struct engine_object *)object;
	PyObject *arg[2], *result = NULL;
	uint64_t *ptrs = NULL, *lens = NULL;
	size_t n_ptrs, n_lens;
	if (py_bind(&signature, ENGINE_CALL_ARGS, arg) == 0 &&
	    py_u64_list(arg[0], &ptrs_where, &ptrs, &n_ptrs) == 0 &&
	    py_u64_list(arg[1], &lens_where, &lens, &n_lens) == 0) {
		int rc = KV_INVALID_PARAMS;
		if (n_ptrs == n_lens || self->state != ENGINE_READY)
			ENGINE_CALL(self, rc, register_all(self->engine, ptrs, lens, n_ptrs));
		result = PyLong_FromLong(rc);
	}
	free(ptrs);
	free(lens);
	return result;
}

ENGINE_METHOD(batch_unregister_memory)
{
	PY_SIGNATURE("batch_unregister_memory", 1, "ptrs");
	struct py_where where = PY_ARGUMENT("batch_unregister_memory", "ptrs");
	struct engine_object *self = (struct engine_object *)object;
	PyObject *arg[1];
	uint64_t *ptrs;
	size_t count;
	int rc;
	if (py_bind(&signature, ENGINE_CALL_ARGS, arg) != 0 || py_u64_list(arg[0], &where, &ptrs, &count) != 0)
		return NULL;
	ENGINE_CALL(self, rc, unregister_all(self->engine, ptrs, count));
	free(ptrs);
	return PyLong_FromLong(rc);
}

/* --- transfers ---------------------------------------------------------------------------------------------- */

typedef int transfer_call(kvengine_t *engine, const char *session, void *const *local, const uint64_t *remote,
                          const size_t *sizes, size_t count, uint64_t timeout_ms);

/* The arguments of every transfer, in this order. */
enum { ARG_SESSION, ARG_LOCAL, ARG_REMOTE, ARG_LENGTH, ARG_HINT, N_TRANSFER_ARGS };

struct transfer_args {
	PyObject *arg[N_TRANSFER_ARGS];
	const char *session; /* alive as long as the call's argument */
};

static int bind_transfer(const struct py_signature *signature, struct py_call call, struct transfer_args *out)
{
	struct py_where session_where = PY_ARGUMENT(signature->function, signature->names[ARG_SESSION]);
	struct py_where hint_where = PY_ARGUMENT(signature->function, signature->names[ARG_HINT]);
	if (py_bind(signature, call, out->arg) != 0)
		return -1;
	out->session = py_text(out->arg[ARG_SESSION], &session_where);
	if (!out->session)
		return -1;
	return out->arg[ARG_HINT] && !py_text(out->arg[ARG_HINT], &hint_where) ? -1 : 0;
}

static PyObject *transfer_one(PyObject *object, const struct py_signature *signature, struct py_call call,
                              transfer_call *transfer)
{
	struct engine_object *self = (struct engine_object *)object;
	struct transfer_args args;
	uint64_t value[N_TRANSFER_ARGS];
	int rc;
	if (bind_transfer(signature, call, &args) != 0)
		return NULL;
	for (int i = ARG_LOCAL; i <= ARG_LENGTH; i++) {
		struct py_where where = PY_ARGUMENT(signature->function, signature->names[i]);
		if (py_u64(args.arg[i], &where, &value[i]) != 0)
			return NULL;
	}
	void *local = (void *)(uintptr_t)value[ARG_LOCAL];
	size_t size = value[ARG_LENGTH];
	ENGINE_CALL(self, rc, transfer(self->engine, args.session, &local, &value[ARG_REMOTE], &size, 1, 0));
	return PyLong_FromLong(rc);
}

/* The three lists of a batch, copied. */
struct transfer_lists {
	uint64_t *list[N_TRANSFER_ARGS];
	size_t count[N_TRANSFER_ARGS];
	void **local;
};

static int parse_lists(const struct py_signature *signature, const struct transfer_args *args,
                       struct transfer_lists *lists)
{
	for (int i = ARG_LOCAL; i <= ARG_LENGTH; i++) {
		struct py_where where = PY_ARGUMENT(signature->function, signature->names[i]);
		if (py_u64_list(args->arg[i], &where, &lists->list[i], &lists->count[i]) != 0)
			return -1;
	}
	size_t count = lists->count[ARG_LOCAL];
	lists->local = malloc((count ? count : 1) * sizeof(*lists->local));
	if (!lists->local) {
		PyErr_NoMemory();
		return -1;
	}
	for (size_t i = 0; i < count; i++)
		lists->local[i] = (void *)(uintptr_t)lists->list[ARG_LOCAL][i];
	return 0;
}

static void free_lists(struct transfer_lists *lists)
{
	for (int i = ARG_LOCAL; i <= ARG_LENGTH; i++)
		free(lists->list[i]);
	free(lists->local);
}

static int run_lists(struct engine_object *self, const char *session, const struct transfer_lists *lists,
                     transfer_call *transfer)
{
	size_t count = lists->count[ARG_LOCAL];
	int rc = KV_INVALID_PARAMS;
	if ((lists->count[ARG_REMOTE] == count && lists->count[ARG_LENGTH] == count) || self->state != ENGINE_READY)
		ENGINE_CALL(self, rc,
		            transfer(self->engine, session, lists->local, lists->list[ARG_REMOTE],
		                     lists->list[ARG_LENGTH], count, 0));
	return rc;
}

static PyObject *transfer_batch(PyObject *object, const struct py_signature *signature, struct py_call call,
                                transfer_call *transfer)
{
	struct transfer_args args;
	struct transfer_lists lists = {0};
	PyObject *result = NULL;
	if (bind_transfer(signature, call, &args) != 0)
		return NULL;
	if (parse_lists(signature, &args, &lists) == 0)
		result = PyLong_FromLong(run_lists((struct engine_object *)object, args.session, &lists, transfer));
	free_lists(&lists);
	return result;
}

ENGINE_METHOD(transfer_sync_write)
{
	PY_SIGNATURE("transfer_sync_write", 4, "session", "src", "dst", "length", "transport_hint");
	return transfer_one(object, &signature, ENGINE_CALL_ARGS, kvengine_write);
}

ENGINE_METHOD(transfer_sync_read)
{
	PY_SIGNATURE("transfer_sync_read", 4, "session", "local", "remote", "length", "transport_hint");
	return transfer_one(object, &signature, ENGINE_CALL_ARGS, kvengine_read);
}

ENGINE_METHOD(batch_transfer_sync_write)
{
	PY_SIGNATURE("batch_transfer_sync_write", 4, "session", "src_ptrs", "dst_ptrs", "lens", "transport_hint");
	return transfer_batch(object, &signature, ENGINE_CALL_ARGS, kvengine_write);
}

ENGINE_METHOD(batch_transfer_sync_read)
{
	PY_SIGNATURE("batch_transfer_sync_read", 4, "session", "local_ptrs", "remote_ptrs", "lens", "transport_hint");
	return transfer_batch(object, &signature, ENGINE_CALL_ARGS, kvengine_read);
}

/* --- the type ----------------------------------------------------------------------------------------------- */

#define METHOD(name, doc)                                                                                            \
	{                                                                                                            \
#name, PY_FAST(engine_##name), METH_FASTCALL | METH_KEYWORDS, doc                                    \
	}
#define CODES                                                                                                        \
	"Returns 0, or -600: a range that is not registered, here or at the peer, or of length 0; a bad session.\n"  \
	"-800: the peer is not known, not there, died or hung. -1010: not initialized, or a forked child.\n"         \
	"transport_hint is ignored."

static PyMethodDef engine_methods[] = {
        METHOD(initialize,
               "initialize($self, hostname, metadata_server='P2PHANDSHAKE', protocol='tcp', device_name='')\n--\n\n"
               "Listen for peers. hostname is the host or host:port under which they reach this process; a port is\n"
               "chosen if there is none (get_rpc_port()). An address of this host is listened on alone, a name on\n"
               "all addresses: whoever reaches the port can read and write registered memory.\n"
               "protocol 'rdma' falls back to tcp with a warning; device_name is not used.\n"
               "Returns 0; -600: bad hostname or protocol, or initialized already; -1012: a metadata_server other\n"
               "than 'P2PHANDSHAKE'; -1: no free port or no memory."),
        {"get_rpc_port", engine_get_rpc_port, METH_NOARGS,
         "get_rpc_port($self)\n--\n\n"
         "The port of this engine: its session is 'hostname:port'. -1010: not initialized."},
        METHOD(register_memory,
               "register_memory($self, ptr, length)\n--\n\n"
               "Let peers read and write the memory at address ptr, and transfers here use it. It must stay where "
               "it\n"
               "is until unregister_memory. Returns 0; -600: ptr or length 0, or it overlaps a registered range."),
        METHOD(unregister_memory,
               "unregister_memory($self, ptr)\n--\n\n"
               "Undo register_memory of that address. Returns 0 once no transfer is in it any more; -600: not\n"
               "registered."),
        METHOD(batch_register_memory,
               "batch_register_memory($self, ptrs, lens)\n--\n\n"
               "register_memory for each pair. Returns 0, or with the code of the first that fails nothing is\n"
               "registered. -600: lists of different lengths."),
        METHOD(batch_unregister_memory,
               "batch_unregister_memory($self, ptrs)\n--\n\n"
               "unregister_memory for each address. Returns 0, or the code of the first that failed; the others are\n"
               "unregistered nevertheless."),
        METHOD(transfer_sync_write,
               "transfer_sync_write($self, session, src, dst, length, transport_hint='')\n--\n\n"
               "Write length bytes at address src here to address dst of the peer 'host:port'.\n" CODES),
        METHOD(transfer_sync_read,
               "transfer_sync_read($self, session, local, remote, length, transport_hint='')\n--\n\n"
               "Read length bytes at address remote of the peer 'host:port' to address local here.\n" CODES),
        METHOD(batch_transfer_sync_write,
               "batch_transfer_sync_write($self, session, src_ptrs, dst_ptrs, lens, transport_hint='')\n--\n\n"
               "transfer_sync_write for each triple, all at once. After a failure the memory of all of them at the\n"
               "peer may have changed. -600 also for lists of different lengths.\n" CODES),
        METHOD(batch_transfer_sync_read,
               "batch_transfer_sync_read($self, session, local_ptrs, remote_ptrs, lens, transport_hint='')\n--\n\n"
               "transfer_sync_read for each triple, all at once. After a failure the memory of all of them here may\n"
               "have changed. -600 also for lists of different lengths.\n" CODES),
        {NULL, NULL, 0, NULL},
};

static PyMemberDef engine_members[] = {
        {"__weaklistoffset__", T_PYSSIZET, offsetof(struct engine_object, weak_references), READONLY, NULL},
        {NULL, 0, 0, 0, NULL},
};

static PyType_Slot engine_slots[] = {
        {Py_tp_new, engine_new},
        {Py_tp_dealloc, engine_dealloc},
        {Py_tp_methods, engine_methods},
        {Py_tp_members, engine_members},
        {Py_tp_doc,
         "TransferEngine()\n--\n\n"
         "Moves bytes between registered memory of this process and of peers, by addresses. initialize() first; the\n"
         "end of the object closes its connections. Every method may be called from any thread; none holds the GIL\n"
         "while it waits. Failures are returned as negative codes, wrong types raise TypeError. A transfer ends\n"
         "within MC_TRANSFER_TIMEOUT_MS (30000). After a fork the child needs an engine of its own."},
        {0, NULL},
};

static PyType_Spec engine_spec = {
        .name = "kvprobe.engine.TransferEngine",
        .basicsize = sizeof(struct engine_object),
        .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE,
        .slots = engine_slots,
};

static struct PyModuleDef engine_module = {
        PyModuleDef_HEAD_INIT,
        .m_name = "kvprobe._engine",
        .m_doc = "The transfer engine; import it as kvprobe.engine or mooncake.engine.",
        .m_size = -1,
};

PyMODINIT_FUNC PyInit__engine(void)
{
	PyObject *module = PyModule_Create(&engine_module);
	if (!module)
		return NULL;
	PyObject *type = PyType_FromSpec(&engine_spec);
	if (!type || PyModule_AddObjectRef(module, "TransferEngine", type) != 0)
		Py_CLEAR(module);
	Py_XDECREF(type);
	return module;
}
