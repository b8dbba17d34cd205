/* SPDX-License-Identifier: Apache-2.0 */
#include "store/base/log.h"

#include <errno.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <strings.h>
#include <time.h>
#include <unistd.h>

#include "store/base/clock.h"

#define LINE_MAX_BYTES 1024 /* longer lines are cut and end in "..." */

/* -1: not looked up yet. */
static atomic_int shown_level = -1;

static enum kv_log_level level_of_environment(void)
{
	static const struct {
		const char *name;
		enum kv_log_level level;
	} names[] = {
	        {"TRACE", KV_LOG_TRACE}, {"INFO", KV_LOG_INFO}, {"WARNING", KV_LOG_WARNING}, {"ERROR", KV_LOG_ERROR}};
	const char *text = getenv("MC_LOG_LEVEL");
	for (size_t i = 0; text && i < sizeof(names) / sizeof(names[0]); i++) {
		if (strcasecmp(text, names[i].name) == 0)
			return names[i].level;
	}
	return KV_LOG_WARNING;
}

void kv_log_set_level(enum kv_log_level level)
{
	atomic_store_explicit(&shown_level, (int)level, memory_order_relaxed);
}

enum kv_log_level kv_log_level(void)
{
	int level = atomic_load_explicit(&shown_level, memory_order_relaxed);
	if (level < 0) {
		level = (int)level_of_environment();
		/* Somebody may have set a level meanwhile: that one stands. */
		int unknown = -1;
		if (!atomic_compare_exchange_strong(&shown_level, &unknown, level))
			level = unknown;
	}
	return (enum kv_log_level)level;
}

static size_t format_prefix(char *line, size_t size, enum kv_log_level level)
{
	static const char letters[] = "TIWE";
	uint64_t wall = kv_wall_ns();
	time_t seconds = (time_t)(wall / KV_NS_PER_S);
	struct tm tm;
	gmtime_r(&seconds, &tm);
	size_t at = strftime(line, size, "%Y-%m-%dT%H:%M:%S", &tm);
	int more = snprintf(line + at, size - at, ".%06uZ %c kvstore[%d] ", (unsigned)(wall % KV_NS_PER_S / 1000),
	                    letters[level], (int)getpid());
	return at + (size_t)more;
}

void kv_log(enum kv_log_level level, const char *format, ...)
{
	if (level < kv_log_level())
		return;
	int saved_errno = errno;
	char line[LINE_MAX_BYTES + 1];
	size_t start = format_prefix(line, sizeof(line), level);

	va_list args;
	va_start(args, format);
	int wanted = vsnprintf(line + start, sizeof(line) - start, format, args);
	va_end(args);
	size_t end = start;
	if (wanted > 0)
		end += (size_t)wanted;
	if (end > LINE_MAX_BYTES - 1) {
		end = LINE_MAX_BYTES - 1;
		line[end - 3] = line[end - 2] = line[end - 1] = '.';
	}
	/* Text of peers may be in it; it must not be able to forge a line. */
	for (size_t i = start; i < end; i++) {
		if ((unsigned char)line[i] < 0x20 || line[i] == 0x7f)
			line[i] = '?';
	}
	line[end++] = '\n';
	ssize_t written;
	do {
		written = write(STDERR_FILENO, line, end);
	} while (written < 0 && errno == EINTR);
	errno = saved_errno;
}
