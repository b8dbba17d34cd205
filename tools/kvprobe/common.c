/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/kvprobe/common.h"

#include <errno.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

int verbosity;
static char *kept_text; /* of say_into */
static size_t kept_size;

void say_into(char *text, size_t size)
{
	kept_text = text;
	kept_size = size;
	if (text)
		text[0] = '\0';
}

static void keep(const char *line)
{
	size_t length = strlen(kept_text);
	snprintf(kept_text + length, kept_size - length, "%s%s", length ? "\n" : "", line);
}

static void say_v(bool may_keep, const char *format, va_list args)
{
	char line[2048];
	int length = vsnprintf(line, sizeof(line), format, args);
	if (length < 0)
		return;
	for (char *c = line; *c; c++) /* paths and names may hold what a terminal obeys */
		if ((unsigned char)*c < 0x20 || *c == 0x7f)
			*c = '?';
	if (kept_text && may_keep) {
		keep(line);
		return;
	}
	/* one write per message: two processes' messages do not mix */
	fprintf(stderr, "kvprobe: %s\n", line);
	fflush(stderr);
}

void say(const char *format, ...)
{
	va_list args;
	va_start(args, format);
	say_v(true, format, args);
	va_end(args);
}

void say_more(const char *format, ...)
{
	if (verbosity < 1)
		return;
	va_list args;
	va_start(args, format);
	say_v(false, format, args);
	va_end(args);
}

bool parse_integer(const char *text, int64_t min, int64_t max, int64_t *out)
{
	char *end;
	errno = 0;
	long long value = strtoll(text, &end, 10);
	if (errno || end == text || *end || (*text != '-' && (*text < '0' || *text > '9')) || value < min ||
	    value > max)
		return false;
	*out = value;
	return true;
}

bool parse_seconds(const char *text, double max, uint64_t *out_ns)
{
	char *end;
	errno = 0;
	double value = strtod(text, &end);
	if (errno || end == text || *end || !(*text == '.' || (*text >= '0' && *text <= '9')) || !(value > 0) ||
	    !(value <= max))
		return false;
	*out_ns = (uint64_t)(value * 1e9);
	return *out_ns > 0;
}

static uint64_t clock_ns(clockid_t clock)
{
	struct timespec ts;
	clock_gettime(clock, &ts);
	return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

uint64_t now_mono_ns(void)
{
	return clock_ns(CLOCK_MONOTONIC);
}

uint64_t now_real_ns(void)
{
	return clock_ns(CLOCK_REALTIME);
}

void printable(char *out, size_t out_size, const char *text, size_t length)
{
	size_t at = 0;
	for (size_t i = 0; i < length && at + 5 <= out_size; i++) {
		unsigned char c = (unsigned char)text[i];
		if (c >= 0x20 && c <= 0x7e && c != '\\')
			out[at++] = (char)c;
		else
			at += (size_t)snprintf(out + at, out_size - at, "\\x%02x", c);
	}
	out[at] = '\0';
}

void *need_memory(void *memory)
{
	if (!memory) {
		say("out of memory");
		exit(EXIT_RUNTIME);
	}
	return memory;
}

void *grow_array(void *array, size_t *capacity, size_t needed, size_t item_size)
{
	if (needed <= *capacity)
		return array;
	size_t bigger = *capacity ? *capacity * 2 : 16;
	if (bigger < needed)
		bigger = needed;
	array = need_memory(reallocarray(array, bigger, item_size));
	memset((char *)array + *capacity * item_size, 0, (bigger - *capacity) * item_size);
	*capacity = bigger;
	return array;
}

char *format_text(const char *format, ...)
{
	char *text;
	va_list args;
	va_start(args, format);
	if (vasprintf(&text, format, args) < 0)
		text = NULL;
	va_end(args);
	return need_memory(text);
}

/* --- id_map ------------------------------------------------------------------------------------------- */

static size_t home_of(const struct id_map *map, uint64_t key)
{
	return (size_t)((key * 0x9e3779b97f4a7c15u) >> 32) & (map->capacity - 1);
}

static struct id_map_entry *find_entry(const struct id_map *map, uint64_t key)
{
	size_t at = home_of(map, key);
	while (map->entries[at].key && map->entries[at].key != key)
		at = (at + 1) & (map->capacity - 1);
	return &map->entries[at];
}

void *id_map_get(const struct id_map *map, uint64_t key)
{
	return map->count ? find_entry(map, key)->value : NULL;
}

static void enlarge(struct id_map *map)
{
	struct id_map bigger = {.capacity = map->capacity ? map->capacity * 2 : 64};
	bigger.entries = need_memory(calloc(bigger.capacity, sizeof(*bigger.entries)));
	for (size_t i = 0; i < map->capacity; i++)
		if (map->entries[i].key)
			*find_entry(&bigger, map->entries[i].key) = map->entries[i];
	bigger.count = map->count;
	free(map->entries);
	*map = bigger;
}

void id_map_set(struct id_map *map, uint64_t key, void *value)
{
	if ((map->count + 1) * 4 > map->capacity * 3)
		enlarge(map);
	struct id_map_entry *entry = find_entry(map, key);
	if (!entry->key)
		map->count++;
	*entry = (struct id_map_entry){.key = key, .value = value};
}

void *id_map_take(struct id_map *map, uint64_t key)
{
	if (!map->count)
		return NULL;
	struct id_map_entry *entry = find_entry(map, key);
	if (!entry->key)
		return NULL;
	void *value = entry->value;
	entry->key = 0;
	entry->value = NULL;
	map->count--;
	/* close the gap: those behind it may have been pushed past it */
	size_t at = (size_t)(entry - map->entries);
	for (size_t next = (at + 1) & (map->capacity - 1); map->entries[next].key;
	     next = (next + 1) & (map->capacity - 1)) {
		struct id_map_entry moved = map->entries[next];
		map->entries[next].key = 0;
		map->entries[next].value = NULL;
		*find_entry(map, moved.key) = moved;
	}
	return value;
}

void id_map_free(struct id_map *map)
{
	free(map->entries);
	*map = (struct id_map){0};
}
