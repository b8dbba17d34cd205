/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/kvprobe/session.h"

#include <errno.h>
#include <limits.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "tools/kvprobe/diagnose.h"

#define SCAN_INTERVAL_NS 1000000000ull
#define GRACE_S          2 /* for a write that blocks when it is time to stop */

enum {
	OPTION_ATTACH = 0x100,
	OPTION_WORKERS,
	OPTION_SINGLE,
	OPTION_FILE,
};

static const struct argp_option session_option_table[] = {
        {"process", 'p', "PID,...", 0, "Watch these processes only (may be repeated)", 10},
        {"all", 'a', NULL, 0, "Watch every process that has the probes, those that start later included (default)",
         10},
        {"file", OPTION_FILE, "PATH", 0,
         "Attach to this binary even before a process has it mapped (may be repeated)", 10},
        {"duration", 'd', "SECONDS", 0, "Stop after this long", 10},
        {"attach", OPTION_ATTACH, "FORM", 0,
         "auto (the form that this kernel turns into a call, where the binary says it is safe), or force int3, nop5 "
         "or "
         "nop10",
         11},
        {"single", OPTION_SINGLE, NULL, 0, "One uprobe per site, as on kernels without uprobe_multi", 11},
        {"workers", OPTION_WORKERS, "N", 0, "Rows of the worker table (default 64, at most 1024)", 11},
        {"verbose", 'v', NULL, 0, "Say more on stderr: the attach form and why, sizes, what was left out", 12},
        {0},
};

static error_t parse_session_option(int key, char *arg, struct argp_state *state)
{
	struct session_options *options = state->input;
	int64_t number;
	switch (key) {
	case 'p':
		if (!pid_list_add(&options->pids, arg))
			argp_error(state, "-p takes process ids from 1 to %d, separated by commas, not '%s'", INT_MAX,
			           arg);
		return 0;
	case 'a':
		return 0;
	case 'd':
		if (!parse_seconds(arg, DURATION_MAX_S, &options->duration_ns))
			argp_error(state, "-d takes seconds above 0, not '%s'", arg);
		return 0;
	case 'v':
		verbosity++;
		return 0;
	case OPTION_ATTACH:
		if (!form_of_name(arg, &options->form))
			argp_error(state, "--attach takes auto, int3, nop5 or nop10, not '%s'", arg);
		return 0;
	case OPTION_WORKERS:
		if (!parse_integer(arg, 1, KVP_MAX_WORKERS, &number))
			argp_error(state, "--workers takes 1 to %d, not '%s'", KVP_MAX_WORKERS, arg);
		options->workers = (uint32_t)number;
		return 0;
	case OPTION_SINGLE:
		options->single = true;
		return 0;
	case OPTION_FILE:
		options->files =
		        grow_array(options->files, &options->files_room, options->n_files + 1, sizeof(char *));
		options->files[options->n_files++] = arg;
		return 0;
	case ARGP_KEY_ARG:
		argp_error(state, "'%s' is not understood", arg);
		return 0;
	case ARGP_KEY_END:
		if (options->pids.count > options->workers)
			argp_error(state, "more processes than --workers");
		return 0;
	default:
		return ARGP_ERR_UNKNOWN;
	}
}

const struct argp session_argp = {session_option_table, parse_session_option, NULL, NULL, NULL, NULL, NULL};

void session_options_init(struct session_options *options)
{
	*options = (struct session_options){.workers = WORKERS_DEFAULT};
}

void session_options_free(struct session_options *options)
{
	pid_list_free(&options->pids);
	free(options->files);
}

/* --- stopping --------------------------------------------------------------------------------------------------- */

static volatile sig_atomic_t interrupted;

static void on_signal(int signal_number)
{
	interrupted = 1;
	alarm(signal_number == SIGALRM ? 1
	                               : GRACE_S); /* and again: it may have come just before a write that blocks */
}

bool session_interrupted(void)
{
	return interrupted;
}

/* A write to a reader that is slow goes on after the signal (SA_RESTART), so that the last results arrive; one to a
 * reader that does not read comes back by the alarm. */
static void catch_signals(void)
{
	struct sigaction stop = {.sa_handler = on_signal, .sa_flags = SA_RESTART}, wake = {.sa_handler = on_signal};
	sigaction(SIGINT, &stop, NULL);
	sigaction(SIGTERM, &stop, NULL);
	sigaction(SIGHUP, &stop, NULL);
	sigaction(SIGALRM, &wake, NULL);
	signal(SIGPIPE, SIG_IGN);
}

/* At the deadline as if one had sent SIGTERM. */
static void set_alarm(uint64_t duration_ns)
{
	timer_t timer;
	struct sigevent event = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGTERM};
	struct itimerspec when = {
	        .it_value = {(time_t)(duration_ns / 1000000000u), (long)(duration_ns % 1000000000u)},
	};
	if (timer_create(CLOCK_MONOTONIC, &event, &timer) == 0)
		timer_settime(timer, 0, &when, NULL);
}

