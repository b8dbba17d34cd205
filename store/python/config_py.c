/* SPDX-License-Identifier: Apache-2.0 */
/* ReplicateConfig: how objects are placed, pinned and copied. Attributes are checked when they are set. */
#include "store/python/binding.h"

#include <stdlib.h>
#include <string.h>

#include "store/base/log.h"

#define MAX_PREFERRED   4096
#define MAX_SEGMENT_LEN 4096

/* Sequences are kept as tuples: what Python gets back is a copy, and a call can hold on to them. */
struct config_object {
	PyObject_HEAD uint64_t replica_num, nof_replica_num, dfs_replica_num;
	uint64_t soft_pin_ttl_ms;
	bool has_soft_pin_ttl, with_hard_pin, prefer_alloc_in_same_node;
	PyObject *soft_pin_action, *data_type; /* members of their enums */
	PyObject *preferred_segment;
	PyObject *preferred_segments, *preferred_nof_segments;
	PyObject *group_ids; /* tuple or None */
};

static PyTypeObject *config_type;
static PyObject *soft_pin_action_class, *object_data_type_class;

/* A field of the struct for the getters and setters that several attributes share. */
struct field {
	const char *name;
	size_t offset;
};
#define FIELD(name) (&(struct field){#name, offsetof(struct config_object, name)})

static void *field_at(PyObject *self, const struct field *field)
{
	return (char *)self + field->offset;
}

static int refuse_delete(PyObject *value, const struct field *field)
{
	if (!value)
		PyErr_Format(PyExc_AttributeError, "ReplicateConfig.%s cannot be deleted", field->name);
	return value ? 0 : -1;
}

static struct py_where field_where(const struct field *field)
{
	return PY_ARGUMENT("ReplicateConfig", field->name);
}

static void replace(PyObject **slot, PyObject *value)
{
	PyObject *old = *slot;
	*slot = value;
	Py_XDECREF(old);
}

/* --- numbers and flags ------------------------------------------------------------------------------ */

static PyObject *get_u64(PyObject *self, void *field)
{
	return PyLong_FromUnsignedLongLong(*(uint64_t *)field_at(self, field));
}

static int set_u64(PyObject *self, PyObject *value, void *field)
{
	struct py_where where = field_where(field);
	uint64_t number;
	if (refuse_delete(value, field) != 0 || py_u64(value, &where, &number) != 0)
		return -1;
	*(uint64_t *)field_at(self, field) = number;
	return 0;
}

static PyObject *get_flag(PyObject *self, void *field)
{
	return PyBool_FromLong(*(bool *)field_at(self, field));
}

static int set_flag(PyObject *self, PyObject *value, void *field)
{
	struct py_where where = field_where(field);
	if (refuse_delete(value, field) != 0)
		return -1;
	if (value != Py_True && value != Py_False)
		return py_type_error(&where, "a bool", value);
	*(bool *)field_at(self, field) = value == Py_True;
	return 0;
}

static PyObject *get_soft_pin_ttl(PyObject *self, void *field)
{
	struct config_object *config = (struct config_object *)self;
	if (config->has_soft_pin_ttl)
		return get_u64(self, field);
	Py_RETURN_NONE;
}

static int set_soft_pin_ttl(PyObject *self, PyObject *value, void *field)
{
	struct config_object *config = (struct config_object *)self;
	if (refuse_delete(value, field) != 0 || (value != Py_None && set_u64(self, value, field) != 0))
		return -1;
	config->has_soft_pin_ttl = value != Py_None;
	return 0;
}

/* --- objects ------------------------------------------------------------------------------------------ */

static PyObject *get_object(PyObject *self, void *field)
{
	PyObject *value = *(PyObject **)field_at(self, field);
	Py_INCREF(value);
	return value;
}

