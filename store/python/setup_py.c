/* SPDX-License-Identifier: Apache-2.0 */
/* The arguments of setup(): thirteen of them, or one dict with the same names. */
#include "store/python/binding.h"

#include <string.h>

#include "store/base/log.h"
#include "store/base/parse.h"

#define DEFAULT_SIZE   (16ull << 20)
#define DEFAULT_MASTER "127.0.0.1:50051"

enum setup_arg {
	LOCAL_HOSTNAME,
	METADATA_SERVER,
	GLOBAL_SEGMENT_SIZE,
	LOCAL_BUFFER_SIZE,
	PROTOCOL,
	RDMA_DEVICES,
	MASTER_SERVER_ADDR,
	N_REQUIRED,
	ENGINE = N_REQUIRED,
	ENABLE_SSD_OFFLOAD,
	SSD_OFFLOAD_PATH,
	TENANT_ID,
	ENABLE_CLIENT_HTTP_SERVER,
	CLIENT_HTTP_PORT,
	N_POSITIONAL,
	IPC_SOCKET_PATH = N_POSITIONAL, /* dict only */
	N_SETUP_ARGS,
};
_Static_assert((int)N_SETUP_ARGS <= PY_SETUP_HOLD, "room for a reference to each argument");

static const char *const setup_names[N_SETUP_ARGS] = {
        "local_hostname",     "metadata_server",  "global_segment_size", "local_buffer_size",
        "protocol",           "rdma_devices",     "master_server_addr",  "engine",
        "enable_ssd_offload", "ssd_offload_path", "tenant_id",           "enable_client_http_server",
        "client_http_port",   "ipc_socket_path",
};

static const struct py_signature setup_signature = {"setup", setup_names, N_POSITIONAL, N_REQUIRED};

const char py_setup_doc[] =
        "setup($self, local_hostname, metadata_server, global_segment_size, local_buffer_size, protocol, "
        "rdma_devices, master_server_addr, engine=None, enable_ssd_offload=False, ssd_offload_path='', "
        "tenant_id='default', enable_client_http_server=False, client_http_port=9300)\n--\n\n"
        "Join the pool. Returns 0 or a negative code.\n\n"
        "  local_hostname       host or host:port under which others reach this worker; a port is chosen\n"
        "                       if there is none\n"
        "  metadata_server      'P2PHANDSHAKE', or an http:// or etcd:// URL (accepted, not needed)\n"
        "  global_segment_size  bytes given to the pool: 0 or >= 1024\n"
        "  local_buffer_size    bytes for the copies of put() and get(): 0 or >= 1024, at most 1 TiB\n"
        "  protocol             'tcp'; 'rdma' without a device falls back to tcp with a warning\n"
        "  rdma_devices         RDMA devices, '' for any\n"
        "  master_server_addr   'host:port', or 'embedded': the master runs in this process\n"
        "  engine               not used; anything but None is ignored with a warning\n\n"
        "setup({...}) takes one dict with these names instead: local_hostname and metadata_server are\n"
        "needed, sizes (16MB each by default) may be text such as '16MB' or '1.5 GiB', protocol is 'tcp'\n"
        "and master_server_addr '127.0.0.1:50051' if left out. Unknown names are ignored with a warning.\n\n"
        "Not supported, -1012: enable_ssd_offload, enable_client_http_server, a tenant_id other than\n"
        "'default', ipc_socket_path. -600: bad value, or set up already. -900, -901: no answer from the\n"
        "master. -1: no memory or no free port. TypeError: wrong type or unknown keyword (named).";

static struct py_where arg_where(int arg)
{
	return PY_ARGUMENT("setup", setup_names[arg]);
}

/* Say why and remember what setup() returns; the first reason stands. */
static void refuse(struct py_setup *setup, int status, int arg, const char *reason)
{
	kv_warn("setup: %s %s", setup_names[arg], reason);
	if (setup->status == KV_OK)
		setup->status = status;
}

/* --- values ------------------------------------------------------------------------------------------- */

static int take_text(PyObject *value, int arg, const char *fallback, const char **out)
{
	struct py_where where = arg_where(arg);
	*out = value ? py_text(value, &where) : fallback;
	return *out ? 0 : -1;
}

/* An int, or in the dict form a text with a unit. */
static int take_size(struct py_setup *setup, PyObject *value, int arg, bool text_allowed, uint64_t *out)
{
	struct py_where where = arg_where(arg);
	if (!value) {
		*out = DEFAULT_SIZE;
		return 0;
	}
	if (!text_allowed || !PyUnicode_Check(value))
		return py_u64(value, &where, out);
	const char *text = py_text(value, &where);
	if (!text)
		return -1;
	if (kv_parse_size(out, text) != 0)
		refuse(setup, KV_INVALID_PARAMS, arg, "is not a size such as 16777216 or \"16MB\"");
	return 0;
}

/* A truth, or in the dict form a text such as "true". */
static int take_flag(struct py_setup *setup, PyObject *value, int arg, bool *out)
{
	struct py_where where = arg_where(arg);
	*out = false;
	if (!value)
		return 0;
	if (!PyUnicode_Check(value))
		return py_bool(value, out);
	const char *text = py_text(value, &where);
	if (!text)
		return -1;
	int flag = 0;
	if (kv_parse_bool(&flag, text) != 0)
		refuse(setup, KV_INVALID_PARAMS, arg, "is neither true nor false");
	*out = flag != 0;
	return 0;
}

/* --- what is not supported ------------------------------------------------------------------------------ */

