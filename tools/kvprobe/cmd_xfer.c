/* SPDX-License-Identifier: Apache-2.0 */
/* kvprobe xfer: the KV transfer stats of running workers, as their own logging would print them. */
#include <argp.h>
#include <inttypes.h>
#include <stdlib.h>
#include <time.h>

#include <jansson.h>

#include "tools/kvprobe/commands.h"
#include "tools/kvprobe/intervals.h"
#include "tools/kvprobe/session_end.h"
#include "tools/kvprobe/snapshot.h"
#include "tools/kvprobe/xfer_line.h"

static const char doc[] =
        "Print the KV transfer stats of workers whose own logging is off: per worker the line that it would log.\v"
        "A worker is a process that has imported kvprobe.stats and records its transfers there. Its line is the "
        "one of its own log, after pid=N; where several workers have one, a line 'all' sums them up. A worker with "
        "nothing to say has no line. Without -i the totals are printed at the end (Ctrl-C, -d); with -i also what "
        "each interval added, and stderr says before each group of lines whether it is an interval or the total. "
        "What came after the last whole interval is in the totals alone.\n\n"
        "Which side records what: whoever moves the bytes measures it. Where the prefill side pushes (writes), the "
        "prefill workers have the successes and failed transfers, and decode workers only 'Num failed recvs'; where "
        "the decode side pulls (reads), decode workers have them all. 'Num KV expired reqs', blocks that nobody "
        "fetched in time, are always the prefill side's. So zeros on one side are no sign of trouble; failed recvs "
        "on one side without failed transfers on the other are: something between them went wrong.\n\n"
        "How to read it: MB are 2^20 bytes. Throughput divides the bytes by the sum of the transfers' durations, "
        "not by the time that passed: it is the rate of one transfer, also on the line 'all'. Counts, averages and "
        "throughput are exact. P90 comes from a histogram and is within 3.2 % of the worker's own.\n\n"
        "JSON (--json, one object a line): type (interval, total), time_ns, pid, nspid, comm, successes, avg_ms, "
        "p90_ms, avg_mb, throughput_mb_s, avg_descriptors, failed_transfers, failed_recvs, expired_reqs, bytes, "
        "descriptors, sum_ns, p90_error (relative), seconds, exited; the line of all workers has pid 0. Interval "
        "rows are differences. The last line is of type summary, as in kvprobe stat.\n\n"
        "Rights: as kvprobe stat.\n\n"
        "Examples:\n"
        "  kvprobe xfer                     every worker, until Ctrl-C\n"
        "  kvprobe xfer -i 10               every ten seconds what they added\n"
        "  kvprobe xfer -p 4711,4712 -d 60  a prefill and a decode worker, for a minute\n"
        "  kvprobe xfer -i 1 -c 5 --json    five seconds, as JSON";

enum {
	OPTION_JSON = 0x300,
};

static const struct argp_option options[] = {
        {"json", OPTION_JSON, NULL, 0, "One JSON object a line", 2},
        {0},
};

struct xfer_options {
	struct session_options session;
	struct interval_options intervals;
	bool json;
};

static error_t parse_option(int key, char *arg, struct argp_state *state)
{
	struct xfer_options *opts = state->input;
	(void)arg;
	switch (key) {
	case ARGP_KEY_INIT:
		state->child_inputs[0] = &opts->session;
		state->child_inputs[1] = &opts->intervals;
		return 0;
	case OPTION_JSON:
		opts->json = true;
		return 0;
	default:
		return ARGP_ERR_UNKNOWN;
	}
}

enum xfer_key { KEY_WRITE, KEY_READ, KEY_RECV_FAILED, KEY_REQ_EXPIRED, XFER_KEYS };
static const char *const key_names[XFER_KEYS] = {
        [KEY_WRITE] = "XFER_WRITE",
        [KEY_READ] = "XFER_READ",
        [KEY_RECV_FAILED] = "XFER_RECV_FAILED",
        [KEY_REQ_EXPIRED] = "XFER_REQ_EXPIRED",
};

struct xfer_run {
	const struct xfer_options *opts;
	int keys[XFER_KEYS];
	struct session session;
	struct snapshot snapshot;
	struct intervals intervals;
	uint64_t printed_events; /* of the last group of lines */
};

/* --- printing ----------------------------------------------------------------------------------------------- */

/* Which lines are of what, for eyes; stdout has the lines alone. */
static void print_heading(const char *type, double seconds)
{
	char clock[16];
	time_t now = time(NULL);
	struct tm local;
	localtime_r(&now, &local);
	strftime(clock, sizeof(clock), "%H:%M:%S", &local);
	fprintf(stderr, "%s %s of %.1f s\n", clock, type, seconds);
}

/* worker NULL: all together. */
static void print_text(const struct worker *worker, const struct xfer_figures *figures)
{
	char line[XFER_LINE_MAX];
	xfer_line_format(line, figures);
	if (worker)
		printf("pid=%d %s\n", worker->pid, line);
	else
		printf("all %s\n", line);
}

