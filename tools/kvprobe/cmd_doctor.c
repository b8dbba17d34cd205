/* SPDX-License-Identifier: Apache-2.0 */
/* kvprobe doctor: can this user trace on this host? Proven by tracing kvprobe itself; and if not, why, and what to
 * do. */
#include <argp.h>
#include <jansson.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tools/kvprobe/commands.h"
#include "tools/kvprobe/common.h"
#include "tools/kvprobe/diagnose.h"
#include "tools/kvprobe/findings.h"
#include "tools/kvprobe/proc_scan.h"

#define PATIENCE_S 60

static const char doc[] =
        "Say whether this user can trace on this host, and if not, what is missing and how to get it.\v"
        "Nothing is guessed that can be tried: the real programs are loaded, attached to a probe in kvprobe's own "
        "binary, and the one firing must be counted. Needs no rights, attaches to no other process, and leaves "
        "nothing behind.\n\n"
        "A line begins with ok; no (stands in the way; 'fix:' below it says what to do); warn (tracing works, but "
        "something will be missing or slow, or it may be the cause); info (no matter here). The last line is the "
        "verdict.\n\n"
        "JSON (--json, one object): type (doctor), can_trace, verdict, fix, missing, kernel, machine, attach_form "
        "(what the kernel optimises), form (used in the self-test), links (multi, single), loaded, attached, "
        "counted, "
        "cap_bpf, cap_perfmon, cap_sys_admin, cap_sys_ptrace, cap_dac_read_search, bpf_errno (EINVAL: enabled), "
        "uprobe_multi, ring_buffer, jit, tracefs, lockdown, memlock_bytes (-1: unlimited), seccomp, no_new_privs, "
        "user_namespace, host_pid_namespace, unprivileged_bpf_disabled, perf_event_paranoid, workers, "
        "workers_denied. null: not known.\n\n"
        "Exit status: 0 this user can trace here, 3 not, 64 usage.\n\n"
        "Examples:\n"
        "  kvprobe doctor              first when something does not work\n"
        "  kvprobe doctor -v           with what each line is about, and what the kernel said\n"
        "  kvprobe doctor --single     as for kernels without uprobe_multi links (before 6.6)\n"
        "  kvprobe doctor --json | jq .can_trace";

enum {
	OPTION_SINGLE = 0x300,
};

static const struct argp_option options[] = {
        {"json", 'j', NULL, 0, "One JSON object on one line", 0},
        {"single", OPTION_SINGLE, NULL, 0, "Try one uprobe per site even where the kernel has multi links", 0},
        {"verbose", 'v', NULL, 0, "Say more of each finding; on stderr, what the kernel said", 0},
        {0},
};

struct doctor_options {
	bool json, single;
};

static error_t parse_option(int key, char *arg, struct argp_state *state)
{
	struct doctor_options *opts = state->input;
	switch (key) {
	case 'j':
		opts->json = true;
		return 0;
	case 'v':
		verbosity++;
		return 0;
	case OPTION_SINGLE:
		opts->single = true;
		return 0;
	case ARGP_KEY_ARG:
		argp_error(state, "'%s' is not understood", arg);
		return 0;
	default:
		return ARGP_ERR_UNKNOWN;
	}
}

/* A kernel that does not answer is an answer, too. */
static void on_alarm(int signal_number)
{
	(void)signal_number;
	static const char text[] = "kvprobe: the kernel did not answer within 60 s; this user cannot trace here\n";
	ssize_t written = write(STDERR_FILENO, text, sizeof(text) - 1);
	(void)written;
	_exit(EXIT_NO_RIGHT);
}

static void limit_time(void)
{
	struct sigaction action = {.sa_handler = on_alarm};
	sigaction(SIGALRM, &action, NULL);
	alarm(PATIENCE_S);
}

static void count_workers(struct findings_input *input, char *problem, size_t size)
{
	struct scanner scanner;
	say_into(problem, size);
	input->scanned = scanner_init(&scanner);
	if (input->scanned) {
		scan_begin(&scanner);
		scan_all(&scanner);
		scan_finish(&scanner);
		input->workers = scanner.n_with_probes;
		input->denied = scanner.denied;
	}
	say_into(NULL, 0);
	scanner_free(&scanner);
	input->scan_problem = problem;
}

/* --- JSON ---------------------------------------------------------------------------------------------------------
 */

static json_t *text_or_null(const char *text)
{
	return text[0] ? json_string(text) : json_null();
}

static json_t *number_or_null(int64_t number)
{
	return number == HOST_UNKNOWN ? json_null() : json_integer(number);
}

