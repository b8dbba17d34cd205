/* SPDX-License-Identifier: Apache-2.0 */
/* kvmaster from outside: its settings, its one line, its exit codes. */
#include "tests/unit/wire_peer.h"

#include <fcntl.h>
#include <libgen.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "store/base/log.h"
#include "store/master/kvmaster_settings.h"

extern char **environ;

/* --- settings ------------------------------------------------------------------------------------- */

static void expect_set(struct settings *settings, const char *name, const char *value)
{
	char why[SETTINGS_WHY] = "";
	assert_int_equal(settings_set(settings, name, value, why), KV_OK);
}

static void expect_refused(const char *name, const char *value, int status)
{
	struct settings settings;
	char why[SETTINGS_WHY] = "";
	settings_default(&settings);
	assert_int_equal(settings_set(&settings, name, value, why), status);
	assert_non_null(strstr(why, name)); /* it says which */
}

static void settings_are_taken_by_name(void **state)
{
	(void)state;
	struct settings settings;
	settings_default(&settings);
	assert_string_equal(settings.rpc_address, "127.0.0.1");
	assert_int_equal(settings.rpc_port, 50051);
	assert_int_equal(settings.master.kv_lease_ttl_ms, 10000);
	assert_int_equal(settings.master.soft_pin_ttl_ms, 30 * 60 * 1000);
	assert_int_equal(settings.master.max_soft_pin_ttl_ms, 24 * 3600 * 1000);
	assert_int_equal(settings.master.put_start_release_ms, 600000);
	expect_set(&settings, "rpc_address", "0.0.0.0");
	expect_set(&settings, "rpc_port", "0");
	expect_set(&settings, "rpc_thread_num", "3");
	expect_set(&settings, "default_kv_lease_ttl", "5000");
	expect_set(&settings, "default_kv_soft_pin_ttl", "2m");
	expect_set(&settings, "max_kv_soft_pin_ttl", "1h");
	expect_set(&settings, "allow_evict_soft_pinned_objects", "false");
	expect_set(&settings, "eviction_ratio", "0.1");
	expect_set(&settings, "eviction_high_watermark_ratio", "0.75");
	expect_set(&settings, "put_start_discard_timeout_sec", "7");
	expect_set(&settings, "put_start_release_timeout_sec", "70");
	expect_set(&settings, "client_ttl", "20");
	expect_set(&settings, "allocation_strategy", "random");
	assert_string_equal(settings.rpc_address, "0.0.0.0");
	assert_int_equal(settings.rpc_port, 0);
	assert_int_equal(settings.rpc_threads, 3);
	assert_int_equal(settings.master.kv_lease_ttl_ms, 5000);
	assert_int_equal(settings.master.soft_pin_ttl_ms, 120000);
	assert_int_equal(settings.master.max_soft_pin_ttl_ms, 3600000);
	assert_false(settings.master.allow_evict_soft_pinned);
	assert_true(settings.master.eviction_ratio > 0.099 && settings.master.eviction_ratio < 0.101);
	assert_true(settings.master.eviction_high_watermark > 0.749);
	assert_int_equal(settings.master.put_start_discard_ms, 7000);
	assert_int_equal(settings.master.put_start_release_ms, 70000);
	assert_int_equal(settings.master.client_ttl_ms, 20000);
}

