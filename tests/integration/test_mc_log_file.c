/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The in-process MC_LOG: each test runs a child process under an environment of its own and reads what it
 * wrote. elapsed_us is the one thing that differs between runs; it is made "N" before comparing.
 */
#include "support.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

struct output {
	char directory[64];
	char path[128]; /* of the log of the child */
	int status;
};

/* Run work in a child with MC_LOG on; variables are pairs, ended by NULL. Its stderr goes to <directory>/stderr. */
static struct output run_child(void (*work)(void), const char *const *variables)
{
	struct output output = {.directory = "/tmp/kv-mclog-XXXXXX"};
	assert_non_null(mkdtemp(output.directory));
	pid_t child = fork();
	assert_true(child >= 0);
	if (child == 0) {
		char path[128];
		alarm(CHILD_LIMIT_S);
		setenv("MC_LOG_ENABLE", "On", 1);
		setenv("MC_LOG_DIR", output.directory, 1);
		for (; *variables; variables += 2)
			setenv(variables[0], variables[1], 1);
		if (strcmp(getenv("MC_LOG_DIR"), "none") == 0)
			unsetenv("MC_LOG_DIR");
		snprintf(path, sizeof(path), "%s/stderr", output.directory);
		dup2(open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600), STDERR_FILENO);
		work();
		exit(0);
	}
	assert_int_equal(waitpid(child, &output.status, 0), child);
	snprintf(output.path, sizeof(output.path), "%s/kvstore.%d.log", output.directory, (int)child);
	return output;
}

static void remove_output(struct output *output)
{
	char path[128];
	snprintf(path, sizeof(path), "%s/stderr", output->directory);
	unlink(path);
	unlink(output->path);
	assert_int_equal(rmdir(output->directory), 0);
}

/* The file's text with every elapsed_us made N; NULL if there is no file. */
static char *read_text(const char *path)
{
	FILE *file = fopen(path, "re");
	if (!file)
		return NULL;
	static char text[1 << 20];
	size_t length = 0;
	int c;
	while ((c = fgetc(file)) != EOF && length < sizeof(text) - 1) {
		text[length++] = (char)c;
		if (length < 11 || memcmp(text + length - 11, "elapsed_us=", 11) != 0)
			continue;
		text[length++] = 'N';
		while ((c = fgetc(file)) >= '0' && c <= '9')
			;
		ungetc(c, file);
	}
	text[length] = '\0';
	fclose(file);
	return text;
}

static char *read_stderr(const struct output *output)
{
	char path[128];
	snprintf(path, sizeof(path), "%s/stderr", output->directory);
	return read_text(path);
}

/* --- what the child does -------------------------------------------------------------------------------------- */

/* The five logged calls, and some that are not logged. */
static void all_calls(void)
{
	static uint8_t memory[4096];
	const char *keys[] = {"a", "b c", "absent"};
	void *a[] = {memory, memory + 100}, *b[] = {memory + 200}, *c[] = {memory + 300};
	void *const *bufs[] = {a, b, c};
	size_t sa[] = {100, 50}, sb[] = {70}, sc[] = {30};
	const size_t *sizes[] = {sa, sb, sc};
	size_t nbufs[] = {2, 1, 1};
	int codes[3];
	int64_t lengths[3];
	kvstore_replica_lists_t *lists;
	kvstore_t *store = kvstore_create();
	kvstore_setup(store, "127.0.0.1:23999", "", 1 << 20, 1 << 16, "tcp", "", "embedded");
	kvstore_register_buffer(store, memory, sizeof(memory));
	kvstore_register_buffer(store, memory, 10);
	kvstore_batch_put_from_multi_buffers(store, keys, bufs, sizes, nbufs, 2, NULL, codes);
	kvstore_batch_put_from_multi_buffers(store, keys, NULL, NULL, NULL, 2, NULL, codes);
	kvstore_batch_is_exist(store, keys, 3, codes);
	kvstore_batch_is_exist(store, keys, 0, codes);
	kvstore_batch_get_into_multi_buffers(store, keys, bufs, sizes, nbufs, 3, lengths);
	kvstore_batch_get_replica_desc(store, keys, 3, &lists);
	kvstore_replica_lists_free(lists);
	kvstore_is_exist(store, "a");
	kvstore_put(store, "other", memory, 10, NULL);
	kvstore_get_into(store, "other", memory, 10);
	kvstore_unregister_buffer(store, memory);
	kvstore_close(store);
	kvstore_destroy(store);
}

