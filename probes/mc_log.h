/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The MC_LOG text (docs/mc_log.md) from an op_log block. The one formatter of the in-process log and of
 * kvprobe log.
 */
#ifndef KVPROBE_MC_LOG_H
#define KVPROBE_MC_LOG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "probes/probe_abi.h"

/* A growing text buffer. Zero-initialised is empty; free(text) when done. `failed` is set if memory ran
 * out, and nothing is appended from then on. */
struct mc_text {
	char *text;
	size_t length, capacity;
	bool failed;
};

struct mc_log_style {
	bool rc;          /* -v: append rc=CODE to failed keys */
	bool timestamp;   /* -T, from time_ns */
	bool show_pid;    /* --pid, from pid */
	bool trace_id;    /* --trace-id */
	uint64_t time_ns; /* CLOCK_REALTIME at the call's end */
	uint32_t pid;
	const char *key_prefix; /* only keys that start with it; NULL: all. A call without one prints nothing
	                         * (ops without keys print nothing either) */
	size_t key_prefix_len;
};

/* "batch_put_from_multi_buffers" and so on; NULL for a number that is not an op. */
const char *mc_log_op_name(uint16_t op);
/* The op of a name, or 0. */
uint16_t mc_log_op_number(const char *name);

/* Append the text of one call. Returns the number of per-key lines, or -1 for a malformed block (what was
 * appended is taken back). Thread-safe: touches its arguments only. */
int64_t mc_log_format(struct mc_text *out, const void *block, size_t size, const struct mc_log_style *style);

#endif
