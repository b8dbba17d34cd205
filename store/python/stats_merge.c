/* SPDX-License-Identifier: Apache-2.0 */
/* aggregate: another object's content into this one. Either both are in the C core, or it goes list by list, over the
 * keys that the other one has. */
#include "store/python/stats_py.h"

#include <stdlib.h>

const char stats_aggregate_doc[] =
        "aggregate($self, other, /)\n--\n\n"
        "Add what another object of this kind has recorded, and return self. `other` stays as it is; it may be any\n"
        "object with is_empty() and `data`. KeyError for a key that self's data does not have, AssertionError where\n"
        "self's data has something else than a list: nothing is added then.";

/* --- from a core ------------------------------------------------------------------------------------ */

static int append_snapshot(struct stats_object *stats, const struct xfer_snapshot *from)
{
	PyObject *lists[COLUMNS];
	PyObject *data = stats_need_data(stats);
	if (!data)
		return -1;
	Py_INCREF(data);
	int result = stats_hold(data, lists);
	if (result == 0) {
		result = stats_append(lists, stats->row_limit, from, &stats->spill);
		stats_release(lists);
	}
	Py_DECREF(data);
	return result;
}

static int add_core(struct stats_object *stats, struct stats_object *other)
{
	struct xfer_snapshot copy;
	if (xfer_stats_copy(other->core, &copy) != 0) {
		PyErr_NoMemory();
		return -1;
	}
	int result = 0;
	if (stats->data && !xfer_snapshot_is_empty(&copy))
		result = append_snapshot(stats, &copy);
	else if (!stats->data && xfer_stats_add(stats->core, &copy) != 0) {
		PyErr_NoMemory();
		result = -1;
	}
	xfer_snapshot_free(&copy);
	return result;
}

/* --- from lists ------------------------------------------------------------------------------------- */

/* One list of self's data and the items that it gets. */
struct extension {
	PyObject *list;  /* held */
	PyObject *items; /* tuple */
	int column;      /* or -1: a key of the caller's */
	Py_ssize_t size; /* of the list before */
	Py_ssize_t kept; /* as many of the items as the limit lets in */
};

struct merge {
	struct extension *extensions;
	Py_ssize_t n;
	struct xfer_snapshot beyond; /* the rows and failures that are not kept */
};

static void merge_free(struct merge *merge)
{
	for (Py_ssize_t i = 0; i < merge->n; i++) {
		Py_XDECREF(merge->extensions[i].list);
		Py_XDECREF(merge->extensions[i].items);
	}
	free(merge->extensions);
	xfer_snapshot_free(&merge->beyond);
}

/* The list in `data` that the other's key goes to; a column that is missing is made. */
static int find_list(PyObject *data, PyObject *key, struct extension *extension)
{
	extension->column = stats_column_of(key);
	extension->list = PyDict_GetItemWithError(data, key);
	Py_XINCREF(extension->list);
	if (!extension->list && !PyErr_Occurred()) {
		if (extension->column < 0) {
			PyErr_SetObject(PyExc_KeyError, key);
			return -1;
		}
		extension->list = PyList_New(0);
		if (!extension->list || PyDict_SetItem(data, key, extension->list) != 0)
			return -1;
	}
	if (!extension->list)
		return -1;
	if (PyList_Check(extension->list))
		return 0;
	PyErr_Format(PyExc_AssertionError, "data[%R] is not a list", key);
	return -1;
}

static int find_extension(PyObject *data, PyObject *item, struct extension *extension)
{
	PyObject *key = PySequence_GetItem(item, 0);
	PyObject *values = key ? PySequence_GetItem(item, 1) : NULL;
	int result = values ? find_list(data, key, extension) : -1;
	if (result == 0) {
		extension->items = PySequence_Tuple(values);
		result = extension->items ? 0 : -1;
	}
	Py_XDECREF(values);
	Py_XDECREF(key);
	return result;
}

static int find_extensions(PyObject *data, PyObject *items, struct merge *merge)
{
	Py_ssize_t n = PyList_Size(items);
	merge->extensions = calloc((size_t)(n > 0 ? n : 1), sizeof(*merge->extensions));
	if (!merge->extensions) {
		PyErr_NoMemory();
		return -1;
	}
	for (merge->n = 0; merge->n < n;) {
		PyObject *item = PyList_GetItem(items, merge->n);
		Py_INCREF(item);
		int result = find_extension(data, item, &merge->extensions[merge->n++]);
		Py_DECREF(item);
		if (result != 0)
			return -1;
	}
	return 0;
}

static Py_ssize_t within_limit(const struct extension *extension, size_t limit)
{
	return (Py_ssize_t)stats_kept_of(extension->list, limit, (size_t)PyTuple_Size(extension->items));
}

