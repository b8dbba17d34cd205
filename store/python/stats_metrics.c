/* SPDX-License-Identifier: Apache-2.0 */
/* TransferMetrics: the metrics of one worker as text for its /metrics. */
#include <stdlib.h>

#include "store/python/binding.h"
#include "store/python/stats_py.h"
#include "store/stats/prom_text.h"

struct metrics_object {
	PyObject_HEAD struct xfer_metrics *metrics;
};

static PyTypeObject *metrics_type;

enum { MODEL_NAME, ENGINE, ROLE, METRICS_ARGS };

/* A str, or for the engine's index an int: as text that lives in *hold. */
static const char *label_of(PyObject *value, const char *name, PyObject **hold)
{
	struct py_where where = PY_ARGUMENT("TransferMetrics", name);
	*hold = PyLong_Check(value) ? PyObject_Str(value) : NULL;
	if (!*hold) {
		if (PyErr_Occurred())
			return NULL;
		Py_INCREF(value);
		*hold = value;
	}
	return py_text(*hold, &where);
}

static PyObject *metrics_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
	static char *names[] = {"model_name", "engine", "role", NULL};
	PyObject *value[METRICS_ARGS], *hold[METRICS_ARGS] = {NULL};
	const char *label[METRICS_ARGS];
	struct metrics_object *self = NULL;
	bool good = true;
	if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OOO:TransferMetrics", names, &value[MODEL_NAME],
	                                 &value[ENGINE], &value[ROLE]))
		return NULL;
	for (int i = 0; i < METRICS_ARGS && good; i++) {
		label[i] = label_of(value[i], names[i], &hold[i]);
		good = label[i] != NULL;
	}
	if (good)
		self = (struct metrics_object *)PyType_GenericAlloc(type, 0);
	if (self) {
		self->metrics = xfer_metrics_new(label[MODEL_NAME], label[ENGINE], label[ROLE]);
		if (!self->metrics) {
			PyErr_NoMemory();
			Py_CLEAR(self);
		}
	}
	for (int i = 0; i < METRICS_ARGS; i++)
		Py_XDECREF(hold[i]);
	return (PyObject *)self;
}

static void metrics_dealloc(PyObject *self)
{
	PyTypeObject *type = Py_TYPE(self);
	xfer_metrics_free(((struct metrics_object *)self)->metrics);
	((freefunc)PyType_GetSlot(type, Py_tp_free))(self);
	Py_DECREF(type);
}

/* A dict of lists, with or without the "overflow" of to_dict(). */
static int snapshot_of_dict(PyObject *data, struct xfer_snapshot *out)
{
	struct xfer_snapshot spill = {0};
	PyObject *overflow = PyDict_GetItemString(data, "overflow");
	if (overflow && stats_spill_from_dict(overflow, &spill) != 0)
		return -1;
	int result = stats_snapshot_of_data(data, out);
	if (result == 0 && stats_spilled(&spill) && stats_spill(out, &spill) != 0) {
		xfer_snapshot_free(out);
		result = -1;
	}
	xfer_snapshot_free(&spill);
	return result;
}

static PyObject *metrics_observe(PyObject *self, PyObject *what)
{
	struct xfer_snapshot snapshot;
	int result = -1;
	if (stats_check(what))
		result = stats_snapshot((struct stats_object *)what, &snapshot);
	else if (PyDict_Check(what))
		result = snapshot_of_dict(what, &snapshot);
	else
		PyErr_SetString(PyExc_TypeError, "observe() takes a TransferStats, or its data");
	if (result != 0)
		return NULL;
	xfer_metrics_observe(((struct metrics_object *)self)->metrics, &snapshot);
	xfer_snapshot_free(&snapshot);
	Py_RETURN_NONE;
}

static PyObject *metrics_text(PyObject *self, PyObject *args, PyObject *kwargs)
{
	static char *names[] = {"openmetrics", NULL};
	int openmetrics = 0;
	size_t length;
	if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|p:text", names, &openmetrics))
		return NULL;
	char *text = xfer_metrics_text(((struct metrics_object *)self)->metrics, openmetrics != 0, &length);
	if (!text)
		return PyErr_NoMemory();
	PyObject *result = PyUnicode_FromStringAndSize(text, (Py_ssize_t)length);
	free(text);
	return result;
}

static const char metrics_doc[] =
        "TransferMetrics(model_name, engine, role)\n--\n\n"
        "The KV transfer metrics of one worker, cumulative, as text for its /metrics: histograms of time, bytes and\n"
        "descriptors, counters of failed transfers, failed receives and expired requests. The arguments are the\n"
        "labels; role is 'producer', 'consumer', 'both' or 'unknown'. Thread-safe.";

static PyMethodDef metrics_methods[] = {
        {"observe", metrics_observe, METH_O,
         "observe($self, stats_or_data, /)\n--\n\nCount in what a snapshot has: a TransferStats, or its data or "
         "to_dict()."},
        {"text", (PyCFunction)(void (*)(void))metrics_text, METH_VARARGS | METH_KEYWORDS,
         "text($self, openmetrics=False)\n--\n\nPrometheus text format 0.0.4, or OpenMetrics 1.0."},
        {NULL, NULL, 0, NULL},
};

static PyType_Slot metrics_slots[] = {
        {Py_tp_doc, (void *)metrics_doc},
        {Py_tp_new, metrics_new},
        {Py_tp_dealloc, metrics_dealloc},
        {Py_tp_methods, metrics_methods},
        {0, NULL},
};

static PyType_Spec metrics_spec = {
        .name = "kvprobe._stats.TransferMetrics",
        .basicsize = sizeof(struct metrics_object),
        .flags = Py_TPFLAGS_DEFAULT,
        .slots = metrics_slots,
};

int stats_add_metrics_type(PyObject *module)
{
	metrics_type = (PyTypeObject *)PyType_FromSpec(&metrics_spec);
	return metrics_type ? PyModule_AddObjectRef(module, "TransferMetrics", (PyObject *)metrics_type) : -1;
}
