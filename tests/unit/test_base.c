/* SPDX-License-Identifier: Apache-2.0 */
/* Arena, clock, ids, parsing, log, status texts, memory. */
#include "tests/unit/kv_cmocka.h"

#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "store/base/arena.h"
#include "store/base/clock.h"
#include "store/base/fd.h"
#include "store/base/log.h"
#include "store/base/mem.h"
#include "store/base/op_id.h"
#include "store/base/parse.h"
#include "store/base/status.h"
#include "store/base/thread.h"

/* --- arena --------------------------------------------------------------------------------------- */

static void arena_pieces_are_aligned_and_apart(void **state)
{
	(void)state;
	struct kv_arena arena = {.limit = 0};
	struct rng rng = {1};
	enum { N = 2000 };
	unsigned char *pieces[N];
	size_t sizes[N];
	for (int round = 0; round < 3; round++) {
		for (int i = 0; i < N; i++) {
			sizes[i] = i == 100 ? 1 << 20 : rng_below(&rng, 300);
			pieces[i] = kv_arena_alloc(&arena, sizes[i]);
			assert_non_null(pieces[i]);
			assert_int_equal((uintptr_t)pieces[i] % 16, 0);
			memset(pieces[i], i & 0xff, sizes[i]);
		}
		for (int i = 0; i < N; i++) {
			for (size_t b = 0; b < sizes[i]; b++)
				assert_int_equal(pieces[i][b], i & 0xff);
		}
		kv_arena_reset(&arena, 8 << 20);
	}
	kv_arena_free(&arena);
	assert_int_equal(arena.held, 0);
}

static void arena_keeps_its_limit(void **state)
{
	(void)state;
	struct kv_arena arena = {.limit = 100000};
	size_t got = 0;
	while (kv_arena_alloc(&arena, 1000)) {
		got += 1000;
		assert_true(arena.held <= arena.limit);
		assert_true(got <= arena.limit);
	}
	assert_true(got > 90000);
	kv_arena_reset(&arena, 0);
	assert_int_equal(arena.held, 0);
	assert_null(kv_arena_alloc(&arena, 100001));
	assert_non_null(kv_arena_alloc(&arena, 90000));
	kv_arena_free(&arena);
}

static void arena_checks_products_and_sums(void **state)
{
	(void)state;
	struct kv_arena arena = {.limit = 0};
	assert_null(kv_arena_calloc(&arena, SIZE_MAX / 2, 3));
	assert_null(kv_arena_alloc(&arena, SIZE_MAX));
	assert_null(kv_arena_alloc(&arena, SIZE_MAX - 40));
	assert_non_null(kv_arena_alloc(&arena, 0));
	unsigned char *zeros = kv_arena_calloc(&arena, 100, 7);
	for (int i = 0; i < 700; i++)
		assert_int_equal(zeros[i], 0);
	kv_arena_free(&arena);
}

static void arena_steady_state_allocates_nothing(void **state)
{
	(void)state;
	struct kv_arena arena = {.limit = 0};
	for (int i = 0; i < 100; i++)
		assert_non_null(kv_arena_alloc(&arena, 5000));
	kv_arena_reset(&arena, SIZE_MAX);
	size_t held = arena.held;
	for (int round = 0; round < 10; round++) {
		for (int i = 0; i < 100; i++)
			assert_non_null(kv_arena_alloc(&arena, 5000));
		assert_int_equal(arena.held, held);
		kv_arena_reset(&arena, SIZE_MAX);
	}
	kv_arena_reset(&arena, 20000);
	assert_true(arena.held <= 20000);
	kv_arena_free(&arena);
}

static void *use_thread_arena(void *other)
{
	struct kv_arena *arena = kv_arena_thread();
	MUST(arena != other);
	MUST(kv_arena_alloc(arena, 1 << 20)); /* the leak sanitizer sees it if it is not freed */
	return NULL;
}

