/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* What usdt_probe.bpf.c keeps for a process and usdt_probe.c prints. */
#ifndef KVPROBE_BENCH_USDT_PROBE_H
#define KVPROBE_BENCH_USDT_PROBE_H

#define USDT_BUCKETS 64

struct usdt_cell {
	unsigned long long calls, failed_calls, keys, failed_keys, bytes, elapsed_ns;
	unsigned long long hist[USDT_BUCKETS]; /* by the power of two */
};

#endif
