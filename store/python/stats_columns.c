/* SPDX-License-Identifier: Apache-2.0 */
/* The lists of `data`: found, appended to, and read. */
#include "store/python/stats_py.h"

#include <math.h>
#include <stdlib.h>

#include "store/stats/sketch.h"

static const char *const column_names[COLUMNS] = {
        "transfer_duration",    "bytes_transferred", "num_descriptors",
        "num_failed_transfers", "num_failed_recvs",  "num_kv_expired_reqs",
};

PyObject *stats_names[COLUMNS];
static PyObject *one; /* an item of a list of failures */

int stats_names_init(void)
{
	for (int c = 0; c < COLUMNS; c++) {
		stats_names[c] = PyUnicode_InternFromString(column_names[c]);
		if (!stats_names[c])
			return -1;
	}
	one = PyLong_FromLong(1);
	return one ? 0 : -1;
}

int stats_column_of(PyObject *key)
{
	for (int c = 0; c < COLUMNS; c++)
		if (key == stats_names[c])
			return c;
	if (!PyUnicode_Check(key))
		return -1;
	for (int c = 0; c < COLUMNS; c++)
		if (PyUnicode_CompareWithASCIIString(key, column_names[c]) == 0)
			return c;
	return -1;
}

/* --- finding ---------------------------------------------------------------------------------------- */

int stats_column(PyObject *data, enum stats_column column, PyObject **out)
{
	*out = NULL;
	if (!PyDict_Check(data)) {
		PyErr_SetString(PyExc_TypeError, "data is not a dict of lists");
		return -1;
	}
	/* Held: comparing the keys may run code that takes the data away from the object. */
	Py_INCREF(data);
	*out = PyDict_GetItemWithError(data, stats_names[column]);
	Py_XINCREF(*out);
	int result = !*out && PyErr_Occurred() ? -1 : 0;
	Py_DECREF(data);
	return result;
}

Py_ssize_t stats_column_size(PyObject *data, enum stats_column column)
{
	PyObject *values;
	if (stats_column(data, column, &values) != 0)
		return -1;
	Py_ssize_t size = values ? PyObject_Size(values) : 0;
	Py_XDECREF(values);
	return size;
}

PyObject *stats_new_data(void)
{
	PyObject *data = PyDict_New();
	for (int c = 0; data && c < COLUMNS; c++) {
		PyObject *list = PyList_New(0);
		if (!list || PyDict_SetItem(data, stats_names[c], list) != 0)
			Py_CLEAR(data);
		Py_XDECREF(list);
	}
	return data;
}

static int hold_list(PyObject *data, enum stats_column column, PyObject **out)
{
	if (stats_column(data, column, out) != 0)
		return -1;
	if (!*out) {
		*out = PyList_New(0);
		return *out ? PyDict_SetItem(data, stats_names[column], *out) : -1;
	}
	if (PyList_Check(*out))
		return 0;
	PyErr_Format(PyExc_AssertionError, "data['%s'] is not a list", column_names[column]);
	return -1;
}

int stats_hold(PyObject *data, PyObject *lists[COLUMNS])
{
	for (int c = 0; c < COLUMNS; c++)
		lists[c] = NULL;
	for (int c = 0; c < COLUMNS; c++) {
		if (hold_list(data, c, &lists[c]) != 0) {
			stats_release(lists);
			return -1;
		}
	}
	return 0;
}

void stats_release(PyObject *lists[COLUMNS])
{
	for (int c = 0; c < COLUMNS; c++)
		Py_CLEAR(lists[c]);
}

int stats_set_new(PyObject *dict, const char *key, PyObject *value)
{
	int result = value ? PyDict_SetItemString(dict, key, value) : -1;
	Py_XDECREF(value);
	return result;
}

/* --- beyond the limit ------------------------------------------------------------------------------- */

int stats_need_sketch(struct xfer_snapshot *spill)
{
	if (!spill->overflow)
		spill->overflow = xfer_sketch_new();
	if (spill->overflow)
		return 0;
	PyErr_NoMemory();
	return -1;
}

