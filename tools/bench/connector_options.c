/* SPDX-License-Identifier: Apache-2.0 */
#include "connector_options.h"

#include <argp.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "store/base/parse.h"

#define MIB          (1u << 20)
#define MAX_THREADS  256
#define MAX_LAYERS   4096
#define MAX_REQUESTS 10000000
/* The master evicts above this share of the pool. */
#define WATERMARK 0.90

struct connector_settings settings = {
        .master = "embedded",
        .protocol = "tcp",
        .hostname = "127.0.0.1",
        .scenario = "all",
        .segment_size = 4096ull * MIB,
        .buffer_size = 16 * MIB,
        .layer_size = MIB,
        .n_requests = 100,
        .n_layers = 32,
        .n_threads = 1,
        .n_warmup = 5,
};

/* --- command line ------------------------------------------------------------------------------------------ */

const char *argp_program_version = "store_connector_bench " KVPROBE_VERSION;
static const char doc[] =
        "Put, look up and get KV-cache blocks as a serving engine's connector does: a batch per request, a key "
        "per layer (layer.<l>.req_<r>), from registered buffers of this thread's NUMA node. Results and bytes are "
        "checked; exit 1 if anything failed.\v"
        "Examples:\n"
        "  store_connector_bench\n"
        "  store_connector_bench --num_requests 20 --layer_size 256K --num_threads 4\n"
        "  store_connector_bench --master 127.0.0.1:50051 --scenario write --json\n\n"
        "wall is the time that the longest-running thread spent inside the store's calls: filling and checking "
        "buffers is not counted. Warm-up requests are not counted either. For is_exist and get the objects are "
        "written first, uncounted, unless they are there. With --master HOST:PORT this process joins the pool as a "
        "worker of its own and takes its memory out of it when it ends.";

enum option_key {
	OPT_MASTER = 256,
	OPT_PROTOCOL,
	OPT_HOSTNAME,
	OPT_SEGMENT,
	OPT_BUFFER,
	OPT_SCENARIO,
	OPT_REQUESTS,
	OPT_LAYERS,
	OPT_LAYER_SIZE,
	OPT_THREADS,
	OPT_WARMUP,
	OPT_JSON,
};

static const struct argp_option options[] = {
        {"master", OPT_MASTER, "ADDR", 0, "embedded (default) or HOST:PORT of a kvmaster", 0},
        {"protocol", OPT_PROTOCOL, "NAME", 0, "tcp (default) or rdma", 0},
        {"local_hostname", OPT_HOSTNAME, "HOST", 0, "how other workers reach this one (127.0.0.1)", 0},
        {"global_segment_size", OPT_SEGMENT, "SIZE", 0, "memory for the pool (4G)", 0},
        {"local_buffer_size", OPT_BUFFER, "SIZE", 0, "local buffer of the store (16M)", 0},
        {"scenario", OPT_SCENARIO, "NAME", 0, "write, is_exist, get or all (default)", 0},
        {"num_requests", OPT_REQUESTS, "N", 0, "requests per phase (100)", 0},
        {"num_layers", OPT_LAYERS, "N", 0, "keys per request (32)", 0},
        {"layer_size", OPT_LAYER_SIZE, "SIZE", 0, "bytes per key (1M)", 0},
        {"num_threads", OPT_THREADS, "N", 0, "threads that share the requests (1)", 0},
        {"warmup_requests", OPT_WARMUP, "N", 0, "requests before each phase, not counted (5)", 0},
        {"json", OPT_JSON, NULL, 0, "one JSON object as the last line of stdout", 0},
        {0},
};

static uint64_t number(struct argp_state *state, const char *name, const char *text, uint64_t min, uint64_t max)
{
	char *end;
	uint64_t value = strtoull(text, &end, 10);
	if (*text < '0' || *text > '9' || *end || value < min || value > max)
		argp_error(state, "--%s: %s is not a number in %" PRIu64 "..%" PRIu64, name, text, min, max);
	return value;
}

static uint64_t bytes(struct argp_state *state, const char *name, const char *text)
{
	uint64_t value = 0;
	if (kv_parse_size(&value, text))
		argp_error(state, "--%s: %s is not a size (1048576, 1M, 4GB)", name, text);
	return value;
}

static const char *scenario(struct argp_state *state, const char *text)
{
	if (strcmp(text, "all") && strcmp(text, "write") && strcmp(text, "is_exist") && strcmp(text, "get"))
		argp_error(state, "--scenario: %s is not write, is_exist, get or all", text);
	return text;
}

