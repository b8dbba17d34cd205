/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Addresses and sizes of batches. Connectors pass tens of thousands of keys with a fragment per layer, so
 * each int is read once, straight into the array that the client takes.
 */
#include "store/python/binding.h"

#include <stdlib.h>

static int reserve(struct py_buffers *buffers, size_t more)
{
	size_t need;
	if (__builtin_add_overflow(buffers->used, more, &need) || need > SIZE_MAX / sizeof(*buffers->flat) / 2) {
		PyErr_NoMemory();
		return -1;
	}
	if (need <= buffers->capacity)
		return 0;
	size_t capacity = need > 2 * buffers->capacity ? need : 2 * buffers->capacity;
	struct kv_buf *flat = realloc(buffers->flat, capacity * sizeof(*flat));
	if (!flat) {
		PyErr_NoMemory();
		return -1;
	}
	buffers->flat = flat;
	buffers->capacity = capacity;
	return 0;
}

/* One (address, size) at the end of flat, where there is room. */
static int append(struct py_buffers *buffers, PyObject *ptr, const struct py_where *ptr_where, PyObject *size,
                  const struct py_where *size_where)
{
	uint64_t address, length;
	if (py_u64(ptr, ptr_where, &address) != 0 || py_u64(size, size_where, &length) != 0)
		return -1;
	buffers->flat[buffers->used++] = (struct kv_buf){(void *)(uintptr_t)address, (size_t)length};
	return 0;
}

/* The two outer lists as tuples; *mismatch if they are not as long as the keys. */
static int open_lists(PyObject *pair[2], PyObject *ptrs, PyObject *sizes, size_t count,
                      const struct py_signature *signature, const char *expected, bool *mismatch)
{
	struct py_where ptr_where = PY_ARGUMENT(signature->function, signature->names[1]);
	struct py_where size_where = PY_ARGUMENT(signature->function, signature->names[2]);
	pair[0] = py_sequence(ptrs, &ptr_where, expected);
	pair[1] = pair[0] ? py_sequence(sizes, &size_where, expected) : NULL;
	if (!pair[1])
		return -1;
	*mismatch = (size_t)PyTuple_Size(pair[0]) != count || (size_t)PyTuple_Size(pair[1]) != count;
	return 0;
}

static void close_lists(PyObject *pair[2])
{
	Py_CLEAR(pair[0]);
	Py_CLEAR(pair[1]);
}

static int parse_flat(struct py_buffers *buffers, PyObject *pair[2], size_t count,
                      const struct py_signature *signature)
{
	struct py_where ptr_where = PY_ARGUMENT(signature->function, signature->names[1]);
	struct py_where size_where = PY_ARGUMENT(signature->function, signature->names[2]);
	if (reserve(buffers, count ? count : 1) != 0)
		return -1;
	for (size_t i = 0; i < count; i++) {
		ptr_where.i = size_where.i = (Py_ssize_t)i;
		if (append(buffers, PyTuple_GetItem(pair[0], (Py_ssize_t)i), &ptr_where,
		           PyTuple_GetItem(pair[1], (Py_ssize_t)i), &size_where) != 0)
			return -1;
	}
	return 0;
}

int py_buffers_parse(struct py_buffers *buffers, struct py_keys *keys, PyObject *ptrs, PyObject *sizes,
                     const struct py_signature *signature)
{
	PyObject *pair[2];
	int result = open_lists(pair, ptrs, sizes, keys->count, signature, "a sequence of int", &buffers->mismatch);
	if (result == 0 && !buffers->mismatch)
		result = parse_flat(buffers, pair, keys->count, signature);
	close_lists(pair);
	return result;
}

/* The fragments of one object behind each other in flat. *count 0 and *usable false: its lists differ, or its size
 * is beyond what can be counted. */
static int parse_fragments(struct py_buffers *buffers, PyObject *pair[2], struct py_where *ptr_where,
                           struct py_where *size_where, size_t *count, bool *usable)
{
	Py_ssize_t n = PyTuple_Size(pair[0]);
	*count = 0;
	*usable = n == PyTuple_Size(pair[1]);
	if (!*usable)
		return 0;
	if (reserve(buffers, (size_t)n) != 0)
		return -1;
	size_t total = 0;
	for (Py_ssize_t j = 0; j < n; j++) {
		ptr_where->j = size_where->j = j;
		if (append(buffers, PyTuple_GetItem(pair[0], j), ptr_where, PyTuple_GetItem(pair[1], j),
		           size_where) != 0)
			return -1;
		if (__builtin_add_overflow(total, buffers->flat[buffers->used - 1].len, &total))
			*usable = false;
	}
	if (*usable)
		*count = (size_t)n;
	else
		buffers->used -= (size_t)n;
	return 0;
}

static int parse_object(struct py_buffers *buffers, struct rc_key *key, PyObject *outer[2], size_t i,
                        const struct py_signature *signature)
{
	struct py_where ptr_where = {signature->function, signature->names[1], (Py_ssize_t)i, -1};
	struct py_where size_where = {signature->function, signature->names[2], (Py_ssize_t)i, -1};
	PyObject *pair[2];
	pair[0] = py_sequence(PyTuple_GetItem(outer[0], ptr_where.i), &ptr_where, "a sequence of int");
	pair[1] = pair[0] ? py_sequence(PyTuple_GetItem(outer[1], ptr_where.i), &size_where, "a sequence of int")
	                  : NULL;
	bool usable = true;
	int result =
	        pair[1] ? parse_fragments(buffers, pair, &ptr_where, &size_where, &buffers->object[i].count, &usable)
	                : -1;
	if (!usable)
		key->status = KV_INVALID_PARAMS;
	close_lists(pair);
	return result;
}

/* flat has stopped moving: now its parts can be pointed at. */
static void point_objects(struct py_buffers *buffers, size_t count)
{
	const struct kv_buf *at = buffers->flat;
	for (size_t i = 0; i < count; i++) {
		buffers->object[i].frag = at;
		at += buffers->object[i].count;
	}
}

static int parse_objects(struct py_buffers *buffers, struct py_keys *keys, PyObject *outer[2],
                         const struct py_signature *signature)
{
	buffers->object = calloc(keys->count ? keys->count : 1, sizeof(*buffers->object));
	if (!buffers->object) {
		PyErr_NoMemory();
		return -1;
	}
	if (reserve(buffers, 1) != 0)
		return -1;
	for (size_t i = 0; i < keys->count; i++)
		if (parse_object(buffers, &keys->key[i], outer, i, signature) != 0)
			return -1;
	point_objects(buffers, keys->count);
	return 0;
}

int py_buffers_parse_multi(struct py_buffers *buffers, struct py_keys *keys, PyObject *ptrs, PyObject *sizes,
                           const struct py_signature *signature)
{
	PyObject *outer[2];
	int result = open_lists(outer, ptrs, sizes, keys->count, signature, "a sequence of sequences of int",
	                        &buffers->mismatch);
	if (result == 0 && !buffers->mismatch)
		result = parse_objects(buffers, keys, outer, signature);
	close_lists(outer);
	return result;
}

void py_buffers_free(struct py_buffers *buffers)
{
	free(buffers->flat);
	free(buffers->object);
}
