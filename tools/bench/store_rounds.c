/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench store: what moving KV blocks costs, beside what moving the same fragments costs without a store.
 * Objects of 16 fragments of 64 KiB, 8 objects a call, a working set that no cache holds.
 *
 *   store_rounds memcpy MIB                    copies fragment by fragment from a segment-sized memory
 *   store_rounds store MIB MASTER SEGMENT_MIB  a worker; SEGMENT_MIB 0: all data is at other workers
 *   store_rounds owner MASTER SEGMENT_MIB      contributes a segment until stdin ends
 *   store_rounds source MIB                    a raw TCP stream's sending end; prints its port
 *   store_rounds sink MIB PORT                 the receiving end
 *
 * A line on stdin is one round: put, get, clear, copy or stream. The answer is "seconds FLOAT bytes N" on stdout.
 * A round that does not move every byte, or gets other bytes than were put, ends the program with status 1.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#include "kvstore.h"

enum {
	FRAGMENT = 64 << 10,
	FRAGMENTS = 16,
	OBJECT = FRAGMENT * FRAGMENTS,
	BATCH = 8,
	KEY_BYTES = 48,
	MAX_MIB = 65536,
	SOCKET_TIMEOUT_S = 30,
};

/* The caller's side of a worker: memory of the working set's size, in fragments as a KV cache has them. */
struct rounds {
	uint8_t *memory;
	size_t bytes, objects;
	unsigned generation; /* of the keys: each put round writes new ones */
	char (*keys)[KEY_BYTES];
};

