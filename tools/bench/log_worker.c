/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench log: a worker whose calls are logged, in batches of 1, 8 and 512 keys, with the failures and the
 * awkward keys that a log must get right. Every key begins with "t<thread>.", so that a reader of the text
 * can tell the threads apart.
 *
 *   log_worker THREADS
 *
 * Commands on stdin, answered by one line on stdout:
 *   open      join an embedded pool, register the threads' buffers     "ok"
 *   go N      N cycles in every thread                                 "seconds FLOAT calls N keys N"
 *             (seconds: inside the calls, summed over the threads)
 *   clear     empty the pool                                           "ok"
 */
#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "kvstore.h"

enum {
	MAX_THREADS = 16,
	MAX_BATCH = 512,
	KEY_BYTES = 64,
	OBJECT = 256,
	MISSING_EVERY = 7, /* this many keys of a read are not there */
	SHORT_EVERY = 11,  /* this many buffers are too small */
	SEGMENT = 512 << 20,
};

struct logger {
	kvstore_t *store;
	pthread_t thread;
	unsigned number, cycle, serial;
	uint64_t cycles, calls, keys;
	double seconds;
	uint8_t *buffer; /* MAX_BATCH objects */
	char names[MAX_BATCH][KEY_BYTES], missing[MAX_BATCH][KEY_BYTES];
};

__attribute__((noreturn, format(printf, 1, 2))) static void die(const char *format, ...)
{
	va_list args;
	va_start(args, format);
	fprintf(stderr, "log_worker: ");
	vfprintf(stderr, format, args);
	fprintf(stderr, "\n");
	va_end(args);
	exit(1);
}

static double seconds_now(void)
{
	struct timespec ts;
	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (double)ts.tv_sec + (double)ts.tv_nsec * 1e-9;
}

/* Now and then a key that would break a careless line: a newline, a backslash, a space, bytes above 0x7e. */
static const char *decoration(unsigned serial)
{
	static const char *const list[] = {
	        "", "", "", "a b", "line\nbreak", "back\\slash", "\xc3\xa9t\xc3\xa9", "\x7f\x01"};
	return list[serial % (sizeof(list) / sizeof(list[0]))];
}

static void name_keys(struct logger *logger, size_t count)
{
	for (size_t i = 0; i < count; i++) {
		unsigned serial = logger->serial++;
		snprintf(logger->names[i], KEY_BYTES, "t%u.layer.%zu.req_%u%s", logger->number, i, serial,
		         decoration(serial));
		if (i % MISSING_EVERY == MISSING_EVERY - 1)
			snprintf(logger->missing[i], KEY_BYTES, "t%u.none.%u", logger->number, serial);
		else
			memcpy(logger->missing[i], logger->names[i], KEY_BYTES);
	}
}

static void time_call(struct logger *logger, double start, int status, size_t count, const char *what)
{
	logger->seconds += seconds_now() - start;
	logger->calls++;
	logger->keys += count;
	if (status)
		die("%s did not run: %d", what, status);
}

/* Put count objects, ask for them, read them, ask where they are. */
static void one_batch(struct logger *logger, size_t count)
{
	const char *names[MAX_BATCH], *read_names[MAX_BATCH];
	void *halves[MAX_BATCH][2];
	size_t lengths[MAX_BATCH][2], read_lengths[MAX_BATCH][2], nbufs[MAX_BATCH];
	void *const *bufs[MAX_BATCH];
	const size_t *sizes[MAX_BATCH], *read_sizes[MAX_BATCH];
	int results[MAX_BATCH];
	int64_t read_results[MAX_BATCH];

	name_keys(logger, count);
	for (size_t i = 0; i < count; i++) {
		names[i] = logger->names[i];
		read_names[i] = logger->missing[i];
		halves[i][0] = logger->buffer + i * OBJECT;
		halves[i][1] = logger->buffer + i * OBJECT + OBJECT / 2;
		lengths[i][0] = lengths[i][1] = OBJECT / 2;
		read_lengths[i][0] = OBJECT / 2;
		read_lengths[i][1] = i % SHORT_EVERY == SHORT_EVERY - 1 ? OBJECT / 4 : OBJECT / 2;
		bufs[i] = halves[i];
		sizes[i] = lengths[i];
		read_sizes[i] = read_lengths[i];
		nbufs[i] = 2;
	}
	double start = seconds_now();
	int status =
	        kvstore_batch_put_from_multi_buffers(logger->store, names, bufs, sizes, nbufs, count, NULL, results);
	time_call(logger, start, status, count, "put");
	for (size_t i = 0; i < count; i++)
		if (results[i])
			die("put: result %d", results[i]);
	start = seconds_now();
	status = kvstore_batch_is_exist(logger->store, read_names, count, results);
	time_call(logger, start, status, count, "is_exist");
	start = seconds_now();
	status = kvstore_batch_get_into_multi_buffers(logger->store, read_names, bufs, read_sizes, nbufs, count,
	                                              read_results);
	time_call(logger, start, status, count, "get");
	kvstore_replica_lists_t *lists = NULL;
	start = seconds_now();
	status = kvstore_batch_get_replica_desc(logger->store, read_names, count, &lists);
	time_call(logger, start, status, count, "replica_desc");
	kvstore_replica_lists_free(lists);
}

