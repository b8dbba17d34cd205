/* SPDX-License-Identifier: Apache-2.0 */
/* ReplicaDescriptor and the descriptors inside it: what is known of one replica, read-only. */
#include "store/python/binding.h"

#include <string.h>
#include <structmember.h>

/* One layout for all five classes; each uses what it needs. */
struct descriptor {
	PyObject_HEAD unsigned long long size, address;
	PyObject *text;   /* endpoint or path */
	PyObject *inner;  /* ReplicaDescriptor: the descriptor of its kind; MemoryDescriptor: the buffer */
	PyObject *status; /* ReplicaStatus */
	int type;         /* enum kvstore_replica_type */
};

static PyTypeObject *replica_type, *memory_type, *buffer_type, *local_disk_type, *disk_type;
static PyObject *status_members[KVSTORE_REPLICA_FAILED + 1];

static void descriptor_dealloc(PyObject *self)
{
	struct descriptor *descriptor = (struct descriptor *)self;
	PyTypeObject *type = Py_TYPE(self);
	Py_XDECREF(descriptor->text);
	Py_XDECREF(descriptor->inner);
	Py_XDECREF(descriptor->status);
	((freefunc)PyType_GetSlot(type, Py_tp_free))(self);
	Py_DECREF(type);
}

/* --- ReplicaDescriptor's methods --------------------------------------------------------------------- */

static PyObject *is_memory(PyObject *self, PyObject *none)
{
	(void)none;
	return PyBool_FromLong(((struct descriptor *)self)->type == KVSTORE_REPLICA_MEMORY);
}

static PyObject *is_disk(PyObject *self, PyObject *none)
{
	(void)none;
	return PyBool_FromLong(((struct descriptor *)self)->type == KVSTORE_REPLICA_DISK);
}

static PyObject *is_local_disk(PyObject *self, PyObject *none)
{
	(void)none;
	return PyBool_FromLong(((struct descriptor *)self)->type == KVSTORE_REPLICA_LOCAL_DISK);
}

static PyObject *inner_of(PyObject *self, int type, const char *kind)
{
	struct descriptor *replica = (struct descriptor *)self;
	if (replica->type != type) {
		PyErr_Format(PyExc_RuntimeError, "this replica is not a %s replica", kind);
		return NULL;
	}
	Py_INCREF(replica->inner);
	return replica->inner;
}

static PyObject *get_memory(PyObject *self, PyObject *none)
{
	(void)none;
	return inner_of(self, KVSTORE_REPLICA_MEMORY, "memory");
}

static PyObject *get_disk(PyObject *self, PyObject *none)
{
	(void)none;
	return inner_of(self, KVSTORE_REPLICA_DISK, "disk");
}

static PyObject *get_local_disk(PyObject *self, PyObject *none)
{
	(void)none;
	return inner_of(self, KVSTORE_REPLICA_LOCAL_DISK, "local disk");
}

static PyMethodDef replica_methods[] = {
        {"is_memory_replica", is_memory, METH_NOARGS, "is_memory_replica($self)\n--\n\nTrue: it is in memory."},
        {"is_disk_replica", is_disk, METH_NOARGS, "is_disk_replica($self)\n--\n\nTrue: it is a file."},
        {"is_local_disk_replica", is_local_disk, METH_NOARGS,
         "is_local_disk_replica($self)\n--\n\nTrue: it is on its owner's local disk."},
        {"get_memory_descriptor", get_memory, METH_NOARGS,
         "get_memory_descriptor($self)\n--\n\nMemoryDescriptor; RuntimeError for another kind of replica."},
        {"get_disk_descriptor", get_disk, METH_NOARGS,
         "get_disk_descriptor($self)\n--\n\nDiskDescriptor; RuntimeError for another kind of replica."},
        {"get_local_disk_descriptor", get_local_disk, METH_NOARGS,
         "get_local_disk_descriptor($self)\n--\n\nLocalDiskDescriptor; RuntimeError for another kind of replica."},
        {NULL, NULL, 0, NULL},
};

/* --- attributes ------------------------------------------------------------------------------------------ */