/* A member, or its plain int. */
static int set_enum(PyObject *self, PyObject *value, const struct field *field, PyObject *enum_class,
                    const char *expected)
{
	struct py_where where = field_where(field);
	if (refuse_delete(value, field) != 0)
		return -1;
	int is_member = PyObject_IsInstance(value, enum_class);
	if (is_member < 0)
		return -1;
	if (!is_member && Py_TYPE(value) != &PyLong_Type)
		return py_type_error(&where, expected, value);
	PyObject *member = PyObject_CallFunctionObjArgs(enum_class, value, NULL);
	if (!member)
		return -1;
	replace(field_at(self, field), member);
	return 0;
}

static int set_soft_pin_action(PyObject *self, PyObject *value, void *field)
{
	return set_enum(self, value, field, soft_pin_action_class, "a SoftPinAction");
}

static int set_data_type(PyObject *self, PyObject *value, void *field)
{
	return set_enum(self, value, field, object_data_type_class, "an ObjectDataType");
}

static int set_str(PyObject *self, PyObject *value, void *field)
{
	struct py_where where = field_where(field);
	if (refuse_delete(value, field) != 0 || !py_text(value, &where))
		return -1;
	Py_INCREF(value);
	replace(field_at(self, field), value);
	return 0;
}

static PyObject *get_list(PyObject *self, void *field)
{
	PyObject *tuple = *(PyObject **)field_at(self, field);
	return PySequence_List(tuple);
}

static int set_str_list(PyObject *self, PyObject *value, void *field)
{
	struct py_where where = field_where(field);
	PyObject *tuple = refuse_delete(value, field) == 0 ? py_sequence(value, &where, "a sequence of str") : NULL;
	if (!tuple)
		return -1;
	for (where.i = 0; where.i < PyTuple_Size(tuple); where.i++) {
		if (!py_text(PyTuple_GetItem(tuple, where.i), &where)) {
			Py_DECREF(tuple);
			return -1;
		}
	}
	replace(field_at(self, field), tuple);
	return 0;
}

static PyObject *get_group_ids(PyObject *self, void *field)
{
	struct config_object *config = (struct config_object *)self;
	return config->group_ids == Py_None ? get_object(self, field) : get_list(self, field);
}

static int set_group_ids(PyObject *self, PyObject *value, void *field)
{
	if (value != Py_None)
		return set_str_list(self, value, field);
	Py_INCREF(value);
	replace(field_at(self, field), value);
	return 0;
}

/* --- the type --------------------------------------------------------------------------------------------- */

static PyGetSetDef config_getset[] = {
        {"replica_num", get_u64, set_u64,
         "Copies in memory, on distinct segments: 1. Fewer are made if the pool has not as many segments.",
         FIELD(replica_num)},
        {"nof_replica_num", get_u64, set_u64, "Must be 0; anything else: -1012 (not supported).",
         FIELD(nof_replica_num)},
        {"dfs_replica_num", get_u64, set_u64, "Must be 0; anything else: -1012 (not supported).",
         FIELD(dfs_replica_num)},
        {"soft_pin_action", get_object, set_soft_pin_action,
         "SoftPinAction: ENABLE makes the object one that is evicted only after everything else.",
         FIELD(soft_pin_action)},
        {"soft_pin_ttl_ms", get_soft_pin_ttl, set_soft_pin_ttl,
         "How long the soft pin holds; None: the master's default. Needs ENABLE, else -600.", FIELD(soft_pin_ttl_ms)},
        {"with_hard_pin", get_flag, set_flag, "True: never evicted.", FIELD(with_hard_pin)},
        {"preferred_segments", get_list, set_str_list,
         "host:port names of segments that are tried first. Reading gives a copy; assign to change.",
         FIELD(preferred_segments)},
        {"preferred_segment", get_object, set_str,
         "One such name (older callers); tried before preferred_segments. \"\": none.", FIELD(preferred_segment)},
        {"preferred_nof_segments", get_list, set_str_list, "Must be empty; anything else: -1012 (not supported).",
         FIELD(preferred_nof_segments)},
        {"prefer_alloc_in_same_node", get_flag, set_flag,
         "Place the fragments' objects on one node; batch_put_from_multi_buffers only, elsewhere -600.",
         FIELD(prefer_alloc_in_same_node)},
        {"data_type", get_object, set_data_type, "ObjectDataType: a label for the caller; the store keeps none.",
         FIELD(data_type)},
        {"group_ids", get_group_ids, set_group_ids,
         "None, or one str per key: objects that should be evicted together. Accepted as a hint that this "
         "version does not follow (said once on stderr): each object is evicted for itself.",
         FIELD(group_ids)},
        {NULL, NULL, NULL, NULL, NULL},
};