static void print_json(const struct worker *worker, const struct xfer_figures *figures, const char *type,
                       double seconds)
{
	json_t *object = json_pack(
	        "{ss sI si si ss sI sf sf sf sf sf sI sI sI sI sI sI sf sf sb}", "type", type, "time_ns",
	        (json_int_t)now_real_ns(), "pid", worker ? worker->pid : 0, "nspid", worker ? worker->nspid : 0,
	        "comm", worker ? worker->comm : "all", "successes", (json_int_t)figures->successes, "avg_ms",
	        figures->avg_ms, "p90_ms", figures->p90_ms, "avg_mb", figures->avg_mib, "throughput_mb_s",
	        figures->mib_per_s, "avg_descriptors", figures->avg_descriptors, "failed_transfers",
	        (json_int_t)figures->failed_transfers, "failed_recvs", (json_int_t)figures->failed_recvs,
	        "expired_reqs", (json_int_t)figures->expired_reqs, "bytes", (json_int_t)figures->bytes, "descriptors",
	        (json_int_t)figures->descriptors, "sum_ns", (json_int_t)figures->sum_ns, "p90_error", KVP_HIST_ERROR,
	        "seconds", seconds, "exited", worker && worker->exited);
	if (!object)
		return;
	/* 15 digits are what a double holds of any decimal: the rounded figures appear as rounded */
	char *text = need_memory(json_dumps(object, JSON_COMPACT | JSON_PRESERVE_ORDER | JSON_REAL_PRECISION(15)));
	puts(text);
	free(text);
	json_decref(object);
}

static void print_counts(const struct xfer_run *run, const struct worker *worker, const struct xfer_counts *counts,
                         const char *type, double seconds)
{
	struct xfer_figures figures;
	if (ferror(stdout)) /* each write might wait for the alarm again */
		return;
	xfer_figures_of(&figures, counts);
	if (run->opts->json)
		print_json(worker, &figures, type, seconds);
	else
		print_text(worker, &figures);
}

/* --- reading ------------------------------------------------------------------------------------------------ */

static void read_worker(struct xfer_run *run, struct snapshot *before, uint32_t slot, struct xfer_counts *out)
{
	struct kvp_cell cell;
	*out = (struct xfer_counts){0};
	for (int i = KEY_WRITE; i <= KEY_READ; i++) {
		snapshot_read(before, &run->session, slot, run->keys[i], &cell);
		cell_add(&out->moved, &cell);
	}
	snapshot_read(before, &run->session, slot, run->keys[KEY_RECV_FAILED], &cell);
	out->failed_recvs = cell_calls(&cell);
	snapshot_read(before, &run->session, slot, run->keys[KEY_REQ_EXPIRED], &cell);
	out->expired_reqs = cell_calls(&cell);
}

/* The lines of all workers. before NULL: since the start; else what came since, and *before becomes now. */
static void print_group(struct xfer_run *run, struct snapshot *before, const char *type, double seconds)
{
	struct xfer_counts all = {0}, counts;
	uint32_t lines = 0;
	for (uint32_t slot = 0; slot < run->session.n_workers; slot++) {
		read_worker(run, before, slot, &counts);
		if (xfer_counts_is_empty(&counts))
			continue;
		if (lines++ == 0 && run->opts->intervals.interval_ns)
			print_heading(type, seconds);
		print_counts(run, &run->session.workers[slot], &counts, type, seconds);
		xfer_counts_add(&all, &counts);
	}
	if (lines > 1)
		print_counts(run, NULL, &all, type, seconds);
	run->printed_events = cell_calls(&all.moved) + all.failed_recvs + all.expired_reqs;
}

static void print_interval(void *context, double seconds)
{
	struct xfer_run *run = context;
	print_group(run, &run->snapshot, "interval", seconds);
}

/* --- the run ------------------------------------------------------------------------------------------------ */

static int finish(struct xfer_run *run)
{
	struct session_end end;
	session_end_begin(&end, &run->session, run->intervals.attached_ns);
	print_group(run, NULL, "total", end.seconds);
	end.events = run->printed_events;
	fflush(stdout);
	say_more("P90 is from a histogram: within %.4g %% of the value", 100 * KVP_HIST_ERROR);
	return session_end_report(&end, &run->session, run->opts->json);
}

static int run_xfer(struct xfer_options *opts)
{
	struct xfer_run run = {.opts = opts};
	bool *wanted = need_memory(calloc((size_t)n_perf_keys, sizeof(*wanted)));
	struct kernel_options kernel = {.count = true, .wanted = wanted};
	for (int i = 0; i < XFER_KEYS; i++) {
		run.keys[i] = perf_key_find(key_names[i]);
		wanted[run.keys[i]] = true;
	}
	int code = session_open(&run.session, &opts->session, &kernel);
	if (code == EXIT_DONE) {
		intervals_begin(&run.intervals, &opts->intervals);
		intervals_follow(&run.intervals, &run.session, print_interval, &run);
		code = finish(&run);
	}
	snapshot_free(&run.snapshot);
	session_close(&run.session);
	free(wanted);
	return code;
}

int cmd_xfer(int argc, char **argv)
{
	static const struct argp_child children[] = {{&session_argp, 0, NULL, 0}, {&intervals_argp, 0, NULL, 0}, {0}};
	static const struct argp argp = {options, parse_option, NULL, doc, children, NULL, NULL};
	struct xfer_options opts = {0};
	session_options_init(&opts.session);
	opts.session.has_done = "imported kvprobe.stats";
	argp_parse(&argp, argc, argv, 0, NULL, &opts);
	int code = run_xfer(&opts);
	session_options_free(&opts.session);
	return code;
}
