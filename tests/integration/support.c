/* SPDX-License-Identifier: Apache-2.0 */
#include "support.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define START_LIMIT_MS  30000
#define STOP_LIMIT_MS   20000
#define PROGRAM_LIMIT_S 280

void sleep_ms(unsigned ms)
{
	struct timespec ts = {ms / 1000, (long)(ms % 1000) * 1000000};
	while (nanosleep(&ts, &ts) && errno == EINTR)
		;
}

uint64_t now_ms(void)
{
	struct timespec ts;
	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * 1000 + (uint64_t)ts.tv_nsec / 1000000;
}

/* --- processes ---------------------------------------------------------------------------------------------- */

/* Path of a file beside or above this program's directory: "../bin/kvmaster". */
static void path_from_here(char *out, size_t size, const char *relative)
{
	char here[2048];
	ssize_t length = readlink("/proc/self/exe", here, sizeof(here) - 1);
	assert_true(length > 0);
	here[length] = '\0';
	*strrchr(here, '/') = '\0';
	assert_true((size_t)snprintf(out, size, "%s/%s", here, relative) < size);
}

/* The first line that the process prints, without its end. */
static void read_line(const struct process *process, char *line, size_t size)
{
	uint64_t limit = now_ms() + START_LIMIT_MS;
	size_t length = 0;
	while (length + 1 < size) {
		struct pollfd waiter = {.fd = process->out, .events = POLLIN};
		uint64_t now = now_ms();
		assert_true(now < limit);
		if (poll(&waiter, 1, (int)(limit - now)) <= 0)
			continue;
		ssize_t got = read(process->out, line + length, 1);
		assert_int_equal(got, 1);
		if (line[length] == '\n')
			break;
		length++;
	}
	line[length] = '\0';
}

static struct process start(char *const argv[])
{
	struct process process;
	char line[512];
	int in[2], out[2];

	assert_int_equal(pipe2(in, O_CLOEXEC), 0);
	assert_int_equal(pipe2(out, O_CLOEXEC), 0);
	process.pid = fork();
	assert_true(process.pid >= 0);
	if (process.pid == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		setenv("MC_LOG_LEVEL", "WARNING", 0);
		dup2(in[0], STDIN_FILENO);
		dup2(out[1], STDOUT_FILENO);
		execv(argv[0], argv);
		_exit(127);
	}
	close(in[0]);
	close(out[1]);
	process.in = in[1];
	process.out = out[0];
	read_line(&process, line, sizeof(line));
	const char *address = strrchr(line, ' ');
	assert_non_null(address);
	snprintf(process.address, sizeof(process.address), "%s", address + 1);
	return process;
}

struct process start_master(const char *a, const char *b, const char *c)
{
	char path[2300];
	path_from_here(path, sizeof(path), "../bin/kvmaster");
	char *argv[] = {path,      "--rpc_address=127.0.0.1", "--rpc_port=0",
	                (char *)a, (char *)(a ? b : NULL),    (char *)(a && b ? c : NULL),
	                NULL};
	return start(argv);
}

struct process start_master_at(const char *address)
{
	char path[2300], port[64];
	path_from_here(path, sizeof(path), "../bin/kvmaster");
	snprintf(port, sizeof(port), "--rpc_port=%s", strrchr(address, ':') + 1);
	char *argv[] = {path, "--rpc_address=127.0.0.1", port, NULL};
	return start(argv);
}

struct process start_worker(const char *master, unsigned mib)
{
	char path[2300], size[32];
	ssize_t length = readlink("/proc/self/exe", path, sizeof(path) - 1);
	assert_true(length > 0);
	path[length] = '\0';
	snprintf(size, sizeof(size), "%u", mib);
	char *argv[] = {path, "--worker", (char *)master, size, NULL};
	return start(argv);
}