static int config_defaults(struct config_object *config)
{
	config->replica_num = 1;
	config->soft_pin_action = PyObject_CallFunction(soft_pin_action_class, "i", 0);
	config->data_type = PyObject_CallFunction(object_data_type_class, "i", 0);
	config->preferred_segment = PyUnicode_FromString("");
	config->preferred_segments = PyTuple_New(0);
	config->preferred_nof_segments = PyTuple_New(0);
	Py_INCREF(Py_None);
	config->group_ids = Py_None;
	return config->soft_pin_action && config->data_type && config->preferred_segment &&
	                       config->preferred_segments && config->preferred_nof_segments
	               ? 0
	               : -1;
}

static PyObject *config_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
	if (PyTuple_Size(args) != 0 || (kwargs && PyDict_Size(kwargs) != 0)) {
		PyErr_SetString(PyExc_TypeError, "ReplicateConfig() takes no arguments; set its attributes");
		return NULL;
	}
	PyObject *self = PyType_GenericAlloc(type, 0);
	if (self && config_defaults((struct config_object *)self) != 0)
		Py_CLEAR(self);
	return self;
}

static void config_dealloc(PyObject *self)
{
	struct config_object *config = (struct config_object *)self;
	PyTypeObject *type = Py_TYPE(self);
	Py_XDECREF(config->soft_pin_action);
	Py_XDECREF(config->data_type);
	Py_XDECREF(config->preferred_segment);
	Py_XDECREF(config->preferred_segments);
	Py_XDECREF(config->preferred_nof_segments);
	Py_XDECREF(config->group_ids);
	((freefunc)PyType_GetSlot(type, Py_tp_free))(self);
	Py_DECREF(type);
}

static const char *truth(bool value)
{
	return value ? "True" : "False";
}

static PyObject *config_repr(PyObject *self)
{
	struct config_object *config = (struct config_object *)self;
	PyObject *ttl = get_soft_pin_ttl(self, FIELD(soft_pin_ttl_ms));
	PyObject *segments = get_list(self, FIELD(preferred_segments));
	PyObject *nof_segments = get_list(self, FIELD(preferred_nof_segments));
	PyObject *groups = get_group_ids(self, FIELD(group_ids));
	PyObject *text = NULL;
	if (ttl && segments && nof_segments && groups)
		text = PyUnicode_FromFormat(
		        "ReplicateConfig(replica_num=%llu, nof_replica_num=%llu, dfs_replica_num=%llu, "
		        "soft_pin_action=%S, soft_pin_ttl_ms=%R, with_hard_pin=%s, preferred_segments=%R, "
		        "preferred_segment=%R, preferred_nof_segments=%R, prefer_alloc_in_same_node=%s, "
		        "data_type=%S, group_ids=%R)",
		        (unsigned long long)config->replica_num, (unsigned long long)config->nof_replica_num,
		        (unsigned long long)config->dfs_replica_num, config->soft_pin_action, ttl,
		        truth(config->with_hard_pin), segments, config->preferred_segment, nof_segments,
		        truth(config->prefer_alloc_in_same_node), config->data_type, groups);
	Py_XDECREF(ttl);
	Py_XDECREF(segments);
	Py_XDECREF(nof_segments);
	Py_XDECREF(groups);
	return text;
}

static PyType_Slot config_slots[] = {
        {Py_tp_new, config_new},
        {Py_tp_dealloc, config_dealloc},
        {Py_tp_repr, config_repr},
        {Py_tp_getset, config_getset},
        {Py_tp_doc,
         "ReplicateConfig()\n--\n\nHow a put places, pins and copies its objects. Set the attributes; they "
         "are checked at once (TypeError)."},
        {0, NULL},
};

