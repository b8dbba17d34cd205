/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What log and stat have in common: choose the workers, load, attach, notice workers and files that come and
 * go, stop in time, detach, and say at the end what was seen and what was lost.
 */
#ifndef KVPROBE_SESSION_H
#define KVPROBE_SESSION_H

#include <argp.h>

#include "tools/kvprobe/kernel_side.h"
#include "tools/kvprobe/pid_list.h"

#define WORKERS_DEFAULT 64
#define RING_MB_DEFAULT 64
#define RING_MB_MAX     1024
#define DURATION_MAX_S  (366.0 * 24 * 3600)

/* Options of session_argp, a child parser of the subcommands' own. */
struct session_options {
	struct pid_list pids;
	char **files; /* attach to these whether mapped or not */
	size_t n_files, files_room;
	enum attach_form form;
	uint32_t workers;
	bool single;
	uint64_t duration_ns; /* 0: until told to stop */
	const char *has_done; /* what a process has done to have the probes, for messages; NULL: no word on it */
};
extern const struct argp session_argp;
void session_options_init(struct session_options *options);
void session_options_free(struct session_options *options);

/* A row of the worker table, as far as user space knows. */
struct worker {
	int pid, nspid;
	char comm[64];
	uint64_t start_time;
	uint64_t skipped_fork; /* calls that its fork guards held back while we watched */
	bool exited;
};

struct session {
	struct session_options *options;
	struct kernel_side kernel;
	struct scanner scanner;
	struct worker *workers; /* by slot */
	uint32_t n_workers;     /* rows in use */
	uint64_t started_ns, deadline_ns, last_scan_ns;
	size_t attached_files;
	bool announced; /* the "attached:" line was printed */
	size_t announced_sites;
	int failure; /* exit code of a file that could not be attached later on */
};

/* kernel: what to load; the session fills in workers, pids and form. Returns an exit code. */
int session_open(struct session *session, struct session_options *options, struct kernel_options *kernel);
/* Call often. Looks for new workers and files once a second. True: time to stop (signal, deadline, or every
 * process of -p has ended). */
bool session_step(struct session *session);
/* Nanoseconds until session_step should be called again, at most `most`. */
uint64_t session_patience(const struct session *session, uint64_t most);
/* Bring the rows of workers up to date. */
void session_update_workers(struct session *session);
/* Detach and take the last counts of the fork guard. */
void session_detach(struct session *session);
void session_close(struct session *session);

/* Calls that fork guards held back while we watched, of all processes. */
uint64_t session_skipped_fork(const struct session *session);
/* Did nothing ever match? Says so, and why; the exit code then. */
int session_nothing_seen(const struct session *session);

/* Set by SIGINT and SIGTERM. */
bool session_interrupted(void);

#endif
