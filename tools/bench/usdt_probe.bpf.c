/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * One probe by libbpf's USDT support, doing what kvprobe stat does: the done probe's six arguments into a
 * cell of the process, with a histogram.
 */
#include <stdbool.h>

#include <linux/types.h>

#include <linux/bpf.h>
#include <linux/ptrace.h>

#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>
#include <bpf/usdt.bpf.h>

#include "usdt_probe.h"

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 64);
	__type(key, __u32);
	__type(value, struct usdt_cell);
} cells SEC(".maps");

static const struct usdt_cell empty;

static int log2_of(__u64 value)
{
	int power = 0;
	for (int step = 32; step; step >>= 1) {
		if (value >> step) {
			value >>= step;
			power += step;
		}
	}
	return power & (USDT_BUCKETS - 1);
}

SEC("usdt")
int BPF_USDT(count_call, long elapsed_ns, long bytes, long n_keys, long n_failed, long rc, long op_id)
{
	__u32 tgid = bpf_get_current_pid_tgid() >> 32;
	struct usdt_cell *cell = bpf_map_lookup_elem(&cells, &tgid);
	(void)op_id;
	if (!cell) {
		bpf_map_update_elem(&cells, &tgid, &empty, BPF_NOEXIST);
		cell = bpf_map_lookup_elem(&cells, &tgid);
	}
	if (!cell)
		return 0;
	__sync_fetch_and_add(&cell->calls, 1);
	if (rc < 0)
		__sync_fetch_and_add(&cell->failed_calls, 1);
	__sync_fetch_and_add(&cell->keys, n_keys);
	if (n_failed)
		__sync_fetch_and_add(&cell->failed_keys, n_failed);
	__sync_fetch_and_add(&cell->bytes, bytes);
	__sync_fetch_and_add(&cell->elapsed_ns, elapsed_ns);
	__sync_fetch_and_add(&cell->hist[log2_of(elapsed_ns)], 1);
	return 0;
}

char LICENSE[] SEC("license") = "GPL";
