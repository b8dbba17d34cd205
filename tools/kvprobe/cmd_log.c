/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kvprobe log: the MC_LOG text of running workers. The kernel side copies the calls' blocks out; they are put
 * together and formatted here. A slow reader of stdout delays this process only: the ring fills, and what does
 * not fit is dropped call by call and counted.
 */
#include <argp.h>
#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <bpf/libbpf.h>

#include "probes/mc_log.h"
#include "tools/kvprobe/assembly.h"
#include "tools/kvprobe/commands.h"
#include "tools/kvprobe/session.h"
#include "tools/kvprobe/text_out.h"

#define LOOK_NS  20000000ull  /* how often the ring is looked at when no one wakes us */
#define PAUSE_NS 200000000ull /* how long at most it is read without a look at the rest */

static const char doc[] =
        "Print the MC_LOG text of running workers: one summary line per call, one line per key of it.\v"
        "Stdout has the text and nothing else; stderr says what is attached, and at the end what was lost. The "
        "calls: "
        "batch_put_from_multi_buffers, batch_is_exist, batch_get_into_multi_buffers, register_buffer, "
        "batch_get_replica_desc. The worker needs no setting and no restart.\n\n"
        "Rights: CAP_BPF and CAP_PERFMON (kernels before 6.6: CAP_SYS_ADMIN); to find and open the files of other "
        "users' processes and containers also CAP_SYS_PTRACE and CAP_DAC_READ_SEARCH.\n\n"
        "Examples:\n"
        "  kvprobe log                      every worker on this host, until Ctrl-C\n"
        "  kvprobe log -p 4711,4712 -T --pid   with time and pid in front\n"
        "  kvprobe log --op batch_get_into_multi_buffers --min-us 3000   slow gets\n"
        "  kvprobe log --key layer.0. -n 100 -v   100 calls with such keys, with codes";

enum {
	OPTION_OP = 0x200,
	OPTION_KEY,
	OPTION_MIN_US,
	OPTION_SHOW_PID,
	OPTION_TRACE_ID,
	OPTION_RING_MB,
};

static const struct argp_option options[] = {
        {"calls", 'n', "CALLS", 0, "Stop after this many printed calls", 1},
        {"op", OPTION_OP, "OP", 0, "Only this call, by its name in the text (may be repeated)", 1},
        {"key", OPTION_KEY, "PREFIX", 0, "Only keys that start so; a call without one prints nothing", 1},
        {"min-us", OPTION_MIN_US, "N", 0, "Only calls that took N microseconds or longer", 1},
        {"timestamp", 'T', NULL, 0, "Put the time of the call's end in front of every line (UTC)", 2},
        {"pid", OPTION_SHOW_PID, NULL, 0, "Put pid=N in front of every line (see -p to choose processes)", 2},
        {"trace-id", OPTION_TRACE_ID, NULL, 0,
         "Put trace_id=HEX in front of every line: the op id that the master sees", 2},
        {"ring-mb", OPTION_RING_MB, "N", 0, "Size of the ring buffer in MiB: a power of two (default 64)", 11},
        {0},
};

struct log_options {
	struct session_options session;
	uint64_t calls;
	uint64_t ops; /* bit per op; 0: all */
	const char *key_prefix;
	uint64_t min_us;
	uint64_t ring_mb;
	bool timestamp, show_pid, trace_id;
};

