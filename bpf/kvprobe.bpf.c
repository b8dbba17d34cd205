/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * The kernel side: one program counts every key (kv_done), one copies op_log blocks out (kv_op_log).
 *
 * A uprobe program can be preempted and other hits can run on the same CPU meanwhile, so every update is
 * atomic and there is no scratch memory. Nothing here depends on kernel structures. Loads on 5.15.
 */
#include <stdint.h>

#include <linux/bpf.h>

#include <bpf/bpf_helpers.h>

#include "bpf/kvprobe_bpf.h"
#include "probes/probe_abi.h"

/* The registers as the uprobe context shows them; part of the kernel's binary interface. */
#if defined(__TARGET_ARCH_x86)
struct kvp_regs {
	uint64_t r15, r14, r13, r12, bp, bx, r11, r10, r9, r8, ax, cx, dx, si, di, orig_ax, ip, cs, flags, sp, ss;
};
#define ARG0(ctx) ((ctx)->di)
#define ARG1(ctx) ((ctx)->si)
#define ARG2(ctx) ((ctx)->dx)
#define ARG3(ctx) ((ctx)->cx)
#define ARG4(ctx) ((ctx)->r8)
#define ARG5(ctx) ((ctx)->r9)
#elif defined(__TARGET_ARCH_arm64)
struct kvp_regs {
	uint64_t regs[31], sp, pc, pstate;
};
#define ARG0(ctx) ((ctx)->regs[0])
#define ARG1(ctx) ((ctx)->regs[1])
#define ARG2(ctx) ((ctx)->regs[2])
#define ARG3(ctx) ((ctx)->regs[3])
#define ARG4(ctx) ((ctx)->regs[4])
#define ARG5(ctx) ((ctx)->regs[5])
#else
#error "define __TARGET_ARCH_x86 or __TARGET_ARCH_arm64"
#endif

/* Configuration, set before load; the verifier folds it away. */
const volatile uint32_t n_keys = 1;
const volatile uint32_t n_workers = 64;
const volatile uint8_t filter_pids = 0; /* only workers already in slots */
const volatile uint64_t pidns_dev = 0;  /* set if the collector is not in the initial pid namespace */
const volatile uint64_t pidns_ino = 0;
const volatile uint64_t log_ops = ~0ull; /* bit per enum kvp_op */
const volatile uint64_t log_min_ns = 0;
const volatile uint64_t log_wake_bytes = 1u << 20; /* wake the reader early beyond this much in the ring */

struct kvp_totals totals = {};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, uint32_t);
	__type(value, struct kvp_cell);
} cells SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 64);
	__type(key, uint32_t);
	__type(value, struct kvp_worker);
} workers SEC(".maps");

/* tgid -> row of workers. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 128);
	__type(key, uint32_t);
	__type(value, uint32_t);
} slots SEC(".maps");

/* What the hot path looks at first: the last worker of each tgid modulo KVP_RECENT, as tgid << 32 | row. Only a
 * worker that lives is found here, since only its own hits look for its tgid. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, KVP_RECENT);
	__type(key, uint32_t);
	__type(value, uint64_t);
} recent SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, KVP_SPECS);
	__type(key, uint32_t);
	__type(value, struct kvp_operand_spec);
} operand_specs SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 4096);
} ring SEC(".maps");

/* Keep the compiler from undoing a bound that the verifier needs to see. */
#define BOUND_HERE(var)    asm volatile("" : "+r"(var))

#define COUNT(counter, by) __sync_fetch_and_add(&totals.counter, (by))

static __always_inline uint64_t current_pid_tgid(void)
{
	if (!pidns_ino)
		return bpf_get_current_pid_tgid();
	struct bpf_pidns_info info = {};
	if (bpf_get_ns_current_pid_tgid(pidns_dev, pidns_ino, &info, sizeof(info)))
		return 0;
	return (uint64_t)info.tgid << 32 | info.pid;
}

/* --- arguments that are not where the probe ABI pins them ------------------------------------------ */

#if defined(__TARGET_ARCH_x86)
/* One load per case, written out: the compiler would merge them into a load through a changed context
 * pointer, which the verifier refuses. */
#define LOAD_REGISTER(field)                                                                                         \
	asm volatile("%0 = *(u64 *)(%1 + %2)"                                                                        \
	             : "=r"(value)                                                                                   \
	             : "r"(ctx), "i"(__builtin_offsetof(struct kvp_regs, field)))