static void bad_settings_are_refused_by_name(void **state)
{
	(void)state;
	expect_refused("rpc_port", "65536", KV_INVALID_PARAMS);
	expect_refused("rpc_port", "-1", KV_INVALID_PARAMS);
	expect_refused("rpc_address", "", KV_INVALID_PARAMS);
	expect_refused("rpc_thread_num", "1000", KV_INVALID_PARAMS);
	expect_refused("default_kv_lease_ttl", "10 days", KV_INVALID_PARAMS);
	expect_refused("default_kv_lease_ttl", "99999999999h", KV_INVALID_PARAMS);
	expect_refused("eviction_ratio", "1.5", KV_INVALID_PARAMS);
	expect_refused("eviction_ratio", "nan", KV_INVALID_PARAMS);
	expect_refused("allow_evict_soft_pinned_objects", "maybe", KV_INVALID_PARAMS);
	expect_refused("client_ttl", "0", KV_INVALID_PARAMS);
	expect_refused("put_start_discard_timeout_sec", "10s", KV_INVALID_PARAMS);
	expect_refused("allocation_strategy", "local_first", KV_NOT_SUPPORTED);
	expect_refused("enable_ha", "true", KV_NOT_SUPPORTED);
	expect_refused("metrics_port", "9003", KV_NOT_SUPPORTED);
	expect_refused("no_such_thing", "1", KV_INVALID_PARAMS);
	struct settings settings;
	settings_default(&settings);
	expect_set(&settings, "enable_ha", "false"); /* off is what it is */
	expect_refused("enable_snapshot", "true", KV_NOT_SUPPORTED);
	expect_refused("root_fs_dir", "/data", KV_NOT_SUPPORTED);
	kv_log_set_level(KV_LOG_ERROR);
	expect_set(&settings, "enable_http_metadata_server", "true"); /* nobody can miss it */
	expect_set(&settings, "cluster_id", "a");
	kv_log_set_level(KV_LOG_WARNING);
}

/* --- files ------------------------------------------------------------------------------------------ */

static char directory[64];

static int make_directory(void **state)
{
	(void)state;
	strcpy(directory, "/tmp/kv-test-XXXXXX");
	return mkdtemp(directory) ? 0 : -1;
}

static const char *file_of(const char *text)
{
	static char path[128];
	snprintf(path, sizeof(path), "%s/config.json", directory);
	FILE *file = fopen(path, "w");
	assert_non_null(file);
	fputs(text, file);
	assert_int_equal(fclose(file), 0);
	return path;
}

static int remove_directory(void **state)
{
	(void)state;
	unlink(file_of(""));
	return rmdir(directory);
}

static void a_file_holds_the_same_names(void **state)
{
	(void)state;
	struct settings settings;
	char why[SETTINGS_WHY] = "";
	settings_default(&settings);
	const char *path = file_of("{\"rpc_port\": 1234, \"rpc_address\": \"::1\", \"client_ttl\": \"30\",\n"
	                           " \"default_kv_lease_ttl\": \"3s\", \"eviction_ratio\": 0.2,\n"
	                           " \"allow_evict_soft_pinned_objects\": false, \"enable_ha\": false}");
	assert_int_equal(settings_load(&settings, path, why), KV_OK);
	assert_int_equal(settings.rpc_port, 1234);
	assert_string_equal(settings.rpc_address, "::1");
	assert_int_equal(settings.master.client_ttl_ms, 30000);
	assert_int_equal(settings.master.kv_lease_ttl_ms, 3000);
	assert_true(settings.master.eviction_ratio > 0.199 && settings.master.eviction_ratio < 0.201);
	assert_false(settings.master.allow_evict_soft_pinned);
	static const char *const bad[] = {"",
	                                  "[]",
	                                  "{\"rpc_port\": }",
	                                  "{\"rpc_port\": [1]}",
	                                  "{\"rpc_port\": null}",
	                                  "{\"typo\": 1}",
	                                  "{\"rpc_port\": 1, \"rpc_port\": 2}"};
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		why[0] = '\0';
		assert_true(settings_load(&settings, file_of(bad[i]), why) < 0);
		assert_true(strlen(why) > 0);
	}
	assert_true(settings_load(&settings, "/nonexistent/config.json", why) < 0);
}

/* --- the process -------------------------------------------------------------------------------------- */

struct process {
	pid_t pid;
	int out, err;
};

