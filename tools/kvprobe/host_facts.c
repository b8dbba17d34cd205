/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/kvprobe/host_facts.h"

#include <errno.h>
#include <inttypes.h>
#include <mntent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <linux/bpf.h>

bool host_chosen_word(const char *text, char word[HOST_WORD_MAX])
{
	const char *open = strchr(text, '['), *close = open ? strchr(open, ']') : NULL;
	if (!close || close == open + 1)
		return false;
	snprintf(word, HOST_WORD_MAX, "%.*s", (int)(close - open - 1), open + 1);
	return true;
}

bool host_release_parse(const char *release, int *major, int *minor)
{
	return sscanf(release, "%d.%d", major, minor) == 2 && *major > 0 && *minor >= 0;
}

bool host_release_before(const char *release, int major, int minor)
{
	int is_major, is_minor;
	if (!host_release_parse(release, &is_major, &is_minor))
		return false;
	return is_major < major || (is_major == major && is_minor < minor);
}

bool host_uid_map_is_whole(const char *line)
{
	unsigned long inside, outside, length;
	return sscanf(line, "%lu %lu %lu", &inside, &outside, &length) == 3 && inside == 0 && outside == 0 &&
	       length == UINT32_MAX;
}

/* The first line of a small file. */
static bool read_line(const char *path, char *line, size_t size)
{
	FILE *file = fopen(path, "re");
	if (!file)
		return false;
	bool read = fgets(line, (int)size, file) != NULL;
	fclose(file);
	return read;
}

static int64_t read_number(const char *path)
{
	char line[64], *end;
	if (!read_line(path, line, sizeof(line)))
		return HOST_UNKNOWN;
	int64_t value = strtoll(line, &end, 10);
	return end == line ? HOST_UNKNOWN : value;
}

uint64_t host_self_status(const char *field, int base)
{
	char line[256];
	uint64_t value = 0;
	FILE *file = fopen("/proc/self/status", "re");
	if (!file)
		return 0;
	size_t length = strlen(field);
	while (fgets(line, sizeof(line), file))
		if (strncmp(line, field, length) == 0 && line[length] == ':')
			value = strtoull(line + length + 1, NULL, base);
	fclose(file);
	return value;
}

bool have_capability(enum capability capability)
{
	return host_self_status("CapEff", 16) >> capability & 1;
}

bool host_lockdown(char mode[HOST_WORD_MAX])
{
	char text[128];
	return read_line("/sys/kernel/security/lockdown", text, sizeof(text)) && host_chosen_word(text, mode);
}

bool host_has_uprobe_events(void)
{
	return access("/sys/bus/event_source/devices/uprobe/type", F_OK) == 0;
}

/* A mount that another one covers does not count: what is there must be tracefs. */
static void find_tracefs(char path[HOST_PATH_MAX])
{
	FILE *mounts = setmntent("/proc/self/mounts", "re");
	struct mntent *mount;
	path[0] = '\0';
	while (mounts && !path[0] && (mount = getmntent(mounts))) {
		char events[HOST_PATH_MAX];
		if (strcmp(mount->mnt_type, "tracefs") != 0 || strlen(mount->mnt_dir) >= HOST_PATH_MAX - 16)
			continue;
		snprintf(events, sizeof(events), "%s/uprobe_events", mount->mnt_dir);
		if (access(events, F_OK) == 0 || errno == EACCES)
			snprintf(path, HOST_PATH_MAX, "%s", mount->mnt_dir);
	}
	if (mounts)
		endmntent(mounts);
}

static int ask_bpf(void)
{
	union bpf_attr attr;
	memset(&attr, 0, sizeof(attr));
	errno = 0;
	return syscall(SYS_bpf, INT32_MAX, &attr, sizeof(attr)) < 0 ? errno : 0;
}

static bool proc_shows_host(void)
{
	struct stat pidns;
	char self[32];
	ssize_t length = readlink("/proc/self", self, sizeof(self) - 1);
	self[length > 0 ? length : 0] = '\0';
	return atoi(self) == (int)getpid() && stat("/proc/self/ns/pid", &pidns) == 0 &&
	       pidns.st_ino == INITIAL_PID_NAMESPACE;
}

static int64_t memlock_bytes(void)
{
	struct rlimit limit;
	if (getrlimit(RLIMIT_MEMLOCK, &limit) < 0)
		return HOST_UNKNOWN;
	return limit.rlim_cur == RLIM_INFINITY ? -1 : (int64_t)limit.rlim_cur;
}

void host_facts_read(struct host_facts *facts)
{
	struct utsname name;
	char line[128];
	*facts = (struct host_facts){0};
	if (uname(&name) == 0) {
		snprintf(facts->release, sizeof(facts->release), "%.79s", name.release);
		snprintf(facts->machine, sizeof(facts->machine), "%.15s", name.machine);
	}
	facts->capabilities = host_self_status("CapEff", 16);
	facts->bpf_error = ask_bpf();
	facts->lockdown_known = host_lockdown(facts->lockdown);
	find_tracefs(facts->tracefs);
	facts->uprobe_events = host_has_uprobe_events();
	facts->memlock_bytes = memlock_bytes();
	facts->unprivileged_bpf_disabled = read_number("/proc/sys/kernel/unprivileged_bpf_disabled");
	facts->perf_event_paranoid = read_number("/proc/sys/kernel/perf_event_paranoid");
	facts->seccomp = (int)host_self_status("Seccomp", 10);
	facts->no_new_privileges = host_self_status("NoNewPrivs", 10) != 0;
	facts->proc_shows_host = proc_shows_host();
	facts->user_namespace = read_line("/proc/self/uid_map", line, sizeof(line)) && !host_uid_map_is_whole(line);
}
