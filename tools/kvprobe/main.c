/* SPDX-License-Identifier: Apache-2.0 */
/* kvprobe: the collector. Each subcommand is a file cmd_NAME.c. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tools/kvprobe/commands.h"
#include "tools/kvprobe/common.h"

static const struct {
	const char *name;
	int (*run)(int argc, char **argv);
	const char *purpose;
} commands[] = {
        {"list", cmd_list, "which keys a process or a file has, and whether someone watches them"},
        {"log", cmd_log, "the MC_LOG text of running workers: one summary per call, one line per key"},
        {"stat", cmd_stat, "calls, failures, bytes and durations per worker and key, counted in the kernel"},
        {"xfer", cmd_xfer, "the line 'KV Transfer metrics: ...' of running workers, and of all together"},
        {"check", cmd_check, "do the probes of a binary stand as the list of keys says?"},
        {"doctor", cmd_doctor, "can this user trace on this host, and if not, what is missing?"},
};
#define N_COMMANDS (sizeof(commands) / sizeof(commands[0]))

static void print_help(FILE *out)
{
	fprintf(out, "Usage: kvprobe COMMAND [OPTION...]\n"
	             "Watch a KV-cache store's running workers from outside, through their probes.\n\nCommands:\n");
	for (size_t i = 0; i < N_COMMANDS; i++)
		fprintf(out, "  %-8s%s\n", commands[i].name, commands[i].purpose);
	fprintf(out,
	        "  %-8s%s\n\n"
	        "kvprobe COMMAND --help shows a command's options, with examples.\n\n"
	        "Exit status: 0 done, or ended by SIGINT or SIGTERM; 1 runtime failure or failed check; 2 no such\n"
	        "process, probe or match; 3 a right or a kernel feature is missing; 4 done, but data was lost;\n"
	        "64 usage. Diagnostics go to stderr, results to stdout.\n",
	        "help", "this text, or with a command's name its help");
}

static int run(size_t command, int argc, char **argv)
{
	char *name = format_text("kvprobe %s", commands[command].name);
	argv[0] = name;
	int code = commands[command].run(argc, argv);
	free(name);
	return code;
}

static int find_command(const char *name)
{
	for (size_t i = 0; i < N_COMMANDS; i++)
		if (strcmp(commands[i].name, name) == 0)
			return (int)i;
	return -1;
}

/* A descriptor 0 to 2 that was closed would become some map or file of ours, and output would go there. */
static void fill_standard_descriptors(void)
{
	int fd;
	do
		fd = open("/dev/null", O_RDONLY); /* where output fails, and is noticed */
	while (fd >= 0 && fd <= STDERR_FILENO);
	if (fd >= 0)
		close(fd);
}

/* Results that did not arrive are a failure, wherever the program ends; a reader that has seen enough is none. */
static void check_stdout(void)
{
	errno = 0;
	bool failed = ferror(stdout) != 0;
	failed = fflush(stdout) != 0 || failed;
	if (!failed)
		return;
	int error = errno;
	struct pollfd out = {.fd = STDOUT_FILENO};
	if (error == EPIPE || (poll(&out, 1, 0) == 1 && (out.revents & POLLERR)))
		return;
	say("writing to stdout: %s", error ? strerror(error) : "failed");
	_exit(EXIT_RUNTIME);
}

int main(int argc, char **argv)
{
	fill_standard_descriptors();
	atexit(check_stdout);
	if (argc < 2) {
		print_help(stderr);
		return EXIT_USAGE;
	}
	const char *name = argv[1];
	if (strcmp(name, "--version") == 0 || strcmp(name, "-V") == 0) {
		printf("kvprobe %s\n", KVPROBE_VERSION);
		return EXIT_DONE;
	}
	bool wants_help = strcmp(name, "help") == 0 || strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0;
	if (wants_help && argc == 2) {
		print_help(stdout);
		return EXIT_DONE;
	}
	int command = find_command(wants_help ? argv[2] : name);
	if (command < 0) {
		fprintf(stderr, "kvprobe: '%s' is not a command. The commands are:", wants_help ? argv[2] : name);
		for (size_t i = 0; i < N_COMMANDS; i++)
			fprintf(stderr, " %s", commands[i].name);
		fprintf(stderr, " help\n");
		return EXIT_USAGE;
	}
	if (wants_help) {
		char help[] = "--help", *help_argv[] = {argv[0], help, NULL};
		return run((size_t)command, 2, help_argv);
	}
	return run((size_t)command, argc - 1, argv + 1);
}