#define MEMBER(name, type, field, doc)                                                                               \
	{                                                                                                            \
		name, type, offsetof(struct descriptor, field), READONLY, doc                                        \
	}
#define END_OF_MEMBERS                                                                                               \
	{                                                                                                            \
		NULL, 0, 0, 0, NULL                                                                                  \
	}

static PyMemberDef replica_members[] = {MEMBER("status", T_OBJECT_EX, status, "ReplicaStatus"), END_OF_MEMBERS};
static PyMemberDef memory_members[] = {
        MEMBER("buffer_descriptor", T_OBJECT_EX, inner, "BufferDescriptor: where the bytes are"), END_OF_MEMBERS};
/* Callers know these by two spellings. */
static PyMemberDef buffer_members[] = {
        MEMBER("size", T_ULONGLONG, size, "bytes of the object"),
        MEMBER("size_", T_ULONGLONG, size, "bytes of the object"),
        MEMBER("buffer_address", T_ULONGLONG, address, "in the owner's address space"),
        MEMBER("buffer_address_", T_ULONGLONG, address, "in the owner's address space"),
        MEMBER("transport_endpoint", T_OBJECT_EX, text, "host:port of the owner"),
        MEMBER("transport_endpoint_", T_OBJECT_EX, text, "host:port of the owner"),
        END_OF_MEMBERS,
};
static PyMemberDef local_disk_members[] = {
        MEMBER("object_size", T_ULONGLONG, size, "bytes of the object"),
        MEMBER("transport_endpoint", T_OBJECT_EX, text, "host:port of the owner"),
        END_OF_MEMBERS,
};
static PyMemberDef disk_members[] = {
        MEMBER("object_size", T_ULONGLONG, size, "bytes of the object"),
        MEMBER("file_path", T_OBJECT_EX, text, "path of the file"),
        END_OF_MEMBERS,
};

static PyObject *replica_repr(PyObject *self)
{
	struct descriptor *replica = (struct descriptor *)self;
	return PyUnicode_FromFormat("ReplicaDescriptor(status=%S, %R)", replica->status, replica->inner);
}

static PyObject *memory_repr(PyObject *self)
{
	return PyUnicode_FromFormat("MemoryDescriptor(buffer_descriptor=%R)", ((struct descriptor *)self)->inner);
}

static PyObject *buffer_repr(PyObject *self)
{
	struct descriptor *buffer = (struct descriptor *)self;
	return PyUnicode_FromFormat("BufferDescriptor(size=%llu, buffer_address=%llu, transport_endpoint=%R)",
	                            buffer->size, buffer->address, buffer->text);
}

static PyObject *local_disk_repr(PyObject *self)
{
	struct descriptor *disk = (struct descriptor *)self;
	return PyUnicode_FromFormat("LocalDiskDescriptor(object_size=%llu, transport_endpoint=%R)", disk->size,
	                            disk->text);
}

static PyObject *disk_repr(PyObject *self)
{
	struct descriptor *disk = (struct descriptor *)self;
	return PyUnicode_FromFormat("DiskDescriptor(object_size=%llu, file_path=%R)", disk->size, disk->text);
}

/* --- making them ------------------------------------------------------------------------------------------- */

static struct descriptor *new_descriptor(PyTypeObject *type, const kvstore_replica_desc_t *replica)
{
	struct descriptor *descriptor = (struct descriptor *)PyType_GenericAlloc(type, 0);
	if (!descriptor)
		return NULL;
	const char *text = replica->endpoint ? replica->endpoint : "";
	descriptor->size = replica->size;
	descriptor->address = replica->address;
	descriptor->type = replica->type;
	descriptor->text = PyUnicode_DecodeUTF8(text, (Py_ssize_t)strlen(text), "surrogateescape");
	if (!descriptor->text) {
		Py_DECREF(descriptor);
		return NULL;
	}
	return descriptor;
}

