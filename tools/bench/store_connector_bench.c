/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The way a serving engine's KV connector uses the store: one batch per request, one key per layer.
 * WRITE, IS_EXIST and GET phases over keys layer.<l>.req_<r>; every result is checked, and every byte read.
 */
#include <inttypes.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <jansson.h>
#include <numa.h>

#include "connector_options.h"
#include "kvstore.h"

#define KEY_BYTES 64

enum phase { WRITE, IS_EXIST, GET, N_PHASES };
static const char *const phase_names[N_PHASES] = {"WRITE", "IS_EXIST", "GET"};
static const char *const phase_keys[N_PHASES] = {"write", "is_exist", "get"};

/* --- a worker thread --------------------------------------------------------------------------------------- */

/* Counts of one phase, of one thread or of all. */
struct tally {
	uint64_t queries, failed_queries, keys, failed_keys, bytes;
	uint64_t inside_ns; /* in the store's calls */
	uint64_t *latency;  /* per query */
};

struct worker {
	pthread_t thread;
	kvstore_t *store;
	uint64_t first, count; /* requests */
	uint8_t *memory;       /* registered: one batch to write from, one to read into */
	size_t memory_size;
	char (*names)[KEY_BYTES];
	const char **keys;
	void **pointers;
	void *const **lists;
	size_t *sizes;
	const size_t **size_lists;
	size_t *one;
	int *results;
	int64_t *lengths;
	struct tally tally[N_PHASES];
	int first_error;
	bool failed; /* could not work at all */
};

static kvstore_t *store;
static pthread_barrier_t barrier;

