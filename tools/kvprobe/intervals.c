/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/kvprobe/intervals.h"

#include <poll.h>

#define LONGEST_WAIT_NS    1000000000u
#define INTERVAL_OF_COUNTS 1000000000u /* with -c and without -i */

static const struct argp_option interval_option_table[] = {
        {"interval", 'i', "SECONDS", 0, "Print what each interval added", 1},
        {"count", 'c', "COUNT", 0, "Stop after this many intervals (of one second if there is no -i)", 1},
        {0},
};

static error_t parse_interval_option(int key, char *arg, struct argp_state *state)
{
	struct interval_options *options = state->input;
	int64_t number;
	switch (key) {
	case 'i':
		if (!parse_seconds(arg, DURATION_MAX_S, &options->interval_ns))
			argp_error(state, "-i takes seconds above 0, not '%s'", arg);
		return 0;
	case 'c':
		if (!parse_integer(arg, 1, INT64_MAX, &number))
			argp_error(state, "-c takes a count from 1, not '%s'", arg);
		options->count = (uint64_t)number;
		return 0;
	case ARGP_KEY_END:
		if (options->count && !options->interval_ns)
			options->interval_ns = INTERVAL_OF_COUNTS;
		return 0;
	default:
		return ARGP_ERR_UNKNOWN;
	}
}

const struct argp intervals_argp = {interval_option_table, parse_interval_option, NULL, NULL, NULL, NULL, NULL};

void intervals_begin(struct intervals *intervals, const struct interval_options *options)
{
	uint64_t now = now_mono_ns();
	*intervals = (struct intervals){
	        .options = options, .attached_ns = now, .start_ns = now, .due_ns = now + options->interval_ns};
}

void intervals_flush(struct intervals *intervals)
{
	if (fflush(stdout) != 0 || ferror(stdout))
		intervals->stdout_closed = true;
}

static void next_interval(struct intervals *intervals, uint64_t now)
{
	const uint64_t length = intervals->options->interval_ns;
	intervals->start_ns = now;
	intervals->done++;
	/* by the clock of the start, so that intervals do not drift; those that we slept through are one long one */
	intervals->due_ns += (1 + (now - intervals->due_ns) / length) * length;
}

static void wait_for_events(struct intervals *intervals, uint64_t patience_ns)
{
	struct pollfd out = {.fd = fileno(stdout)};
	poll(&out, 1, (int)(patience_ns / 1000000) + 1);
	if (out.revents & POLLERR) /* the reader has gone */
		intervals->stdout_closed = true;
}

void intervals_follow(struct intervals *intervals, struct session *session,
                      void (*print)(void *context, double seconds), void *context)
{
	const struct interval_options *options = intervals->options;
	while (!intervals->stdout_closed && !session_step(session)) {
		uint64_t patience = session_patience(session, LONGEST_WAIT_NS);
		if (options->interval_ns) {
			uint64_t now = now_mono_ns();
			if (now >= intervals->due_ns) {
				session_update_workers(session);
				print(context, (double)(now - intervals->start_ns) / 1e9);
				intervals_flush(intervals);
				next_interval(intervals, now);
				if (options->count && intervals->done >= options->count)
					return;
				continue;
			}
			patience = intervals->due_ns - now < patience ? intervals->due_ns - now : patience;
		}
		wait_for_events(intervals, patience);
	}
}