static int wait_for_end(struct process *process, uint64_t limit_ms)
{
	uint64_t limit = now_ms() + limit_ms;
	int status = 0;
	while (waitpid(process->pid, &status, WNOHANG) == 0) {
		if (now_ms() >= limit) {
			kill(process->pid, SIGKILL);
			waitpid(process->pid, &status, 0);
			break;
		}
		sleep_ms(5);
	}
	close(process->in);
	close(process->out);
	process->pid = 0;
	return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

int stop_process(struct process *process)
{
	/* A worker leaves at the end of its stdin, kvmaster at the signal. */
	if (write(process->in, "leave\n", 6) < 0)
		print_message("process %d has gone already\n", (int)process->pid);
	sleep_ms(1);
	kill(process->pid, SIGTERM);
	return wait_for_end(process, STOP_LIMIT_MS);
}

void hold_process(const struct process *process)
{
	int status;
	assert_int_equal(kill(process->pid, SIGSTOP), 0);
	assert_int_equal(waitpid(process->pid, &status, WUNTRACED), process->pid);
	assert_true(WIFSTOPPED(status));
}

void kill_process(struct process *process)
{
	kill(process->pid, SIGKILL);
	wait_for_end(process, STOP_LIMIT_MS);
}

/* --- stores ------------------------------------------------------------------------------------------------- */

kvstore_t *open_store(const char *master, uint64_t segment, uint64_t local)
{
	kvstore_t *store = kvstore_create();
	assert_non_null(store);
	assert_int_equal(kvstore_setup(store, "127.0.0.1", "P2PHANDSHAKE", segment, local, "tcp", "", master), 0);
	return store;
}

void close_store(kvstore_t *store)
{
	assert_int_equal(kvstore_close(store), 0);
	kvstore_destroy(store);
}

static uint8_t byte_of(const char *key, size_t i)
{
	uint32_t hash = 2166136261u;
	for (; *key; key++)
		hash = (hash ^ (uint8_t)*key) * 16777619u;
	return (uint8_t)((hash >> 8) + i * 131 + (i >> 8) * 17 + (i >> 16));
}

void fill_bytes(void *at, size_t size, const char *key)
{
	uint8_t first = byte_of(key, 0);
	for (size_t i = 0; i < size; i++)
		((uint8_t *)at)[i] = (uint8_t)(first + i * 131 + (i >> 8) * 17 + (i >> 16));
}

int is_filled(const void *at, size_t size, const char *key)
{
	uint8_t first = byte_of(key, 0);
	for (size_t i = 0; i < size; i++)
		if (((const uint8_t *)at)[i] != (uint8_t)(first + i * 131 + (i >> 8) * 17 + (i >> 16)))
			return 0;
	return 1;
}

/* Cut an object into fragments of uneven sizes. */
static void cut(uint8_t *at, size_t size, size_t fragments, void **bufs, size_t *sizes)
{
	size_t even = size / fragments;
	for (size_t i = 0; i < fragments; i++) {
		sizes[i] = i + 1 < fragments ? even - (even > 1 ? i % 2 : 0) : size;
		bufs[i] = at;
		at += sizes[i];
		size -= sizes[i];
	}
}

struct cut_object {
	uint8_t *memory; /* starts at an odd address */
	void **bufs;
	size_t *sizes;
};

static struct cut_object make_object(size_t size, size_t fragments)
{
	struct cut_object object = {malloc(size + 1), calloc(fragments, sizeof(void *)),
	                            calloc(fragments, sizeof(size_t))};
	assert_non_null(object.memory);
	assert_non_null(object.bufs);
	assert_non_null(object.sizes);
	cut(object.memory + 1, size, fragments, object.bufs, object.sizes);
	return object;
}

static void free_object(struct cut_object *object)
{
	free(object->memory);
	free(object->bufs);
	free(object->sizes);
}

int put_object(kvstore_t *store, const char *key, size_t size, size_t fragments)
{
	struct cut_object object = make_object(size, fragments);
	void *const *bufs = object.bufs;
	const size_t *sizes = object.sizes;
	int result = 1;
	fill_bytes(object.memory + 1, size, key);
	assert_int_equal(
	        kvstore_batch_put_from_multi_buffers(store, &key, &bufs, &sizes, &fragments, 1, NULL, &result), 0);
	free_object(&object);
	return result;
}

int64_t get_object(kvstore_t *store, const char *key, size_t size, size_t fragments)
{
	struct cut_object object = make_object(size, fragments);
	void *const *bufs = object.bufs;
	const size_t *sizes = object.sizes;
	int64_t result = 0;
	memset(object.memory, 0x5a, size + 1);
	assert_int_equal(kvstore_batch_get_into_multi_buffers(store, &key, &bufs, &sizes, &fragments, 1, &result), 0);
	if (result > 0) {
		assert_true(is_filled(object.memory + 1, (size_t)result, key));
		for (size_t i = (size_t)result; i < size; i++)
			assert_int_equal(object.memory[i + 1], 0x5a);
	}
	assert_int_equal(object.memory[0], 0x5a);
	free_object(&object);
	return result;
}

/* --- main ---------------------------------------------------------------------------------------------------- */

/* A worker: contributes memory until its stdin says something or ends. */
static int run_worker(const char *master, const char *mib)
{
	char name[300], byte;
	signal(SIGTERM, SIG_IGN); /* it leaves by its stdin */
	kvstore_t *store = kvstore_create();
	int status = kvstore_setup(store, "127.0.0.1", "P2PHANDSHAKE", strtoull(mib, NULL, 10) << 20, 0, "tcp", "",
	                           master);
	if (status || kvstore_get_hostname(store, name, sizeof(name))) {
		printf("failed %d\n", status);
		return 1;
	}
	printf("worker at %s\n", name);
	fflush(stdout);
	while (read(STDIN_FILENO, &byte, 1) < 0 && errno == EINTR)
		;
	status = kvstore_close(store);
	kvstore_destroy(store);
	return status != 0;
}

int support_main(int argc, char **argv, const char *name, const struct CMUnitTest *tests, size_t count)
{
	alarm(PROGRAM_LIMIT_S);
	signal(SIGPIPE, SIG_IGN);
	if (argc == 4 && strcmp(argv[1], "--worker") == 0)
		return run_worker(argv[2], argv[3]);
	return _cmocka_run_group_tests(name, tests, count, NULL, NULL);
}
