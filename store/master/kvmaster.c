/* SPDX-License-Identifier: Apache-2.0 */
/* The master as a process of its own. */
#include <argp.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sysexits.h>

#include "kvstore_status.h"
#include "store/base/fd.h"
#include "store/base/log.h"
#include "store/base/net.h"
#include "store/master/kvmaster_settings.h"
#include "store/master/master.h"

/* Visible, or libc would not see it. */
__attribute__((visibility("default"))) const char *argp_program_version = "kvmaster " KVPROBE_VERSION;

static const char doc[] =
        "Keeps the metadata of a pool of KV-cache memory: which keys there are, in whose memory, and for how long "
        "they may be read. Workers connect to it; their data never passes through it."
        "\vExample:\n"
        "  kvmaster --rpc_address=0.0.0.0 --rpc_port=50051 --default_kv_lease_ttl=10s\n"
        "Workers then use master_server_addr=\"HOST:50051\". The same names may stand in a JSON file, which the "
        "command line overrules:\n"
        "  {\"rpc_port\": 50051, \"eviction_high_watermark_ratio\": 0.9, \"client_ttl\": 10}\n"
        "Names of other masters: enable_http_metadata_server, http_metadata_server_port and _host are ignored with "
        "a warning, since workers need no metadata server; so are ha_backend_type, etcd_endpoints, cluster_id, "
        "snapshot_interval_seconds and snapshot_backup_dir. metrics_port and _host, enable_metric_reporting, "
        "enable_ha, enable_snapshot, enable_offload, offload_on_evict, promotion_on_hit and root_fs_dir are "
        "refused, because what they ask for would be missed, unless their value says off (false, 0 or empty).\n"
        "Durations take ms, s, m or h. Once it serves, one line on stdout says where: "
        "\"kvmaster listening on HOST:PORT\". SIGINT and SIGTERM end it. Its log goes to stderr "
        "(MC_LOG_LEVEL=TRACE|INFO|WARNING|ERROR).\n"
        "There is no access control: whoever reaches the port can read and remove every key. Exit status: 0 ended "
        "by a signal, 1 runtime failure, 64 usage.";

enum { OPTION_CONFIG = 256, OPTION_SETTING };

#define FOREIGN(number, name, flags)                                                                                 \
	{                                                                                                            \
		name, OPTION_SETTING + (number), "VALUE", OPTION_HIDDEN | (flags), NULL, 0                           \
	}

/* An option's long name is the name that settings_set knows. */
static const struct argp_option options[] = {
        {"config_path", OPTION_CONFIG, "FILE", 0, "JSON file with the names below", 0},
        {"rpc_address", OPTION_SETTING, "HOST", 0, "Address to serve on (127.0.0.1; 0.0.0.0 for all)", 0},
        {"rpc_port", OPTION_SETTING + 1, "PORT", 0, "Port to serve on (50051; 0 for any)", 0},
        {"rpc_thread_num", OPTION_SETTING + 2, "N", 0, "Threads that serve requests (0: one per processor)", 0},
        {"default_kv_lease_ttl", OPTION_SETTING + 3, "TIME", 0, "How long a lookup protects an object (10s)", 0},
        {"default_kv_soft_pin_ttl", OPTION_SETTING + 4, "TIME", 0, "Soft pin of a put that does not say (30m)", 0},
        {"max_kv_soft_pin_ttl", OPTION_SETTING + 5, "TIME", 0, "Longest soft pin that may be asked for (24h)", 0},
        {"allow_evict_soft_pinned_objects", OPTION_SETTING + 6, "BOOL", 0,
         "Evict soft-pinned objects when nothing else is left (true)", 0},
        {"eviction_ratio", OPTION_SETTING + 7, "RATIO", 0, "Share of the pool that one eviction frees (0.05)", 0},
        {"eviction_high_watermark_ratio", OPTION_SETTING + 8, "RATIO", 0, "Evict above this use (0.90)", 0},
        {"put_start_discard_timeout_sec", OPTION_SETTING + 9, "SECONDS", 0,
         "Age of a put in flight from which another may take the key over (30)", 0},
        {"put_start_release_timeout_sec", OPTION_SETTING + 10, "SECONDS", 0,
         "Age of a put in flight from which its space is released (600)", 0},
        {"client_ttl", OPTION_SETTING + 11, "SECONDS", 0, "Silence after which a worker is dead (10)", 0},
        {"allocation_strategy", OPTION_SETTING + 12, "NAME", 0, "Where objects go: random", 0},
        /* Not shown one by one: what settings_set says about them is in the text below the options. */
        FOREIGN(13, "enable_http_metadata_server", OPTION_ARG_OPTIONAL),
        FOREIGN(14, "http_metadata_server_port", 0),
        FOREIGN(15, "http_metadata_server_host", 0),
        FOREIGN(16, "ha_backend_type", 0),
        FOREIGN(17, "etcd_endpoints", 0),
        FOREIGN(18, "cluster_id", 0),
        FOREIGN(19, "snapshot_interval_seconds", 0),
        FOREIGN(20, "snapshot_backup_dir", 0),
        FOREIGN(21, "metrics_port", 0),
        FOREIGN(22, "metrics_host", 0),
        FOREIGN(23, "enable_metric_reporting", OPTION_ARG_OPTIONAL),
        FOREIGN(24, "enable_offload", OPTION_ARG_OPTIONAL),
        FOREIGN(25, "offload_on_evict", OPTION_ARG_OPTIONAL),
        FOREIGN(26, "promotion_on_hit", OPTION_ARG_OPTIONAL),
        FOREIGN(27, "root_fs_dir", 0),
        FOREIGN(28, "enable_ha", OPTION_ARG_OPTIONAL),
        FOREIGN(29, "enable_snapshot", OPTION_ARG_OPTIONAL),
        {0},
};

