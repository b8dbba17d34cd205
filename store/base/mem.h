/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory of a segment or a local buffer: a memfd, mapped shared, so that neighbours on the host can map it;
 * huge pages with MC_STORE_USE_HUGEPAGE, else plain; bound by libnuma to MC_STORE_NUMA_SOCKET_ID or the
 * caller's node where the host has more than one node. Plain pages are taken when they are first touched or by
 * prefault.h, so a host without memory shows it then (more than
 * all of its memory and swap is refused); huge pages are reserved at once, or plain ones taken with a
 * warning. The memfd is sealed against shrinking and growing.
 */
#ifndef KV_BASE_MEM_H
#define KV_BASE_MEM_H

#include <stddef.h>

struct kv_mem {
	void *base;
	size_t size; /* as asked for */
	size_t mapped;
	int fd;   /* the memfd, close-on-exec */
	int node; /* NUMA node or -1 */
};

/* node -1: choose. 0 or KV_INTERNAL_ERROR (logged with the reason); *mem is zeroed with fd -1 on failure. */
int kv_mem_map(struct kv_mem *mem, size_t size, int node, const char *name);
void kv_mem_unmap(struct kv_mem *mem);

#endif
