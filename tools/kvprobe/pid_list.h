/* SPDX-License-Identifier: Apache-2.0 */
/* The processes that -p names. */
#ifndef KVPROBE_PID_LIST_H
#define KVPROBE_PID_LIST_H

#include "tools/kvprobe/proc_scan.h"

struct pid_list {
	int *pids;
	size_t count, room;
};

/* Add the ids of "1,2,3". False: not such a list, or an id is not in 1 .. INT_MAX. */
bool pid_list_add(struct pid_list *list, const char *text);
/* Look at each of them: all must exist, be processes, be readable and have probes. Returns an exit code, after
 * saying what is wrong. */
int pid_list_scan(const struct pid_list *list, struct scanner *scanner);
void pid_list_free(struct pid_list *list);

#endif
