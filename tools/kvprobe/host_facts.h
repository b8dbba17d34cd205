/* SPDX-License-Identifier: Apache-2.0 */
/* What the host says of itself and of this process without any right, as far as tracing depends on it. */
#ifndef KVPROBE_HOST_FACTS_H
#define KVPROBE_HOST_FACTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum capability {
	CAPABILITY_DAC_READ_SEARCH = 2,
	CAPABILITY_SYS_PTRACE = 19,
	CAPABILITY_SYS_ADMIN = 21,
	CAPABILITY_PERFMON = 38,
	CAPABILITY_BPF = 39,
	CAPABILITY_CHECKPOINT_RESTORE = 40,
};

#define HOST_WORD_MAX         32
#define HOST_PATH_MAX         256
#define INITIAL_PID_NAMESPACE 0xEFFFFFFCu /* the inode of its file is fixed */
#define HOST_UNKNOWN          INT64_MIN   /* a setting that cannot be read */

/* The first Linux that has what kvprobe cannot do without: uprobes with attach cookies. */
#define OLDEST_MAJOR 5
#define OLDEST_MINOR 15

struct host_facts {
	char release[80], machine[16];
	uint64_t capabilities; /* the effective set, bit per capability */
	int bpf_error;         /* what bpf(2) answers to a command that there is not; EINVAL: it is there for us */
	char lockdown[HOST_WORD_MAX];
	bool lockdown_known;
	char tracefs[HOST_PATH_MAX]; /* where it is mounted; "" : nowhere */
	bool uprobe_events;          /* the kernel has uprobes as perf events of their own, without tracefs */
	int64_t memlock_bytes;       /* -1: unlimited; HOST_UNKNOWN */
	int64_t unprivileged_bpf_disabled, perf_event_paranoid;
	int seccomp; /* 0 none, 1 strict, 2 filter */
	bool no_new_privileges;
	bool proc_shows_host, user_namespace;
};

/* Fill in everything. Never fails: what cannot be read is unknown. */
void host_facts_read(struct host_facts *facts);

/* In our effective set? */
bool have_capability(enum capability capability);
/* A line of /proc/self/status as a number; 0 if there is none. */
uint64_t host_self_status(const char *field, int base);
/* The lockdown mode in force ("none", "integrity", ...). False: not to be read. */
bool host_lockdown(char mode[HOST_WORD_MAX]);
bool host_has_uprobe_events(void);

/* --- pure parts --- */

/* The word in brackets: "none [integrity] confidentiality". False: there is none. */
bool host_chosen_word(const char *text, char word[HOST_WORD_MAX]);
/* "6.1.0-44-amd64" -> 6, 1. False: not a release. */
bool host_release_parse(const char *release, int *major, int *minor);
bool host_release_before(const char *release, int major, int minor);
/* Does this line of /proc/self/uid_map map every user to itself? */
bool host_uid_map_is_whole(const char *line);

#endif