static const char *kvmaster_path(void)
{
	static char path[PATH_MAX];
	char self[PATH_MAX];
	ssize_t n = readlink("/proc/self/exe", self, sizeof(self) - 1);
	assert_true(n > 0);
	self[n] = '\0';
	snprintf(path, sizeof(path), "%.4000s/../bin/kvmaster", dirname(self));
	return path;
}

/* Up to three arguments. */
static struct process run(const char *a, const char *b, const char *c)
{
	struct process process;
	int out[2], err[2];
	char *argv[] = {(char *)(uintptr_t) "kvmaster", (char *)(uintptr_t)a, (char *)(uintptr_t)b,
	                (char *)(uintptr_t)c, NULL};
	posix_spawn_file_actions_t actions;
	assert_int_equal(pipe2(out, O_CLOEXEC), 0);
	assert_int_equal(pipe2(err, O_CLOEXEC), 0);
	posix_spawn_file_actions_init(&actions);
	posix_spawn_file_actions_adddup2(&actions, out[1], STDOUT_FILENO);
	posix_spawn_file_actions_adddup2(&actions, err[1], STDERR_FILENO);
	assert_int_equal(posix_spawn(&process.pid, kvmaster_path(), &actions, NULL, argv, environ), 0);
	posix_spawn_file_actions_destroy(&actions);
	close(out[1]);
	close(err[1]);
	process.out = out[0];
	process.err = err[0];
	return process;
}

/* Until the end, or until a line is whole. */
static void read_text(int fd, char *text, size_t size, bool line)
{
	size_t have = 0;
	while (have + 1 < size && !(line && memchr(text, '\n', have))) {
		struct pollfd poller = {.fd = fd, .events = POLLIN};
		assert_int_equal(poll(&poller, 1, 60000), 1);
		ssize_t n = read(fd, text + have, size - 1 - have);
		if (n <= 0)
			break;
		have += (size_t)n;
	}
	text[have] = '\0';
}

/* Its exit code; what it said on stderr is in `err`. */
static int finish(struct process *process, char *err, size_t size)
{
	int status;
	read_text(process->err, err, size, false);
	close(process->out);
	close(process->err);
	assert_int_equal(waitpid(process->pid, &status, 0), process->pid);
	assert_true(WIFEXITED(status));
	return WEXITSTATUS(status);
}

static uint16_t port_of_line(const char *line)
{
	int port = 0, end = 0;
	assert_int_equal(sscanf(line, "kvmaster listening on 127.0.0.1:%d%n", &port, &end), 1);
	assert_string_equal(line + end, "\n");
	assert_in_range(port, 1, 65535);
	return (uint16_t)port;
}

/* The command line knows the same names as the file. */
static void flags_of_other_masters_are_ignored_aloud_or_refused(void **state)
{
	(void)state;
	char line[256], err[4096];
	struct process process =
	        run("--enable_http_metadata_server", "--http_metadata_server_port=8080", "--rpc_port=0");
	read_text(process.out, line, sizeof(line), true);
	port_of_line(line);
	assert_int_equal(kill(process.pid, SIGTERM), 0);
	assert_int_equal(finish(&process, err, sizeof(err)), 0);
	assert_non_null(strstr(err, "enable_http_metadata_server=true is ignored"));
	assert_non_null(strstr(err, "http_metadata_server_port=8080 is ignored"));

	process = run("--metrics_port", "9003", "--rpc_port=0");
	assert_int_equal(finish(&process, err, sizeof(err)), 64);
	assert_non_null(strstr(err, "--metrics_port=9003: not supported"));
	process = run("--enable_ha", "--rpc_port=0", NULL);
	assert_int_equal(finish(&process, err, sizeof(err)), 64);
	assert_non_null(strstr(err, "--enable_ha=true: not supported"));
}

