/* SPDX-License-Identifier: Apache-2.0 */
/* TransferStats: the class, its life and its two modes, recording, the cut, the figures. */
#include "store/python/stats_py.h"

#include "kvstore_status.h"
#include "store/base/log.h"
#include "store/python/binding.h"
#include "store/stats/sketch.h"

#define MS_DIGITS         3
#define DESCRIPTOR_DIGITS 1

static PyTypeObject *stats_type;
static PyObject *round_function;
static PyObject *write_word, *read_word; /* interned */

bool stats_check(PyObject *object)
{
	return PyObject_TypeCheck(object, stats_type);
}

/* --- modes ------------------------------------------------------------------------------------------ */

int stats_replace(struct stats_object *stats, PyObject *data)
{
	struct xfer_stats *fresh = xfer_stats_new(stats->row_limit);
	if (!fresh) {
		PyErr_NoMemory();
		return -1;
	}
	struct xfer_stats *old_core = stats->core;
	PyObject *old_data = stats->data;
	Py_XINCREF(data);
	stats->core = fresh;
	stats->data = data;
	xfer_snapshot_free(&stats->spill);
	xfer_stats_free(old_core);
	Py_XDECREF(old_data); /* last: it may run Python code */
	return 0;
}

static int move_to_lists(struct stats_object *stats, PyObject *lists[COLUMNS])
{
	struct xfer_snapshot taken;
	if (xfer_stats_take(stats->core, &taken) != 0) {
		PyErr_NoMemory();
		return -1;
	}
	int result = stats_append(lists, stats->row_limit, &taken, &stats->spill);
	/* Back to where they came from: the next access tries again. */
	if (result != 0 && xfer_stats_add(stats->core, &taken) != 0)
		kv_error("KV transfer stats: rows were lost for want of memory");
	xfer_snapshot_free(&taken);
	return result;
}

int stats_drain(struct stats_object *stats)
{
	PyObject *lists[COLUMNS];
	PyObject *data = stats->data;
	if (!data || xfer_stats_is_empty(stats->core))
		return 0;
	Py_INCREF(data);
	int result = stats_hold(data, lists);
	if (result == 0) {
		/* Whoever has replaced the data while its keys were compared has dropped what was in the core. */
		if (stats->data == data)
			result = move_to_lists(stats, lists);
		stats_release(lists);
	}
	Py_DECREF(data);
	return result;
}

PyObject *stats_need_data(struct stats_object *stats)
{
	if (!stats->data) {
		PyObject *data = stats_new_data();
		if (!data)
			return NULL;
		/* Making it may have run finalizers that were here before us. */
		if (stats->data)
			Py_DECREF(data);
		else
			stats->data = data;
	}
	if (stats_drain(stats) != 0)
		return NULL;
	if (!stats->data)
		PyErr_SetString(PyExc_RuntimeError, "data was reset meanwhile");
	return stats->data;
}

int stats_snapshot(struct stats_object *stats, struct xfer_snapshot *out)
{
	if (!stats->data) {
		if (xfer_stats_copy(stats->core, out) == 0)
			return 0;
		PyErr_NoMemory();
		return -1;
	}
	if (stats_drain(stats) != 0 || !stats_need_data(stats) || stats_snapshot_of_data(stats->data, out) != 0)
		return -1;
	if (!stats_spilled(&stats->spill) || stats_spill(out, &stats->spill) == 0)
		return 0;
	xfer_snapshot_free(out);
	return -1;
}

/* --- life ------------------------------------------------------------------------------------------- */

static struct stats_object *stats_alloc(PyTypeObject *type, size_t row_limit)
{
	struct stats_object *stats = (struct stats_object *)PyType_GenericAlloc(type, 0);
	if (!stats)
		return NULL;
	stats->row_limit = row_limit;
	stats->core = xfer_stats_new(row_limit);
	if (stats->core)
		return stats;
	Py_DECREF(stats);
	PyErr_NoMemory();
	return NULL;
}

/* Complete without __init__, as unpickling has it. */
static PyObject *stats_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
	(void)args;
	(void)kwargs;
	return (PyObject *)stats_alloc(type, XFER_ROW_LIMIT);
}

