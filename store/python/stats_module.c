/* SPDX-License-Identifier: Apache-2.0 */
/* The extension kvprobe._stats. */
#include "store/python/stats_py.h"
#include "store/stats/prom_text.h"

/* The types are held in static variables, so the module is one per process: m_size -1 keeps interpreters with
 * a GIL of their own from loading it. */
static struct PyModuleDef stats_module = {
        PyModuleDef_HEAD_INIT,
        .m_name = "kvprobe._stats",
        .m_doc = "The C half of the KV transfer stats; import kvprobe.stats.",
        .m_size = -1,
};

/* A list of the upper bounds; empty for a counter. */
static PyObject *bounds_of(const struct xfer_family *family)
{
	PyObject *bounds = PyList_New(family->n_bounds);
	for (uint32_t i = 0; bounds && i < family->n_bounds; i++) {
		PyObject *bound = PyFloat_FromDouble(family->bounds[i].value);
		if (!bound || PyList_SetItem(bounds, i, bound) != 0)
			Py_CLEAR(bounds);
	}
	return bounds;
}

/* METRICS: (column, name, help, bounds) of every metric. */
static int add_metrics_list(PyObject *module)
{
	PyObject *metrics = PyList_New(XFER_FAMILIES);
	for (int i = 0; metrics && i < XFER_FAMILIES; i++) {
		const struct xfer_family *family = &xfer_families[i];
		PyObject *metric =
		        Py_BuildValue("(sssN)", family->column, family->name, family->help, bounds_of(family));
		if (!metric || PyList_SetItem(metrics, i, metric) != 0)
			Py_CLEAR(metrics);
	}
	if (!metrics)
		return -1;
	int status = PyModule_AddObjectRef(module, "METRICS", metrics);
	Py_DECREF(metrics);
	return status;
}

PyMODINIT_FUNC PyInit__stats(void)
{
	PyObject *module = PyModule_Create(&stats_module);
	if (module &&
	    (stats_add_type(module) != 0 || stats_add_metrics_type(module) != 0 || add_metrics_list(module) != 0))
		Py_CLEAR(module);
	return module;
}
