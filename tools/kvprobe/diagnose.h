/* SPDX-License-Identifier: Apache-2.0 */
/* Why the kernel said no, in words that say what to do. */
#ifndef KVPROBE_DIAGNOSE_H
#define KVPROBE_DIAGNOSE_H

#include "tools/kvprobe/host_facts.h"

/* What setcap gives where the kernel has uprobe_multi links, and where it has not. */
#define SETCAP_MULTI  "cap_bpf,cap_perfmon,cap_sys_ptrace,cap_dac_read_search"
#define SETCAP_SINGLE "cap_sys_admin,cap_sys_ptrace,cap_dac_read_search"

/* The command that gives this very binary these capabilities; free it. */
char *setcap_command(const char *capabilities);

enum bpf_step {
	STEP_LOAD,          /* maps and programs */
	STEP_ATTACH_MULTI,  /* one link for many sites */
	STEP_ATTACH_SINGLE, /* a perf event per site */
};

/* Say on stderr why a step failed with this errno. Returns the exit code. */
int explain_failure(enum bpf_step step, int error);

#endif
