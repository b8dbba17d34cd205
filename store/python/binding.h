/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the files of the store's extension share: keys (keys_py.c), buffers (buffers_py.c), ReplicateConfig
 * (config_py.c), replica descriptors (replica_py.c), setup's arguments (setup_py.c) and the class itself
 * (store_py.c).
 *
 * CPython's stable ABI of 3.11 only. Every function here needs the GIL; none drops it. "0, or -1 with an
 * exception" where nothing else is said.
 */
#ifndef KV_PYTHON_BINDING_H
#define KV_PYTHON_BINDING_H

#include "store/client/real_client.h"
#include "store/python/args.h"

/* --- keys -------------------------------------------------------------------------------------- */

/* A key that no store can hold (not encodable, or with a NUL) gets status KV_INVALID_PARAMS and the bytes it is
 * logged with. *hold gets a new reference that keeps the bytes alive, or NULL if the str itself does. */
int py_key(PyObject *object, const struct py_where *where, struct rc_key *key, PyObject **hold);

struct py_keys {
	struct rc_key *key;
	size_t count;
	PyObject *items; /* the tuple that keeps the str alive */
	PyObject *extra; /* list of bytes, or NULL */
};

int py_keys_parse(struct py_keys *keys, PyObject *object, const char *function);
/* Also after a failed parse; zero-initialised is empty. */
void py_keys_free(struct py_keys *keys);

/* --- buffers ------------------------------------------------------------------------------------- */

/* The buffers of a batch. mismatch: the lengths of the lists differ; every key is then KV_INVALID_PARAMS. */
struct py_buffers {
	struct kv_buf *flat;
	size_t used, capacity;
	struct kv_bufs *object; /* multi only; an object whose two inner lists differ has count 0 */
	bool mismatch;
};

/* One buffer per key: two lists of ints. */
int py_buffers_parse(struct py_buffers *buffers, struct py_keys *keys, PyObject *ptrs, PyObject *sizes,
                     const struct py_signature *signature);
/* Lists of lists. The keys of unusable objects get status KV_INVALID_PARAMS. Names for errors are
 * signature->names[1] and [2]. */
int py_buffers_parse_multi(struct py_buffers *buffers, struct py_keys *keys, PyObject *ptrs, PyObject *sizes,
                           const struct py_signature *signature);
void py_buffers_free(struct py_buffers *buffers);

/* --- ReplicateConfig -------------------------------------------------------------------------------- */

/* A ReplicateConfig as the client takes it, held against changes while the GIL is dropped. */
struct py_config {
	struct rc_config rc;
	int status; /* KV_OK, or what every key of the call gets */
	struct kv_str *names;
	PyObject *hold;
};

/* NULL or None: the defaults. */
int py_config_use(struct py_config *config, PyObject *object, const char *function);
void py_config_release(struct py_config *config);
int py_config_add_type(PyObject *module);

/* --- replica descriptors ----------------------------------------------------------------------------- */

/* A new list of ReplicaDescriptor. */
PyObject *py_replica_list(const kvstore_replica_desc_t *replicas, size_t count);
int py_replica_add_types(PyObject *module);

/* --- setup -------------------------------------------------------------------------------------------- */

#define PY_SETUP_HOLD 16
struct py_setup {
	struct rc_setup rc;
	int status; /* KV_OK, or what setup returns without trying */
	PyObject *hold[PY_SETUP_HOLD];
};

/* The positional form, or one dict. What is not supported is said on stderr and in status. */
int py_setup_parse(struct py_setup *setup, struct py_call call);
void py_setup_free(struct py_setup *setup);
extern const char py_setup_doc[];

/* --- the class ------------------------------------------------------------------------------------------ */

int py_store_add_type(PyObject *module);

/* The class NAME of kvprobe._enums, a new reference. */
PyObject *py_enum_class(const char *name);

#endif
