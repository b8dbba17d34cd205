/* SPDX-License-Identifier: Apache-2.0 */
#include "store/base/host_memory.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#define CGROUPS "/sys/fs/cgroup"

/* A field of /proc/meminfo, such as "MemTotal", in bytes; UINT64_MAX if there is none. */
static uint64_t meminfo(const char *field)
{
	char line[128];
	uint64_t kib = 0, result = UINT64_MAX;
	size_t length = strlen(field);
	FILE *file = fopen("/proc/meminfo", "re");
	if (!file)
		return UINT64_MAX;
	while (result == UINT64_MAX && fgets(line, sizeof(line), file))
		if (strncmp(line, field, length) == 0 && line[length] == ':' &&
		    sscanf(line + length + 1, "%" SCNu64, &kib) == 1)
			result = kib * 1024;
	fclose(file);
	return result;
}

/* The number in a file of a control group; UINT64_MAX: "max", or no such file. */
static uint64_t group_number(const char *group, const char *name)
{
	char path[640];
	uint64_t value;
	snprintf(path, sizeof(path), CGROUPS "%s/%s", group, name);
	FILE *file = fopen(path, "re");
	if (!file)
		return UINT64_MAX;
	bool is_number = fscanf(file, "%" SCNu64, &value) == 1;
	fclose(file);
	return is_number ? value : UINT64_MAX;
}

/* The path of this process's group, as its namespace shows it; false without version 2. */
static bool own_group(char *group, size_t size)
{
	char line[512];
	bool found = false;
	FILE *file = fopen("/proc/self/cgroup", "re");
	if (!file)
		return false;
	while (!found && fgets(line, sizeof(line), file)) {
		line[strcspn(line, "\n")] = '\0';
		found = strncmp(line, "0::/", 4) == 0;
	}
	fclose(file);
	if (found)
		snprintf(group, size, "%s", line + 3);
	return found;
}

/* The least of what this process's group and those above it may have, or of what is left of that. */
static uint64_t least_of_groups(bool left)
{
	char group[512];
	uint64_t least = UINT64_MAX;
	if (!own_group(group, sizeof(group)))
		return least;
	for (;;) {
		uint64_t most = group_number(group, "memory.max");
		uint64_t used = left && most != UINT64_MAX ? group_number(group, "memory.current") : 0;
		if (most != UINT64_MAX && used != UINT64_MAX) {
			uint64_t rest = most > used ? most - used : 0;
			least = rest < least ? rest : least;
		}
		char *slash = strrchr(group, '/');
		if (!slash)
			return least;
		*slash = '\0';
	}
}

uint64_t kv_memory_total(void)
{
	uint64_t host = meminfo("MemTotal"), groups = least_of_groups(false), swap = meminfo("SwapTotal");
	uint64_t memory = host < groups ? host : groups;
	return memory == UINT64_MAX || swap == UINT64_MAX ? memory : memory + swap;
}

uint64_t kv_memory_available(void)
{
	uint64_t host = meminfo("MemAvailable"), groups = least_of_groups(true);
	return host < groups ? host : groups;
}
