/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What kvprobe doctor says: from the facts of the host and the outcome of the self-test to lines that mean
 * something, and to the verdict. Pure: reads nothing, asks no kernel.
 */
#ifndef KVPROBE_FINDINGS_H
#define KVPROBE_FINDINGS_H

#include <stdio.h>

#include "tools/kvprobe/host_facts.h"
#include "tools/kvprobe/self_test.h"

struct findings_input {
	struct host_facts host;
	struct self_test test;
	bool single;              /* asked for: a perf event per site */
	bool scanned;             /* /proc could be looked at */
	const char *scan_problem; /* not scanned: why */
	size_t workers, denied;   /* processes with probes, and such as could not be looked into */
	const char *setcap_multi, *setcap_single;
};

enum finding_state {
	FINDING_OK,
	FINDING_NO,   /* stands in the way */
	FINDING_WARN, /* does not stand in the way, but something will be missing or slow */
	FINDING_INFO, /* no matter here */
};

#define FINDINGS_MAX 32

struct finding {
	enum finding_state state;
	char name[48];
	char text[2400];
	char fix[512];  /* a command or what to do; "": nothing to mend */
	char more[400]; /* what it is about, for -v */
};

struct findings {
	struct finding list[FINDINGS_MAX];
	size_t count;
	bool can_trace;
	char verdict[2400];
	char missing[128]; /* the capabilities that stand in the way, separated by spaces */
	char fix[512];     /* the first one of those that stand in the way */
};

void findings_make(struct findings *findings, const struct findings_input *input);
/* Lines for people. more: with what each is about. */
void findings_print(const struct findings *findings, FILE *out, bool more);

#endif
