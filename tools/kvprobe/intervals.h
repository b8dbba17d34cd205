/* SPDX-License-Identifier: Apache-2.0 */
/* The interval clock of the commands that count: -i and -c, and the loop that prints when one is over. */
#ifndef KVPROBE_INTERVALS_H
#define KVPROBE_INTERVALS_H

#include "tools/kvprobe/session.h"

/* Options of intervals_argp, a child parser of the subcommands' own. */
struct interval_options {
	uint64_t interval_ns; /* 0: only the totals at the end */
	uint64_t count;       /* 0: until the session ends */
};
extern const struct argp intervals_argp;

struct intervals {
	const struct interval_options *options;
	uint64_t attached_ns, start_ns, due_ns, done;
	bool stdout_closed;
};

/* The session is attached: the first interval begins. */
void intervals_begin(struct intervals *intervals, const struct interval_options *options);
/* Follow the session until it ends, the count is reached or stdout is closed. print: prints one interval, which
 * covers so many seconds; the workers are up to date. */
void intervals_follow(struct intervals *intervals, struct session *session,
                      void (*print)(void *context, double seconds), void *context);
/* Hand what was printed on to the reader. */
void intervals_flush(struct intervals *intervals);

#endif