int stats_set_row_limit(struct stats_object *stats, PyObject *limit)
{
	size_t rows = XFER_ROW_LIMIT;
	if (limit != Py_None) {
		rows = PyLong_AsSize_t(limit);
		if (rows == (size_t)-1 && PyErr_Occurred())
			return -1;
		if (rows == 0 || rows > PY_SSIZE_T_MAX) {
			PyErr_SetString(PyExc_ValueError, "row_limit must be at least 1");
			return -1;
		}
	}
	stats->row_limit = rows;
	return 0;
}

static int stats_init(PyObject *self, PyObject *args, PyObject *kwargs)
{
	static char *names[] = {"data", "row_limit", NULL};
	PyObject *data = NULL, *limit = Py_None;
	if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|O$O:TransferStats", names, &data, &limit))
		return -1;
	int given = data ? PyObject_IsTrue(data) : 0;
	if (given < 0 || stats_set_row_limit((struct stats_object *)self, limit) != 0)
		return -1;
	return stats_replace((struct stats_object *)self, given ? data : NULL);
}

static int stats_traverse(PyObject *self, visitproc visit, void *arg)
{
	Py_VISIT(Py_TYPE(self));
	Py_VISIT(((struct stats_object *)self)->data);
	return 0;
}

static int stats_clear(PyObject *self)
{
	Py_CLEAR(((struct stats_object *)self)->data);
	return 0;
}

static void stats_dealloc(PyObject *self)
{
	struct stats_object *stats = (struct stats_object *)self;
	PyTypeObject *type = Py_TYPE(self);
	PyObject_GC_UnTrack(self);
	stats_clear(self);
	xfer_snapshot_free(&stats->spill);
	xfer_stats_free(stats->core);
	((freefunc)PyType_GetSlot(type, Py_tp_free))(self);
	Py_DECREF(type);
}

/* --- recording -------------------------------------------------------------------------------------- */

enum { DURATION_S, TOTAL_BYTES, NUM_DESCS, DIRECTION, RECORD_ARGS };

static const char *const record_arg_names[RECORD_ARGS] = {"duration_s", "total_bytes", "num_descs", "direction"};
static PyObject *record_names[RECORD_ARGS]; /* interned, as the compiler of Python interns the names of a call */
static const struct py_signature record_signature = {"record_transfer", record_arg_names, RECORD_ARGS, NUM_DESCS + 1};

static int record_name(PyObject *name)
{
	for (int i = 0; i < RECORD_ARGS; i++)
		if (name == record_names[i])
			return i;
	return -1;
}

/* The usual call, in as few steps as there are. False: py_bind has to look at it. */
static bool bind_quickly(struct py_call call, PyObject *out[RECORD_ARGS])
{
	Py_ssize_t n_keywords = call.kwnames ? PyTuple_Size(call.kwnames) : 0;
	if (call.nargs > DIRECTION)
		return false;
	for (Py_ssize_t i = 0; i < call.nargs; i++)
		out[i] = call.args[i];
	for (Py_ssize_t k = 0; k < n_keywords; k++) {
		int i = record_name(PyTuple_GetItem(call.kwnames, k));
		if (i < 0 || out[i])
			return false;
		out[i] = call.args[call.nargs + k];
	}
	return out[DURATION_S] && out[TOTAL_BYTES] && out[NUM_DESCS];
}

static int bind_record(struct py_call call, PyObject *out[RECORD_ARGS])
{
	if (bind_quickly(call, out))
		return 0;
	if (call.nargs > DIRECTION) {
		PyErr_Format(PyExc_TypeError, "record_transfer() takes 3 positional arguments (%zd given)",
		             call.nargs);
		return -1;
	}
	return py_bind(&record_signature, call, out);
}

/* NULL: left out. */
static int direction_of(PyObject *word, enum xfer_direction *out)
{
	*out = XFER_DIRECTION_WRITE;
	if (!word || word == write_word)
		return 0;
	*out = XFER_DIRECTION_READ;
	if (word == read_word)
		return 0;
	if (PyUnicode_Check(word)) {
		if (PyUnicode_CompareWithASCIIString(word, "read") == 0)
			return 0;
		*out = XFER_DIRECTION_WRITE;
		if (PyUnicode_CompareWithASCIIString(word, "write") == 0)
			return 0;
	}
	PyErr_SetString(PyExc_ValueError, "direction must be 'write' or 'read'");
	return -1;
}