static const char all_calls_text[] = "[register_buffer] elapsed_us=N total_bytes=4096\n"
                                     "[register_buffer] elapsed_us=N total_bytes=10\n"
                                     "[batch_put_from_multi_buffers] elapsed_us=N num_keys=2 total_bytes=220\n"
                                     "success=1 key=a size=150\n"
                                     "success=1 key=b\\x20c size=70\n"
                                     "[batch_put_from_multi_buffers] elapsed_us=N num_keys=2 total_bytes=0\n"
                                     "success=0 key=a\n"
                                     "success=0 key=b\\x20c\n"
                                     "[batch_is_exist] elapsed_us=N num_keys=3\n"
                                     "success=1 key=a\n"
                                     "success=1 key=b\\x20c\n"
                                     "success=0 key=absent\n"
                                     "[batch_is_exist] elapsed_us=N num_keys=0\n"
                                     "[batch_get_into_multi_buffers] elapsed_us=N num_keys=3\n"
                                     "success=1 key=a size=150 replica=memory endpoint=127.0.0.1:23999\n"
                                     "success=1 key=b\\x20c size=70 replica=memory endpoint=127.0.0.1:23999\n"
                                     "success=0 key=absent size=30\n"
                                     "[batch_get_replica_desc] elapsed_us=N num_keys=3\n"
                                     "success=1 key=a size=150 replica=memory endpoint=127.0.0.1:23999\n"
                                     "success=1 key=b\\x20c size=70 replica=memory endpoint=127.0.0.1:23999\n"
                                     "success=0 key=absent\n";

/* Look the same key up many times, without ever closing the store. */
static void many_lookups(void)
{
	enum { CALLS = 5000 };
	const char *key = "k";
	int code;
	kvstore_t *store = kvstore_create();
	kvstore_setup(store, "127.0.0.1", "", 1 << 20, 0, "tcp", "", "embedded");
	for (int i = 0; i < CALLS; i++)
		kvstore_batch_is_exist(store, &key, 1, &code);
	exit(0);
}

/* The log is a pipe that no one reads: more calls than the queue holds. */
static void stuck_disk(void)
{
	enum { CALLS = 70000 };
	char path[256];
	const char *key = "k";
	int code;
	snprintf(path, sizeof(path), "%s/kvstore.%d.log", getenv("MC_LOG_DIR"), (int)getpid());
	if (mkfifo(path, 0600))
		exit(2);
	kvstore_t *store = kvstore_create();
	kvstore_setup(store, "127.0.0.1", "", 1 << 20, 0, "tcp", "", "embedded");
	for (int i = 0; i < CALLS; i++)
		kvstore_batch_is_exist(store, &key, 1, &code);
	exit(0);
}

/* The disk is full in the middle of a line, and has room again later. */
static void full_disk(void)
{
	const struct rlimit little = {.rlim_cur = 100, .rlim_max = RLIM_INFINITY};
	const struct rlimit much = {.rlim_cur = RLIM_INFINITY, .rlim_max = RLIM_INFINITY};
	const char *key = "k";
	int code;
	signal(SIGXFSZ, SIG_IGN);
	kvstore_t *store = kvstore_create();
	for (int round = 0; round < 2; round++) {
		setrlimit(RLIMIT_FSIZE, round == 0 ? &little : &much);
		kvstore_setup(store, "127.0.0.1", "", 0, 0, "tcp", "", "embedded");
		for (int i = 0; i < 3; i++)
			kvstore_batch_is_exist(store, &key, 1, &code);
		kvstore_close(store); /* all is written */
	}
	exit(0);
}

#if CHILD_MAY_START_THREADS
/* A forked child writes a file of its own. */
static void fork_and_look_up(void)
{
	const char *key = "parent", *child_key = "child";
	int code, status;
	kvstore_t *store = kvstore_create();
	kvstore_setup(store, "127.0.0.1", "", 1 << 20, 0, "tcp", "", "embedded");
	kvstore_batch_is_exist(store, &key, 1, &code);
	pid_t child = fork();
	if (child == 0) {
		alarm(CHILD_LIMIT_S);
		kvstore_t *own = kvstore_create();
		kvstore_setup(own, "127.0.0.1", "", 1 << 20, 0, "tcp", "", "embedded");
		kvstore_batch_is_exist(own, &child_key, 1, &code);
		kvstore_close(own);
		kvstore_destroy(own);
		char from[128], to[128];
		snprintf(from, sizeof(from), "%s/kvstore.%d.log", getenv("MC_LOG_DIR"), (int)getpid());
		snprintf(to, sizeof(to), "%s/child", getenv("MC_LOG_DIR"));
		_exit(rename(from, to) != 0);
	}
	waitpid(child, &status, 0);
	kvstore_batch_is_exist(store, &key, 1, &code);
	kvstore_close(store);
	kvstore_destroy(store);
	exit(status != 0);
}
#endif

/* --- tests ---------------------------------------------------------------------------------------------------- */

static void text_of_all_calls(void **state)
{
	(void)state;
	static const char *const none[] = {NULL};
	struct output output = run_child(all_calls, none);
	assert_int_equal(output.status, 0);
	char *text = read_text(output.path);
	assert_non_null(text);
	assert_string_equal(text, all_calls_text);
	assert_string_equal(read_stderr(&output), "");
	remove_output(&output);
}