/* The rows beyond the limit, all three columns of them; lists that do not belong to rows are kept whole. */
static int cut_rows(struct merge *merge, size_t limit)
{
	PyObject *columns[ROW_COLUMNS] = {NULL};
	struct extension *rows[ROW_COLUMNS] = {NULL};
	for (Py_ssize_t i = 0; i < merge->n; i++) {
		struct extension *extension = &merge->extensions[i];
		if (extension->column < 0 || extension->column >= ROW_COLUMNS)
			continue;
		rows[extension->column] = extension;
		columns[extension->column] = extension->items;
	}
	if (!rows[COLUMN_DURATION] || !rows[COLUMN_BYTES] || !rows[COLUMN_DESCRIPTORS])
		return 0;
	Py_ssize_t kept = within_limit(rows[COLUMN_DURATION], limit);
	if (kept == PyTuple_Size(columns[COLUMN_DURATION]))
		return 0;
	if (stats_rows(columns, kept, &merge->beyond) != 0)
		return -1;
	for (int c = 0; c < ROW_COLUMNS; c++)
		rows[c]->kept = kept;
	return 0;
}

static int apply_limit(struct merge *merge, size_t limit)
{
	merge->beyond.row_limit = SIZE_MAX;
	for (Py_ssize_t i = 0; i < merge->n; i++) {
		struct extension *extension = &merge->extensions[i];
		extension->kept = PyTuple_Size(extension->items);
		if (extension->column < COLUMN_FAILURES)
			continue;
		Py_ssize_t kept = within_limit(extension, limit);
		merge->beyond.failures[extension->column - COLUMN_FAILURES] += (uint64_t)(extension->kept - kept);
		extension->kept = kept;
	}
	return cut_rows(merge, limit);
}

static int extend(struct extension *extension)
{
	PyObject *items = extension->items;
	if (extension->kept < PyTuple_Size(items)) {
		items = PyTuple_GetSlice(items, 0, extension->kept);
		if (!items)
			return -1;
		Py_DECREF(extension->items);
		extension->items = items;
	}
	extension->size = PyList_Size(extension->list);
	return PyList_SetSlice(extension->list, extension->size, extension->size, items);
}

static void undo(struct merge *merge, Py_ssize_t n)
{
	PyObject *type, *value, *traceback;
	PyErr_Fetch(&type, &value, &traceback);
	for (Py_ssize_t i = n; i-- > 0;)
		if (PyList_SetSlice(merge->extensions[i].list, merge->extensions[i].size, PY_SSIZE_T_MAX, NULL) != 0)
			PyErr_Clear();
	PyErr_Restore(type, value, traceback);
}

static int extend_all(struct merge *merge)
{
	for (Py_ssize_t i = 0; i < merge->n; i++) {
		if (extend(&merge->extensions[i]) != 0) {
			undo(merge, i);
			return -1;
		}
	}
	return 0;
}

/* What the lists have no room for, and what the other object had beyond its own. */
static int collect_beyond(const struct merge *merge, PyObject *other, struct xfer_snapshot *out)
{
	if (stats_spill(out, &merge->beyond) != 0)
		return -1;
	return stats_check(other) ? stats_spill(out, &((struct stats_object *)other)->spill) : 0;
}

/* From here on no Python code runs. */
static int apply(struct stats_object *stats, PyObject *data, struct merge *merge, PyObject *other)
{
	struct xfer_snapshot beyond = {0};
	if (stats->data != data) {
		PyErr_SetString(PyExc_RuntimeError, "aggregate(): data was replaced meanwhile");
		return -1;
	}
	int result = collect_beyond(merge, other, &beyond);
	if (result == 0 && stats_spilled(&beyond))
		result = stats_need_sketch(&stats->spill);
	if (result == 0)
		result = extend_all(merge);
	if (result == 0)
		result = stats_spill(&stats->spill, &beyond);
	xfer_snapshot_free(&beyond);
	return result;
}

static int add_items(struct stats_object *stats, PyObject *items, PyObject *other)
{
	struct merge merge = {0};
	PyObject *data = stats_need_data(stats);
	if (!data)
		return -1;
	Py_INCREF(data);
	int result = -1;
	if (!PyDict_Check(data))
		PyErr_SetString(PyExc_TypeError, "data is not a dict of lists");
	else if (find_extensions(data, items, &merge) == 0 && apply_limit(&merge, stats->row_limit) == 0)
		result = apply(stats, data, &merge, other);
	merge_free(&merge);
	Py_DECREF(data);
	return result;
}

static int add_lists(struct stats_object *stats, PyObject *other)
{
	PyObject *data = PyObject_GetAttrString(other, "data");
	PyObject *items = data ? PyMapping_Items(data) : NULL;
	int result = items ? add_items(stats, items, other) : -1;
	Py_XDECREF(items);
	Py_XDECREF(data);
	return result;
}

/* 1, 0, or -1 with an exception. */
static int other_is_empty(PyObject *other)
{
	PyObject *answer = PyObject_CallMethod(other, "is_empty", NULL);
	int empty = answer ? PyObject_IsTrue(answer) : -1;
	Py_XDECREF(answer);
	return empty;
}

PyObject *stats_aggregate(PyObject *self, PyObject *other)
{
	struct stats_object *stats = (struct stats_object *)self;
	int result;
	if (stats_check(other) && !((struct stats_object *)other)->data) {
		result = add_core(stats, (struct stats_object *)other);
	} else {
		result = other_is_empty(other);
		if (result == 0)
			result = add_lists(stats, other);
	}
	if (result < 0)
		return NULL;
	Py_INCREF(self);
	return self;
}