/* In list mode: is there a list for everything? Asked before anything is recorded. */
static int check_lists(struct stats_object *stats)
{
	PyObject *lists[COLUMNS];
	PyObject *data = stats->data;
	if (!data)
		return 0;
	Py_INCREF(data);
	int result = stats_hold(data, lists);
	if (result == 0)
		stats_release(lists);
	Py_DECREF(data);
	return result;
}

static PyObject *record_transfer(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
	struct stats_object *stats = (struct stats_object *)self;
	PyObject *arg[RECORD_ARGS] = {NULL};
	enum xfer_direction direction;
	struct xfer_row row;
	if (bind_record((struct py_call){args, nargs, kwnames}, arg) != 0 ||
	    direction_of(arg[DIRECTION], &direction) != 0 ||
	    stats_row(arg[DURATION_S], arg[TOTAL_BYTES], arg[NUM_DESCS], &row) != 0)
		return NULL;
	if (stats->data && check_lists(stats) != 0)
		return NULL;
	if (xfer_stats_record(stats->core, direction, &row) != KV_OK)
		return PyErr_NoMemory();
	if (stats->data && stats_drain(stats) != 0)
		return NULL;
	Py_RETURN_NONE;
}

static PyObject *record_failure(struct stats_object *stats, enum xfer_direction direction, enum xfer_failure failure)
{
	if (check_lists(stats) != 0)
		return NULL;
	xfer_stats_record_failure(stats->core, direction, failure);
	if (stats_drain(stats) != 0)
		return NULL;
	Py_RETURN_NONE;
}

static PyObject *record_failed_transfer(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
	static const char *const names[] = {"direction"};
	static const struct py_signature signature = {"record_failed_transfer", names, 1, 0};
	PyObject *word;
	enum xfer_direction direction;
	if (nargs > 0) {
		PyErr_SetString(PyExc_TypeError, "record_failed_transfer() takes no positional arguments");
		return NULL;
	}
	if (py_bind(&signature, (struct py_call){args, nargs, kwnames}, &word) != 0 ||
	    direction_of(word, &direction) != 0)
		return NULL;
	return record_failure((struct stats_object *)self, direction, XFER_FAILED_TRANSFER);
}

static PyObject *record_failed_recv(PyObject *self, PyObject *unused)
{
	(void)unused;
	return record_failure((struct stats_object *)self, XFER_DIRECTION_WRITE, XFER_FAILED_RECV);
}

static PyObject *record_kv_expired_req(PyObject *self, PyObject *unused)
{
	(void)unused;
	return record_failure((struct stats_object *)self, XFER_DIRECTION_WRITE, XFER_EXPIRED_REQ);
}

/* --- how much there is ------------------------------------------------------------------------------ */

static int successes(struct stats_object *stats, uint64_t *out)
{
	if (!stats->data) {
		*out = xfer_stats_successes(stats->core);
		return 0;
	}
	if (stats_drain(stats) != 0 || !stats_need_data(stats))
		return -1;
	Py_ssize_t kept = stats_column_size(stats->data, COLUMN_DURATION);
	if (kept < 0)
		return -1;
	*out = (uint64_t)kept + xfer_snapshot_successes(&stats->spill);
	return 0;
}

static PyObject *get_successes(PyObject *self, void *unused)
{
	(void)unused;
	uint64_t n;
	return successes((struct stats_object *)self, &n) == 0 ? PyLong_FromUnsignedLongLong(n) : NULL;
}

/* 1, 0, or -1 with an exception. A success decides without a look at the failures. */
static int is_empty(struct stats_object *stats)
{
	if (!stats->data)
		return xfer_stats_is_empty(stats->core);
	uint64_t n;
	if (successes(stats, &n) != 0)
		return -1;
	if (n != 0)
		return 0;
	for (int c = COLUMN_FAILURES; c < COLUMNS; c++) {
		PyObject *data = stats_need_data(stats);
		Py_ssize_t size = data ? stats_column_size(data, c) : -1;
		if (size != 0)
			return size < 0 ? -1 : 0;
	}
	return !stats_spilled(&stats->spill);
}

