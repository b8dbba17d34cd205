/* SPDX-License-Identifier: Apache-2.0 */
/* The extension kvprobe._stats. */
#include "store/python/stats_py.h"

/* The types are held in static variables, so the module is one per process: m_size -1 keeps interpreters with
 * a GIL of their own from loading it. */
static struct PyModuleDef stats_module = {
        PyModuleDef_HEAD_INIT,
        .m_name = "kvprobe._stats",
        .m_doc = "The C half of the KV transfer stats; import kvprobe.stats.",
        .m_size = -1,
};

PyMODINIT_FUNC PyInit__stats(void)
{
	PyObject *module = PyModule_Create(&stats_module);
	if (module && (stats_add_type(module) != 0 || stats_add_metrics_type(module) != 0))
		Py_CLEAR(module);
	return module;
}
