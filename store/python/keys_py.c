/* SPDX-License-Identifier: Apache-2.0 */
/* The keys of a call. */
#include "store/python/binding.h"

#include <stdlib.h>
#include <string.h>

/* A str with lone surrogates has no UTF-8; it is carried on in the form that can be logged. */
static int key_not_encodable(PyObject *object, struct rc_key *key, PyObject **hold)
{
	if (!PyErr_ExceptionMatches(PyExc_UnicodeEncodeError))
		return -1;
	PyErr_Clear();
	PyObject *bytes = PyUnicode_AsEncodedString(object, "utf-8", "surrogatepass");
	if (!bytes)
		return -1;
	*hold = bytes;
	*key = (struct rc_key){PyBytes_AsString(bytes), (size_t)PyBytes_Size(bytes), KV_INVALID_PARAMS};
	return 0;
}

int py_key(PyObject *object, const struct py_where *where, struct rc_key *key, PyObject **hold)
{
	*hold = NULL;
	if (!PyUnicode_Check(object))
		return py_type_error(where, "a str", object);
	Py_ssize_t size;
	const char *text = PyUnicode_AsUTF8AndSize(object, &size);
	if (!text)
		return key_not_encodable(object, key, hold);
	bool has_nul = memchr(text, 0, (size_t)size) != NULL;
	*key = (struct rc_key){text, (size_t)size, has_nul ? KV_INVALID_PARAMS : KV_OK};
	return 0;
}

/* Keep `hold` until the keys are freed. Takes the reference. */
static int keep(struct py_keys *keys, PyObject *hold)
{
	if (!keys->extra)
		keys->extra = PyList_New(0);
	int result = keys->extra ? PyList_Append(keys->extra, hold) : -1;
	Py_DECREF(hold);
	return result;
}

int py_keys_parse(struct py_keys *keys, PyObject *object, const char *function)
{
	struct py_where where = PY_ARGUMENT(function, "keys");
	keys->items = py_sequence(object, &where, "a sequence of str");
	if (!keys->items)
		return -1;
	keys->count = (size_t)PyTuple_Size(keys->items);
	keys->key = malloc((keys->count ? keys->count : 1) * sizeof(*keys->key));
	if (!keys->key) {
		PyErr_NoMemory();
		return -1;
	}
	for (size_t i = 0; i < keys->count; i++) {
		PyObject *hold;
		where.i = (Py_ssize_t)i;
		if (py_key(PyTuple_GetItem(keys->items, where.i), &where, &keys->key[i], &hold) != 0)
			return -1;
		if (hold && keep(keys, hold) != 0)
			return -1;
	}
	return 0;
}

void py_keys_free(struct py_keys *keys)
{
	free(keys->key);
	Py_XDECREF(keys->items);
	Py_XDECREF(keys->extra);
}