static void every_thread_has_an_arena(void **state)
{
	(void)state;
	struct kv_arena *mine = kv_arena_thread();
	assert_ptr_equal(mine, kv_arena_thread());
	pthread_t thread;
	assert_int_equal(kv_thread_start(&thread, use_thread_arena, mine, "test"), 0);
	pthread_join(thread, NULL);
}

/* --- clock --------------------------------------------------------------------------------------- */

static void waits_are_rounded_up(void **state)
{
	(void)state;
	assert_int_equal(kv_ms_until(0), 0);
	assert_int_equal(kv_ms_until(kv_now_ns()), 0);
	assert_int_equal(kv_ms_until(UINT64_MAX), INT_MAX);
	int ms = kv_ms_until(kv_now_ns() + 3600 * KV_NS_PER_S);
	assert_in_range(ms, 3500 * 1000, 3600 * 1000);
	/* Until the deadline has passed it is never 0. */
	uint64_t deadline = kv_now_ns() + 2 * KV_NS_PER_MS;
	int left;
	while ((left = kv_ms_until(deadline)) > 0)
		;
	assert_true(kv_now_ns() >= deadline);
}

/* --- ids ----------------------------------------------------------------------------------------- */

enum { THREADS = 4, IDS = 20000 };

static void *make_ids(void *out)
{
	uint64_t *ids = out;
	for (int i = 0; i < IDS; i++)
		ids[i] = kv_op_id_new();
	return NULL;
}

static int by_value(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
	return x < y ? -1 : x > y;
}

static void expect_unique(uint64_t *ids, size_t count)
{
	qsort(ids, count, sizeof(*ids), by_value);
	assert_true(ids[0] != 0);
	for (size_t i = 1; i < count; i++)
		assert_true(ids[i] != ids[i - 1]);
}

static void op_ids_differ_across_threads_and_fork(void **state)
{
	(void)state;
	uint64_t *ids = calloc((THREADS + 2) * IDS, sizeof(*ids));
	pthread_t threads[THREADS];
	for (int i = 0; i < THREADS; i++)
		assert_int_equal(kv_thread_start(&threads[i], make_ids, ids + i * IDS, "test"), 0);
	for (int i = 0; i < THREADS; i++)
		pthread_join(threads[i], NULL);
	kv_op_id_new(); /* this thread has a chunk begun when it forks */
	int fds[2];
	assert_int_equal(pipe(fds), 0);
	pid_t child = fork();
	if (child == 0) {
		make_ids(ids);
		const char *at = (const char *)ids;
		size_t left = IDS * sizeof(*ids);
		while (left > 0) {
			ssize_t n = write(fds[1], at, left);
			if (n <= 0)
				_exit(1);
			at += n;
			left -= (size_t)n;
		}
		_exit(0);
	}
	close(fds[1]);
	make_ids(ids + THREADS * IDS);
	char *at = (char *)(ids + (THREADS + 1) * IDS);
	size_t left = IDS * sizeof(*ids);
	while (left > 0) {
		struct pollfd poller = {.fd = fds[0], .events = POLLIN};
		assert_int_equal(poll(&poller, 1, 60000), 1);
		ssize_t n = read(fds[0], at, left);
		assert_true(n > 0);
		at += n;
		left -= (size_t)n;
	}
	close(fds[0]);
	int status;
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_int_equal(status, 0);
	expect_unique(ids, (THREADS + 2) * IDS);
	free(ids);
}

static void client_ids_differ(void **state)
{
	(void)state;
	struct kv_id a = kv_id_new(), b = kv_id_new();
	assert_false(kv_id_equal(a, b));
	assert_true(a.hi || a.lo);
}

/* --- parsing ------------------------------------------------------------------------------------- */

