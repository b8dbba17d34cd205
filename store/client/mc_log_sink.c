/* SPDX-License-Identifier: Apache-2.0 */
#include "store/client/mc_log_sink.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>
#include <unistd.h>

#include "probes/mc_log.h"
#include "store/base/clock.h"
#include "store/base/fd.h"
#include "store/base/log.h"
#include "store/base/parse.h"

#define REPORT_NS   (10 * KV_NS_PER_S) /* between two reports of losses */
#define EXIT_NS     (2 * KV_NS_PER_S)  /* that an exit waits for the writer */
#define WRITE_CHUNK ((size_t)1 << 20)  /* text gathered before a write */
#define BLOCKED_MS  1000
#define TEXT_KEEP   ((size_t)4 << 20)

struct entry {
	struct entry *next;
	uint64_t n_keys;
	struct kvp_block block; /* and its records */
};

uint64_t mc_log_threshold;

static pthread_once_t once = PTHREAD_ONCE_INIT;
static struct {
	pthread_mutex_t lock;
	pthread_cond_t wake; /* the writer */
	pthread_cond_t idle; /* who waits for a flush */
	struct entry *first, **last;
	size_t bytes, calls, keys;
	uint64_t held_calls, held_keys; /* with the writer, not on the disk yet */
	bool running;                   /* the writer's thread exists */
	bool stop;                      /* it is to end */
	pthread_t writer;
	uint64_t lost_calls, lost_keys, reported_keys, reported_calls;
	char directory[PATH_MAX]; /* "": stderr */
	int fd;                   /* atomic; the writer's; -1: not open */
	bool mid_line;            /* the writer's: the last thing written is part of a line */
} sink = {.lock = PTHREAD_MUTEX_INITIALIZER,
          .wake = PTHREAD_COND_INITIALIZER,
          .idle = PTHREAD_COND_INITIALIZER,
          .last = &sink.first,
          .fd = -1};

/* --- what the environment says ------------------------------------------------------------------------- */

static bool is_enabled(void)
{
	const char *text = getenv("MC_LOG_ENABLE");
	return text && (strcasecmp(text, "on") == 0 || strcasecmp(text, "true") == 0 || strcmp(text, "1") == 0);
}

/* The lines are of level INFO. */
static bool level_shows_them(void)
{
	const char *text = getenv("MC_LOG_LEVEL");
	return !text || (strcasecmp(text, "WARNING") != 0 && strcasecmp(text, "ERROR") != 0);
}

static uint64_t threshold_of_rate(void)
{
	const char *text = getenv("MC_HIFREQ_LOG_SAMPLE_RATE");
	double rate = 1;
	if (text && *text && (kv_parse_double(&rate, text) || !(rate >= 0 && rate <= 1))) {
		kv_warn("MC_HIFREQ_LOG_SAMPLE_RATE=%s is not in 0..1; every call is logged", text);
		rate = 1;
	}
	return rate >= 1 ? UINT64_MAX : (uint64_t)(rate * 18446744073709551615.0);
}

bool mc_log_draw(uint64_t op_id)
{
	/* Ids are well mixed already; this keeps the draw apart from other users of their bits. */
	uint64_t hash = op_id * 0x9e3779b97f4a7c15u;
	hash ^= hash >> 32;
	hash *= 0xd6e8feb86659fd93u;
	hash ^= hash >> 32;
	return hash <= __atomic_load_n(&mc_log_threshold, __ATOMIC_RELAXED);
}

/* --- losses ---------------------------------------------------------------------------------------------- */

/* With the lock held. */
static void count_lost(uint64_t calls, uint64_t keys)
{
	sink.lost_calls += calls;
	sink.lost_keys += keys;
}

static void report_losses(void)
{
	char line[96];
	pthread_mutex_lock(&sink.lock);
	bool news = sink.lost_calls != sink.reported_calls || sink.lost_keys != sink.reported_keys;
	sink.reported_calls = sink.lost_calls;
	sink.reported_keys = sink.lost_keys;
	int size = snprintf(line, sizeof(line), "lost %llu calls (%llu keys)\n", (unsigned long long)sink.lost_calls,
	                    (unsigned long long)sink.lost_keys);
	pthread_mutex_unlock(&sink.lock);
	/* Not to a stderr that is stuck as well: neither the writer nor an exit may hang on it. */
	struct pollfd ready = {.fd = STDERR_FILENO, .events = POLLOUT};
	if (news && poll(&ready, 1, 0) == 1 && write(STDERR_FILENO, line, (size_t)size) < 0)
		return; /* there is no one left to tell */
}