static PyType_Spec config_spec = {
        .name = "kvprobe.store.ReplicateConfig",
        .basicsize = sizeof(struct config_object),
        .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE,
        .slots = config_slots,
};

int py_config_add_type(PyObject *module)
{
	soft_pin_action_class = py_enum_class("SoftPinAction");
	object_data_type_class = py_enum_class("ObjectDataType");
	if (!soft_pin_action_class || !object_data_type_class)
		return -1;
	config_type = (PyTypeObject *)PyType_FromSpec(&config_spec);
	return config_type ? PyModule_AddObjectRef(module, "ReplicateConfig", (PyObject *)config_type) : -1;
}

/* --- use ---------------------------------------------------------------------------------------------------- */

static void warn_groups_once(void)
{
	static bool warned; /* under the GIL */
	if (!warned)
		kv_warn("ReplicateConfig.group_ids: groups are not kept together in this version; each object is "
		        "evicted for itself");
	warned = true;
}

static int status_of(const struct config_object *config)
{
	if (config->nof_replica_num || config->dfs_replica_num || PyTuple_Size(config->preferred_nof_segments) > 0)
		return KV_NOT_SUPPORTED;
	if (config->replica_num > UINT32_MAX || PyTuple_Size(config->preferred_segments) > MAX_PREFERRED)
		return KV_INVALID_PARAMS;
	return KV_OK;
}

/* Append the name of a segment unless it stands there already. */
static int add_name(struct py_config *out, PyObject *name)
{
	Py_ssize_t size;
	const char *text = PyUnicode_AsUTF8AndSize(name, &size);
	if (!text)
		return -1;
	if (size > MAX_SEGMENT_LEN)
		out->status = KV_INVALID_PARAMS;
	if (size == 0 || size > MAX_SEGMENT_LEN)
		return 0;
	for (size_t i = 0; i < out->rc.n_preferred; i++)
		if (out->names[i].len == (size_t)size && memcmp(out->names[i].ptr, text, (size_t)size) == 0)
			return 0;
	out->names[out->rc.n_preferred++] = (struct kv_str){text, (uint32_t)size};
	return 0;
}

static int gather_names(struct py_config *out, const struct config_object *config)
{
	Py_ssize_t count = PyTuple_Size(config->preferred_segments);
	out->hold = PyTuple_Pack(2, config->preferred_segment, config->preferred_segments);
	out->names = malloc(((size_t)count + 1) * sizeof(*out->names));
	if (!out->hold || !out->names) {
		if (out->hold)
			PyErr_NoMemory();
		return -1;
	}
	if (add_name(out, config->preferred_segment) != 0)
		return -1;
	for (Py_ssize_t i = 0; i < count; i++)
		if (add_name(out, PyTuple_GetItem(config->preferred_segments, i)) != 0)
			return -1;
	out->rc.preferred = out->names;
	return 0;
}

int py_config_use(struct py_config *out, PyObject *object, const char *function)
{
	struct py_where where = PY_ARGUMENT(function, "config");
	*out = (struct py_config){0};
	rc_config_default(&out->rc);
	if (!object || object == Py_None)
		return 0;
	if (!PyObject_TypeCheck(object, config_type))
		return py_type_error(&where, "a ReplicateConfig", object);

	const struct config_object *config = (const struct config_object *)object;
	long action = PyLong_AsLong(config->soft_pin_action);
	if (action == -1 && PyErr_Occurred())
		return -1;
	if (config->group_ids != Py_None)
		warn_groups_once();
	out->status = status_of(config);
	if (out->status != KV_OK)
		return 0;
	out->rc.replica_num = (uint32_t)config->replica_num;
	out->rc.hard_pin = config->with_hard_pin;
	out->rc.soft_pin_action = (int)action;
	out->rc.has_soft_pin_ttl = config->has_soft_pin_ttl;
	out->rc.soft_pin_ttl_ms = config->soft_pin_ttl_ms;
	out->rc.same_node = config->prefer_alloc_in_same_node;
	return gather_names(out, config);
}

void py_config_release(struct py_config *config)
{
	free(config->names);
	Py_XDECREF(config->hold);
}