static int check_flag(struct py_setup *setup, PyObject *const *value, int arg)
{
	bool on;
	if (take_flag(setup, value[arg], arg, &on) != 0)
		return -1;
	if (on)
		refuse(setup, KV_NOT_SUPPORTED, arg, "is not supported");
	return 0;
}

/* A text that must be empty or `only`. */
static int check_text(struct py_setup *setup, PyObject *const *value, int arg, const char *only)
{
	const char *text;
	if (take_text(value[arg], arg, "", &text) != 0)
		return -1;
	if (*text && (!only || strcmp(text, only) != 0))
		refuse(setup, KV_NOT_SUPPORTED, arg,
		       only ? "other than \"default\" is not supported" : "is not supported");
	return 0;
}

static int check_unsupported(struct py_setup *setup, PyObject *const *value)
{
	const char *path;
	uint64_t port;
	struct py_where port_where = arg_where(CLIENT_HTTP_PORT);
	if (value[ENGINE])
		kv_warn("setup: engine is ignored; the store makes its own connections");
	/* These two matter only together with the switches below, and are checked for their type. */
	if (take_text(value[SSD_OFFLOAD_PATH], SSD_OFFLOAD_PATH, "", &path) != 0)
		return -1;
	if (value[CLIENT_HTTP_PORT] && !PyUnicode_Check(value[CLIENT_HTTP_PORT]) &&
	    py_u64(value[CLIENT_HTTP_PORT], &port_where, &port) != 0)
		return -1;
	if (check_flag(setup, value, ENABLE_SSD_OFFLOAD) != 0 ||
	    check_flag(setup, value, ENABLE_CLIENT_HTTP_SERVER) != 0 ||
	    check_text(setup, value, TENANT_ID, "default") != 0 ||
	    check_text(setup, value, IPC_SOCKET_PATH, NULL) != 0)
		return -1;
	return 0;
}

static int take_values(struct py_setup *setup, PyObject *const *value, bool from_dict)
{
	struct rc_setup *rc = &setup->rc;
	if (take_text(value[LOCAL_HOSTNAME], LOCAL_HOSTNAME, "", &rc->local_hostname) != 0 ||
	    take_text(value[METADATA_SERVER], METADATA_SERVER, "", &rc->metadata_server) != 0 ||
	    take_size(setup, value[GLOBAL_SEGMENT_SIZE], GLOBAL_SEGMENT_SIZE, from_dict, &rc->global_segment_size) !=
	            0 ||
	    take_size(setup, value[LOCAL_BUFFER_SIZE], LOCAL_BUFFER_SIZE, from_dict, &rc->local_buffer_size) != 0 ||
	    take_text(value[PROTOCOL], PROTOCOL, "tcp", &rc->protocol) != 0 ||
	    take_text(value[RDMA_DEVICES], RDMA_DEVICES, "", &rc->device_name) != 0 ||
	    take_text(value[MASTER_SERVER_ADDR], MASTER_SERVER_ADDR, DEFAULT_MASTER, &rc->master_server_addr) != 0)
		return -1;
	return check_unsupported(setup, value);
}

/* --- the two forms ----------------------------------------------------------------------------------------- */

static int name_index(PyObject *name)
{
	for (int i = 0; i < N_SETUP_ARGS; i++)
		if (PyUnicode_CompareWithASCIIString(name, setup_names[i]) == 0)
			return i;
	return -1;
}

/* The dict may change while the GIL is dropped: hold its values. None is as good as absent. */
static int parse_dict(struct py_setup *setup, PyObject *dict)
{
	PyObject *name, *value;
	Py_ssize_t position = 0;
	while (PyDict_Next(dict, &position, &name, &value)) {
		if (!PyUnicode_Check(name)) {
			PyErr_SetString(PyExc_TypeError, "setup(): the names in the dict must be str");
			return -1;
		}
		int index = name_index(name);
		if (index < 0) {
			const char *text = PyUnicode_AsUTF8AndSize(name, NULL);
			if (!text)
				return -1;
			kv_warn("setup: \"%s\" in the dict is not known and ignored", text);
		} else if (value != Py_None) {
			Py_INCREF(value);
			setup->hold[index] = value;
		}
	}
	for (int i = LOCAL_HOSTNAME; i <= METADATA_SERVER; i++)
		if (!setup->hold[i])
			refuse(setup, KV_INVALID_PARAMS, i, "is missing in the dict");
	return take_values(setup, setup->hold, true);
}

static int parse_positional(struct py_setup *setup, struct py_call call)
{
	PyObject *value[N_SETUP_ARGS] = {NULL};
	if (py_bind(&setup_signature, call, value) != 0)
		return -1;
	for (int i = N_REQUIRED; i < N_POSITIONAL; i++)
		if (value[i] == Py_None)
			value[i] = NULL;
	return take_values(setup, value, false);
}

/* The one dict of setup({...}) or setup(config={...}), else NULL. */
static PyObject *only_dict(struct py_call call)
{
	Py_ssize_t n_keywords = call.kwnames ? PyTuple_Size(call.kwnames) : 0;
	if (call.nargs + n_keywords != 1 || !PyDict_Check(call.args[0]))
		return NULL;
	if (n_keywords == 1 && PyUnicode_CompareWithASCIIString(PyTuple_GetItem(call.kwnames, 0), "config") != 0)
		return NULL;
	return call.args[0];
}

int py_setup_parse(struct py_setup *setup, struct py_call call)
{
	PyObject *dict = only_dict(call);
	*setup = (struct py_setup){.status = KV_OK};
	return dict ? parse_dict(setup, dict) : parse_positional(setup, call);
}

void py_setup_free(struct py_setup *setup)
{
	for (int i = 0; i < PY_SETUP_HOLD; i++)
		Py_XDECREF(setup->hold[i]);
}