/* --- the writer ------------------------------------------------------------------------------------------ */

static int open_output(void)
{
	char path[PATH_MAX + 40];
	if (!sink.directory[0])
		return STDERR_FILENO;
	snprintf(path, sizeof(path), "%s/kvstore.%d.log", sink.directory, (int)getpid());
	int fd = kv_keep_off_stdio(open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644));
	if (fd < 0)
		kv_error("MC_LOG: cannot open %s: %s", path, strerror(errno));
	return fd;
}

/* All of it to the output; false if it cannot be written. */
static bool write_out(const char *text, size_t size)
{
	int fd = __atomic_load_n(&sink.fd, __ATOMIC_RELAXED);
	if (fd < 0) {
		fd = open_output();
		__atomic_store_n(&sink.fd, fd, __ATOMIC_RELAXED);
	}
	/* A full disk took half a line of what was lost before: the next line is to begin as one. */
	if (sink.mid_line && (fd < 0 || write(fd, "\n", 1) != 1))
		return false;
	sink.mid_line = false;
	while (fd >= 0 && size) {
		ssize_t written = write(fd, text, size);
		if (written > 0) {
			text += written;
			size -= (size_t)written;
			sink.mid_line = text[-1] != '\n';
		} else if (written < 0 && errno == EAGAIN) {
			poll(&(struct pollfd){.fd = fd, .events = POLLOUT}, 1, BLOCKED_MS);
		} else if (written == 0 || errno != EINTR) {
			return false;
		}
	}
	return size == 0;
}

/* Write what was gathered; calls and keys are what is lost if that fails. */
static void flush_text(struct mc_text *text, uint64_t *calls, uint64_t *keys)
{
	bool written = !text->failed && write_out(text->text, text->length);
	pthread_mutex_lock(&sink.lock);
	sink.held_calls -= *calls;
	sink.held_keys -= *keys;
	if (!written)
		count_lost(*calls, *keys);
	pthread_mutex_unlock(&sink.lock);
	*calls = *keys = 0;
	text->length = 0;
	text->failed = false;
}

static void write_entries(struct entry *list, struct mc_text *text)
{
	static const struct mc_log_style style;
	uint64_t calls = 0, keys = 0;

	while (list) {
		struct entry *entry = list;
		list = entry->next;
		mc_log_format(text, &entry->block, entry->block.block_bytes, &style);
		calls++;
		keys += entry->n_keys;
		free(entry);
		if (text->length >= WRITE_CHUNK || text->failed)
			flush_text(text, &calls, &keys);
	}
	if (calls)
		flush_text(text, &calls, &keys);
	if (text->capacity > TEXT_KEEP) {
		free(text->text);
		*text = (struct mc_text){0};
	}
}

static void wait_for_work(void)
{
	struct timespec until;
	clock_gettime(CLOCK_MONOTONIC, &until);
	until.tv_sec += REPORT_NS / KV_NS_PER_S;
	while (!sink.first && !sink.stop &&
	       pthread_cond_clockwait(&sink.wake, &sink.lock, CLOCK_MONOTONIC, &until) == 0)
		;
}

static void *run_writer(void *arg)
{
	(void)arg;
	struct mc_text text = {0};
	uint64_t next_report = kv_now_ns() + REPORT_NS;

	for (bool stop = false; !stop;) {
		pthread_mutex_lock(&sink.lock);
		pthread_cond_broadcast(&sink.idle);
		wait_for_work();
		struct entry *list = sink.first;
		sink.first = NULL;
		sink.last = &sink.first;
		sink.held_calls = sink.calls;
		sink.held_keys = sink.keys;
		sink.bytes = sink.calls = sink.keys = 0;
		stop = sink.stop && !list;
		pthread_mutex_unlock(&sink.lock);
		write_entries(list, &text);
		if (kv_now_ns() >= next_report) {
			report_losses();
			next_report = kv_now_ns() + REPORT_NS;
		}
	}
	free(text.text);
	return NULL;
}

/* With the lock held. */
static bool start_writer(void)
{
	if (!sink.running)
		sink.running = !sink.stop && pthread_create(&sink.writer, NULL, run_writer, NULL) == 0;
	return sink.running;
}

static void stop_writer(void)
{
	pthread_mutex_lock(&sink.lock);
	bool running = sink.running;
	sink.stop = true;
	sink.running = false;
	pthread_cond_signal(&sink.wake);
	pthread_mutex_unlock(&sink.lock);
	if (running)
		pthread_join(sink.writer, NULL);
}