static uint64_t now_ns(void)
{
	struct timespec ts;
	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

static uint64_t batch_bytes(void)
{
	return settings.n_layers * settings.layer_size;
}

static uint64_t seed_of(const char *key)
{
	uint64_t hash = 0xcbf29ce484222325u;
	for (; *key; key++)
		hash = (hash ^ (uint8_t)*key) * 0x100000001b3u;
	return hash;
}

/* Bytes that only this key has: every word depends on the key and on its place. */
static void fill(uint8_t *at, uint64_t size, uint64_t seed)
{
	uint64_t words = size / 8;
	for (uint64_t i = 0; i < words; i++) {
		uint64_t word = seed + i * 0x9e3779b97f4a7c15u;
		memcpy(at + i * 8, &word, 8);
	}
	for (uint64_t i = words * 8; i < size; i++)
		at[i] = (uint8_t)(seed + i);
}

static bool is_filled(const uint8_t *at, uint64_t size, uint64_t seed)
{
	uint64_t words = size / 8, wrong = 0;
	for (uint64_t i = 0; i < words; i++) {
		uint64_t word;
		memcpy(&word, at + i * 8, 8);
		wrong |= word ^ (seed + i * 0x9e3779b97f4a7c15u);
	}
	for (uint64_t i = words * 8; i < size; i++)
		wrong |= (uint64_t)(at[i] ^ (uint8_t)(seed + i));
	return wrong == 0;
}

static void name_keys(struct worker *worker, const char *kind, uint64_t request)
{
	for (uint64_t layer = 0; layer < settings.n_layers; layer++)
		snprintf(worker->names[layer], KEY_BYTES, "layer.%" PRIu64 ".%s_%" PRIu64, layer, kind, request);
}

/* Which half of the memory the calls use. */
static uint8_t *use_half(struct worker *worker, int half)
{
	uint8_t *at = worker->memory + (uint64_t)half * batch_bytes();
	for (uint64_t layer = 0; layer < settings.n_layers; layer++)
		worker->pointers[layer] = at + layer * settings.layer_size;
	return at;
}

static void note_error(struct worker *worker, int64_t code)
{
	if (worker->first_error == 0)
		worker->first_error = (int)code;
}

/* Each returns the number of failed keys; *ns gets the time inside the store. */
static uint64_t write_batch(struct worker *worker, uint64_t *ns)
{
	uint64_t failed = 0;
	use_half(worker, 0);
	for (uint64_t i = 0; i < settings.n_layers; i++) {
		worker->results[i] = KV_INTERNAL_ERROR;
		fill(worker->pointers[i], settings.layer_size, seed_of(worker->keys[i]));
	}
	uint64_t begin = now_ns();
	int status =
	        kvstore_batch_put_from_multi_buffers(worker->store, worker->keys, worker->lists, worker->size_lists,
	                                             worker->one, settings.n_layers, NULL, worker->results);
	*ns = now_ns() - begin;
	for (uint64_t i = 0; i < settings.n_layers; i++)
		if (status || worker->results[i] != 0) {
			failed++;
			note_error(worker, status ? status : worker->results[i]);
		}
	return failed;
}

static uint64_t look_up_batch(struct worker *worker, uint64_t *ns)
{
	uint64_t failed = 0;
	for (uint64_t i = 0; i < settings.n_layers; i++)
		worker->results[i] = KV_INTERNAL_ERROR;
	uint64_t begin = now_ns();
	int status = kvstore_batch_is_exist(worker->store, worker->keys, settings.n_layers, worker->results);
	*ns = now_ns() - begin;
	for (uint64_t i = 0; i < settings.n_layers; i++)
		if (status || worker->results[i] != 1) {
			failed++;
			note_error(worker, status                   ? status
			                   : worker->results[i] < 0 ? worker->results[i]
			                                            : KV_OBJECT_NOT_FOUND);
		}
	return failed;
}

static uint64_t read_batch(struct worker *worker, uint64_t *ns)
{
	uint64_t failed = 0;
	/* Nothing of what was there before can pass for what is to be read. */
	memset(use_half(worker, 1), 0xa5, batch_bytes());
	for (uint64_t i = 0; i < settings.n_layers; i++)
		worker->lengths[i] = KV_INTERNAL_ERROR;
	uint64_t begin = now_ns();
	int status =
	        kvstore_batch_get_into_multi_buffers(worker->store, worker->keys, worker->lists, worker->size_lists,
	                                             worker->one, settings.n_layers, worker->lengths);
	*ns = now_ns() - begin;
	for (uint64_t i = 0; i < settings.n_layers; i++) {
		if (status || worker->lengths[i] != (int64_t)settings.layer_size) {
			failed++;
			note_error(worker, status                   ? status
			                   : worker->lengths[i] < 0 ? worker->lengths[i]
			                                            : KV_INVALID_READ);
		} else if (!is_filled(worker->pointers[i], settings.layer_size, seed_of(worker->keys[i]))) {
			failed++;
			note_error(worker, KV_CHECKSUM_MISMATCH);
		}
	}
	return failed;
}

static uint64_t run_batch(struct worker *worker, enum phase phase, uint64_t *ns)
{
	switch (phase) {
	case WRITE:
		return write_batch(worker, ns);
	case IS_EXIST:
		return look_up_batch(worker, ns);
	default:
		return read_batch(worker, ns);
	}
}

/* Warm-up writes have keys of their own, which go again; lookups and gets use what is there. */
static void warm_up(struct worker *worker, enum phase phase)
{
	uint64_t ns;
	uint64_t rounds = (settings.n_warmup + settings.n_threads - 1) / settings.n_threads;
	int error_before = worker->first_error;
	for (uint64_t i = 0; i < rounds; i++) {
		if (phase == WRITE)
			name_keys(worker, "warmup", worker->first + i);
		else if (worker->count)
			name_keys(worker, "req", worker->first + i % worker->count);
		run_batch(worker, phase, &ns);
		for (uint64_t layer = 0; phase == WRITE && layer < settings.n_layers; layer++)
			kvstore_remove(worker->store, worker->keys[layer], 1);
	}
	worker->first_error = error_before;
}

static void run_phase(struct worker *worker, enum phase phase, bool counted)
{
	struct tally *tally = &worker->tally[phase];
	for (uint64_t i = 0; i < worker->count; i++) {
		uint64_t ns = 0;
		name_keys(worker, "req", worker->first + i);
		uint64_t failed = run_batch(worker, phase, &ns);
		if (!counted)
			continue;
		tally->latency[tally->queries++] = ns;
		tally->inside_ns += ns;
		tally->failed_queries += failed != 0;
		tally->keys += settings.n_layers;
		tally->failed_keys += failed;
		if (phase != IS_EXIST)
			tally->bytes += (settings.n_layers - failed) * settings.layer_size;
	}
}

static bool wants(enum phase phase)
{
	return strcmp(settings.scenario, "all") == 0 || strcmp(settings.scenario, phase_keys[phase]) == 0;
}

static bool prepare(struct worker *worker)
{
	uint64_t n = settings.n_layers;
	worker->memory_size = 2 * batch_bytes();
	worker->memory = numa_available() < 0 ? aligned_alloc(4096, (worker->memory_size + 4095) & ~4095ull)
	                                      : numa_alloc_local(worker->memory_size);
	worker->names = calloc(n, sizeof(*worker->names));
	worker->keys = calloc(n, sizeof(*worker->keys));
	worker->pointers = calloc(n, sizeof(*worker->pointers));
	worker->lists = calloc(n, sizeof(*worker->lists));
	worker->sizes = calloc(n, sizeof(*worker->sizes));
	worker->size_lists = calloc(n, sizeof(*worker->size_lists));
	worker->one = calloc(n, sizeof(*worker->one));
	worker->results = calloc(n, sizeof(*worker->results));
	worker->lengths = calloc(n, sizeof(*worker->lengths));
	for (int phase = 0; phase < N_PHASES; phase++)
		if (!(worker->tally[phase].latency = calloc(worker->count + 1, sizeof(uint64_t))))
			return false;
	if (!worker->memory || !worker->names || !worker->keys || !worker->pointers || !worker->lists ||
	    !worker->sizes || !worker->size_lists || !worker->one || !worker->results || !worker->lengths)
		return false;
	for (uint64_t i = 0; i < n; i++) {
		worker->keys[i] = worker->names[i];
		worker->lists[i] = &worker->pointers[i];
		worker->sizes[i] = settings.layer_size;
		worker->size_lists[i] = &worker->sizes[i];
		worker->one[i] = 1;
	}
	memset(worker->memory, 0, worker->memory_size);
	int status = kvstore_register_buffer(worker->store, worker->memory, worker->memory_size);
	if (status)
		note_error(worker, status);
	return status == 0;
}

static void release(struct worker *worker)
{
	if (worker->memory) {
		kvstore_unregister_buffer(worker->store, worker->memory);
		if (numa_available() < 0)
			free(worker->memory);
		else
			numa_free(worker->memory, worker->memory_size);
	}
	free(worker->names);
	free(worker->keys);
	free(worker->pointers);
	free(worker->lists);
	free(worker->sizes);
	free(worker->size_lists);
	free(worker->one);
	free(worker->results);
	free(worker->lengths);
	for (int phase = 0; phase < N_PHASES; phase++)
		free(worker->tally[phase].latency);
}

static void *work(void *arg)
{
	struct worker *worker = arg;
	worker->failed = !prepare(worker);
	if (!wants(WRITE) && !worker->failed)
		run_phase(worker, WRITE, false);
	for (int phase = 0; phase < N_PHASES; phase++) {
		if (!wants((enum phase)phase))
			continue;
		if (!worker->failed)
			warm_up(worker, (enum phase)phase);
		pthread_barrier_wait(&barrier);
		if (!worker->failed)
			run_phase(worker, (enum phase)phase, true);
		pthread_barrier_wait(&barrier);
	}
	return NULL;
}

/* --- the report -------------------------------------------------------------------------------------------- */

struct report {
	struct tally sum;
	double wall_s, mb_per_s, keys_per_s;
	double min_us, avg_us, p50_us, p90_us, p99_us, max_us;
};

static int compare(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
	return (x > y) - (x < y);
}

/* Nearest rank. */
static double quantile_us(const uint64_t *sorted, uint64_t count, double q)
{
	uint64_t rank = (uint64_t)(q * (double)count + 0.999999);
	return (double)sorted[rank ? rank - 1 : 0] / 1e3;
}

static void describe_latency(struct report *report)
{
	uint64_t *sorted = report->sum.latency, count = report->sum.queries, total = 0;
	if (!count)
		return;
	qsort(sorted, count, sizeof(*sorted), compare);
	for (uint64_t i = 0; i < count; i++)
		total += sorted[i];
	report->min_us = (double)sorted[0] / 1e3;
	report->avg_us = (double)total / (double)count / 1e3;
	report->p50_us = quantile_us(sorted, count, 0.50);
	report->p90_us = quantile_us(sorted, count, 0.90);
	report->p99_us = quantile_us(sorted, count, 0.99);
	report->max_us = (double)sorted[count - 1] / 1e3;
}

static bool make_report(struct report *report, const struct worker *workers, enum phase phase)
{
	uint64_t longest = 0;
	*report = (struct report){0};
	report->sum.latency = calloc(settings.n_requests, sizeof(uint64_t));
	if (!report->sum.latency)
		return false;
	for (uint64_t i = 0; i < settings.n_threads; i++) {
		const struct tally *tally = &workers[i].tally[phase];
		memcpy(report->sum.latency + report->sum.queries, tally->latency, tally->queries * sizeof(uint64_t));
		report->sum.queries += tally->queries;
		report->sum.failed_queries += tally->failed_queries;
		report->sum.keys += tally->keys;
		report->sum.failed_keys += tally->failed_keys;
		report->sum.bytes += tally->bytes;
		if (tally->inside_ns > longest)
			longest = tally->inside_ns;
	}
	report->wall_s = (double)longest / 1e9;
	if (longest) {
		report->mb_per_s = (double)report->sum.bytes / 1e6 / report->wall_s;
		report->keys_per_s = (double)report->sum.keys / report->wall_s;
	}
	describe_latency(report);
	return true;
}

static void print_report(const struct report *report, enum phase phase)
{
	printf("%s\n", phase_names[phase]);
	printf("  wall      %.3f s\n", report->wall_s);
	printf("  queries   %" PRIu64 " (%" PRIu64 " failed)\n", report->sum.queries, report->sum.failed_queries);
	printf("  keys      %" PRIu64 " (%" PRIu64 " failed)\n", report->sum.keys, report->sum.failed_keys);
	printf("  bytes     %" PRIu64 "\n", report->sum.bytes);
	printf("  rate      %.1f MB/s, %.0f keys/s\n", report->mb_per_s, report->keys_per_s);
	printf("  query us  min %.1f  avg %.1f  P50 %.1f  P90 %.1f  P99 %.1f  max %.1f\n", report->min_us,
	       report->avg_us, report->p50_us, report->p90_us, report->p99_us, report->max_us);
}

static json_t *report_as_json(const struct report *report)
{
	return json_pack("{s:f s:I s:I s:I s:I s:I s:f s:f s:f s:f s:f s:f s:f s:f}", "wall_s", report->wall_s,
	                 "queries", (json_int_t)report->sum.queries, "failed_queries",
	                 (json_int_t)report->sum.failed_queries, "keys", (json_int_t)report->sum.keys, "failed_keys",
	                 (json_int_t)report->sum.failed_keys, "bytes", (json_int_t)report->sum.bytes, "mb_per_s",
	                 report->mb_per_s, "keys_per_s", report->keys_per_s, "min_us", report->min_us, "avg_us",
	                 report->avg_us, "p50_us", report->p50_us, "p90_us", report->p90_us, "p99_us", report->p99_us,
	                 "max_us", report->max_us);
}

/* Returns the number of failed keys of all phases. */
static uint64_t report_all(const struct worker *workers)
{
	json_t *root =
	        json_pack("{s:s s:s s:s s:I s:I s:I s:I}", "bench", "store_connector", "master", settings.master,
	                  "scenario", settings.scenario, "num_requests", (json_int_t)settings.n_requests,
	                  "num_layers", (json_int_t)settings.n_layers, "layer_size", (json_int_t)settings.layer_size,
	                  "num_threads", (json_int_t)settings.n_threads);
	uint64_t failed = 0;
	for (int phase = 0; phase < N_PHASES; phase++) {
		struct report report;
		if (!wants((enum phase)phase) || !make_report(&report, workers, (enum phase)phase))
			continue;
		print_report(&report, (enum phase)phase);
		json_object_set_new(root, phase_keys[phase], report_as_json(&report));
		failed += report.sum.failed_keys;
		free(report.sum.latency);
	}
	json_object_set_new(root, "failed_keys", json_integer((json_int_t)failed));
	if (settings.json) {
		json_dumpf(root, stdout, JSON_COMPACT | JSON_REAL_PRECISION(9));
		putchar('\n');
	}
	json_decref(root);
	return failed;
}

static void explain(int code)
{
	fprintf(stderr, "store_connector_bench: the first failure was %d, %s\n", code, kvstore_strerror(code));
	if (code == KV_NO_AVAILABLE_HANDLE)
		fprintf(stderr, "The pool is full: more --global_segment_size (here or at other workers), fewer "
		                "--num_requests or a smaller --layer_size.\n");
	if (code == KV_OBJECT_NOT_FOUND)
		fprintf(stderr,
		        "Objects are missing: never written, evicted from a full pool, or gone with the worker "
		        "that held them.\n");
}

/* --- main ---------------------------------------------------------------------------------------------------- */

static bool run_workers(struct worker *workers)
{
	uint64_t n = settings.n_threads, next = 0;
	if (pthread_barrier_init(&barrier, NULL, (unsigned)n))
		return false;
	for (uint64_t i = 0; i < n; i++) {
		workers[i].store = store;
		workers[i].first = next;
		workers[i].count = settings.n_requests / n + (i < settings.n_requests % n);
		next += workers[i].count;
	}
	for (uint64_t i = 0; i < n; i++)
		if (pthread_create(&workers[i].thread, NULL, work, &workers[i])) {
			fprintf(stderr, "store_connector_bench: cannot start thread %" PRIu64 "\n", i);
			exit(1); /* those that run wait for it at the barrier */
		}
	for (uint64_t i = 0; i < n; i++)
		pthread_join(workers[i].thread, NULL);
	pthread_barrier_destroy(&barrier);
	return true;
}

static int run(void)
{
	struct worker *workers = calloc(settings.n_threads, sizeof(*workers));
	if (!workers || !run_workers(workers)) {
		fprintf(stderr, "store_connector_bench: out of memory\n");
		free(workers);
		return 1;
	}
	bool broken = report_all(workers) > 0;
	int error = 0;
	for (uint64_t i = 0; i < settings.n_threads; i++) {
		broken |= workers[i].failed;
		if (error == 0)
			error = workers[i].first_error;
		release(&workers[i]);
	}
	free(workers);
	if (broken)
		explain(error ? error : KV_INTERNAL_ERROR);
	return broken;
}

int main(int argc, char **argv)
{
	connector_options_parse(argc, argv);
	if (!connector_has_room())
		return 1;
	store = kvstore_create();
	int status = store ? kvstore_setup(store, settings.hostname, "P2PHANDSHAKE", settings.segment_size,
	                                   settings.buffer_size, settings.protocol, "", settings.master)
	                   : KV_INTERNAL_ERROR;
	if (status) {
		fprintf(stderr, "store_connector_bench: setup with master %s: %d, %s\n", settings.master, status,
		        kvstore_strerror(status));
		kvstore_destroy(store);
		return 1;
	}
	int result = run();
	fflush(stdout);
	kvstore_close(store);
	kvstore_destroy(store);
	return result;
}