static void sizes_parse(void **state)
{
	(void)state;
	static const struct {
		const char *text;
		uint64_t bytes;
	} good[] = {{"16777216", 16777216},
	            {"0", 0},
	            {"16MB", 16ull << 20},
	            {"16 MB", 16ull << 20},
	            {" 4gb ", 4ull << 30},
	            {"4G", 4ull << 30},
	            {"1.5 GiB", 3ull << 29},
	            {"0.5k", 512},
	            {"3 TiB", 3ull << 40},
	            {"7b", 7},
	            {"18446744073709551615", UINT64_MAX}};
	uint64_t bytes;
	for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++) {
		assert_int_equal(kv_parse_size(&bytes, good[i].text), KV_OK);
		assert_int_equal(bytes, good[i].bytes);
	}
	static const char *const bad[] = {"",
	                                  "50%",
	                                  "-1",
	                                  "+1",
	                                  "1.5",
	                                  "1.GB",
	                                  ".5GB",
	                                  "16 MBx",
	                                  "MB",
	                                  "1 2",
	                                  "0x10",
	                                  "16 M B",
	                                  "18446744073709551616",
	                                  "16777216 TB",
	                                  "1e3"};
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
		assert_int_equal(kv_parse_size(&bytes, bad[i]), KV_INVALID_PARAMS);
}

static void durations_parse(void **state)
{
	(void)state;
	static const struct {
		const char *text;
		uint64_t ms;
	} good[] = {{"10000", 10000},  {"500ms", 500}, {"10s", 10000}, {"30m", 1800000},
	            {"24h", 86400000}, {"1.5s", 1500}, {"2 S", 2000},  {"0", 0}};
	uint64_t ms;
	for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++) {
		assert_int_equal(kv_parse_duration_ms(&ms, good[i].text), KV_OK);
		assert_int_equal(ms, good[i].ms);
	}
	static const char *const bad[] = {"", "10d", "-5s", "s", "10 s s", "99999999999999999999"};
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
		assert_int_equal(kv_parse_duration_ms(&ms, bad[i]), KV_INVALID_PARAMS);
}

static void numbers_and_switches_parse(void **state)
{
	(void)state;
	uint64_t number;
	double real;
	int on;
	assert_int_equal(kv_parse_u64(&number, " 42 "), KV_OK);
	assert_int_equal(number, 42);
	assert_int_equal(kv_parse_u64(&number, "42x"), KV_INVALID_PARAMS);
	assert_int_equal(kv_parse_u64(&number, ""), KV_INVALID_PARAMS);
	assert_int_equal(kv_parse_u64(&number, "18446744073709551616"), KV_INVALID_PARAMS);
	assert_int_equal(kv_parse_double(&real, "0.9"), KV_OK);
	assert_true(real > 0.899 && real < 0.901);
	assert_int_equal(kv_parse_double(&real, "nan"), KV_INVALID_PARAMS);
	assert_int_equal(kv_parse_double(&real, "1e999"), KV_INVALID_PARAMS);
	assert_int_equal(kv_parse_double(&real, "0.9 x"), KV_INVALID_PARAMS);
	assert_int_equal(kv_parse_double(&real, ""), KV_INVALID_PARAMS);
	static const char *const yes[] = {"on", "TRUE", "1", "Yes"}, *const no[] = {"off", "False", "0", "NO"};
	for (int i = 0; i < 4; i++) {
		on = 0;
		assert_int_equal(kv_parse_bool(&on, yes[i]), KV_OK);
		assert_int_equal(on, 1);
		assert_int_equal(kv_parse_bool(&on, no[i]), KV_OK);
		assert_int_equal(on, 0);
	}
	assert_int_equal(kv_parse_bool(&on, "2"), KV_INVALID_PARAMS);
	assert_int_equal(kv_parse_bool(&on, ""), KV_INVALID_PARAMS);
}

static void environment_numbers_have_limits(void **state)
{
	(void)state;
	kv_log_set_level(KV_LOG_ERROR);
	unsetenv("KV_TEST_NUMBER");
	assert_int_equal(kv_env_u64("KV_TEST_NUMBER", 5, 1, 10), 5);
	setenv("KV_TEST_NUMBER", "7", 1);
	assert_int_equal(kv_env_u64("KV_TEST_NUMBER", 5, 1, 10), 7);
	setenv("KV_TEST_NUMBER", "11", 1);
	assert_int_equal(kv_env_u64("KV_TEST_NUMBER", 5, 1, 10), 5);
	setenv("KV_TEST_NUMBER", "seven", 1);
	assert_int_equal(kv_env_u64("KV_TEST_NUMBER", 5, 1, 10), 5);
	unsetenv("KV_TEST_NUMBER");
	kv_log_set_level(KV_LOG_WARNING);
}

