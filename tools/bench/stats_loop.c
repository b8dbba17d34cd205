/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What recording a transfer costs. A line on stdin is a command, its answer a line on stdout:
 *   run THREADS N   N records by each thread   ns FLOAT   per record
 * The time is that of the threads on their CPUs: with more threads than CPUs, waiting for a CPU is left out, waiting
 * for one another is not. The threads take a snapshot now and then, as a worker does at each of its steps; that is in
 * the time.
 */
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kvstore_status.h"
#include "store/base/clock.h"
#include "store/base/thread.h"
#include "store/stats/transfer_stats.h"

enum { MAX_THREADS = 64, MAX_RECORDS = 100000000, SNAPSHOT_EVERY = 10000 };

struct worker {
	struct xfer_stats *stats;
	pthread_barrier_t *start;
	unsigned long n, snapshot_every;
	uint64_t elapsed_ns, taken;
};

static void fail(const char *what)
{
	fprintf(stderr, "stats_loop: %s\n", what);
	exit(1);
}

static uint64_t take_rows(struct xfer_stats *stats)
{
	struct xfer_snapshot snapshot;
	if (xfer_stats_take(stats, &snapshot) != KV_OK)
		fail("no snapshot");
	uint64_t rows = xfer_snapshot_successes(&snapshot);
	xfer_snapshot_free(&snapshot);
	return rows;
}

static void *record_rows(void *arg)
{
	struct worker *worker = arg;
	pthread_barrier_wait(worker->start);
	uint64_t start = kv_now_ns();
	for (unsigned long i = 1; i <= worker->n; i++) {
		struct xfer_row row = {(double)i * 1e-6, 4096, 16};
		if (xfer_stats_record(worker->stats, XFER_DIRECTION_WRITE, &row) != KV_OK)
			fail("a row was refused");
		if (i % worker->snapshot_every == 0)
			worker->taken += take_rows(worker->stats);
	}
	worker->elapsed_ns = kv_now_ns() - start;
	return NULL;
}

static unsigned cpus(void)
{
	cpu_set_t set;
	if (sched_getaffinity(0, sizeof(set), &set) != 0)
		fail("no CPU set");
	return (unsigned)CPU_COUNT(&set);
}

static double ns_per_record(unsigned n_threads, unsigned long n)
{
	static struct worker workers[MAX_THREADS];
	pthread_t threads[MAX_THREADS];
	pthread_barrier_t start;
	uint64_t elapsed = 0, rows = 0;
	struct xfer_stats *stats = xfer_stats_new(0);

	if (!stats)
		fail("no memory");
	pthread_barrier_init(&start, NULL, n_threads);
	for (unsigned i = 0; i < n_threads; i++) {
		workers[i] = (struct worker){.stats = stats,
		                             .start = &start,
		                             .n = n,
		                             .snapshot_every = (unsigned long)n_threads * SNAPSHOT_EVERY};
		if (kv_thread_start(&threads[i], record_rows, &workers[i], "record") != 0)
			fail("no thread");
	}
	for (unsigned i = 0; i < n_threads; i++) {
		pthread_join(threads[i], NULL);
		elapsed += workers[i].elapsed_ns;
		rows += workers[i].taken;
	}
	pthread_barrier_destroy(&start);
	rows += take_rows(stats);
	xfer_stats_free(stats);
	if (rows != (uint64_t)n_threads * n) /* a record that is lost would look cheap */
		fail("rows are missing");
	double share = n_threads > cpus() ? (double)cpus() / n_threads : 1;
	return (double)elapsed / (double)rows * share;
}

int main(void)
{
	char line[64];
	while (fgets(line, sizeof(line), stdin)) {
		unsigned n_threads;
		unsigned long n;
		if (sscanf(line, "run %u %lu", &n_threads, &n) != 2 || n_threads == 0 || n_threads > MAX_THREADS ||
		    n == 0 || n > MAX_RECORDS) {
			fprintf(stderr, "stats_loop: not a command (run THREADS N): %s", line);
			return 64;
		}
		printf("ns %.4f\n", ns_per_record(n_threads, n));
		fflush(stdout);
	}
	return 0;
}