/* --- callers ----------------------------------------------------------------------------------------------- */

static struct entry *copy_block(const struct kvp_block *block, uint64_t n_keys)
{
	struct entry *entry = block ? malloc(offsetof(struct entry, block) + block->block_bytes) : NULL;
	if (!entry)
		return NULL;
	entry->next = NULL;
	entry->n_keys = n_keys;
	memcpy(&entry->block, block, block->block_bytes);
	return entry;
}

/* With the lock held. False: no room. */
static bool enqueue(struct entry *entry)
{
	size_t bytes = entry->block.block_bytes;
	if (sink.calls >= MC_LOG_QUEUE_CALLS || bytes > MC_LOG_QUEUE_BYTES - sink.bytes || !start_writer())
		return false;
	*sink.last = entry;
	sink.last = &entry->next;
	sink.bytes += bytes;
	sink.calls++;
	sink.keys += entry->n_keys;
	pthread_cond_signal(&sink.wake);
	return true;
}

void mc_log_submit(const struct kvp_block *block, uint64_t n_keys)
{
	struct entry *entry = copy_block(block, n_keys);
	pthread_mutex_lock(&sink.lock);
	bool queued = entry && enqueue(entry);
	if (!queued)
		count_lost(1, n_keys);
	else if (block->lost_keys)
		count_lost(0, block->lost_keys);
	pthread_mutex_unlock(&sink.lock);
	if (!queued)
		free(entry);
}

bool mc_log_flush(uint64_t limit_ns)
{
	if (__atomic_load_n(&mc_log_threshold, __ATOMIC_RELAXED) == 0)
		return true;
	struct timespec until;
	clock_gettime(CLOCK_MONOTONIC, &until);
	uint64_t end_ns = (uint64_t)until.tv_nsec + limit_ns;
	until.tv_sec += (time_t)(end_ns / KV_NS_PER_S);
	until.tv_nsec = (long)(end_ns % KV_NS_PER_S);
	pthread_mutex_lock(&sink.lock);
	int error = 0;
	while (sink.running && (sink.first || sink.held_calls) && !error)
		error = pthread_cond_clockwait(&sink.idle, &sink.lock, CLOCK_MONOTONIC, &until);
	bool all = !sink.first && !sink.held_calls;
	pthread_mutex_unlock(&sink.lock);
	report_losses();
	return all;
}

/* --- process ------------------------------------------------------------------------------------------------- */

static void before_fork(void)
{
	pthread_mutex_lock(&sink.lock);
}

static void in_parent(void)
{
	pthread_mutex_unlock(&sink.lock);
}

/* The child has no writer and another pid. What is queued is the parent's to write; what the writer held is given
 * up with the writer. */
static void in_child(void)
{
	while (sink.first) {
		struct entry *entry = sink.first;
		sink.first = entry->next;
		free(entry);
	}
	sink.last = &sink.first;
	sink.bytes = sink.calls = sink.keys = 0;
	sink.held_calls = sink.held_keys = 0;
	sink.running = sink.mid_line = false;
	sink.lost_calls = sink.lost_keys = sink.reported_calls = sink.reported_keys = 0;
	__atomic_store_n(&sink.fd, -1, __ATOMIC_RELAXED);
	pthread_cond_init(&sink.wake, NULL);
	pthread_cond_init(&sink.idle, NULL);
	pthread_mutex_unlock(&sink.lock);
}

static void open_once(void)
{
	if (!is_enabled() || !level_shows_them())
		return;
	const char *directory = getenv("MC_LOG_DIR");
	if (directory && strlen(directory) < sizeof(sink.directory))
		strcpy(sink.directory, directory);
	else if (directory)
		kv_error("MC_LOG_DIR is too long; logging to stderr");
	pthread_atfork(before_fork, in_parent, in_child);
	__atomic_store_n(&mc_log_threshold, threshold_of_rate(), __ATOMIC_RELAXED);
}

void mc_log_open(void)
{
	pthread_once(&once, open_once);
}

/* What a writer that hangs on its disk still has is counted as lost; its thread is left behind. */
__attribute__((destructor)) static void flush_at_exit(void)
{
	if (mc_log_flush(EXIT_NS)) {
		stop_writer();
		return;
	}
	pthread_mutex_lock(&sink.lock);
	count_lost(sink.held_calls + sink.calls, sink.held_keys + sink.keys);
	pthread_mutex_unlock(&sink.lock);
	report_losses();
}