static void statuses_have_texts(void **state)
{
	(void)state;
	assert_string_equal(kv_status_text(KV_OK), "ok");
	assert_string_equal(kv_status_text(KV_OBJECT_NOT_FOUND), "object not found");
	assert_string_equal(kv_status_text(4711), "ok");
	assert_string_equal(kv_status_text(-4711), "unknown status");
}

/* --- log ----------------------------------------------------------------------------------------- */

/* What the log writes to stderr while fn runs. */
static size_t captured(void (*fn)(void), char *out, size_t size)
{
	int fds[2], saved = dup(STDERR_FILENO);
	assert_true(saved >= 0);
	assert_int_equal(pipe2(fds, O_NONBLOCK), 0);
	dup2(fds[1], STDERR_FILENO);
	fn();
	dup2(saved, STDERR_FILENO);
	close(saved);
	close(fds[1]);
	ssize_t n = read(fds[0], out, size - 1);
	close(fds[0]);
	out[n > 0 ? n : 0] = '\0';
	return n > 0 ? (size_t)n : 0;
}

static void log_a_forged_line(void)
{
	kv_trace("not shown");
	kv_warn("peer %s", "a\nb\x1b[0m");
}

static void log_a_long_line(void)
{
	char text[5000];
	memset(text, 'x', sizeof(text) - 1);
	text[sizeof(text) - 1] = '\0';
	kv_error("%s", text);
}

static void log_lines_are_whole_and_bounded(void **state)
{
	(void)state;
	char text[8192], expected[64];
	kv_log_set_level(KV_LOG_WARNING);
	size_t n = captured(log_a_forged_line, text, sizeof(text));
	assert_true(n > 30);
	assert_ptr_equal(strchr(text, '\n'), text + n - 1);
	snprintf(expected, sizeof(expected), "Z W kvstore[%d] peer a?b?[0m\n", (int)getpid());
	assert_non_null(strstr(text, expected));
	assert_true(text[4] == '-' && text[10] == 'T' && text[19] == '.');
	n = captured(log_a_long_line, text, sizeof(text));
	assert_true(n <= 1024);
	assert_string_equal(text + n - 4, "...\n");
}

static void log_the_same_often(void)
{
	for (int i = 0; i < 3 * KV_LOG_LINES_A_PERIOD; i++)
		kv_warn("number %d", i);
	kv_warn("another");
}

static void log_does_not_repeat_itself_without_end(void **state)
{
	(void)state;
	static char text[1 << 16];
	unsigned lines = 0;
	captured(log_the_same_often, text, sizeof(text));
	for (const char *at = text; (at = strstr(at, "number ")); at++)
		lines++;
	assert_int_equal(lines, KV_LOG_LINES_A_PERIOD);
	const char *note = strstr(text, "(more like this are not shown for a while) number ");
	assert_non_null(note);
	assert_int_equal(strtoul(strstr(note, "number ") + 7, NULL, 10), KV_LOG_LINES_A_PERIOD - 1);
	assert_non_null(strstr(note, "] another\n"));
}

/* --- descriptors --------------------------------------------------------------------------------- */

static void descriptors_stay_off_stdio(void **state)
{
	(void)state;
	int saved = dup(STDIN_FILENO);
	close(STDIN_FILENO);
	int low = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	assert_int_equal(low, STDIN_FILENO);
	int kept = kv_keep_off_stdio(low);
	assert_true(kept > STDERR_FILENO);
	assert_int_equal(fcntl(kept, F_GETFD), FD_CLOEXEC);
	assert_true(fcntl(kept, F_GETFL) & O_NONBLOCK);
	assert_int_equal(fcntl(STDIN_FILENO, F_GETFD), -1);
	assert_int_equal(kv_keep_off_stdio(kept), kept);
	close(kept);
	kv_fill_stdio();
	assert_int_equal(open("/dev/null", O_RDONLY | O_CLOEXEC), kept);
	close(kept);
	if (saved >= 0) {
		dup2(saved, STDIN_FILENO);
		close(saved);
	}
	assert_int_equal(kv_keep_off_stdio(-1), -1);
}

