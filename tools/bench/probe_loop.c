/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What one call site costs. The loop calls a small index lookup, the kind of function that carries a
 * probe in the store: hash a key, walk to its bucket, compare, say what came out. The program is built
 * twice: probe_loop with its sites, probe_loop_bare with the probes compiled out.
 *
 * A line on stdin is a command, its answer a line on stdout:
 *   run N       N lookups              ns FLOAT watchers N   per lookup; who is attached to the done probe
 *   syscall N   N getppid(2)           ns FLOAT watchers 0   per system call
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "probes/perf_points.h"

enum { ENTRIES = 1024, KEY_BYTES = 40, MAX_RUN = 1000000000 };

struct entry {
	char key[KEY_BYTES];
	uint64_t hash;
	uint64_t size;
};

static struct entry table[ENTRIES];
static char queries[ENTRIES][KEY_BYTES];

static uint64_t hash_key(const char *key, size_t len)
{
	uint64_t hash = 0x9e3779b97f4a7c15u;
	for (size_t i = 0; i + 8 <= len; i += 8) {
		uint64_t word;
		memcpy(&word, key + i, 8);
		hash = (hash ^ word) * 0xff51afd7ed558ccdu;
		hash ^= hash >> 32;
	}
	return hash;
}

/* The call site under test. Returns 1 if the key is there. */
__attribute__((noinline)) static int64_t look_up(const char *key, uint64_t op_id)
{
	PERF_SCOPE(RC_IS_EXIST, perf, op_id, 1, 0);
	uint64_t hash = hash_key(key, KEY_BYTES);
	for (size_t step = 0; step < ENTRIES; step++) {
		const struct entry *entry = &table[(hash + step) % ENTRIES];
		if (entry->hash == 0)
			break;
		if (entry->hash == hash && memcmp(entry->key, key, KEY_BYTES) == 0)
			return perf_result(&perf, entry->size, 1, 1);
	}
	return perf_result(&perf, 0, 1, 0);
}

static void fill_table(void)
{
	for (size_t i = 0; i < ENTRIES; i++) {
		snprintf(queries[i], KEY_BYTES, "layer.%zu.req_%zu", i % 32, i / 32);
		if (i % 2) /* every other key is there, which also keeps the walks short */
			continue;
		uint64_t hash = hash_key(queries[i], KEY_BYTES);
		size_t slot = hash % ENTRIES;
		while (table[slot].hash != 0)
			slot = (slot + 1) % ENTRIES;
		memcpy(table[slot].key, queries[i], KEY_BYTES);
		table[slot].hash = hash;
		table[slot].size = 4096;
	}
}

static uint64_t clock_ns(void)
{
	struct timespec ts;
	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

static double ns_per_lookup(uint64_t n)
{
	uint64_t found = 0, start = clock_ns();
	for (uint64_t i = 0; i < n; i++)
		found += (uint64_t)look_up(queries[i % ENTRIES], i);
	uint64_t elapsed = clock_ns() - start;
	if (found != n / 2) { /* also keeps the lookups from being optimised away */
		fprintf(stderr, "probe_loop: found %llu of %llu keys, not every other one\n",
		        (unsigned long long)found, (unsigned long long)n);
		exit(1);
	}
	return (double)elapsed / (double)n;
}

/* The semaphore of the done probe: the lower half of the pair. */
static unsigned watchers(void)
{
#ifdef KVPROBE_NO_PROBES
	return 0;
#else
	return kvp_watched_RC_IS_EXIST & 0xffff;
#endif
}

static double ns_per_syscall(uint64_t n)
{
	uint64_t start = clock_ns();
	for (uint64_t i = 0; i < n; i++)
		syscall(SYS_getppid);
	return (double)(clock_ns() - start) / (double)n;
}

int main(void)
{
	fill_table();
	char line[64];
	while (fgets(line, sizeof(line), stdin)) {
		char command[16];
		unsigned long long n;
		if (sscanf(line, "%15s %llu", command, &n) != 2 || n == 0 || n > MAX_RUN || n % 2) {
			fprintf(stderr, "probe_loop: not a command (run N, syscall N; N even): %s", line);
			return 64;
		}
		if (strcmp(command, "run") == 0) {
			unsigned before = watchers();
			double ns = ns_per_lookup(n);
			unsigned after = watchers();
			printf("ns %.4f watchers %u\n", ns, before > after ? before : after);
		} else if (strcmp(command, "syscall") == 0) {
			printf("ns %.4f watchers 0\n", ns_per_syscall(n));
		} else {
			fprintf(stderr, "probe_loop: unknown command %s\n", command);
			return 64;
		}
		fflush(stdout);
	}
	return 0;
}