static void text_on_stderr(void **state)
{
	(void)state;
	static const char *const variables[] = {"MC_LOG_DIR", "none", "MC_LOG_LEVEL", "INFO", "MC_LOG_ENABLE",
	                                        "1",          NULL};
	struct output output = run_child(all_calls, variables);
	assert_int_equal(output.status, 0);
	assert_null(read_text(output.path));
	/* among whatever else is there, the text is in one piece */
	assert_non_null(strstr(read_stderr(&output), all_calls_text));
	remove_output(&output);
}

static void assert_writes_nothing(const char *const *variables)
{
	struct output output = run_child(all_calls, variables);
	assert_int_equal(output.status, 0);
	assert_null(read_text(output.path));
	remove_output(&output);
}

static void off_by_the_environment(void **state)
{
	(void)state;
	static const char *const off[] = {"MC_LOG_ENABLE", "off", NULL};
	static const char *const warning[] = {"MC_LOG_LEVEL", "WARNING", NULL};
	static const char *const error[] = {"MC_LOG_LEVEL", "error", NULL};
	static const char *const never[] = {"MC_HIFREQ_LOG_SAMPLE_RATE", "0", NULL};
	assert_writes_nothing(off);
	assert_writes_nothing(warning);
	assert_writes_nothing(error);
	assert_writes_nothing(never);
}

static unsigned count_lines(const char *text)
{
	unsigned lines = 0;
	for (; text && *text; text++)
		lines += *text == '\n';
	return lines;
}

static void all_is_written_at_exit(void **state)
{
	(void)state;
	static const char *const none[] = {NULL};
	struct output output = run_child(many_lookups, none);
	assert_int_equal(output.status, 0);
	assert_int_equal(count_lines(read_text(output.path)), 10000);
	remove_output(&output);
}

static void sampling(void **state)
{
	(void)state;
	static const char *const tenth[] = {"MC_HIFREQ_LOG_SAMPLE_RATE", "0.1", NULL};
	struct output output = run_child(many_lookups, tenth);
	assert_int_equal(output.status, 0);
	/* two lines a call; 500 calls expected, 21 is the standard deviation */
	unsigned lines = count_lines(read_text(output.path));
	assert_int_equal(lines % 2, 0);
	assert_in_range(lines, 700, 1300);
	remove_output(&output);
}

static void a_stuck_disk_blocks_no_call(void **state)
{
	(void)state;
	static const char *const none[] = {NULL};
	struct output output = run_child(stuck_disk, none);
	assert_int_equal(output.status, 0);
	/* nothing was written, and all of it is accounted for: calls and keys are the same number here */
	assert_non_null(strstr(read_stderr(&output), "lost "));
	unsigned long calls = 0, keys = 0;
	assert_int_equal(sscanf(strstr(read_stderr(&output), "lost "), "lost %lu calls (%lu keys)", &calls, &keys),
	                 2);
	assert_int_equal(calls, keys);
	assert_in_range(calls, 1, 70000);
	remove_output(&output);
}

static void a_full_disk_leaves_no_glued_lines(void **state)
{
	(void)state;
	static const char *const none[] = {NULL};
	static const char call[] = "[batch_is_exist] elapsed_us=N num_keys=1\nsuccess=0 key=k\n";
	struct output output = run_child(full_disk, none);
	assert_int_equal(output.status, 0);
	const char *text = read_text(output.path);
	assert_non_null(text);
	size_t length = strlen(text), tail = 3 * strlen(call);
	assert_true(length > tail);
	/* what was written later is whole, and begins on a line of its own */
	for (int i = 0; i < 3; i++)
		assert_memory_equal(text + length - tail + (size_t)i * strlen(call), call, strlen(call));
	assert_int_equal(text[length - tail - 1], '\n');
	assert_non_null(strstr(read_stderr(&output), "lost "));
	remove_output(&output);
}

#if CHILD_MAY_START_THREADS
static void a_child_has_a_file_of_its_own(void **state)
{
	(void)state;
	static const char *const none[] = {NULL};
	struct output output = run_child(fork_and_look_up, none);
	char path[128];
	assert_int_equal(output.status, 0);
	assert_string_equal(read_text(output.path),
	                    "[batch_is_exist] elapsed_us=N num_keys=1\nsuccess=0 key=parent\n"
	                    "[batch_is_exist] elapsed_us=N num_keys=1\nsuccess=0 key=parent\n");
	snprintf(path, sizeof(path), "%s/child", output.directory);
	assert_string_equal(read_text(path), "[batch_is_exist] elapsed_us=N num_keys=1\nsuccess=0 key=child\n");
	unlink(path);
	remove_output(&output);
}
#endif

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(text_of_all_calls),
		cmocka_unit_test(text_on_stderr),
		cmocka_unit_test(off_by_the_environment),
		cmocka_unit_test(all_is_written_at_exit),
		cmocka_unit_test(sampling),
		cmocka_unit_test(a_stuck_disk_blocks_no_call),
		cmocka_unit_test(a_full_disk_leaves_no_glued_lines),
#if CHILD_MAY_START_THREADS
		cmocka_unit_test(a_child_has_a_file_of_its_own),
#endif
	};
	return TEST_MAIN(tests);
}