/* --- memory -------------------------------------------------------------------------------------- */

static void memory_can_be_mapped_by_a_neighbour(void **state)
{
	(void)state;
	struct kv_mem mem;
	assert_int_equal(kv_mem_map(&mem, 100000, -1, "kv-test"), KV_OK);
	assert_int_equal(mem.size, 100000);
	assert_true(mem.mapped >= 100000);
	assert_true(fcntl(mem.fd, F_GETFD) & FD_CLOEXEC);
	char *other = mmap(NULL, mem.mapped, PROT_READ, MAP_SHARED, mem.fd, 0);
	assert_ptr_not_equal(other, MAP_FAILED);
	memset(mem.base, 0x5a, mem.size);
	assert_int_equal(other[99999], 0x5a);
	assert_int_equal(ftruncate(mem.fd, 0), -1); /* or the neighbour would die of SIGBUS */
	munmap(other, mem.mapped);
	kv_mem_unmap(&mem);
	assert_int_equal(mem.fd, -1);
	assert_null(mem.base);
	kv_mem_unmap(&mem);
}

static void memory_that_cannot_be_had_is_an_error(void **state)
{
	(void)state;
	struct kv_mem mem;
	kv_log_set_level(KV_LOG_ERROR + 1);
	assert_int_equal(kv_mem_map(&mem, SIZE_MAX - 5, -1, "kv-test"), KV_INTERNAL_ERROR);
	assert_int_equal(mem.fd, -1);
	assert_int_equal(kv_mem_map(&mem, (size_t)1 << 62, -1, "kv-test"), KV_INTERNAL_ERROR);
	assert_int_equal(kv_mem_map(&mem, 0, -1, "kv-test"), KV_INTERNAL_ERROR);
	kv_log_set_level(KV_LOG_WARNING);
}

static void huge_pages_fall_back(void **state)
{
	(void)state;
	struct kv_mem mem;
	kv_log_set_level(KV_LOG_ERROR);
	setenv("MC_STORE_USE_HUGEPAGE", "1", 1);
	assert_int_equal(kv_mem_map(&mem, 3 << 20, -1, "kv-test"), KV_OK);
	memset(mem.base, 1, mem.size);
	kv_mem_unmap(&mem);
	unsetenv("MC_STORE_USE_HUGEPAGE");
	kv_log_set_level(KV_LOG_WARNING);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(arena_pieces_are_aligned_and_apart),
	        cmocka_unit_test(arena_keeps_its_limit),
	        cmocka_unit_test(arena_checks_products_and_sums),
	        cmocka_unit_test(arena_steady_state_allocates_nothing),
	        cmocka_unit_test(every_thread_has_an_arena),
	        cmocka_unit_test(waits_are_rounded_up),
	        cmocka_unit_test(op_ids_differ_across_threads_and_fork),
	        cmocka_unit_test(client_ids_differ),
	        cmocka_unit_test(sizes_parse),
	        cmocka_unit_test(durations_parse),
	        cmocka_unit_test(numbers_and_switches_parse),
	        cmocka_unit_test(environment_numbers_have_limits),
	        cmocka_unit_test(statuses_have_texts),
	        cmocka_unit_test(log_lines_are_whole_and_bounded),
	        cmocka_unit_test(log_does_not_repeat_itself_without_end),
	        cmocka_unit_test(descriptors_stay_off_stdio),
	        cmocka_unit_test(memory_can_be_mapped_by_a_neighbour),
	        cmocka_unit_test(memory_that_cannot_be_had_is_an_error),
	        cmocka_unit_test(huge_pages_fall_back),
	};
	return cmocka_run_group_tests_name("base", tests, NULL, NULL);
}