static __noinline uint64_t read_register(struct kvp_regs *ctx, uint32_t reg)
{
	uint64_t value = 0;
	switch (reg) {
	case 0:
		LOAD_REGISTER(ax);
		break;
	case 1:
		LOAD_REGISTER(bx);
		break;
	case 2:
		LOAD_REGISTER(cx);
		break;
	case 3:
		LOAD_REGISTER(dx);
		break;
	case 4:
		LOAD_REGISTER(si);
		break;
	case 5:
		LOAD_REGISTER(di);
		break;
	case 6:
		LOAD_REGISTER(bp);
		break;
	case 7:
		LOAD_REGISTER(sp);
		break;
	case 8:
		LOAD_REGISTER(r8);
		break;
	case 9:
		LOAD_REGISTER(r9);
		break;
	case 10:
		LOAD_REGISTER(r10);
		break;
	case 11:
		LOAD_REGISTER(r11);
		break;
	case 12:
		LOAD_REGISTER(r12);
		break;
	case 13:
		LOAD_REGISTER(r13);
		break;
	case 14:
		LOAD_REGISTER(r14);
		break;
	case 15:
		LOAD_REGISTER(r15);
		break;
	}
	return value;
}

/* One argument, widened to 64 bits by its size and sign. False: it lies in memory that cannot be read. */
static __always_inline int read_operand(struct kvp_regs *ctx, const struct kvp_operand *operand, uint64_t *out)
{
	uint64_t value = 0;
	uint32_t shift = (64 - 8 * (uint32_t)operand->size) & 63;

	if (operand->kind == KVP_OPERAND_CONSTANT) {
		value = (uint64_t)operand->value;
	} else {
		value = read_register(ctx, operand->reg);
		if (operand->kind == KVP_OPERAND_MEMORY) {
			uint64_t address = value + (uint64_t)operand->value;
			if (bpf_probe_read_user(&value, sizeof(value), (const void *)address)) {
				/* the last bytes of a page: take no more than the argument has */
				uint32_t size = operand->size & 7;
				value = 0;
				if (bpf_probe_read_user(&value, size, (const void *)address))
					return 0;
			}
		}
	}
	value <<= shift;
	*out = operand->is_signed ? (uint64_t)((int64_t)value >> shift) : value >> shift;
	return 1;
}

static __noinline int read_operands(struct kvp_regs *ctx, uint32_t index, uint64_t *args)
{
	if (!args)
		return 0;
	struct kvp_operand_spec *spec = bpf_map_lookup_elem(&operand_specs, &index);
	if (!spec)
		return 0;
#pragma unroll
	for (int i = 0; i < KVP_ARGS; i++)
		if (!read_operand(ctx, &spec->args[i], &args[i]))
			return 0;
	return 1;
}
#else
static __always_inline int read_operands(struct kvp_regs *ctx, uint32_t index, uint64_t *args)
{
	return 0; /* the collector attaches pinned sites only */
}
#endif

static __always_inline int read_args(struct kvp_regs *ctx, uint64_t cookie, uint64_t args[KVP_ARGS])
{
	if (cookie & KVP_COOKIE_PINNED) {
		args[0] = ARG0(ctx);
		args[1] = ARG1(ctx);
		args[2] = ARG2(ctx);
		args[3] = ARG3(ctx);
		args[4] = ARG4(ctx);
		args[5] = ARG5(ctx);
		return 1;
	}
	return read_operands(ctx, (uint32_t)(cookie >> KVP_COOKIE_SPEC_SHIFT), args);
}

/* --- counting ---------------------------------------------------------------------------------------- */

/* The first hit of a process: take the first free row. Rows are claimed in order and never become free
 * again, so two threads of one process that come here together end up with the same row. */
static __noinline int claim_slot(uint32_t tgid)
{
	for (uint32_t i = 0; i < KVP_MAX_WORKERS && i < n_workers; i++) {
		uint32_t slot = i;
		struct kvp_worker *worker = bpf_map_lookup_elem(&workers, &slot);
		if (!worker)
			break;
		uint64_t owner = *(volatile uint64_t *)&worker->claim;
		if (owner == 0)
			owner = __sync_val_compare_and_swap(&worker->claim, 0, (uint64_t)tgid);
		if (owner == 0)
			bpf_get_current_comm(worker->comm, sizeof(worker->comm));
		if (owner == 0 || owner == tgid) {
			/* a failed update only means that the next hit comes here again */
			bpf_map_update_elem(&slots, &tgid, &slot, BPF_ANY);
			return (int)slot;
		}
	}
	COUNT(no_slot_hits, 1);
	return -1;
}