static error_t parse_option(int key, char *arg, struct argp_state *state)
{
	struct log_options *opts = state->input;
	int64_t number;
	switch (key) {
	case ARGP_KEY_INIT:
		state->child_inputs[0] = &opts->session;
		return 0;
	case 'n':
		if (!parse_integer(arg, 1, INT64_MAX, &number))
			argp_error(state, "-n takes a number of calls from 1, not '%s'", arg);
		opts->calls = (uint64_t)number;
		return 0;
	case 'T':
		opts->timestamp = true;
		return 0;
	case OPTION_SHOW_PID:
		opts->show_pid = true;
		return 0;
	case OPTION_TRACE_ID:
		opts->trace_id = true;
		return 0;
	case OPTION_OP:
		if (!mc_log_op_number(arg))
			argp_error(state, "'%s' is not a logged call; the calls are %s, %s, %s, %s, %s", arg,
			           mc_log_op_name(KVP_OP_PUT), mc_log_op_name(KVP_OP_IS_EXIST),
			           mc_log_op_name(KVP_OP_GET), mc_log_op_name(KVP_OP_REGISTER),
			           mc_log_op_name(KVP_OP_REPLICA_DESC));
		opts->ops |= 1ull << mc_log_op_number(arg);
		return 0;
	case OPTION_KEY:
		opts->key_prefix = arg;
		return 0;
	case OPTION_MIN_US:
		if (!parse_integer(arg, 0, INT64_MAX / 1000, &number))
			argp_error(state, "--min-us takes microseconds from 0, not '%s'", arg);
		opts->min_us = (uint64_t)number;
		return 0;
	case OPTION_RING_MB:
		if (!parse_integer(arg, 1, RING_MB_MAX, &number) || (number & (number - 1)))
			argp_error(state, "--ring-mb takes a power of two from 1 to %d, not '%s'", RING_MB_MAX, arg);
		opts->ring_mb = (uint64_t)number;
		return 0;
	default:
		return ARGP_ERR_UNKNOWN;
	}
}

struct log_run {
	const struct log_options *opts;
	struct session session;
	struct ring_buffer *ring;
	struct assemblies assemblies;
	struct text_out out;
	struct mc_log_style style;
	int64_t mono_to_real_ns;
	uint64_t calls;           /* formatted */
	uint64_t pause_ns;        /* when to leave the ring and look after the rest */
	uint64_t malformed;       /* blocks that are none: lost calls */
	uint64_t block_lost_keys; /* keys that did not fit into their block */
	uint64_t told_lost_calls, told_lost_keys;
};

/* --- what comes in ------------------------------------------------------------------------------------------ */

static void print_call(struct log_run *run, const void *block, size_t size, const struct kvp_piece *piece)
{
	size_t before = run->out.text.length;
	run->style.time_ns = piece->mono_ns + (uint64_t)run->mono_to_real_ns;
	run->style.pid = piece->tgid;
	int64_t keys = mc_log_format(&run->out.text, block, size, &run->style);
	if (keys < 0) {
		run->malformed++;
		return;
	}
	run->block_lost_keys += ((const struct kvp_block *)block)->lost_keys;
	if (run->out.text.length == before)
		return; /* no key with the prefix */
	run->calls++;
	text_out_call(&run->out, (uint64_t)keys);
}

static bool enough(const struct log_run *run)
{
	return run->out.closed || (run->opts->calls && run->calls >= run->opts->calls);
}

static int on_piece(void *context, void *data, size_t size)
{
	struct log_run *run = context;
	const struct kvp_piece *piece = data;
	struct assembled call;
	if (enough(run))
		return -ECANCELED;
	if (assemblies_add(&run->assemblies, piece, size, &call)) {
		print_call(run, call.block, call.size, piece);
		assembled_release(&call);
	}
	text_out_flush_if_large(&run->out);
	/* workers that fire faster than we read would keep us here for ever; what is taken is not lost by this */
	return now_mono_ns() >= run->pause_ns || session_interrupted() ? -EAGAIN : 0;
}

/* --- the loop ------------------------------------------------------------------------------------------------- */

static void count_lost(const struct log_run *run, uint64_t *calls, uint64_t *keys)
{
	struct kvp_totals totals = kernel_side_totals(&run->session.kernel);
	*calls = totals.log_lost_calls + totals.unreadable_hits + run->malformed + run->out.lost_calls;
	*keys = totals.log_lost_keys + run->block_lost_keys + run->out.lost_keys;
}

static void tell_lost(struct log_run *run)
{
	uint64_t calls, keys;
	count_lost(run, &calls, &keys);
	if (calls == run->told_lost_calls && keys == run->told_lost_keys)
		return;
	run->told_lost_calls = calls;
	run->told_lost_keys = keys;
	fprintf(stderr, "lost %" PRIu64 " calls (%" PRIu64 " keys)\n", calls, keys);
}

static void wait_for_data(struct log_run *run)
{
	struct pollfd fds[2] = {
	        {.fd = kernel_side_ring_fd(&run->session.kernel), .events = POLLIN},
	        {.fd = STDOUT_FILENO},
	};
	poll(fds, 2, (int)(session_patience(&run->session, LOOK_NS) / 1000000) + 1);
	if (fds[1].revents & POLLERR) /* the reader has gone */
		run->out.closed = true;
}