/* Wraps inner (whose reference it takes; NULL passes an error on). */
static struct descriptor *wrap(PyTypeObject *type, const kvstore_replica_desc_t *replica, struct descriptor *inner)
{
	struct descriptor *outer = inner ? new_descriptor(type, replica) : NULL;
	if (outer)
		outer->inner = (PyObject *)inner;
	else
		Py_XDECREF((PyObject *)inner);
	return outer;
}

static PyObject *new_replica(const kvstore_replica_desc_t *replica)
{
	struct descriptor *inner;
	switch (replica->type) {
	case KVSTORE_REPLICA_MEMORY:
		inner = wrap(memory_type, replica, new_descriptor(buffer_type, replica));
		break;
	case KVSTORE_REPLICA_LOCAL_DISK:
		inner = new_descriptor(local_disk_type, replica);
		break;
	default:
		inner = new_descriptor(disk_type, replica);
		break;
	}
	struct descriptor *outer = wrap(replica_type, replica, inner);
	if (!outer)
		return NULL;
	bool known = replica->status >= 0 && replica->status <= KVSTORE_REPLICA_FAILED;
	outer->status = status_members[known ? replica->status : KVSTORE_REPLICA_UNDEFINED];
	Py_INCREF(outer->status);
	return (PyObject *)outer;
}

PyObject *py_replica_list(const kvstore_replica_desc_t *replicas, size_t count)
{
	PyObject *list = PyList_New((Py_ssize_t)count);
	for (size_t i = 0; list && i < count; i++) {
		PyObject *replica = new_replica(&replicas[i]);
		if (!replica || PyList_SetItem(list, (Py_ssize_t)i, replica) != 0)
			Py_CLEAR(list);
	}
	return list;
}

/* --- types ----------------------------------------------------------------------------------------------------- */

/* Its name in the module is what follows the last dot of qualified_name. */
static PyTypeObject *add_type(PyObject *module, const char *qualified_name, const char *doc, reprfunc repr,
                              PyMemberDef *members, PyMethodDef *methods)
{
	PyType_Slot slots[6] = {
	        {Py_tp_dealloc, descriptor_dealloc},
	        {Py_tp_repr, repr},
	        {Py_tp_doc, (void *)doc},
	        {Py_tp_members, members},
	        {methods ? Py_tp_methods : 0, methods},
	        {0, NULL},
	};
	PyType_Spec spec = {
	        .name = qualified_name,
	        .basicsize = sizeof(struct descriptor),
	        .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
	        .slots = slots,
	};
	PyObject *type = PyType_FromSpec(&spec);
	if (type && PyModule_AddObjectRef(module, strrchr(qualified_name, '.') + 1, type) != 0)
		Py_CLEAR(type);
	return (PyTypeObject *)type;
}

static int load_status_members(void)
{
	PyObject *status_class = py_enum_class("ReplicaStatus");
	for (int i = 0; status_class && i <= KVSTORE_REPLICA_FAILED; i++) {
		status_members[i] = PyObject_CallFunction(status_class, "i", i);
		if (!status_members[i])
			Py_CLEAR(status_class);
	}
	Py_XDECREF(status_class);
	return status_class ? 0 : -1;
}

int py_replica_add_types(PyObject *module)
{
	if (load_status_members() != 0)
		return -1;
	replica_type = add_type(module, "kvprobe.store.ReplicaDescriptor", "One replica of an object.", replica_repr,
	                        replica_members, replica_methods);
	memory_type = add_type(module, "kvprobe.store.MemoryDescriptor", "A replica in memory.", memory_repr,
	                       memory_members, NULL);
	buffer_type = add_type(module, "kvprobe.store.BufferDescriptor", "Where a memory replica's bytes are.",
	                       buffer_repr, buffer_members, NULL);
	local_disk_type = add_type(module, "kvprobe.store.LocalDiskDescriptor", "A replica on its owner's disk.",
	                           local_disk_repr, local_disk_members, NULL);
	disk_type = add_type(module, "kvprobe.store.DiskDescriptor", "A replica in a file.", disk_repr, disk_members,
	                     NULL);
	return replica_type && memory_type && buffer_type && local_disk_type && disk_type ? 0 : -1;
}
