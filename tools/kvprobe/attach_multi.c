/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/kvprobe/attach_multi.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <linux/bpf.h>

#include "tools/kvprobe/common.h"

/* The part of union bpf_attr that BPF_LINK_CREATE reads for this kind of link. */
struct multi_attr {
	uint32_t program_fd;
	uint32_t target_fd;
	uint32_t attach_type;
	uint32_t flags;
	uint64_t path;
	uint64_t offsets;
	uint64_t semaphores;
	uint64_t cookies;
	uint32_t count;
	uint32_t multi_flags;
	uint32_t pid;
	uint32_t padding;
};

void site_list_add(struct site_list *list, uint64_t offset, uint64_t semaphore, enum attach_form form)
{
	size_t count = list->count + 1;
	list->offsets = grow_array(list->offsets, &list->rooms[0], count, sizeof(*list->offsets));
	list->semaphores = grow_array(list->semaphores, &list->rooms[1], count, sizeof(*list->semaphores));
	list->cookies = grow_array(list->cookies, &list->rooms[2], count, sizeof(*list->cookies));
	list->forms = grow_array(list->forms, &list->rooms[3], count, sizeof(*list->forms));
	list->offsets[list->count] = offset;
	list->semaphores[list->count] = semaphore;
	list->forms[list->count] = form;
	list->count = count;
}

void site_list_free(struct site_list *list)
{
	free(list->offsets);
	free(list->semaphores);
	free(list->cookies);
	free(list->forms);
	*list = (struct site_list){0};
}

int attach_multi(int program_fd, const char *path, const struct site_list *list)
{
	struct multi_attr attr = {
	        .program_fd = (uint32_t)program_fd,
	        .attach_type = ATTACH_TYPE_UPROBE_MULTI,
	        .path = (uint64_t)(uintptr_t)path,
	        .offsets = (uint64_t)(uintptr_t)list->offsets,
	        .semaphores = (uint64_t)(uintptr_t)list->semaphores,
	        .cookies = (uint64_t)(uintptr_t)list->cookies,
	        .count = (uint32_t)list->count,
	};
	return (int)syscall(SYS_bpf, BPF_LINK_CREATE, &attr, sizeof(attr));
}

bool attach_multi_works(int program_fd)
{
	/* a directory cannot be attached to: a kernel that gets so far as to notice knows the link */
	struct site_list list = {0};
	site_list_add(&list, 0, 0, FORM_INT3);
	int fd = attach_multi(program_fd, "/", &list);
	int error = errno;
	if (fd >= 0)
		close(fd);
	site_list_free(&list);
	errno = error;
	return fd < 0 && error == EBADF;
}