static error_t parse_option(int key, char *arg, struct argp_state *state)
{
	switch (key) {
	case OPT_MASTER:
		settings.master = arg;
		return 0;
	case OPT_PROTOCOL:
		settings.protocol = arg;
		return 0;
	case OPT_HOSTNAME:
		settings.hostname = arg;
		return 0;
	case OPT_SEGMENT:
		settings.segment_size = bytes(state, "global_segment_size", arg);
		return 0;
	case OPT_BUFFER:
		settings.buffer_size = bytes(state, "local_buffer_size", arg);
		return 0;
	case OPT_SCENARIO:
		settings.scenario = scenario(state, arg);
		return 0;
	case OPT_REQUESTS:
		settings.n_requests = number(state, "num_requests", arg, 1, MAX_REQUESTS);
		return 0;
	case OPT_LAYERS:
		settings.n_layers = number(state, "num_layers", arg, 1, MAX_LAYERS);
		return 0;
	case OPT_LAYER_SIZE:
		settings.layer_size = bytes(state, "layer_size", arg);
		if (settings.layer_size == 0)
			argp_error(state, "--layer_size must not be 0");
		return 0;
	case OPT_THREADS:
		settings.n_threads = number(state, "num_threads", arg, 1, MAX_THREADS);
		return 0;
	case OPT_WARMUP:
		settings.n_warmup = number(state, "warmup_requests", arg, 0, MAX_REQUESTS);
		return 0;
	case OPT_JSON:
		settings.json = true;
		return 0;
	case ARGP_KEY_ARG:
		argp_error(state, "unexpected argument %s", arg);
		return 0;
	default:
		return ARGP_ERR_UNKNOWN;
	}
}

static const struct argp argp = {options, parse_option, NULL, doc, NULL, NULL, NULL};

void connector_options_parse(int argc, char **argv)
{
	argp_parse(&argp, argc, argv, 0, NULL, NULL);
}

/* --- is there room? ------------------------------------------------------------------------------------------ */

/* Bytes that this process may still take: what the host has available, or its cgroup's limit. */
static uint64_t available_memory(void)
{
	uint64_t available = UINT64_MAX, limit, kib;
	char line[256];
	FILE *file = fopen("/proc/meminfo", "re");
	while (file && fgets(line, sizeof(line), file))
		if (sscanf(line, "MemAvailable: %" SCNu64 " kB", &kib) == 1)
			available = kib * 1024;
	if (file)
		fclose(file);
	file = fopen("/sys/fs/cgroup/memory.max", "re");
	if (file && fgets(line, sizeof(line), file) && sscanf(line, "%" SCNu64, &limit) == 1 && limit < available)
		available = limit;
	if (file)
		fclose(file);
	return available;
}

static uint64_t to_mib(uint64_t size)
{
	return (size + MIB - 1) / MIB;
}

bool connector_has_room(void)
{
	uint64_t data, batch, need;
	if (__builtin_mul_overflow(settings.n_layers, settings.layer_size, &batch) ||
	    __builtin_mul_overflow(batch, settings.n_requests, &data) ||
	    __builtin_mul_overflow(batch, 2 * settings.n_threads, &need) ||
	    __builtin_add_overflow(need, settings.segment_size + settings.buffer_size, &need)) {
		fprintf(stderr, "store_connector_bench: the sizes are beyond any memory\n");
		return false;
	}
	uint64_t warmup = settings.n_warmup * batch;
	bool own_pool = strcmp(settings.master, "embedded") == 0;
	if (own_pool && (double)(data + warmup) > WATERMARK * (double)settings.segment_size) {
		fprintf(stderr,
		        "store_connector_bench: the pool is too small: %" PRIu64 " MiB of objects need "
		        "--global_segment_size %" PRIu64 "M or more (it evicts above 90 %%); or take fewer "
		        "--num_requests or a smaller --layer_size\n",
		        to_mib(data + warmup), to_mib((uint64_t)((double)(data + warmup) / WATERMARK) + 1));
		return false;
	}
	/* The pool takes its pages when they are written. */
	uint64_t touched = own_pool ? need - settings.segment_size + data + warmup : need;
	if (touched > available_memory()) {
		fprintf(stderr,
		        "store_connector_bench: this host has %" PRIu64 " MiB of memory available, %" PRIu64
		        " MiB are needed; take fewer --num_requests, a smaller --layer_size or "
		        "--global_segment_size\n",
		        to_mib(available_memory()), to_mib(touched));
		return false;
	}
	return true;
}