/* What the command line says, in its order; applied after the file. */
#define MAX_ARGUMENTS 64
struct arguments {
	const char *config_path;
	size_t count;
	struct {
		const char *name, *value;
	} list[MAX_ARGUMENTS];
};

static error_t take_option(int key, char *value, struct argp_state *state)
{
	struct arguments *arguments = state->input;
	if (key == OPTION_CONFIG) {
		arguments->config_path = value;
		return 0;
	}
	if (key == ARGP_KEY_ARG)
		argp_error(state, "unexpected argument: %s", value);
	for (const struct argp_option *option = options; option->name; option++) {
		if (option->key != key)
			continue;
		if (arguments->count == MAX_ARGUMENTS)
			argp_error(state, "more than %d options", MAX_ARGUMENTS);
		arguments->list[arguments->count].name = option->name;
		/* Only switches of other masters may stand alone; what follows such a one is not its value. */
		arguments->list[arguments->count++].value = value ? value : "true";
		return 0;
	}
	return ARGP_ERR_UNKNOWN;
}

/* Fills the settings; ends the process with a sentence when something is wrong. */
static void configure(struct settings *settings, int argc, char **argv)
{
	static const struct argp argp = {.options = options, .parser = take_option, .doc = doc};
	struct arguments arguments = {.count = 0};
	char why[SETTINGS_WHY];
	argp_err_exit_status = EX_USAGE;
	settings_default(settings);
	if (argp_parse(&argp, argc, argv, 0, NULL, &arguments))
		exit(EX_USAGE);
	if (arguments.config_path && settings_load(settings, arguments.config_path, why)) {
		fprintf(stderr, "kvmaster: %s: %s\n", arguments.config_path, why);
		exit(EX_USAGE);
	}
	for (size_t i = 0; i < arguments.count; i++) {
		if (settings_set(settings, arguments.list[i].name, arguments.list[i].value, why)) {
			fprintf(stderr, "kvmaster: --%s\n", why);
			exit(EX_USAGE);
		}
	}
}

/* True once the one line is on stdout. */
static bool announce(const struct settings *settings, uint16_t port)
{
	struct kv_hostport where = {.port = port};
	char text[KV_ENDPOINT_MAX];
	snprintf(where.host, sizeof(where.host), "%s", settings->rpc_address);
	kv_hostport_format(text, &where);
	printf("kvmaster listening on %s\n", text);
	if (fflush(stdout) == 0)
		return true;
	kv_error("cannot write to stdout: %s", strerror(errno));
	return false;
}

static int serve(const struct settings *settings, const sigset_t *ends)
{
	struct master *master = master_create(&settings->master);
	if (!master) {
		fprintf(stderr, "kvmaster: not enough memory or threads\n");
		return EXIT_FAILURE;
	}
	struct master_server *server =
	        master_server_start(master, settings->rpc_address, settings->rpc_port, settings->rpc_threads);
	int status = EXIT_FAILURE;
	if (!server) {
		fprintf(stderr, "kvmaster: cannot listen on %s port %u: %s\n", settings->rpc_address,
		        (unsigned)settings->rpc_port, strerror(errno));
	} else if (announce(settings, master_server_port(server))) {
		int signal_number;
		while (sigwait(ends, &signal_number) != 0)
			;
		kv_info("ending on signal %d", signal_number);
		status = EXIT_SUCCESS;
	}
	master_server_stop(server);
	master_destroy(master);
	return status;
}

int main(int argc, char **argv)
{
	struct settings settings;
	kv_fill_stdio();
	configure(&settings, argc, argv);
	if (!getenv("MC_LOG_LEVEL"))
		kv_log_set_level(KV_LOG_INFO);

	sigset_t ends;
	sigemptyset(&ends);
	sigaddset(&ends, SIGINT);
	sigaddset(&ends, SIGTERM);
	sigprocmask(SIG_BLOCK, &ends, NULL);
	signal(SIGPIPE, SIG_IGN);
	return serve(&settings, &ends);
}
