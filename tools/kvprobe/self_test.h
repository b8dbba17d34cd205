/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Can this process trace here? Proven by doing: the real programs are loaded, attached to a probe of this very
 * binary, the probe fires once, and the count is looked at. Leaves nothing attached.
 */
#ifndef KVPROBE_SELF_TEST_H
#define KVPROBE_SELF_TEST_H

#include <stdbool.h>
#include <stdint.h>

#include "tools/kvprobe/site.h"

struct self_test {
	bool loaded;      /* programs, tables and ring are in the kernel */
	bool attached;    /* to our own probe */
	bool fired;       /* its semaphore was raised, so it fired */
	bool passed;      /* and exactly one firing was counted, with its arguments */
	bool multi;       /* with loaded: the kernel has uprobe_multi links, and they are used */
	bool jited;       /* with loaded */
	bool wants_admin; /* attaching singly was refused for want of CAP_SYS_ADMIN */
	enum attach_form kernel_form;
	const char *form; /* with attached: the one in use */
	uint64_t counted;
	char why[2048]; /* not passed: what went wrong, a line each */
};

/* single: a perf event per site even where the kernel has multi links. */
void self_test_run(struct self_test *test, bool single);

#endif
