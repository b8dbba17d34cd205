/* SPDX-License-Identifier: Apache-2.0 */
/* Why the kernel said no, in words that say what to do. */
#ifndef KVPROBE_DIAGNOSE_H
#define KVPROBE_DIAGNOSE_H

#include <stdbool.h>

enum capability {
	CAPABILITY_DAC_READ_SEARCH = 2,
	CAPABILITY_SYS_PTRACE = 19,
	CAPABILITY_SYS_ADMIN = 21,
	CAPABILITY_PERFMON = 38,
	CAPABILITY_BPF = 39,
	CAPABILITY_CHECKPOINT_RESTORE = 40,
};

/* In our effective set? */
bool have_capability(enum capability capability);

enum bpf_step {
	STEP_LOAD,          /* maps and programs */
	STEP_ATTACH_MULTI,  /* one link for many sites */
	STEP_ATTACH_SINGLE, /* a perf event per site */
};

/* Say on stderr why a step failed with this errno. Returns the exit code. */
int explain_failure(enum bpf_step step, int error);

#endif