static PyObject *stats_is_empty(PyObject *self, PyObject *unused)
{
	(void)unused;
	int empty = is_empty((struct stats_object *)self);
	return empty < 0 ? NULL : PyBool_FromLong(empty);
}

static PyObject *get_approximate(PyObject *self, void *unused)
{
	(void)unused;
	struct stats_object *stats = (struct stats_object *)self;
	if (!stats->data)
		return PyBool_FromLong(xfer_stats_is_approximate(stats->core));
	return PyBool_FromLong(xfer_snapshot_successes(&stats->spill) > 0);
}

static PyObject *get_row_limit(PyObject *self, void *unused)
{
	(void)unused;
	return PyLong_FromSize_t(((struct stats_object *)self)->row_limit);
}

/* --- data -------------------------------------------------------------------------------------------- */

static PyObject *get_data(PyObject *self, void *unused)
{
	static bool warned; /* under the GIL */
	struct stats_object *stats = (struct stats_object *)self;
	(void)unused;
	PyObject *data = stats_need_data(stats);
	if (data && !warned && stats_spilled(&stats->spill)) {
		warned = true;
		kv_warn("KV transfer stats: more was recorded than the limit of %zu rows; data holds the first of "
		        "them, reduce() and pickles all",
		        stats->row_limit);
	}
	Py_XINCREF(data);
	return data;
}

static int set_data(PyObject *self, PyObject *data, void *unused)
{
	(void)unused;
	if (data)
		return stats_replace((struct stats_object *)self, data);
	PyErr_SetString(PyExc_AttributeError, "data cannot be deleted");
	return -1;
}

static PyObject *stats_reset(PyObject *self, PyObject *unused)
{
	(void)unused;
	if (stats_replace((struct stats_object *)self, NULL) != 0)
		return NULL;
	Py_RETURN_NONE;
}

/* --- clone_and_reset --------------------------------------------------------------------------------- */

static int copy_item(PyObject *into, PyObject *item)
{
	PyObject *key = PySequence_GetItem(item, 0);
	PyObject *value = key ? PySequence_GetItem(item, 1) : NULL;
	if (value && PyList_Check(value)) {
		PyObject *copy = PyList_GetSlice(value, 0, PY_SSIZE_T_MAX);
		Py_DECREF(value);
		value = copy;
	}
	int result = value ? PyDict_SetItem(into, key, value) : -1;
	Py_XDECREF(value);
	Py_XDECREF(key);
	return result;
}

/* A dict with copies of the lists. */
static PyObject *copy_data(PyObject *data)
{
	if (!PyDict_Check(data)) {
		PyErr_SetString(PyExc_TypeError, "data is not a dict of lists");
		return NULL;
	}
	PyObject *items = PyDict_Items(data);
	PyObject *copy = items ? PyDict_New() : NULL;
	for (Py_ssize_t i = 0; copy && i < PyList_Size(items); i++)
		if (copy_item(copy, PyList_GetItem(items, i)) != 0)
			Py_CLEAR(copy);
	Py_XDECREF(items);
	return copy;
}

/* The data leaves the object first, so that nothing that is recorded while its lists are copied can be lost. */
static int hand_over_lists(struct stats_object *stats, struct stats_object *clone)
{
	PyObject *data = stats->data;
	stats->data = NULL;
	clone->spill = stats->spill;
	stats->spill = (struct xfer_snapshot){0};
	clone->data = copy_data(data);
	if (!clone->data && !stats->data) {
		stats->data = data;
		stats->spill = clone->spill;
		clone->spill = (struct xfer_snapshot){0};
		return -1;
	}
	Py_DECREF(data);
	return clone->data ? 0 : -1;
}

static void hand_over_core(struct stats_object *stats, struct stats_object *clone)
{
	struct xfer_stats *full = stats->core;
	stats->core = clone->core;
	clone->core = full;
}