static void it_says_where_it_listens_and_ends_cleanly(void **state)
{
	(void)state;
	static const int signals[] = {SIGTERM, SIGINT};
	for (int i = 0; i < 2; i++) {
		struct process process = run("--rpc_port=0", "--rpc_thread_num", "2");
		char line[256], err[4096];
		read_text(process.out, line, sizeof(line), true);
		uint16_t port = port_of_line(line);
		struct kv_arena arena = {.limit = 0};
		struct kvm_client_req ping = {.client = {1, 2}};
		int fd = peer_connect(port);
		struct kvm_ping_resp *answer = peer_ask(fd, &arena, KVW_PING, 1, &ping);
		assert_int_equal(answer->need_remount, 1);

		/* A second one on the same port says so. */
		char option[32], other_err[4096];
		snprintf(option, sizeof(option), "--rpc_port=%u", port);
		struct process other = run(option, NULL, NULL);
		assert_int_equal(finish(&other, other_err, sizeof(other_err)), 1);
		assert_non_null(strstr(other_err, "Address already in use"));

		assert_int_equal(kill(process.pid, signals[i]), 0);
		assert_int_equal(finish(&process, err, sizeof(err)), 0);
		assert_true(peer_is_closed(fd));
		close(fd);
		kv_arena_free(&arena);
	}
}

static void expect_usage_error(const char *a, const char *b, const char *said)
{
	char err[4096];
	struct process process = run(a, b, NULL);
	assert_int_equal(finish(&process, err, sizeof(err)), 64);
	assert_non_null(strstr(err, said));
}

static void usage_errors_are_64(void **state)
{
	(void)state;
	expect_usage_error("--no_such_flag=1", NULL, "no_such_flag");
	expect_usage_error("--rpc_port", "banana", "rpc_port=banana");
	expect_usage_error("--allocation_strategy=free_ratio_first", NULL, "only strategy this version supports");
	expect_usage_error("argument", NULL, "unexpected argument");
	expect_usage_error("--config_path", file_of("{\"enable_snapshot\": true}"), "not supported by this version");
	expect_usage_error("--config_path", "/nonexistent", "/nonexistent");
	expect_usage_error("--client_ttl", NULL, "client_ttl");
}

static void help_teaches(void **state)
{
	(void)state;
	char text[16384], err[256];
	struct process process = run("--help", NULL, NULL);
	read_text(process.out, text, sizeof(text), false);
	assert_int_equal(finish(&process, err, sizeof(err)), 0);
	assert_non_null(strstr(text, "Example:"));
	assert_non_null(strstr(text, "--default_kv_lease_ttl=TIME"));
	process = run("--version", NULL, NULL);
	read_text(process.out, text, sizeof(text), false);
	assert_int_equal(finish(&process, err, sizeof(err)), 0);
	assert_string_equal(text, "kvmaster " KVPROBE_VERSION "\n");
}

static void the_command_line_overrules_the_file(void **state)
{
	(void)state;
	char config[160], line[256], err[4096];
	/* The file's port could not be bound without being root; its address is what is left of it. */
	snprintf(config, sizeof(config), "--config_path=%s",
	         file_of("{\"rpc_port\": 1, \"rpc_address\": \"127.0.0.1\"}"));
	struct process process = run("--rpc_port=0", config, NULL);
	read_text(process.out, line, sizeof(line), true);
	assert_true(port_of_line(line) != 1);
	assert_int_equal(kill(process.pid, SIGTERM), 0);
	assert_int_equal(finish(&process, err, sizeof(err)), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(settings_are_taken_by_name),
	        cmocka_unit_test(bad_settings_are_refused_by_name),
	        cmocka_unit_test(a_file_holds_the_same_names),
	        cmocka_unit_test(flags_of_other_masters_are_ignored_aloud_or_refused),
	        cmocka_unit_test(it_says_where_it_listens_and_ends_cleanly),
	        cmocka_unit_test(usage_errors_are_64),
	        cmocka_unit_test(help_teaches),
	        cmocka_unit_test(the_command_line_overrules_the_file),
	};
	return cmocka_run_group_tests_name("master-process", tests, make_directory, remove_directory);
}
