/* SPDX-License-Identifier: Apache-2.0 */
/* kvprobe stat: per worker and key, counted in the kernel: nothing is sampled, nothing passes through a buffer. */
#include <argp.h>
#include <stdlib.h>
#include <string.h>

#include "tools/kvprobe/commands.h"
#include "tools/kvprobe/intervals.h"
#include "tools/kvprobe/session_end.h"
#include "tools/kvprobe/stat_rows.h"

static const char doc[] =
        "Count calls, failures, keys, bytes and durations per worker and key.\v"
        "Without -i the totals are printed at the end (Ctrl-C, -d); with -i also what each interval added. Counts "
        "are "
        "exact. Quantiles are within 3.2 %. A call that began before kvprobe attached is counted and is 'untimed'. "
        "GiB/s is bytes over wall time. A pid with a + has ended. Where several workers have a key, the table of "
        "totals has below them a row 'all': the sum over every worker, with quantiles of all their calls together. "
        "JSON and CSV have no such rows: they would be counted twice.\n\n"
        "JSON (--json, one object a line): type (interval, total), time_ns, pid, nspid, comm, key, layer, level, "
        "calls, "
        "failed_calls, keys, failed_keys, bytes, untimed, avg_ns, p50_ns, p99_ns, p999_ns, max_ns, seconds, exited, "
        "skipped_fork; interval rows are differences. The last line is of type summary: events, lost, missed, "
        "untimed, "
        "attach_form, skipped_fork and more.\n\n"
        "Rights: CAP_BPF and CAP_PERFMON (kernels before 6.6: CAP_SYS_ADMIN); to find and open the files of other "
        "users' processes and containers also CAP_SYS_PTRACE and CAP_DAC_READ_SEARCH.\n\n"
        "Examples:\n"
        "  kvprobe stat                            every worker, until Ctrl-C\n"
        "  kvprobe stat -p 4711 -i 1 --sort p99    one worker, slowest first\n"
        "  kvprobe stat -i 10 -c 6 --json          a minute, as JSON\n"
        "  kvprobe stat --level KEY_MODULE -d 5    the public entry points\n"
        "  kvprobe stat --perf-key GET_BATCH       where the time of batch gets goes";

enum {
	OPTION_JSON = 0x300,
	OPTION_CSV,
	OPTION_SORT,
	OPTION_LEVEL,
	OPTION_PERF_KEY,
};

static const struct argp_option options[] = {
        {"json", OPTION_JSON, NULL, 0, "One JSON object a line", 2},
        {"csv", OPTION_CSV, NULL, 0, "Comma-separated values", 2},
        {"sort", OPTION_SORT, "COLUMN", 0,
         "Largest first by calls, failed, keys, bytes, avg, p50, p99, p999 or max; or by pid or key", 2},
        {"level", OPTION_LEVEL, "LEVEL,...", 0,
         "Only keys of these levels: SUB_SYSTEM, KEY_MODULE, MODULE, DEBUG or 1 to 4", 1},
        {"perf-key", OPTION_PERF_KEY, "PREFIX", 0, "Only keys whose name starts so", 1},
        {0},
};

struct stat_options {
	struct session_options session;
	struct interval_options intervals;
	enum stat_format format;
	enum stat_column sort;
	unsigned int levels;
	const char *key_prefix;
};

static error_t parse_option(int key, char *arg, struct argp_state *state)
{
	struct stat_options *opts = state->input;
	switch (key) {
	case ARGP_KEY_INIT:
		state->child_inputs[0] = &opts->session;
		state->child_inputs[1] = &opts->intervals;
		return 0;
	case OPTION_JSON:
		opts->format = STAT_JSON;
		return 0;
	case OPTION_CSV:
		opts->format = STAT_CSV;
		return 0;
	case OPTION_SORT:
		opts->sort = stat_column_of(arg);
		if (opts->sort == COLUMN_NONE)
			argp_error(state,
			           "'%s' is not a column to sort by; those are pid, key, calls, failed, keys, bytes, "
			           "avg, "
			           "p50, p99, p999, max",
			           arg);
		return 0;
	case OPTION_LEVEL:
		if (!perf_levels_parse(arg, &opts->levels))
			argp_error(state,
			           "'%s' is not a list of levels; those are SUB_SYSTEM, KEY_MODULE, MODULE, DEBUG or "
			           "1 to 4",
			           arg);
		return 0;
	case OPTION_PERF_KEY:
		opts->key_prefix = arg;
		return 0;
	default:
		return ARGP_ERR_UNKNOWN;
	}
}

struct stat_run {
	const struct stat_options *opts;
	struct session session;
	struct stat_rows rows;
	struct snapshot snapshot;
	struct intervals intervals;
};

/* Which keys are asked for. Returns how many. */
static int choose_keys(const struct stat_options *opts, bool *wanted)
{
	int n = 0;
	for (int i = 0; i < n_perf_keys; i++) {
		wanted[i] = (!opts->levels || (opts->levels >> perf_keys[i].level & 1)) &&
		            (!opts->key_prefix ||
		             strncmp(perf_keys[i].name, opts->key_prefix, strlen(opts->key_prefix)) == 0);
		n += wanted[i];
	}
	return n;
}

static void print_interval(void *context, double seconds)
{
	struct stat_run *run = context;
	stat_rows_read(&run->rows, &run->session, &run->snapshot);
	stat_rows_sort(&run->rows, run->opts->sort);
	stat_print(&run->rows, run->opts->format, "interval", seconds);
}

static int finish(struct stat_run *run)
{
	struct session_end end;
	session_end_begin(&end, &run->session, run->intervals.attached_ns);
	stat_rows_read(&run->rows, &run->session, NULL);
	for (size_t i = 0; i < run->rows.count; i++) {
		end.events += run->rows.rows[i].cell.calls;
		end.untimed += run->rows.rows[i].cell.untimed;
	}
	stat_rows_add_totals(&run->rows, &run->session);
	stat_rows_sort(&run->rows, run->opts->sort);
	stat_print(&run->rows, run->opts->format, "total", end.seconds);
	return session_end_report(&end, &run->session, run->opts->format == STAT_JSON);
}

static int run_stat(struct stat_options *opts)
{
	struct stat_run run = {.opts = opts};
	bool *wanted = need_memory(calloc((size_t)n_perf_keys, sizeof(*wanted)));
	struct kernel_options kernel = {.count = true, .wanted = wanted};
	if (choose_keys(opts, wanted) == 0) {
		say("no key of the list matches");
		free(wanted);
		return EXIT_NO_MATCH;
	}
	int code = session_open(&run.session, &opts->session, &kernel);
	if (code == EXIT_DONE) {
		stat_print_header(opts->format);
		intervals_begin(&run.intervals, &opts->intervals);
		intervals_flush(&run.intervals);
		intervals_follow(&run.intervals, &run.session, print_interval, &run);
		code = finish(&run);
	}
	stat_rows_free(&run.rows);
	snapshot_free(&run.snapshot);
	session_close(&run.session);
	free(wanted);
	return code;
}

int cmd_stat(int argc, char **argv)
{
	static const struct argp_child children[] = {{&session_argp, 0, NULL, 0}, {&intervals_argp, 0, NULL, 0}, {0}};
	static const struct argp argp = {options, parse_option, NULL, doc, children, NULL, NULL};
	struct stat_options opts = {0};
	session_options_init(&opts.session);
	argp_parse(&argp, argc, argv, 0, NULL, &opts);
	int code = run_stat(&opts);
	session_options_free(&opts.session);
	return code;
}