static void *log_cycles(void *arg)
{
	struct logger *logger = arg;
	for (uint64_t i = 0; i < logger->cycles; i++) {
		for (int n = 0; n < 64; n++)
			one_batch(logger, 1);
		for (int n = 0; n < 16; n++)
			one_batch(logger, 8);
		one_batch(logger, MAX_BATCH);
	}
	return NULL;
}

static void go(struct logger *loggers, size_t count, uint64_t cycles)
{
	for (size_t i = 0; i < count; i++) {
		loggers[i].cycles = cycles;
		loggers[i].calls = loggers[i].keys = 0;
		loggers[i].seconds = 0;
		if (pthread_create(&loggers[i].thread, NULL, log_cycles, &loggers[i]))
			die("no thread: %s", strerror(errno));
	}
	uint64_t calls = 0, keys = 0;
	double seconds = 0;
	for (size_t i = 0; i < count; i++) {
		pthread_join(loggers[i].thread, NULL);
		calls += loggers[i].calls;
		keys += loggers[i].keys;
		seconds += loggers[i].seconds;
	}
	printf("seconds %.6f calls %llu keys %llu\n", seconds, (unsigned long long)calls, (unsigned long long)keys);
}

static void open_store(kvstore_t *store, struct logger *loggers, size_t count)
{
	int status = kvstore_setup(store, "127.0.0.1", "P2PHANDSHAKE", SEGMENT, 0, "tcp", "", "embedded");
	if (status)
		die("setup: %s", kvstore_strerror(status));
	for (size_t i = 0; i < count; i++) {
		loggers[i].store = store;
		loggers[i].number = (unsigned)i;
		loggers[i].buffer = calloc(MAX_BATCH, OBJECT);
		if (!loggers[i].buffer || kvstore_register_buffer(store, loggers[i].buffer, MAX_BATCH * OBJECT))
			die("cannot register a buffer");
	}
}

int main(int argc, char **argv)
{
	long threads = argc == 2 ? strtol(argv[1], NULL, 10) : 0;
	if (threads < 1 || threads > MAX_THREADS) {
		fprintf(stderr, "usage: log_worker THREADS   (1 to %d)\n", MAX_THREADS);
		return 64;
	}
	static struct logger loggers[MAX_THREADS];
	kvstore_t *store = kvstore_create();
	if (!store)
		die("no memory");
	char line[64];
	unsigned long long cycles;
	while (fgets(line, sizeof(line), stdin)) {
		if (strcmp(line, "open\n") == 0) {
			open_store(store, loggers, (size_t)threads);
			puts("ok");
		} else if (strcmp(line, "clear\n") == 0) {
			if (kvstore_remove_all(store, 1) < 0)
				die("remove_all failed");
			puts("ok");
		} else if (sscanf(line, "go %llu", &cycles) == 1) {
			go(loggers, (size_t)threads, cycles);
		} else {
			die("unknown command %s", line);
		}
		fflush(stdout);
	}
	kvstore_destroy(store);
	for (long i = 0; i < threads; i++)
		free(loggers[i].buffer);
	return 0;
}
