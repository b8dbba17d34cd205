/* SPDX-License-Identifier: Apache-2.0 */
/* How a run that counts ends: what was lost, the summary, the exit code. */
#ifndef KVPROBE_SESSION_END_H
#define KVPROBE_SESSION_END_H

#include "tools/kvprobe/hist.h"
#include "tools/kvprobe/session.h"

struct session_end {
	uint64_t events, untimed; /* added up by the command, over the cells that it prints */
	struct kvp_totals totals;
	uint64_t lost, missed, skipped_fork;
	double seconds; /* that were watched */
};

/* Detach, and take the counters of the run; watched_since: when it was attached, on the clock of now_mono_ns. */
void session_end_begin(struct session_end *end, struct session *session, uint64_t watched_since);
/* Say what was lost; the summary as the last line of stdout (if json) and of stderr. Returns the exit code. */
int session_end_report(const struct session_end *end, const struct session *session, bool json);

#endif