/* --- attaching ----------------------------------------------------------------------------------------------------
 */

static void announce(struct session *session)
{
	if (session->attached_files == 0 || session->announced_sites == session->kernel.sites)
		return;
	session->announced_sites = session->kernel.sites;
	session->announced = true;
	fprintf(stderr, "attached: %zu sites, %zu files, %zu processes, form=%s\n", session->kernel.sites,
	        session->attached_files, session->scanner.n_with_probes, kernel_side_form(&session->kernel));
	fflush(stderr);
}

/* Attach to what the scan found and is not attached yet. */
static int attach_new_files(struct session *session)
{
	for (size_t i = 0; i < session->scanner.n_files; i++) {
		struct target_file *file = session->scanner.files[i];
		if (file->attached || file->refused)
			continue;
		int code = kernel_side_attach(&session->kernel, file);
		if (code == EXIT_DONE) {
			file->attached = true;
			session->attached_files++;
		} else {
			file->refused = true;
			if (code == EXIT_NO_RIGHT)
				return code;
			if (code != EXIT_NO_MATCH) /* one broken file does not keep us from the others */
				session->failure = code;
		}
	}
	return EXIT_DONE;
}

static void scan(struct session *session)
{
	int leader;
	scan_begin(&session->scanner);
	if (session->options->pids.count == 0)
		scan_all(&session->scanner);
	for (size_t i = 0; i < session->options->pids.count; i++)
		scan_pid(&session->scanner, session->options->pids.pids[i], &leader);
	scan_finish(&session->scanner);
	session->last_scan_ns = now_mono_ns();
}

static int first_scan(struct session *session)
{
	const struct session_options *options = session->options;
	int code = EXIT_DONE;
	for (size_t i = 0; i < options->n_files; i++) {
		char error[512];
		if (!scan_file(&session->scanner, options->files[i], error, sizeof(error))) {
			say("%s", error);
			return EXIT_NO_MATCH;
		}
	}
	scan_begin(&session->scanner);
	if (options->pids.count)
		code = pid_list_scan(&options->pids, &session->scanner);
	else
		scan_all(&session->scanner);
	scan_finish(&session->scanner);
	session->last_scan_ns = now_mono_ns();
	return code;
}

static int allow_pids(struct session *session)
{
	const struct pid_list *pids = &session->options->pids;
	for (size_t i = 0; i < pids->count; i++) {
		if (!kernel_side_allow(&session->kernel, pids->pids[i])) {
			say("cannot enter pid %d into the worker table: %s", pids->pids[i], strerror(errno));
			return EXIT_RUNTIME;
		}
	}
	if (pids->count)
		say_more("the probes belong to the file: other processes that map it pay for a hit that is then left "
		         "out "
		         "(about as much as one that counts)");
	return EXIT_DONE;
}

/* "message: no process has imported it", where the command has said what that is. */
static void say_missing(const struct session *session, const char *message)
{
	const char *has_done = session->options->has_done;
	say("%s%s%s", message, has_done ? ": none has " : "", has_done ? has_done : "");
}

static void say_waiting(const struct session *session)
{
	if (session->scanner.denied && !have_capability(CAPABILITY_SYS_PTRACE))
		say("%zu processes could not be looked into: finding workers of other users needs CAP_SYS_PTRACE and "
		    "CAP_DAC_READ_SEARCH",
		    session->scanner.denied);
	if (session->scanner.unopened)
		say("%zu mapped files could not be opened: files of other mount namespaces, through /proc/PID/root, "
		    "need "
		    "CAP_SYS_PTRACE and CAP_DAC_READ_SEARCH; -v names them",
		    session->scanner.unopened);
	if (session->attached_files == 0)
		say_missing(session, "no process has the probes yet; waiting for one");
}

int session_open(struct session *session, struct session_options *options, struct kernel_options *kernel)
{
	*session = (struct session){.options = options, .started_ns = now_mono_ns()};
	if (!scanner_init(&session->scanner))
		return EXIT_RUNTIME;
	kernel->workers = options->workers;
	kernel->filter_pids = options->pids.count > 0;
	kernel->form = options->form;
	kernel->single = options->single;
	session->workers = need_memory(calloc(options->workers, sizeof(*session->workers)));

	int code = first_scan(session);
	if (code == EXIT_DONE)
		code = kernel_side_open(&session->kernel, kernel);
	if (code == EXIT_DONE)
		code = allow_pids(session);
	if (code == EXIT_DONE) {
		catch_signals();
		code = attach_new_files(session);
	}
	if (code == EXIT_NO_RIGHT)
		say("kvprobe doctor says more about what this user can do on this host");
	if (code != EXIT_DONE)
		return code;
	if (session->failure && session->attached_files == 0)
		return session->failure;
	if (options->pids.count && session->attached_files == 0) {
		say_missing(session, "nothing to attach to: the processes have no probe that was asked for");
		return EXIT_NO_MATCH;
	}
	session_update_workers(session); /* who the listed processes are, while they live */
	say_waiting(session);
	announce(session);
	if (options->duration_ns) { /* attaching one by one takes time that is not to be taken from it */
		session->deadline_ns = now_mono_ns() + options->duration_ns;
		set_alarm(options->duration_ns);
	}
	return EXIT_DONE;
}

