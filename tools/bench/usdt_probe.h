/* SPDX-License-Identifier: Apache-2.0 */
/* What usdt_probe.bpf.c sums and usdt_probe.c prints. */
#ifndef KVPROBE_BENCH_USDT_PROBE_H
#define KVPROBE_BENCH_USDT_PROBE_H

struct usdt_sums {
	unsigned long long calls, failed_calls, keys, failed_keys, bytes, elapsed_ns;
};

#endif