static __noinline int find_slot(uint32_t tgid)
{
	uint32_t *slot = bpf_map_lookup_elem(&slots, &tgid);
	if (slot)
		return (int)*slot;
	if (filter_pids || tgid == 0)
		return -1;
	return claim_slot(tgid);
}

static __always_inline int slot_of(uint32_t tgid)
{
	uint32_t index = tgid % KVP_RECENT;
	uint64_t *last = bpf_map_lookup_elem(&recent, &index);
	if (!last)
		return -1;
	uint64_t entry = *(volatile uint64_t *)last;
	if ((uint32_t)(entry >> 32) == tgid && tgid)
		return (int)(uint32_t)entry;
	int slot = find_slot(tgid);
	if (slot >= 0)
		*(volatile uint64_t *)last = (uint64_t)tgid << 32 | (uint32_t)slot;
	return slot;
}

#define MINMAX_TRIES 8

static __always_inline void raise_max(uint64_t *max, uint64_t value)
{
	uint64_t seen = *(volatile uint64_t *)max;
	for (int i = 0; i < MINMAX_TRIES; i++) {
		if (seen >= value)
			return;
		uint64_t was = __sync_val_compare_and_swap(max, seen, value);
		if (was == seen)
			return;
		seen = was;
	}
	COUNT(minmax_giveups, 1);
}

static __always_inline void lower_min(uint64_t *min, uint64_t value)
{
	uint64_t seen = *(volatile uint64_t *)min;
	for (int i = 0; i < MINMAX_TRIES; i++) {
		if (seen != 0 && seen <= value)
			return;
		uint64_t was = __sync_val_compare_and_swap(min, seen, value);
		if (was == seen)
			return;
		seen = was;
	}
	COUNT(minmax_giveups, 1);
}

static __always_inline void count_call(struct kvp_regs *ctx, struct kvp_cell *cell, const uint64_t args[KVP_ARGS])
{
	uint64_t elapsed = args[0];

	if (args[1])
		__sync_fetch_and_add(&cell->bytes, args[1]);
	if (args[2])
		__sync_fetch_and_add(&cell->keys, args[2]);
	if (args[3])
		__sync_fetch_and_add(&cell->failed_keys, args[3]);
	if ((int64_t)args[4] < 0)
		__sync_fetch_and_add(&cell->failed_calls, 1);
	if (elapsed == 0) {
		/* asked for again: held until here, it would cost the timed calls a register */
		uint64_t cookie = bpf_get_attach_cookie(ctx);
		__sync_fetch_and_add(cookie & KVP_COOKIE_EVENT ? &cell->hist[0] : &cell->untimed, 1);
		return;
	}
	__sync_fetch_and_add(&cell->sum_ns, elapsed);
	raise_max(&cell->max_ns, elapsed);
	lower_min(&cell->min_ns, elapsed);
	uint32_t bucket = kvp_hist_bucket(elapsed);
	BOUND_HERE(bucket);
	if (bucket < KVP_HIST_BUCKETS)
		__sync_fetch_and_add(&cell->hist[bucket], 1);
}

SEC("uprobe")
int kv_done(struct kvp_regs *ctx)
{
	uint32_t tgid = (uint32_t)(current_pid_tgid() >> 32);
	int slot = slot_of(tgid);
	if (slot < 0)
		return 0;

	uint64_t cookie = bpf_get_attach_cookie(ctx);
	uint64_t args[KVP_ARGS];
	if (!read_args(ctx, cookie, args)) {
		COUNT(unreadable_hits, 1);
		return 0;
	}
	uint32_t index = (uint32_t)slot * n_keys + ((uint32_t)cookie & KVP_COOKIE_KEY_MASK);
	struct kvp_cell *cell = bpf_map_lookup_elem(&cells, &index);
	if (cell)
		count_call(ctx, cell, args);
	else
		COUNT(unreadable_hits, 1);
	return 0;
}

/* --- op_log -------------------------------------------------------------------------------------------- */

struct send {
	uint64_t from; /* in the worker */
	struct kvp_piece head;
};

/* The reader looks every few milliseconds by itself: a wake-up costs the worker more than it is worth until
 * the ring fills. */
static __always_inline uint64_t wake_flag(void)
{
	uint64_t waiting = bpf_ringbuf_query(&ring, BPF_RB_AVAIL_DATA);
	return waiting > log_wake_bytes ? BPF_RB_FORCE_WAKEUP : BPF_RB_NO_WAKEUP;
}

