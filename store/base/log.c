/* SPDX-License-Identifier: Apache-2.0 */
#include "store/base/log.h"

#include <errno.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <strings.h>
#include <time.h>
#include <unistd.h>

#include "store/base/clock.h"

#define LINE_MAX_BYTES 1024 /* longer lines are cut and end in "..." */
#define PERIOD_NS      (10 * KV_NS_PER_S)
#define SLOTS          256
#define PROBES         8

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

/* --- how often ------------------------------------------------------------------------------------------- */

/* What was said of one format in the present period. */
struct tally {
	const char *format; /* NULL: a free slot */
	uint64_t since_ns;
	unsigned shown, held;
};

struct verdict {
	bool show, is_last; /* is_last: the next ones of this period are held back */
	unsigned held;      /* in the period before */
};

static struct tally *tally_of(struct tally *tallies, const char *format)
{
	uint64_t hash = (uint64_t)(uintptr_t)format * 0x9e3779b97f4a7c15u;
	for (unsigned i = 0; i < PROBES; i++) {
		struct tally *tally = &tallies[((hash >> 56) + i) % SLOTS];
		if (!tally->format)
			tally->format = format;
		if (tally->format == format)
			return tally;
	}
	return NULL;
}

static struct verdict count_line(struct tally *tally, uint64_t now_ns)
{
	struct verdict verdict = {.show = true};
	if (tally->since_ns == 0 || now_ns - tally->since_ns >= PERIOD_NS) {
		verdict.held = tally->held;
		tally->since_ns = now_ns;
		tally->shown = tally->held = 0;
	}
	verdict.show = tally->shown < KV_LOG_LINES_A_PERIOD;
	if (verdict.show)
		verdict.is_last = ++tally->shown == KV_LOG_LINES_A_PERIOD;
	else
		tally->held++;
	return verdict;
}

/* A dead peer or a full disk fails every call, thousands a second, and each would say the same. Who does not get
 * the lock at once just writes: a child may have been forked while another thread held it. */
static struct verdict look_up(enum kv_log_level level, const char *format)
{
	static struct tally tallies[SLOTS];
	static atomic_flag busy = ATOMIC_FLAG_INIT;
	struct verdict verdict = {.show = true};
	if (level < KV_LOG_WARNING)
		return verdict;
	for (int tries = 0; atomic_flag_test_and_set_explicit(&busy, memory_order_acquire); tries++)
		if (tries == 1000)
			return verdict;
	struct tally *tally = tally_of(tallies, format);
	if (tally)
		verdict = count_line(tally, kv_now_ns());
	atomic_flag_clear_explicit(&busy, memory_order_release);
	return verdict;
}

/* --- a line ---------------------------------------------------------------------------------------------- */

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
	struct verdict verdict = look_up(level, format);
	if (!verdict.show) {
		errno = saved_errno;
		return;
	}
	char line[LINE_MAX_BYTES + 1];
	size_t start = format_prefix(line, sizeof(line), level);
	if (verdict.held)
		start += (size_t)snprintf(line + start, sizeof(line) - start, "(%u like this were not shown) ",
		                          verdict.held);
	else if (verdict.is_last)
		start += (size_t)snprintf(line + start, sizeof(line) - start,
		                          "(more like this are not shown for a while) ");

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
