/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One link for many sites of one file: uprobe_multi (Linux 6.6). The kernel's call is made directly, since the
 * libbpf of Debian 12 is older than it.
 */
#ifndef KVPROBE_ATTACH_MULTI_H
#define KVPROBE_ATTACH_MULTI_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "tools/kvprobe/site.h"

#define ATTACH_TYPE_UPROBE_MULTI 48 /* BPF_TRACE_UPROBE_MULTI; part of the kernel's binary interface */

/* Sites to attach to, as parallel arrays the way the kernel wants them. Zero-initialised is empty. */
struct site_list {
	unsigned long *offsets, *semaphores;
	uint64_t *cookies;
	enum attach_form *forms;
	size_t count;
	size_t rooms[4];
};
void site_list_add(struct site_list *list, uint64_t offset, uint64_t semaphore, enum attach_form form);
void site_list_free(struct site_list *list);

/* Does the kernel know such links? program_fd is a program loaded for them. */
bool attach_multi_works(int program_fd);
/* The link's descriptor, or -1 and errno. */
int attach_multi(int program_fd, const char *path, const struct site_list *list);

#endif
