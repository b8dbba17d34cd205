/* SPDX-License-Identifier: Apache-2.0 */
/* One probe by libbpf's USDT support: the done probe's six arguments into one set of sums. */
#include <stdbool.h>

#include <linux/types.h>

#include <linux/bpf.h>
#include <linux/ptrace.h>

#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>
#include <bpf/usdt.bpf.h>

#include "usdt_probe.h"

struct usdt_sums sums;

SEC("usdt")
int BPF_USDT(count_call, long elapsed_ns, long bytes, long n_keys, long n_failed, long rc, long op_id)
{
	(void)op_id;
	__sync_fetch_and_add(&sums.calls, 1);
	__sync_fetch_and_add(&sums.failed_calls, rc < 0);
	__sync_fetch_and_add(&sums.keys, n_keys);
	__sync_fetch_and_add(&sums.failed_keys, n_failed);
	__sync_fetch_and_add(&sums.bytes, bytes);
	__sync_fetch_and_add(&sums.elapsed_ns, elapsed_ns);
	return 0;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
