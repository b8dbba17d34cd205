/* SPDX-License-Identifier: Apache-2.0 */
#include "store/python/args.h"

#include <stdlib.h>
#include <string.h>

/* --- binding ------------------------------------------------------------------------------------ */

static int find_name(const struct py_signature *signature, PyObject *name)
{
	for (int i = 0; i < signature->n_names; i++)
		if (PyUnicode_CompareWithASCIIString(name, signature->names[i]) == 0)
			return i;
	return -1;
}

static int bind_keywords(const struct py_signature *signature, struct py_call call, PyObject **out)
{
	Py_ssize_t n_keywords = call.kwnames ? PyTuple_Size(call.kwnames) : 0;
	for (Py_ssize_t k = 0; k < n_keywords; k++) {
		PyObject *name = PyTuple_GetItem(call.kwnames, k);
		int index = find_name(signature, name);
		if (index < 0) {
			PyErr_Format(PyExc_TypeError, "%s() got an unexpected keyword argument '%U'",
			             signature->function, name);
			return -1;
		}
		if (out[index]) {
			PyErr_Format(PyExc_TypeError, "%s() got multiple values for argument '%s'",
			             signature->function, signature->names[index]);
			return -1;
		}
		out[index] = call.args[call.nargs + k];
	}
	return 0;
}

int py_bind(const struct py_signature *signature, struct py_call call, PyObject **out)
{
	if (call.nargs > signature->n_names) {
		PyErr_Format(PyExc_TypeError, "%s() takes at most %d argument%s (%zd given)", signature->function,
		             signature->n_names, signature->n_names == 1 ? "" : "s", call.nargs);
		return -1;
	}
	for (int i = 0; i < signature->n_names; i++)
		out[i] = i < call.nargs ? call.args[i] : NULL;
	if (bind_keywords(signature, call, out) != 0)
		return -1;
	for (int i = 0; i < signature->n_required; i++) {
		if (!out[i]) {
			PyErr_Format(PyExc_TypeError, "%s() missing required argument '%s' (pos %d)",
			             signature->function, signature->names[i], i + 1);
			return -1;
		}
	}
	return 0;
}

PyObject *py_peek(const struct py_signature *signature, struct py_call call, int index)
{
	if (index < call.nargs)
		return call.args[index];
	Py_ssize_t n_keywords = call.kwnames ? PyTuple_Size(call.kwnames) : 0;
	for (Py_ssize_t k = 0; k < n_keywords; k++)
		if (find_name(signature, PyTuple_GetItem(call.kwnames, k)) == index)
			return call.args[call.nargs + k];
	return NULL;
}

uint64_t py_peek_count(PyObject *object)
{
	if (!object)
		return 0;
	if (PyList_Check(object))
		return (uint64_t)PyList_Size(object);
	if (PyTuple_Check(object))
		return (uint64_t)PyTuple_Size(object);
	return 0;
}

/* Two levels is what the interface has; a list that contains itself ends here too. */
static uint64_t peek_sum(PyObject *object, int levels)
{
	if (PyLong_Check(object)) {
		uint64_t value = PyLong_AsUnsignedLongLong(object);
		if (value == UINT64_MAX && PyErr_Occurred()) {
			PyErr_Clear();
			return 0;
		}
		return value;
	}
	uint64_t sum = 0;
	uint64_t count = levels ? py_peek_count(object) : 0;
	for (uint64_t i = 0; i < count; i++)
		sum += peek_sum(PyList_Check(object) ? PyList_GetItem(object, (Py_ssize_t)i)
		                                     : PyTuple_GetItem(object, (Py_ssize_t)i),
		                levels - 1);
	return sum;
}

uint64_t py_peek_sum(PyObject *object)
{
	return object ? peek_sum(object, 2) : 0;
}

/* --- errors --------------------------------------------------------------------------------------- */

PyObject *py_where_text(const struct py_where *where)
{
	if (where->j >= 0)
		return PyUnicode_FromFormat("%s[%zd][%zd]", where->name, where->i, where->j);
	if (where->i >= 0)
		return PyUnicode_FromFormat("%s[%zd]", where->name, where->i);
	return PyUnicode_FromString(where->name);
}

int py_type_error(const struct py_where *where, const char *expected, PyObject *got)
{
	PyObject *path = py_where_text(where);
	PyObject *type = path ? PyType_GetName(Py_TYPE(got)) : NULL;
	if (type)
		PyErr_Format(PyExc_TypeError, "%s(): %U must be %s, not %U", where->function, path, expected, type);
	Py_XDECREF(type);
	Py_XDECREF(path);
	return -1;
}

static int range_error(const struct py_where *where)
{
	PyObject *path = py_where_text(where);
	if (path)
		PyErr_Format(PyExc_TypeError, "%s(): %U must be an int from 0 to 2**64-1", where->function, path);
	Py_XDECREF(path);
	return -1;
}

/* --- scalars ---------------------------------------------------------------------------------------- */

static int long_as_u64(PyObject *number, const struct py_where *where, uint64_t *out)
{
	*out = PyLong_AsUnsignedLongLong(number);
	if (*out != UINT64_MAX || !PyErr_Occurred())
		return 0;
	if (!PyErr_ExceptionMatches(PyExc_OverflowError))
		return -1;
	PyErr_Clear();
	return range_error(where);
}

int py_u64(PyObject *object, const struct py_where *where, uint64_t *out)
{
	if (PyLong_Check(object))
		return long_as_u64(object, where, out);
	if (!PyIndex_Check(object))
		return py_type_error(where, "an int", object);
	PyObject *number = PyNumber_Index(object);
	if (!number)
		return -1;
	int result = long_as_u64(number, where, out);
	Py_DECREF(number);
	return result;
}

int py_bool(PyObject *object, bool *out)
{
	int truth = PyObject_IsTrue(object);
	*out = truth > 0;
	return truth < 0 ? -1 : 0;
}

const char *py_text(PyObject *object, const struct py_where *where)
{
	if (!PyUnicode_Check(object)) {
		py_type_error(where, "a str", object);
		return NULL;
	}
	Py_ssize_t size;
	const char *text = PyUnicode_AsUTF8AndSize(object, &size);
	if (text && memchr(text, 0, (size_t)size)) {
		py_type_error(where, "a str without NUL", object);
		return NULL;
	}
	return text;
}

static int copy_u64s(PyObject *items, const struct py_where *where, uint64_t *out)
{
	struct py_where item = *where;
	for (item.i = 0; item.i < PyTuple_Size(items); item.i++)
		if (py_u64(PyTuple_GetItem(items, item.i), &item, &out[item.i]) != 0)
			return -1;
	return 0;
}

int py_u64_list(PyObject *object, const struct py_where *where, uint64_t **out, size_t *count)
{
	*out = NULL;
	PyObject *items = py_sequence(object, where, "a sequence of int");
	if (!items)
		return -1;
	*count = (size_t)PyTuple_Size(items);
	*out = malloc((*count ? *count : 1) * sizeof(**out));
	int result = -1;
	if (!*out)
		PyErr_NoMemory();
	else
		result = copy_u64s(items, where, *out);
	if (result != 0) {
		free(*out);
		*out = NULL;
	}
	Py_DECREF(items);
	return result;
}

PyObject *py_sequence(PyObject *object, const struct py_where *where, const char *expected)
{
	if (!PySequence_Check(object) || PyUnicode_Check(object) || PyBytes_Check(object) ||
	    PyByteArray_Check(object)) {
		py_type_error(where, expected, object);
		return NULL;
	}
	return PySequence_Tuple(object);
}