static void add_rights(json_t *object, const struct host_facts *host)
{
	static const struct {
		const char *name;
		enum capability capability;
	} rights[] = {
	        {"cap_bpf", CAPABILITY_BPF},
	        {"cap_perfmon", CAPABILITY_PERFMON},
	        {"cap_sys_admin", CAPABILITY_SYS_ADMIN},
	        {"cap_sys_ptrace", CAPABILITY_SYS_PTRACE},
	        {"cap_dac_read_search", CAPABILITY_DAC_READ_SEARCH},
	};
	for (size_t i = 0; i < sizeof(rights) / sizeof(rights[0]); i++)
		json_object_set_new(object, rights[i].name,
		                    json_boolean(host->capabilities >> rights[i].capability & 1));
}

static void add_host(json_t *object, const struct host_facts *host)
{
	json_object_set_new(object, "bpf_errno", json_integer(host->bpf_error));
	json_object_set_new(object, "tracefs", text_or_null(host->tracefs));
	json_object_set_new(object, "lockdown", text_or_null(host->lockdown_known ? host->lockdown : ""));
	json_object_set_new(object, "memlock_bytes", number_or_null(host->memlock_bytes));
	json_object_set_new(object, "seccomp", json_integer(host->seccomp));
	json_object_set_new(object, "no_new_privs", json_boolean(host->no_new_privileges));
	json_object_set_new(object, "user_namespace", json_boolean(host->user_namespace));
	json_object_set_new(object, "host_pid_namespace", json_boolean(host->proc_shows_host));
	json_object_set_new(object, "unprivileged_bpf_disabled", number_or_null(host->unprivileged_bpf_disabled));
	json_object_set_new(object, "perf_event_paranoid", number_or_null(host->perf_event_paranoid));
}

static void add_test(json_t *object, const struct self_test *test, bool single)
{
	json_object_set_new(object, "attach_form", json_string(form_name(test->kernel_form)));
	json_object_set_new(object, "form", test->attached ? json_string(test->form) : json_null());
	json_object_set_new(object, "links",
	                    test->loaded ? json_string(test->multi ? "multi" : "single") : json_null());
	json_object_set_new(object, "loaded", json_boolean(test->loaded));
	json_object_set_new(object, "attached", json_boolean(test->attached));
	json_object_set_new(object, "counted", json_integer((json_int_t)test->counted));
	json_object_set_new(object, "uprobe_multi",
	                    test->loaded && !single ? json_boolean(test->multi) : json_null());
	json_object_set_new(object, "ring_buffer", test->loaded ? json_true() : json_null());
	json_object_set_new(object, "jit", test->loaded ? json_boolean(test->jited) : json_null());
}

static void print_json(const struct findings *findings, const struct findings_input *input)
{
	json_t *object = need_memory(json_object());
	json_object_set_new(object, "type", json_string("doctor"));
	json_object_set_new(object, "can_trace", json_boolean(findings->can_trace));
	json_object_set_new(object, "verdict", json_string(findings->verdict));
	json_object_set_new(object, "fix", text_or_null(findings->can_trace ? "" : findings->fix));
	json_object_set_new(object, "missing", json_string(findings->missing));
	json_object_set_new(object, "kernel", json_string(input->host.release));
	json_object_set_new(object, "machine", json_string(input->host.machine));
	add_test(object, &input->test, input->single);
	add_rights(object, &input->host);
	add_host(object, &input->host);
	json_object_set_new(object, "workers",
	                    input->scanned ? json_integer((json_int_t)input->workers) : json_null());
	json_object_set_new(object, "workers_denied",
	                    input->scanned ? json_integer((json_int_t)input->denied) : json_null());
	char *text = need_memory(json_dumps(object, JSON_COMPACT | JSON_PRESERVE_ORDER));
	puts(text);
	free(text);
	json_decref(object);
}

int cmd_doctor(int argc, char **argv)
{
	static const struct argp argp = {options, parse_option, NULL, doc, NULL, NULL, NULL};
	struct doctor_options opts = {0};
	char problem[512];
	argp_parse(&argp, argc, argv, 0, NULL, &opts);
	limit_time();

	char *setcap_multi = setcap_command(SETCAP_MULTI), *setcap_single = setcap_command(SETCAP_SINGLE);
	struct findings_input input = {
	        .single = opts.single, .setcap_multi = setcap_multi, .setcap_single = setcap_single};
	struct findings *findings = need_memory(calloc(1, sizeof(*findings)));
	host_facts_read(&input.host);
	self_test_run(&input.test, opts.single);
	count_workers(&input, problem, sizeof(problem));
	findings_make(findings, &input);
	alarm(0); /* a reader may take its time */
	if (opts.json)
		print_json(findings, &input);
	else
		findings_print(findings, stdout, verbosity > 0);
	int code = findings->can_trace ? EXIT_DONE : EXIT_NO_RIGHT;
	free(findings);
	free(setcap_multi);
	free(setcap_single);
	return code;
}