/* --- workers -------------------------------------------------------------------------------------------------------
 */

/* The process behind a row, looked up afresh if the last scan did not have it. */
static struct process *process_of(struct session *session, int pid)
{
	struct process *process = id_map_get(&session->scanner.processes, (uint64_t)pid);
	int leader;
	if (!process && scan_pid(&session->scanner, pid, &leader) != SCAN_NO_PROCESS)
		process = id_map_get(&session->scanner.processes, (uint64_t)pid);
	return process;
}

/* A /proc mounted with hidepid does not show it, but it is there. */
static bool is_hidden(int pid)
{
	char path[64];
	snprintf(path, sizeof(path), "/proc/%d/stat", pid);
	return access(path, F_OK) < 0 && (kill(pid, 0) == 0 || errno == EPERM);
}

static void update_worker(struct session *session, uint32_t slot, uint64_t claim)
{
	struct worker *worker = &session->workers[slot];
	const struct kvp_worker *row = &session->kernel.workers[slot];
	if (worker->exited)
		return;
	int pid = (int)(uint32_t)claim;
	struct process *process = process_of(session, pid);
	if (!worker->pid) {
		worker->pid = worker->nspid = pid;
		printable(worker->comm, sizeof(worker->comm), row->comm, strnlen(row->comm, sizeof(row->comm)));
	}
	if (process && (!worker->start_time || process->start_time == worker->start_time)) {
		worker->start_time = process->start_time;
		worker->nspid = process->nspid ? process->nspid : pid;
		worker->skipped_fork = process_skipped(process);
		if (process->comm[0]) /* one that is ending has no name any more */
			memcpy(worker->comm, process->comm, sizeof(worker->comm));
		return;
	}
	if (!process && is_hidden(pid))
		return;
	worker->exited = true;
	kernel_side_retire(&session->kernel, slot);
}

void session_update_workers(struct session *session)
{
	uint32_t slot = 0;
	for (; slot < session->options->workers; slot++) {
		uint64_t claim = __atomic_load_n(&session->kernel.workers[slot].claim, __ATOMIC_RELAXED);
		if (!claim)
			break;
		update_worker(session, slot, claim);
	}
	session->n_workers = slot;
}

static bool all_listed_ended(const struct session *session)
{
	if (session->options->pids.count == 0)
		return false;
	for (size_t i = 0; i < session->options->pids.count; i++) /* theirs are the first rows */
		if (!session->workers[i].exited)
			return false;
	return true;
}

static void read_skipped(struct session *session)
{
	for (size_t i = 0; i < session->scanner.n_with_probes; i++)
		process_read_skipped(session->scanner.with_probes[i]);
}

bool session_step(struct session *session)
{
	uint64_t now = now_mono_ns();
	if (interrupted || (session->deadline_ns && now >= session->deadline_ns))
		return true;
	if (now - session->last_scan_ns < SCAN_INTERVAL_NS)
		return false;
	scan(session);
	int code = attach_new_files(session);
	if (code != EXIT_DONE)
		session->failure = code;
	announce(session);
	read_skipped(session);
	session_update_workers(session);
	return all_listed_ended(session);
}

uint64_t session_patience(const struct session *session, uint64_t most)
{
	uint64_t now = now_mono_ns();
	uint64_t next = session->last_scan_ns + SCAN_INTERVAL_NS;
	if (session->deadline_ns && session->deadline_ns < next)
		next = session->deadline_ns;
	uint64_t left = next > now ? next - now : 0;
	return left < most ? left : most;
}

/* --- the end
 * --------------------------------------------------------------------------------------------------------- */

void session_detach(struct session *session)
{
	if (!session->kernel.skeleton)
		return;
	scan(session); /* who has ended meanwhile */
	read_skipped(session);
	kernel_side_detach(&session->kernel);
	session_update_workers(session);
}

void session_close(struct session *session)
{
	kernel_side_close(&session->kernel);
	scanner_free(&session->scanner);
	free(session->workers);
	session->workers = NULL;
}

uint64_t session_skipped_fork(const struct session *session)
{
	uint64_t skipped = session->scanner.skipped_gone;
	for (size_t i = 0; i < session->scanner.n_with_probes; i++)
		skipped += process_skipped(session->scanner.with_probes[i]);
	return skipped;
}

int session_nothing_seen(const struct session *session)
{
	if (session->attached_files)
		return EXIT_DONE;
	if (session->scanner.denied && !have_capability(CAPABILITY_SYS_PTRACE)) {
		say("nothing was attached; %zu processes could not be looked into for want of CAP_SYS_PTRACE",
		    session->scanner.denied);
		return EXIT_NO_RIGHT;
	}
	say_missing(session, "nothing was attached: no process had the probes");
	return EXIT_NO_MATCH;
}