int stats_spill(struct xfer_snapshot *spill, const struct xfer_snapshot *from)
{
	if ((from->n_rows || from->overflow) && stats_need_sketch(spill) != 0)
		return -1;
	for (size_t i = 0; i < from->n_rows; i++)
		xfer_sketch_push(spill->overflow, &from->rows[i]);
	if (from->overflow)
		xfer_sketch_add(spill->overflow, from->overflow);
	for (int f = 0; f < XFER_FAILURES; f++)
		spill->failures[f] += from->failures[f];
	return 0;
}

bool stats_spilled(const struct xfer_snapshot *spill)
{
	return !xfer_snapshot_is_empty(spill);
}

/* --- appending -------------------------------------------------------------------------------------- */

size_t stats_kept_of(PyObject *list, size_t limit, size_t n)
{
	size_t size = (size_t)PyList_Size(list);
	size_t free_items = size < limit ? limit - size : 0;
	return n < free_items ? n : free_items;
}

/* Takes the reference. */
static int append_new(PyObject *list, PyObject *item)
{
	int result = item ? PyList_Append(list, item) : -1;
	Py_XDECREF(item);
	return result;
}

static int append_row(PyObject *lists[COLUMNS], const struct xfer_row *row)
{
	if (append_new(lists[COLUMN_DURATION], PyFloat_FromDouble(row->duration_s)) != 0 ||
	    append_new(lists[COLUMN_BYTES], PyLong_FromLongLong(row->bytes)) != 0)
		return -1;
	return append_new(lists[COLUMN_DESCRIPTORS], PyLong_FromUnsignedLong(row->descriptors));
}

static int append_items(PyObject *lists[COLUMNS], const struct xfer_row *rows, size_t n_rows,
                        const size_t failures[XFER_FAILURES])
{
	for (size_t i = 0; i < n_rows; i++)
		if (append_row(lists, &rows[i]) != 0)
			return -1;
	for (int f = 0; f < XFER_FAILURES; f++)
		for (size_t i = 0; i < failures[f]; i++)
			if (PyList_Append(lists[COLUMN_FAILURES + f], one) != 0)
				return -1;
	return 0;
}

/* Back to their sizes before, with the exception that is set. */
static void cut_back(PyObject *lists[COLUMNS], const Py_ssize_t sizes[COLUMNS])
{
	PyObject *type, *value, *traceback;
	PyErr_Fetch(&type, &value, &traceback);
	for (int c = 0; c < COLUMNS; c++)
		if (PyList_SetSlice(lists[c], sizes[c], PY_SSIZE_T_MAX, NULL) != 0)
			PyErr_Clear();
	PyErr_Restore(type, value, traceback);
}

int stats_append(PyObject *lists[COLUMNS], size_t row_limit, const struct xfer_snapshot *from,
                 struct xfer_snapshot *spill)
{
	size_t kept_rows = stats_kept_of(lists[COLUMN_DURATION], row_limit, from->n_rows);
	size_t kept[XFER_FAILURES];
	Py_ssize_t sizes[COLUMNS];

	for (int c = 0; c < COLUMNS; c++)
		sizes[c] = PyList_Size(lists[c]);
	for (int f = 0; f < XFER_FAILURES; f++)
		kept[f] = stats_kept_of(lists[COLUMN_FAILURES + f], row_limit, from->failures[f]);
	if ((kept_rows < from->n_rows || from->overflow) && stats_need_sketch(spill) != 0)
		return -1;
	if (append_items(lists, from->rows, kept_rows, kept) != 0) {
		cut_back(lists, sizes);
		return -1;
	}
	struct xfer_snapshot rest = *from; /* borrowed: its rows from the first that is not kept */
	if (kept_rows)
		rest.rows += kept_rows;
	rest.n_rows -= kept_rows;
	for (int f = 0; f < XFER_FAILURES; f++)
		rest.failures[f] -= kept[f];
	return stats_spill(spill, &rest);
}

