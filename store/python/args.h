/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The arguments of a call: binding by position and name, scalars, texts, sequences. Errors name the function and the
 * argument.
 *
 * CPython's stable ABI of 3.11 only. Every function here needs the GIL; none drops it. "0, or -1 with an
 * exception" where nothing else is said.
 */
#ifndef KV_PYTHON_ARGS_H
#define KV_PYTHON_ARGS_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdbool.h>
#include <stdint.h>

#include "kvstore_status.h"

/* The arguments of one call as METH_FASTCALL | METH_KEYWORDS passes them. */
struct py_call {
	PyObject *const *args;
	Py_ssize_t nargs;
	PyObject *kwnames;
};

struct py_signature {
	const char *function;
	const char *const *names; /* in order; all may be given by position or by name */
	int n_names;
	int n_required;
};

/* A method's static signature, `signature`; the first n_required arguments must be given. */
#define PY_SIGNATURE(function, n_required, ...)                                                                      \
	static const char *const signature_names[] = {__VA_ARGS__};                                                  \
	static const struct py_signature signature = {                                                               \
	        function, signature_names, sizeof(signature_names) / sizeof(*signature_names), n_required}
/* A METH_FASTCALL | METH_KEYWORDS function as PyMethodDef has it. */
#define PY_FAST(function) ((PyCFunction)(void (*)(void))(function))

/* (result) = (call) without the GIL, or KV_UNAVAILABLE_IN_CURRENT_STATUS where the object is of no use now. */
#define PY_CALL_UNLESS(refused, result, call)                                                                        \
	do {                                                                                                         \
		if (refused) {                                                                                       \
			(result) = KV_UNAVAILABLE_IN_CURRENT_STATUS;                                                 \
		} else {                                                                                             \
			Py_BEGIN_ALLOW_THREADS;                                                                      \
			(result) = (call);                                                                           \
			Py_END_ALLOW_THREADS;                                                                        \
		}                                                                                                    \
	} while (0)

/* Where a value stands in the arguments, so that an error can name it: function(), name[i][j]. */
struct py_where {
	const char *function;
	const char *name;
	Py_ssize_t i, j; /* -1: not an item */
};
#define PY_ARGUMENT(function, name) ((struct py_where){(function), (name), -1, -1})

/* Sort the arguments into out[n_names]: borrowed references, NULL for what was left out. The TypeError for an
 * unknown keyword names it (callers read that text and try again without). */
int py_bind(const struct py_signature *signature, struct py_call call, PyObject **out);
/* Argument `index` of a call that is not bound yet, or NULL. Never raises. */
PyObject *py_peek(const struct py_signature *signature, struct py_call call, int index);
/* For what a probe says at the start of a call: the length of a list or tuple, and the sum of an int or of the
 * ints in (nested) lists and tuples. Anything else counts 0. Never raise, run no Python code. */
uint64_t py_peek_count(PyObject *object);
uint64_t py_peek_sum(PyObject *object);

/* TypeError "function(): name[i] must be EXPECTED, not TYPE". Returns -1. */
int py_type_error(const struct py_where *where, const char *expected, PyObject *got);
/* The path "name[i][j]" as a new str. */
PyObject *py_where_text(const struct py_where *where);

/* An int (or what has __index__) of 0 .. 2**64-1; TypeError otherwise. */
int py_u64(PyObject *object, const struct py_where *where, uint64_t *out);
/* A sequence of such ints, copied to *out, which the caller frees; NULL also after a failure. */
int py_u64_list(PyObject *object, const struct py_where *where, uint64_t **out, size_t *count);
/* Any object's truth. */
int py_bool(PyObject *object, bool *out);
/* UTF-8 of a str without NUL, alive as long as the str. */
const char *py_text(PyObject *object, const struct py_where *where);
/* A new tuple of the items of a list, tuple or other sequence, str and bytes-like excepted; NULL with TypeError.
 * It keeps the items alive, whatever happens to the caller's list while the GIL is dropped. */
PyObject *py_sequence(PyObject *object, const struct py_where *where, const char *expected);

#endif