/* Copy `length` bytes, at most CLASS, into one reservation of that class. The worker's memory is read
 * straight into the ring: there is no scratch buffer that another hit could overwrite. */
#define SEND_PIECE(CLASS, send, len, result)                                                                         \
	do {                                                                                                         \
		struct kvp_piece *piece_ = bpf_ringbuf_reserve(&ring, sizeof(struct kvp_piece) + (CLASS), 0);        \
		uint64_t take_ = (len);                                                                              \
		result = 0;                                                                                          \
		if (!piece_) {                                                                                       \
			COUNT(log_no_room, 1);                                                                       \
			break;                                                                                       \
		}                                                                                                    \
		*piece_ = (send)->head;                                                                              \
		piece_->length = (uint32_t)take_;                                                                    \
		BOUND_HERE(take_);                                                                                   \
		if (take_ > (CLASS) ||                                                                               \
		    bpf_probe_read_user(piece_ + 1, (uint32_t)take_, (const void *)(send)->from)) {                  \
			bpf_ringbuf_discard(piece_, BPF_RB_NO_WAKEUP);                                               \
			break;                                                                                       \
		}                                                                                                    \
		bpf_ringbuf_submit(piece_, wake_flag());                                                             \
		result = 1;                                                                                          \
	} while (0)

/* Send the next piece of what is left; returns its bytes, or 0 if it did not go. Not static: a global function is
 * verified once, by itself. Verified anew in each round of the loop, it takes Linux 6.1 beyond what its verifier may
 * look at. */
__noinline int send_piece(struct send *send, uint64_t left)
{
	if (!send)
		return 0;
	uint64_t take = left < KVP_PIECE_HUGE ? left : KVP_PIECE_HUGE;
	int ok = 0;
	if (take <= KVP_PIECE_TINY)
		SEND_PIECE(KVP_PIECE_TINY, send, take, ok);
	else if (take <= KVP_PIECE_SMALL)
		SEND_PIECE(KVP_PIECE_SMALL, send, take, ok);
	else if (take <= KVP_PIECE_MEDIUM)
		SEND_PIECE(KVP_PIECE_MEDIUM, send, take, ok);
	else if (take <= KVP_PIECE_LARGE)
		SEND_PIECE(KVP_PIECE_LARGE, send, take, ok);
	else
		SEND_PIECE(KVP_PIECE_HUGE, send, take, ok);
	if (!ok)
		return 0;
	send->from += take;
	send->head.offset += (uint32_t)take;
	return (int)take;
}

static __always_inline int send_block(struct send *send, uint64_t left)
{
	for (int i = 0; i < KVP_MAX_PIECES; i++) {
		uint32_t sent = (uint32_t)send_piece(send, left);
		if (!sent)
			return 0;
		if (sent >= left)
			return 1;
		left -= sent;
	}
	return 0;
}

SEC("uprobe")
int kv_op_log(struct kvp_regs *ctx)
{
	uint64_t pid_tgid = current_pid_tgid();
	uint32_t tgid = (uint32_t)(pid_tgid >> 32);
	if (tgid == 0 || (filter_pids && !bpf_map_lookup_elem(&slots, &tgid)))
		return 0;

	uint64_t args[KVP_ARGS];
	if (!read_args(ctx, bpf_get_attach_cookie(ctx), args)) {
		COUNT(unreadable_hits, 1);
		return 0;
	}
	uint64_t elapsed = args[3];
	if (!(log_ops >> (args[4] & 63) & 1))
		return 0;
	if (elapsed == 0) {
		COUNT(log_partial, 1);
		return 0;
	}
	if (elapsed < log_min_ns)
		return 0;

	struct send send = {
	        .from = args[0],
	        .head = {.tgid = tgid,
	                 .tid = (uint32_t)pid_tgid,
	                 .op_id = args[2],
	                 .mono_ns = bpf_ktime_get_ns(),
	                 .total = (uint32_t)args[1]},
	};
	if (args[0] && args[1] >= sizeof(struct kvp_block) && args[1] <= KVP_BLOCK_MAX &&
	    send_block(&send, args[1])) {
		COUNT(log_calls, 1);
	} else {
		COUNT(log_lost_calls, 1);
		COUNT(log_lost_keys, args[5]);
	}
	return 0;
}

/* The kernel offers its tracing helpers to GPL programs only; every file of this side is also under GPL-2.0-only. */
char LICENSE[] SEC("license") = "GPL";
