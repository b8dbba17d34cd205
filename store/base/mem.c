/* SPDX-License-Identifier: Apache-2.0 */
#include "store/base/mem.h"

#include <errno.h>
#include <fcntl.h>
#include <numa.h>
#include <sched.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "kvstore_status.h"
#include "store/base/fd.h"
#include "store/base/host_memory.h"
#include "store/base/log.h"
#include "store/base/parse.h"

#define HUGE_PAGE ((size_t)2 << 20)
#define MAX_NODE  1023

static bool wants_huge_pages(void)
{
	const char *text = getenv("MC_STORE_USE_HUGEPAGE");
	int on = 0;
	if (!text || !*text)
		return false;
	if (kv_parse_bool(&on, text)) {
		kv_warn("MC_STORE_USE_HUGEPAGE=%s is not on or off; using plain pages", text);
		return false;
	}
	return on;
}

/* The node to bind to, or -1 where there is nothing to choose. */
static int choose_node(int asked)
{
	if (numa_available() < 0 || numa_num_configured_nodes() < 2)
		return -1;
	if (asked < 0 && getenv("MC_STORE_NUMA_SOCKET_ID"))
		asked = (int)kv_env_u64("MC_STORE_NUMA_SOCKET_ID", MAX_NODE + 1, 0, MAX_NODE);
	if (asked < 0 || asked > numa_max_node())
		asked = numa_node_of_cpu(sched_getcpu());
	return asked;
}

/* 0 or an errno value; everything is undone on failure. */
static int try_map(struct kv_mem *mem, size_t size, const char *name, bool huge)
{
	size_t page = huge ? HUGE_PAGE : (size_t)sysconf(_SC_PAGESIZE);
	if (size > SIZE_MAX - page)
		return ENOMEM;
	size_t mapped = (size + page - 1) / page * page;

	int fd = kv_keep_off_stdio(memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING | (huge ? MFD_HUGETLB : 0)));
	if (fd < 0)
		return errno;
	void *base = MAP_FAILED;
	/* Sealed, because neighbours that map it would die of SIGBUS if anyone could shrink it. */
	if (ftruncate(fd, (off_t)mapped) == 0 && fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) == 0)
		base = mmap(NULL, mapped, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (base == MAP_FAILED) {
		int error = errno;
		close(fd);
		return error;
	}
	mem->base = base;
	mem->size = size;
	mem->mapped = mapped;
	mem->fd = fd;
	return 0;
}

int kv_mem_map(struct kv_mem *mem, size_t size, int node, const char *name)
{
	*mem = (struct kv_mem){.fd = -1, .node = -1};
	if (size == 0) {
		kv_error("memory %s: size 0", name);
		return KV_INTERNAL_ERROR;
	}
	/* The kernel grants any size and ends a process when the pages are touched. */
	if (size > kv_memory_total()) {
		kv_error("memory %s: %zu bytes are more than this host, or its control group, has", name, size);
		return KV_INTERNAL_ERROR;
	}
	bool huge = wants_huge_pages();
	int error = try_map(mem, size, name, huge);
	if (error && huge) {
		kv_warn("memory %s: no huge pages for %zu bytes (%s); using plain pages", name, size,
		        strerror(error));
		error = try_map(mem, size, name, false);
	}
	if (error) {
		kv_error("memory %s: cannot map %zu bytes: %s", name, size, strerror(error));
		return KV_INTERNAL_ERROR;
	}
	mem->node = choose_node(node);
	if (mem->node >= 0)
		numa_tonode_memory(mem->base, mem->mapped, mem->node);
	return KV_OK;
}

void kv_mem_unmap(struct kv_mem *mem)
{
	if (mem->base)
		munmap(mem->base, mem->mapped);
	if (mem->fd >= 0)
		close(mem->fd);
	*mem = (struct kv_mem){.fd = -1, .node = -1};
}