__attribute__((noreturn, format(printf, 1, 2))) static void die(const char *format, ...)
{
	va_list args;
	va_start(args, format);
	fprintf(stderr, "store_rounds: ");
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

static size_t mib_argument(const char *text)
{
	char *end;
	unsigned long mib = strtoul(text, &end, 10);
	if (*text == '\0' || *end != '\0' || mib > MAX_MIB)
		die("not a number of MiB: %s", text);
	return (size_t)mib << 20;
}

/* Memory with every page present, in huge pages where the kernel has them. */
static uint8_t *present_memory(size_t bytes)
{
	uint8_t *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (memory == MAP_FAILED)
		die("no memory: %s", strerror(errno));
	madvise(memory, bytes, MADV_HUGEPAGE);
	memset(memory, 0x5a, bytes);
	return memory;
}

static void say_round(double seconds, size_t bytes)
{
	printf("seconds %.6f bytes %zu\n", seconds, bytes);
	fflush(stdout);
}

/* Each object begins and ends with a word of its own, so that a get can be checked without reading it all. */
static uint64_t object_word(unsigned generation, size_t object)
{
	return ((uint64_t)generation << 32 | object) * 0x9e3779b97f4a7c15u;
}

static void mark_objects(struct rounds *rounds, bool clear)
{
	for (size_t i = 0; i < rounds->objects; i++) {
		uint64_t word = clear ? 0 : object_word(rounds->generation, i);
		memcpy(rounds->memory + i * OBJECT, &word, 8);
		memcpy(rounds->memory + (i + 1) * OBJECT - 8, &word, 8);
	}
}

static void check_objects(const struct rounds *rounds)
{
	for (size_t i = 0; i < rounds->objects; i++) {
		uint64_t word = object_word(rounds->generation, i);
		if (memcmp(rounds->memory + i * OBJECT, &word, 8) ||
		    memcmp(rounds->memory + (i + 1) * OBJECT - 8, &word, 8))
			die("object %zu came back with other bytes", i);
	}
}

/* The arguments of one call, as vLLM makes them: per key a list of addresses and a list of lengths. */
struct call {
	const char *keys[BATCH];
	void *fragments[BATCH][FRAGMENTS];
	size_t lengths[BATCH][FRAGMENTS];
	void *const *bufs[BATCH];
	const size_t *sizes[BATCH];
	size_t nbufs[BATCH];
};

static void fill_call(struct call *call, struct rounds *rounds, size_t first)
{
	for (size_t i = 0; i < BATCH; i++) {
		for (size_t j = 0; j < FRAGMENTS; j++) {
			call->fragments[i][j] = rounds->memory + (first + i) * OBJECT + j * FRAGMENT;
			call->lengths[i][j] = FRAGMENT;
		}
		call->keys[i] = rounds->keys[first + i];
		call->bufs[i] = call->fragments[i];
		call->sizes[i] = call->lengths[i];
		call->nbufs[i] = FRAGMENTS;
	}
}

static double put_round(kvstore_t *store, struct rounds *rounds)
{
	rounds->generation++;
	for (size_t i = 0; i < rounds->objects; i++)
		snprintf(rounds->keys[i], KEY_BYTES, "layer.%zu.req_%u", i, rounds->generation);
	mark_objects(rounds, false);
	double spent = 0;
	for (size_t first = 0; first < rounds->objects; first += BATCH) {
		struct call call;
		int results[BATCH];
		fill_call(&call, rounds, first);
		double start = seconds_now();
		int status = kvstore_batch_put_from_multi_buffers(store, call.keys, call.bufs, call.sizes, call.nbufs,
		                                                  BATCH, NULL, results);
		spent += seconds_now() - start;
		for (size_t i = 0; i < BATCH; i++)
			if (status || results[i])
				die("put of %s: %d, result %d", call.keys[i], status, results[i]);
	}
	return spent;
}

static double get_round(kvstore_t *store, struct rounds *rounds)
{
	mark_objects(rounds, true);
	double spent = 0;
	for (size_t first = 0; first < rounds->objects; first += BATCH) {
		struct call call;
		int64_t results[BATCH];
		fill_call(&call, rounds, first);
		double start = seconds_now();
		int status = kvstore_batch_get_into_multi_buffers(store, call.keys, call.bufs, call.sizes, call.nbufs,
		                                                  BATCH, results);
		spent += seconds_now() - start;
		for (size_t i = 0; i < BATCH; i++)
			if (status || results[i] != OBJECT)
				die("get of %s: %d, result %lld", call.keys[i], status, (long long)results[i]);
	}
	check_objects(rounds);
	return spent;
}

static kvstore_t *join_pool(const char *master, size_t segment)
{
	kvstore_t *store = kvstore_create();
	if (!store)
		die("no memory");
	int status = kvstore_setup(store, "127.0.0.1", "P2PHANDSHAKE", segment, 0, "tcp", "", master);
	if (status)
		die("setup with master %s: %s (%d)", master, kvstore_strerror(status), status);
	return store;
}

static void rounds_init(struct rounds *rounds, size_t bytes)
{
	memset(rounds, 0, sizeof(*rounds));
	rounds->bytes = bytes;
	rounds->objects = bytes / OBJECT;
	if (rounds->objects == 0 || rounds->objects % BATCH)
		die("the working set must be a multiple of %d MiB", BATCH);
	rounds->memory = present_memory(bytes);
	rounds->keys = calloc(rounds->objects, KEY_BYTES);
	if (!rounds->keys)
		die("no memory");
}

static int run_worker(size_t bytes, const char *master, size_t segment)
{
	struct rounds rounds;
	rounds_init(&rounds, bytes);
	kvstore_t *store = join_pool(master, segment);
	int status = kvstore_register_buffer(store, rounds.memory, rounds.bytes);
	if (status)
		die("register_buffer: %s", kvstore_strerror(status));
	char line[32];
	while (fgets(line, sizeof(line), stdin)) {
		if (strcmp(line, "put\n") == 0) {
			say_round(put_round(store, &rounds), rounds.bytes);
		} else if (strcmp(line, "get\n") == 0) {
			say_round(get_round(store, &rounds), rounds.bytes);
		} else if (strcmp(line, "clear\n") == 0) {
			if (kvstore_remove_all(store, 1) != (int64_t)rounds.objects)
				die("remove_all did not remove the round's %zu objects", rounds.objects);
			say_round(0, 0);
		} else {
			die("unknown command %s", line);
		}
	}
	kvstore_destroy(store);
	return 0;
}

static int run_owner(const char *master, size_t segment)
{
	kvstore_t *store = join_pool(master, segment);
	say_round(0, 0);
	while (getchar() != EOF)
		;
	kvstore_destroy(store);
	return 0;
}

/* The reference of the embedded store: the same fragments, from memory like a segment's. */
static int run_memcpy(size_t bytes)
{
	struct rounds rounds;
	rounds_init(&rounds, bytes);
	uint8_t *segment = present_memory(bytes);
	char line[32];
	while (fgets(line, sizeof(line), stdin)) {
		double start = seconds_now();
		for (size_t at = 0; at < bytes; at += FRAGMENT)
			memcpy(rounds.memory + at, segment + at, FRAGMENT);
		say_round(seconds_now() - start, bytes);
	}
	return 0;
}

static void set_timeouts(int fd)
{
	struct timeval limit = {.tv_sec = SOCKET_TIMEOUT_S};
	setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
	setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit));
}

