/* SPDX-License-Identifier: Apache-2.0 */
/* The extension kvprobe._store: the store's classes and its status codes. */
#include "store/python/binding.h"

PyObject *py_enum_class(const char *name)
{
	PyObject *module = PyImport_ImportModule("kvprobe._enums");
	PyObject *class = module ? PyObject_GetAttrString(module, name) : NULL;
	Py_XDECREF(module);
	return class;
}

/* STATUS: {code: "a few words"}. */
static int add_status_table(PyObject *module)
{
	static const struct {
		int code;
		const char *text;
	} status[] = {
#define X(name, code, text) {code, text},
	        KV_STATUS_LIST(X)
#undef X
	};
	PyObject *table = PyDict_New();
	int result = table ? 0 : -1;
	for (size_t i = 0; result == 0 && i < sizeof(status) / sizeof(*status); i++) {
		PyObject *code = PyLong_FromLong(status[i].code);
		PyObject *text = PyUnicode_FromString(status[i].text);
		result = code && text ? PyDict_SetItem(table, code, text) : -1;
		Py_XDECREF(code);
		Py_XDECREF(text);
	}
	if (result == 0)
		result = PyModule_AddObjectRef(module, "STATUS", table);
	Py_XDECREF(table);
	return result;
}

/* The types are held in static variables, so the module is one per process: m_size -1 keeps interpreters with
 * a GIL of their own from loading it. */
static struct PyModuleDef store_module = {
        PyModuleDef_HEAD_INIT,
        .m_name = "kvprobe._store",
        .m_doc = "The store's Python interface; import it as kvprobe.store or mooncake.store.",
        .m_size = -1,
};

PyMODINIT_FUNC PyInit__store(void)
{
	PyObject *module = PyModule_Create(&store_module);
	if (!module)
		return NULL;
	if (py_config_add_type(module) != 0 || py_replica_add_types(module) != 0 || py_store_add_type(module) != 0 ||
	    add_status_table(module) != 0 ||
	    PyModule_AddStringConstant(module, "__version__", kvstore_version()) != 0)
		Py_CLEAR(module);
	return module;
}
