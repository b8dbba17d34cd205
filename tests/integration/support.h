/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Real processes for the integration tests: kvmaster, and workers that contribute memory. A worker is this
 * test program again (see support_main). Every wait here has a limit; what was started is ended by its pid.
 */
#ifndef TEST_SUPPORT_H
#define TEST_SUPPORT_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include <cmocka.h>

#include "kvstore.h"

/* In the child of a process with threads, the sanitizers' runtimes can neither start threads (thread) nor be sure of
 * their allocator's locks (address). */
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
#define CHILD_MAY_START_THREADS 0
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer) || __has_feature(address_sanitizer)
#define CHILD_MAY_START_THREADS 0
#endif
#endif
#ifndef CHILD_MAY_START_THREADS
#define CHILD_MAY_START_THREADS 1
#endif
/* A forked child has no alarm of its own: set this one first. */
#define CHILD_LIMIT_S 60

struct process {
	pid_t pid;
	int in, out;       /* its stdin and stdout */
	char address[300]; /* where it listens: what its first line says last */
};

/* kvmaster on a free port of loopback, with up to three more arguments (NULL ends them). */
struct process start_master(const char *a, const char *b, const char *c);
/* The same on a certain port, as after a restart. */
struct process start_master_at(const char *address);
/* A worker with a segment of so many MiB. */
struct process start_worker(const char *master, unsigned mib);
/* Ask it to leave (a worker closes its store) and wait; kills it after 20 s. Returns the exit status, or -signal. */
int stop_process(struct process *process);
/* SIGSTOP, and wait until it holds: until then its threads may go on. SIGCONT is the caller's. */
void hold_process(const struct process *process);
/* kill -9 and wait. */
void kill_process(struct process *process);

/* A store that is set up on 127.0.0.1; fails the test if it is not. */
kvstore_t *open_store(const char *master, uint64_t segment, uint64_t local);
void close_store(kvstore_t *store);

/* Bytes that only this key has. */
void fill_bytes(void *at, size_t size, const char *key);
int is_filled(const void *at, size_t size, const char *key);

/* Put or get one object of `size` bytes in `fragments` fragments through the multi-buffer calls; returns the key's
 * result. get checks the bytes. */
int put_object(kvstore_t *store, const char *key, size_t size, size_t fragments);
int64_t get_object(kvstore_t *store, const char *key, size_t size, size_t fragments);

void sleep_ms(unsigned ms);
uint64_t now_ms(void);

/* main of a test program: runs as a worker if it was started as one, else the tests, with an alarm against
 * hanging. */
#define TEST_MAIN(tests) support_main(argc, argv, #tests, tests, sizeof(tests) / sizeof(tests[0]))
int support_main(int argc, char **argv, const char *name, const struct CMUnitTest *tests, size_t count);

#endif