static PyObject *clone_and_reset(PyObject *self, PyObject *unused)
{
	(void)unused;
	struct stats_object *stats = (struct stats_object *)self;
	struct stats_object *clone = stats_alloc(Py_TYPE(self), stats->row_limit);
	if (!clone)
		return NULL;
	int result = stats_drain(stats);
	if (result == 0) {
		if (stats->data)
			result = hand_over_lists(stats, clone);
		else
			hand_over_core(stats, clone);
	}
	if (result != 0)
		Py_CLEAR(clone);
	return (PyObject *)clone;
}

/* --- reduce ------------------------------------------------------------------------------------------ */

/* As Python rounds: correctly, half to even. Without a success the int 0. */
static int set_rounded(PyObject *figures, const char *name, const struct xfer_reduced *reduced, double value,
                       int digits)
{
	return stats_set_new(figures, name,
	                     reduced->successes ? PyObject_CallFunction(round_function, "di", value, digits)
	                                        : PyLong_FromLong(0));
}

static int set_figures(PyObject *figures, const struct xfer_reduced *r)
{
	if (stats_set_new(figures, "Num successful transfers", PyLong_FromUnsignedLongLong(r->successes)) != 0 ||
	    set_rounded(figures, "Avg xfer time (ms)", r, r->avg_ms, MS_DIGITS) != 0 ||
	    set_rounded(figures, "P90 xfer time (ms)", r, r->p90_ms, MS_DIGITS) != 0 ||
	    set_rounded(figures, "Avg MB per transfer", r, r->avg_mib, MS_DIGITS) != 0 ||
	    set_rounded(figures, "Throughput (MB/s)", r, r->mib_per_s, MS_DIGITS) != 0 ||
	    set_rounded(figures, "Avg number of descriptors", r, r->avg_descriptors, DESCRIPTOR_DIGITS) != 0)
		return -1;
	static const char *const failure_names[XFER_FAILURES] = {"Num failed transfers", "Num failed recvs",
	                                                         "Num KV expired reqs"};
	for (int f = 0; f < XFER_FAILURES; f++)
		if (stats_set_new(figures, failure_names[f], PyLong_FromUnsignedLongLong(r->failures[f])) != 0)
			return -1;
	return 0;
}

static PyObject *stats_reduce(PyObject *self, PyObject *unused)
{
	(void)unused;
	struct xfer_snapshot snapshot;
	struct xfer_reduced reduced;
	int status;
	if (stats_snapshot((struct stats_object *)self, &snapshot) != 0)
		return NULL;
	Py_BEGIN_ALLOW_THREADS;
	status = xfer_snapshot_reduce(&snapshot, &reduced);
	Py_END_ALLOW_THREADS;
	xfer_snapshot_free(&snapshot);
	if (status != KV_OK)
		return PyErr_NoMemory();
	PyObject *figures = PyDict_New();
	if (figures && set_figures(figures, &reduced) != 0)
		Py_CLEAR(figures);
	return figures;
}

/* --- the type ---------------------------------------------------------------------------------------- */

static const char stats_doc[] =
        "TransferStats(data=None, *, row_limit=1000000)\n--\n\n"
        "What a KV connector records of its transfers between two snapshots. Any thread may call any method; a\n"
        "record is whole or not there, a snapshot loses nothing and has nothing twice.\n\n"
        "`data` is a dict of six lists: transfer_duration (seconds), bytes_transferred, num_descriptors with one\n"
        "item per successful transfer; num_failed_transfers, num_failed_recvs, num_kv_expired_reqs with a 1 per\n"
        "failure. Until it is read for the first time the rows are in C memory only, 24 bytes each. From then on\n"
        "these lists are the truth, and live: records are appended to them, they may be changed, and every figure\n"
        "is computed from them. A data that is given to the constructor or assigned is kept as it is, unchecked;\n"
        "columns that it lacks are empty. reset() and clone_and_reset() begin anew and leave the old lists to who\n"
        "holds them.\n\n"
        "Beyond row_limit rows only counts, sums and a sketch go on: counts, averages and throughput stay exact,\n"
        "P90 is within 1/64 of the exact one, and `approximate` is True. `data` then has the first row_limit rows;\n"
        "reduce(), aggregate() and pickles have all.";

#define METHOD(function) ((PyCFunction)(void (*)(void))(function))
#define RECORD_METHOD(name, text)                                                                                    \
	{                                                                                                            \
#name, METHOD(name), METH_FASTCALL | METH_KEYWORDS, #name text                                       \
	}
