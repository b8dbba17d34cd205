/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/kvprobe/session_end.h"

#include <inttypes.h>
#include <stdlib.h>

#include <jansson.h>

void session_end_begin(struct session_end *end, struct session *session, uint64_t watched_since)
{
	*end = (struct session_end){.seconds = (double)(now_mono_ns() - watched_since) / 1e9};
	session_detach(session);
	end->totals = kernel_side_totals(&session->kernel);
	end->lost = end->totals.no_slot_hits + end->totals.unreadable_hits;
	end->missed = kernel_side_missed(&session->kernel);
	end->skipped_fork = session_skipped_fork(session);
}

static void say_losses(const struct session_end *end, const struct session *session)
{
	const struct kvp_totals *totals = &end->totals;
	if (totals->no_slot_hits)
		say("lost %" PRIu64 " calls of workers beyond the %u rows of the worker table; give --workers",
		    totals->no_slot_hits, session->options->workers);
	if (totals->unreadable_hits)
		say("lost %" PRIu64 " calls whose arguments could not be read", totals->unreadable_hits);
	if (totals->minmax_giveups)
		say("%" PRIu64 " times a maximum or minimum was given up under contention: max may be too small",
		    totals->minmax_giveups);
}

static void print_json_summary(const struct session_end *end, const struct session *session)
{
	json_t *object = json_pack(
	        "{ss sI sI sI sI sI ss sI sI si si si sf}", "type", "summary", "time_ns", (json_int_t)now_real_ns(),
	        "events", (json_int_t)end->events, "lost", (json_int_t)end->lost, "missed", (json_int_t)end->missed,
	        "untimed", (json_int_t)end->untimed, "attach_form", kernel_side_form(&session->kernel),
	        "skipped_fork", (json_int_t)end->skipped_fork, "minmax_giveups",
	        (json_int_t)end->totals.minmax_giveups, "sites", (int)session->kernel.sites, "files",
	        (int)session->attached_files, "workers", (int)session->n_workers, "seconds", end->seconds);
	char *text = need_memory(
	        object ? json_dumps(object, JSON_COMPACT | JSON_PRESERVE_ORDER | JSON_REAL_PRECISION(9)) : NULL);
	puts(text);
	free(text);
	json_decref(object);
}

int session_end_report(const struct session_end *end, const struct session *session, bool json)
{
	say_losses(end, session);
	if (json && !ferror(stdout))
		print_json_summary(end, session);
	fflush(stdout);
	fprintf(stderr,
	        "summary: attached %zu sites in %zu files, %" PRIu64 " events, lost %" PRIu64 ", untimed %" PRIu64
	        ", missed %" PRIu64 ", skipped_fork %" PRIu64 ", form=%s\n",
	        session->kernel.sites, session->attached_files, end->events, end->lost, end->untimed, end->missed,
	        end->skipped_fork, kernel_side_form(&session->kernel));
	int code = session_nothing_seen(session);
	if (code == EXIT_DONE)
		code = session->failure;
	return code == EXIT_DONE && end->lost ? EXIT_LOST : code;
}
