/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * What the kernel side (kvprobe.bpf.c) and the collector (tools/kvprobe) share: cookies, cells, counters and
 * the pieces that op_log blocks travel in. Includable from both.
 */
#ifndef KVPROBE_BPF_H
#define KVPROBE_BPF_H

#include <stdint.h>

#include "bpf/hist_math.h"

/* The attach cookie: which key, and how its arguments are found. */
#define KVP_COOKIE_KEY_MASK   0xffffu
#define KVP_COOKIE_PINNED     (1ull << 16) /* arguments in the registers of the probe ABI: read directly */
#define KVP_COOKIE_EVENT      (1ull << 17) /* a firing without a duration is an event, not an untimed call */
#define KVP_COOKIE_SPEC_SHIFT 32           /* else: index into the map operand_specs */

/* How one argument of a probe is found when it is not pinned. */
enum kvp_operand_kind {
	KVP_OPERAND_REGISTER = 1,
	KVP_OPERAND_MEMORY = 2, /* at register + value */
	KVP_OPERAND_CONSTANT = 3,
};

#define KVP_ARGS      6
#define KVP_SPECS     256 /* distinct argument strings in one run */
#define KVP_REGISTERS 16

struct kvp_operand {
	int64_t value; /* the constant, or the offset */
	uint8_t kind;
	uint8_t reg; /* rax rbx rcx rdx rsi rdi rbp rsp r8 .. r15 */
	uint8_t size;
	uint8_t is_signed;
	uint32_t reserved;
};

struct kvp_operand_spec {
	uint32_t n_args;
	uint32_t reserved;
	struct kvp_operand args[KVP_ARGS];
};

/* What is known of one (worker, key). Only ever grows; an interval is the difference of two readings. Every call
 * is in a bucket or in untimed: their sum is the number of calls, which costs no atomic add of its own. Bucket 0,
 * which no timed call reaches (it has at least 1 ns), holds the events: they too are in no sum, minimum or maximum.
 */
struct kvp_cell {
	uint64_t failed_calls;
	uint64_t keys;
	uint64_t failed_keys;
	uint64_t bytes;
	uint64_t untimed; /* calls that began before the attach: in no sum, minimum, maximum or bucket */
	uint64_t sum_ns;
	uint64_t min_ns; /* 0: none yet */
	uint64_t max_ns;
	uint64_t hist[KVP_HIST_BUCKETS];
};

#define KVP_MAX_WORKERS 1024
#define KVP_RECENT      1024 /* entries of the table of recent workers; a power of two */

/* A row of the worker table. claim: 0 free, the tgid, or tgid | KVP_WORKER_EXITED once the collector has seen
 * it end (a later process with that pid then gets a row of its own). Rows are never freed in a run. */
#define KVP_WORKER_EXITED (1ull << 63)
struct kvp_worker {
	uint64_t claim;
	char comm[16];
};

/* Counters of the whole run. */
struct kvp_totals {
	uint64_t no_slot_hits;    /* firings of workers beyond the table */
	uint64_t unreadable_hits; /* firings whose arguments could not be read */
	uint64_t minmax_giveups;  /* a minimum or maximum may be stale */
	uint64_t log_calls;       /* op_log blocks handed over whole */
	uint64_t log_partial;     /* calls that began before the attach */
	uint64_t log_lost_calls;  /* no room in the ring, or the block was not readable */
	uint64_t log_lost_keys;
	uint64_t log_no_room; /* of the lost calls: no room in the ring */
};

/* A piece of an op_log block in the ring. The pieces of a call come in order, those of other threads may lie
 * between them. A call whose pieces stop short was counted as lost by the kernel side. */
struct kvp_piece {
	uint32_t tgid;
	uint32_t tid;
	uint64_t op_id;
	uint64_t mono_ns; /* CLOCK_MONOTONIC at the firing */
	uint32_t total;   /* bytes of the block */
	uint32_t offset;  /* of this piece in it */
	uint32_t length;  /* of this piece */
	uint32_t reserved;
};

/* Payload sizes of the pieces: the verifier wants every reservation to be of a constant size. */
#define KVP_PIECE_TINY   984u
#define KVP_PIECE_SMALL  4056u
#define KVP_PIECE_MEDIUM 16344u
#define KVP_PIECE_LARGE  65496u
#define KVP_PIECE_HUGE   262104u
#define KVP_MAX_PIECES   65 /* 16 MiB in huge pieces, and the rest */

#endif