/* One object through the socket, whole, however the kernel cuts it. */
static void move_object(int fd, uint8_t *object, bool send)
{
	for (size_t done = 0; done < OBJECT;) {
		struct iovec parts[FRAGMENTS];
		int n = 0;
		for (size_t at = done; at < OBJECT; n++) {
			size_t end = (at / FRAGMENT + 1) * FRAGMENT;
			parts[n] = (struct iovec){object + at, end - at};
			at = end;
		}
		ssize_t moved = send ? writev(fd, parts, n) : readv(fd, parts, n);
		if (moved <= 0)
			die("the raw stream broke: %s", moved ? strerror(errno) : "end of file");
		done += (size_t)moved;
	}
}

static int run_source(size_t bytes)
{
	struct rounds rounds;
	rounds_init(&rounds, bytes);
	struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t length = sizeof(address);
	int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (listener < 0 || bind(listener, (struct sockaddr *)&address, length) || listen(listener, 1) ||
	    getsockname(listener, (struct sockaddr *)&address, &length))
		die("cannot listen: %s", strerror(errno));
	set_timeouts(listener);
	printf("port %u\n", ntohs(address.sin_port));
	fflush(stdout);
	int fd = accept(listener, NULL, NULL);
	if (fd < 0)
		die("no one connected: %s", strerror(errno));
	char go;
	while (read(fd, &go, 1) == 1) /* no timeout between rounds: the other end asks when it is its turn */
		for (size_t i = 0; i < rounds.objects; i++)
			move_object(fd, rounds.memory + i * OBJECT, true);
	return 0;
}

static int run_sink(size_t bytes, const char *port)
{
	struct rounds rounds;
	rounds_init(&rounds, bytes);
	struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	address.sin_port = htons((uint16_t)strtoul(port, NULL, 10));
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (fd < 0 || connect(fd, (struct sockaddr *)&address, sizeof(address)))
		die("cannot connect: %s", strerror(errno));
	set_timeouts(fd);
	char line[32];
	while (fgets(line, sizeof(line), stdin)) {
		double start = seconds_now();
		if (write(fd, "g", 1) != 1)
			die("the raw stream broke: %s", strerror(errno));
		for (size_t i = 0; i < rounds.objects; i++)
			move_object(fd, rounds.memory + i * OBJECT, false);
		say_round(seconds_now() - start, bytes);
	}
	return 0;
}

int main(int argc, char **argv)
{
	const char *mode = argc > 1 ? argv[1] : "";
	if (argc == 3 && strcmp(mode, "memcpy") == 0)
		return run_memcpy(mib_argument(argv[2]));
	if (argc == 5 && strcmp(mode, "store") == 0)
		return run_worker(mib_argument(argv[2]), argv[3], mib_argument(argv[4]));
	if (argc == 4 && strcmp(mode, "owner") == 0)
		return run_owner(argv[2], mib_argument(argv[3]));
	if (argc == 3 && strcmp(mode, "source") == 0)
		return run_source(mib_argument(argv[2]));
	if (argc == 4 && strcmp(mode, "sink") == 0)
		return run_sink(mib_argument(argv[2]), argv[3]);
	fprintf(stderr, "usage: store_rounds memcpy|store|owner|source|sink ... (see the head of store_rounds.c)\n");
	return 64;
}
