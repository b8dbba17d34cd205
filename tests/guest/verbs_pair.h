/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two reliable connections' ends, each on a device of its own, connected to each other: the least that a one-sided
 * transfer over a wire needs. For tests; one thread.
 */
#ifndef KVPROBE_TESTS_GUEST_VERBS_PAIR_H
#define KVPROBE_TESTS_GUEST_VERBS_PAIR_H

#include <stddef.h>
#include <stdint.h>

#include <infiniband/verbs.h>

struct verbs_end {
	struct ibv_context *context;
	struct ibv_pd *domain;
	struct ibv_cq *completions;
	struct ibv_qp *queue;
	struct ibv_mr *region;
	unsigned char *memory; /* of verbs_pair.size bytes, registered for remote reads and writes */
	union ibv_gid address;
	enum ibv_mtu mtu;
};

struct verbs_pair {
	struct verbs_end near, far;
	size_t size;
};

/* Open both devices by name, with `size` bytes of registered memory each, and connect them by their link-local
 * addresses (GID index 0). Returns 0, or -1 with what failed on stdout; close it in either case. */
int verbs_pair_open(struct verbs_pair *pair, const char *near_device, const char *far_device, size_t size);

void verbs_pair_close(struct verbs_pair *pair);

/* The near end reads (IBV_WR_RDMA_READ) or writes (IBV_WR_RDMA_WRITE) `length` bytes at the start of the far end's
 * memory, under the remote key `key`. Returns an enum ibv_wc_status, or -1: it could not be posted, or did not
 * complete within ten seconds. */
int verbs_pair_transfer(struct verbs_pair *pair, enum ibv_wr_opcode operation, size_t length, uint32_t key);

#endif