static PyMethodDef stats_methods[] = {
        RECORD_METHOD(record_transfer,
                      "($self, duration_s, total_bytes, num_descs, *, direction='write')\n--\n\n"
                      "One transfer that succeeded: its seconds, bytes and descriptors. direction: 'write' for a "
                      "push, 'read' for a pull.\nValueError for a duration that is not finite or negative bytes, "
                      "OverflowError for bytes beyond 2**63-1\nor descriptors outside 0 to 2**32-1."),
        RECORD_METHOD(record_failed_transfer,
                      "($self, *, direction='write')\n--\n\nOne transfer that failed, on the side that drives it."),
        {"record_failed_recv", record_failed_recv, METH_NOARGS,
         "record_failed_recv($self)\n--\n\nOne receive that failed, on the side that waits for it."},
        {"record_kv_expired_req", record_kv_expired_req, METH_NOARGS,
         "record_kv_expired_req($self)\n--\n\nOne request whose blocks nobody has fetched in time."},
        {"is_empty", stats_is_empty, METH_NOARGS, "is_empty($self)\n--\n\nNo success and no failure."},
        {"reset", stats_reset, METH_NOARGS, "reset($self)\n--\n\nBegin anew, with new lists."},
        {"clone_and_reset", clone_and_reset, METH_NOARGS,
         "clone_and_reset($self)\n--\n\nA new object with everything that is recorded; this one begins anew."},
        {"aggregate", stats_aggregate, METH_O, stats_aggregate_doc},
        {"reduce", stats_reduce, METH_NOARGS,
         "reduce($self)\n--\n\nThe nine figures of the log line, in its order: a dict. AssertionError if the three "
         "columns of\nsuccessful transfers differ in length."},
        {"__getstate__", stats_getstate, METH_NOARGS, "__getstate__($self)\n--\n\n{'data': {six lists}}"},
        {"__setstate__", stats_setstate, METH_O, "__setstate__($self, state, /)\n--\n\nWhat __getstate__ has given."},
        {"__reduce_ex__", stats_reduce_ex, METH_O, "__reduce_ex__($self, protocol, /)\n--\n\nFor pickle and copy."},
        {NULL, NULL, 0, NULL},
};

static PyGetSetDef stats_getset[] = {
        {"data", get_data, set_data, "The dict of six lists; see the class.", NULL},
        {"num_successful_transfers", get_successes, NULL, "Successful transfers that are recorded.", NULL},
        {"approximate", get_approximate, NULL, "There are more rows than row_limit: P90 is from a sketch.", NULL},
        {"row_limit", get_row_limit, NULL, "How many rows are kept as they are.", NULL},
        {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot stats_slots[] = {
        {Py_tp_doc, (void *)stats_doc}, {Py_tp_new, stats_new},           {Py_tp_init, stats_init},
        {Py_tp_dealloc, stats_dealloc}, {Py_tp_traverse, stats_traverse}, {Py_tp_clear, stats_clear},
        {Py_tp_methods, stats_methods}, {Py_tp_getset, stats_getset},     {0, NULL},
};

static PyType_Spec stats_spec = {
        .name = "kvprobe._stats.TransferStats",
        .basicsize = sizeof(struct stats_object),
        .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC,
        .slots = stats_slots,
};

static int intern(const char *text, PyObject **out)
{
	*out = PyUnicode_InternFromString(text);
	return *out ? 0 : -1;
}

int stats_add_type(PyObject *module)
{
	for (int i = 0; i < RECORD_ARGS; i++)
		if (intern(record_arg_names[i], &record_names[i]) != 0)
			return -1;
	if (intern("write", &write_word) != 0 || intern("read", &read_word) != 0 || stats_names_init() != 0)
		return -1;
	PyObject *builtins = PyImport_ImportModule("builtins");
	round_function = builtins ? PyObject_GetAttrString(builtins, "round") : NULL;
	Py_XDECREF(builtins);
	stats_type = round_function ? (PyTypeObject *)PyType_FromSpec(&stats_spec) : NULL;
	return stats_type ? PyModule_AddObjectRef(module, "TransferStats", (PyObject *)stats_type) : -1;
}
