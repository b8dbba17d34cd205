/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/kvprobe/pid_list.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

bool pid_list_add(struct pid_list *list, const char *text)
{
	while (true) {
		char number[16];
		size_t length = strcspn(text, ",");
		int64_t pid;
		if (length == 0 || length >= sizeof(number))
			return false;
		memcpy(number, text, length);
		number[length] = '\0';
		if (!parse_integer(number, 1, INT_MAX, &pid))
			return false;
		bool known = false;
		for (size_t i = 0; i < list->count; i++)
			known = known || list->pids[i] == (int)pid;
		if (!known) {
			list->pids = grow_array(list->pids, &list->room, list->count + 1, sizeof(*list->pids));
			list->pids[list->count++] = (int)pid;
		}
		if (text[length] == '\0')
			return true;
		text += length + 1;
	}
}

static int scan_one(int pid, struct scanner *scanner)
{
	int leader;
	switch (scan_pid(scanner, pid, &leader)) {
	case SCAN_NO_PROCESS:
		say("there is no process %d", pid);
		return EXIT_NO_MATCH;
	case SCAN_IS_THREAD:
		say("%d is a thread of process %d; give -p %d", pid, leader, leader);
		return EXIT_NO_MATCH;
	case SCAN_DENIED:
		say("not permitted to look into process %d (/proc/%d/maps): that needs CAP_SYS_PTRACE, or to be the "
		    "same "
		    "user and the process dumpable",
		    pid, pid);
		return EXIT_NO_RIGHT;
	case SCAN_OK:
		break;
	}
	struct process *process = id_map_get(&scanner->processes, (uint64_t)pid);
	if (process && process->n_files)
		return EXIT_DONE;
	if (scanner->unopened) {
		say("process %d: not permitted to open what it has mapped (through /proc/%d/root): that needs "
		    "CAP_SYS_PTRACE and CAP_DAC_READ_SEARCH",
		    pid, pid);
		return EXIT_NO_RIGHT;
	}
	say("process %d (%s) has no probes of provider kvstore mapped; a Python worker has them once it imported "
	    "mooncake.store, or kvprobe.stats for its KV transfers. kvprobe list shows the processes that have",
	    pid, process ? process->comm : "?");
	return EXIT_NO_MATCH;
}

int pid_list_scan(const struct pid_list *list, struct scanner *scanner)
{
	for (size_t i = 0; i < list->count; i++) {
		int code = scan_one(list->pids[i], scanner);
		if (code != EXIT_DONE)
			return code;
	}
	return EXIT_DONE;
}

void pid_list_free(struct pid_list *list)
{
	free(list->pids);
	*list = (struct pid_list){0};
}