/* --- reading ---------------------------------------------------------------------------------------- */

static int duration_of(PyObject *object, double *out)
{
	*out = PyFloat_AsDouble(object);
	if (*out == -1.0 && PyErr_Occurred())
		return -1;
	if (isfinite(*out))
		return 0;
	PyErr_SetString(PyExc_ValueError, "a transfer's duration must be finite");
	return -1;
}

static int bytes_of(PyObject *object, int64_t *out)
{
	*out = PyLong_AsLongLong(object);
	if (*out >= 0)
		return 0;
	if (!PyErr_Occurred())
		PyErr_SetString(PyExc_ValueError, "a transfer's bytes must not be negative");
	return -1;
}

static int descriptors_of(PyObject *object, uint32_t *out)
{
	long long value = PyLong_AsLongLong(object);
	*out = (uint32_t)value;
	if (value >= 0 && value <= UINT32_MAX)
		return 0;
	if (!PyErr_Occurred())
		PyErr_SetString(PyExc_OverflowError, "a transfer's descriptors must be from 0 to 2**32-1");
	return -1;
}

int stats_row(PyObject *duration, PyObject *bytes, PyObject *descriptors, struct xfer_row *row)
{
	return duration_of(duration, &row->duration_s) == 0 && bytes_of(bytes, &row->bytes) == 0 &&
	                       descriptors_of(descriptors, &row->descriptors) == 0
	               ? 0
	               : -1;
}

int stats_rows(PyObject *columns[ROW_COLUMNS], Py_ssize_t first, struct xfer_snapshot *out)
{
	Py_ssize_t n = PyTuple_Size(columns[COLUMN_DURATION]);
	for (int c = 1; c < ROW_COLUMNS; c++) {
		Py_ssize_t size = PyTuple_Size(columns[c]);
		if (size == n)
			continue;
		PyErr_Format(PyExc_AssertionError, "a torn row: %zd of %s, %zd of %s", n,
		             column_names[COLUMN_DURATION], size, column_names[c]);
		return -1;
	}
	for (Py_ssize_t i = first; i < n; i++) {
		struct xfer_row row;
		if (stats_row(PyTuple_GetItem(columns[COLUMN_DURATION], i), PyTuple_GetItem(columns[COLUMN_BYTES], i),
		              PyTuple_GetItem(columns[COLUMN_DESCRIPTORS], i), &row) != 0)
			return -1;
		if (xfer_snapshot_push(out, &row) != 0) {
			PyErr_NoMemory();
			return -1;
		}
	}
	return 0;
}

/* The rows as tuples, which nobody can change while they are converted. */
static int read_rows(PyObject *data, struct xfer_snapshot *out)
{
	PyObject *columns[ROW_COLUMNS] = {NULL};
	int result = 0;
	for (int c = 0; c < ROW_COLUMNS && result == 0; c++) {
		PyObject *values;
		result = stats_column(data, c, &values);
		if (result == 0)
			columns[c] = values ? PySequence_Tuple(values) : PyTuple_New(0);
		Py_XDECREF(values);
		if (!columns[c])
			result = -1;
	}
	if (result == 0)
		result = stats_rows(columns, 0, out);
	for (int c = 0; c < ROW_COLUMNS; c++)
		Py_XDECREF(columns[c]);
	return result;
}

static int read_failures(PyObject *data, struct xfer_snapshot *out)
{
	for (int f = 0; f < XFER_FAILURES; f++) {
		Py_ssize_t n = stats_column_size(data, COLUMN_FAILURES + f);
		if (n < 0)
			return -1;
		out->failures[f] = (uint64_t)n;
	}
	return 0;
}

int stats_snapshot_of_data(PyObject *data, struct xfer_snapshot *out)
{
	*out = (struct xfer_snapshot){.row_limit = SIZE_MAX};
	Py_INCREF(data);
	int result = read_rows(data, out) == 0 ? read_failures(data, out) : -1;
	Py_DECREF(data);
	if (result != 0)
		xfer_snapshot_free(out);
	return result;
}