static void follow(struct log_run *run)
{
	uint64_t told = 0;
	while (!enough(run) && !session_step(&run->session)) {
		wait_for_data(run);
		run->pause_ns = now_mono_ns() + PAUSE_NS;
		ring_buffer__consume(run->ring);
		text_out_flush(&run->out);
		uint64_t now = now_mono_ns();
		if (now - told > 1000000000ull) {
			told = now;
			run->mono_to_real_ns = (int64_t)(now_real_ns() - now_mono_ns());
			tell_lost(run);
			assemblies_expire(&run->assemblies, now);
		}
	}
}

static int finish(struct log_run *run)
{
	session_detach(&run->session);
	while (!enough(run) && ring_buffer__consume(run->ring) == -EAGAIN)
		; /* no one fills it any more: this ends */
	text_out_finish(&run->out);
	tell_lost(run);
	struct kvp_totals totals = kernel_side_totals(&run->session.kernel);
	uint64_t lost_calls, lost_keys;
	count_lost(run, &lost_calls, &lost_keys);
	if (totals.log_partial)
		fprintf(stderr, "partial %" PRIu64 "\n", totals.log_partial);
	fprintf(stderr,
	        "summary: attached %zu sites in %zu files, %" PRIu64 " calls (%" PRIu64 " keys), lost %" PRIu64
	        " calls (%" PRIu64 " keys), partial %" PRIu64 ", missed %" PRIu64 ", skipped_fork %" PRIu64
	        ", form=%s\n",
	        run->session.kernel.sites, run->session.attached_files, run->out.written_calls, run->out.written_keys,
	        lost_calls, lost_keys, totals.log_partial, kernel_side_missed(&run->session.kernel),
	        session_skipped_fork(&run->session), kernel_side_form(&run->session.kernel));
	if (run->out.error) {
		say("writing to stdout: %s", strerror(run->out.error));
		return EXIT_RUNTIME;
	}
	int code = session_nothing_seen(&run->session);
	if (code == EXIT_DONE)
		code = run->session.failure;
	return code == EXIT_DONE && (lost_calls || lost_keys) ? EXIT_LOST : code;
}

static int run_log(struct log_options *opts)
{
	struct log_run run = {
	        .opts = opts,
	        .style = {.rc = verbosity > 0,
	                  .timestamp = opts->timestamp,
	                  .show_pid = opts->show_pid,
	                  .trace_id = opts->trace_id,
	                  .key_prefix = opts->key_prefix,
	                  .key_prefix_len = opts->key_prefix ? strlen(opts->key_prefix) : 0},
	        .mono_to_real_ns = (int64_t)(now_real_ns() - now_mono_ns()),
	};
	struct kernel_options kernel = {
	        .log = true,
	        .ring_bytes = opts->ring_mb << 20,
	        .log_ops = opts->ops ? opts->ops : ~0ull,
	        .log_min_ns = opts->min_us * 1000,
	};
	text_out_init(&run.out, STDOUT_FILENO);
	int code = session_open(&run.session, &opts->session, &kernel);
	if (code == EXIT_DONE) {
		run.ring = ring_buffer__new(kernel_side_ring_fd(&run.session.kernel), on_piece, &run, NULL);
		if (run.ring) {
			follow(&run);
			code = finish(&run);
		} else {
			say("cannot map the ring buffer: %s; a smaller --ring-mb needs less", strerror(errno));
			code = EXIT_RUNTIME;
		}
	}
	ring_buffer__free(run.ring);
	assemblies_free(&run.assemblies);
	text_out_free(&run.out);
	session_close(&run.session);
	return code;
}

int cmd_log(int argc, char **argv)
{
	static const struct argp_child children[] = {{&session_argp, 0, NULL, 0}, {0}};
	static const struct argp argp = {options, parse_option, NULL, doc, children, NULL, NULL};
	struct log_options opts = {.ring_mb = RING_MB_DEFAULT};
	session_options_init(&opts.session);
	argp_parse(&argp, argc, argv, 0, NULL, &opts);
	int code = run_log(&opts);
	session_options_free(&opts.session);
	return code;
}
