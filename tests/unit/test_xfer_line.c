/* SPDX-License-Identifier: Apache-2.0 */
/* The line of kvprobe xfer, from cells as the kernel side fills them. */
#include <string.h>

#include "kv_cmocka.h"
#include "tools/kvprobe/xfer_line.h"

#define MIB 1048576u
#define MS  1000000u

/* What the kernel side does for a transfer of one key (write or read) that succeeded. */
static void put(struct kvp_cell *cell, uint64_t elapsed_ns, uint64_t bytes, uint64_t descriptors)
{
	cell->bytes += bytes;
	cell->keys += descriptors;
	cell->sum_ns += elapsed_ns;
	cell->hist[kvp_hist_bucket(elapsed_ns)]++;
	if (elapsed_ns > cell->max_ns)
		cell->max_ns = elapsed_ns;
	if (!cell->min_ns || elapsed_ns < cell->min_ns)
		cell->min_ns = elapsed_ns;
}

static void put_failure(struct kvp_cell *cell)
{
	cell->failed_keys++;
	cell->failed_calls++;
	cell->hist[0]++;
}

/* The figures but P90, whose error is not that of the line. */
static void assert_line(const struct xfer_counts *counts, const char *before_p90, const char *after_p90)
{
	struct xfer_figures figures;
	char line[XFER_LINE_MAX];
	xfer_figures_of(&figures, counts);
	int length = xfer_line_format(line, &figures);
	assert_int_equal(length, strlen(line));
	assert_int_equal(strncmp(line, before_p90, strlen(before_p90)), 0);
	const char *rest = strstr(line, ", Avg MB per transfer=");
	assert_non_null(rest);
	assert_string_equal(rest, after_p90);
}

static void assert_p90(const struct xfer_counts *counts, double want_ms)
{
	struct xfer_figures figures;
	xfer_figures_of(&figures, counts);
	assert_true(figures.p90_ms >= want_ms * (1 - KVP_HIST_ERROR) - 0.001);
	assert_true(figures.p90_ms <= want_ms * (1 + KVP_HIST_ERROR) + 0.001);
}

static void test_two_transfers(void **state)
{
	(void)state;
	struct xfer_counts counts = {0};
	put(&counts.moved, MS, MIB, 4);
	put(&counts.moved, 2 * MS, 2 * MIB, 6);
	assert_line(&counts,
	            "KV Transfer metrics: Num successful transfers=2, Avg xfer time (ms)=1.5, P90 xfer time (ms)=1.",
	            ", Avg MB per transfer=1.5, Throughput (MB/s)=1000.0, Avg number of descriptors=5.0, Num failed "
	            "transfers=0, Num failed recvs=0, Num KV expired reqs=0");
	assert_p90(&counts, 1.9);
}

static void test_ten_transfers(void **state)
{
	(void)state;
	struct xfer_counts counts = {.failed_recvs = 3, .expired_reqs = 12};
	for (uint64_t i = 1; i <= 10; i++)
		put(&counts.moved, i * MS, MIB, i);
	put_failure(&counts.moved);
	put_failure(&counts.moved);
	assert_line(&counts,
	            "KV Transfer metrics: Num successful transfers=10, Avg xfer time (ms)=5.5, P90 xfer time (ms)=",
	            ", Avg MB per transfer=1.0, Throughput (MB/s)=181.818, Avg number of descriptors=5.5, Num failed "
	            "transfers=2, Num failed recvs=3, Num KV expired reqs=12");
	assert_p90(&counts, 9.1);
}

/* A duration of 0 is fired as 1 ns: the rate of such transfers is 0, not the largest of all. */
static void test_no_duration_at_all(void **state)
{
	(void)state;
	struct xfer_counts counts = {0};
	put(&counts.moved, 1, MIB, 1);
	assert_line(
	        &counts,
	        "KV Transfer metrics: Num successful transfers=1, Avg xfer time (ms)=0.0, P90 xfer time (ms)=0.0, ",
	        ", Avg MB per transfer=1.0, Throughput (MB/s)=0.0, Avg number of descriptors=1.0, Num failed "
	        "transfers=0, Num failed recvs=0, Num KV expired reqs=0");
}

static void test_no_success_prints_integers(void **state)
{
	(void)state;
	struct xfer_counts counts = {0};
	assert_true(xfer_counts_is_empty(&counts));
	put_failure(&counts.moved);
	assert_false(xfer_counts_is_empty(&counts));
	assert_line(
	        &counts,
	        "KV Transfer metrics: Num successful transfers=0, Avg xfer time (ms)=0, P90 xfer time (ms)=0, ",
	        ", Avg MB per transfer=0, Throughput (MB/s)=0, Avg number of descriptors=0, Num failed transfers=1, "
	        "Num failed recvs=0, Num KV expired reqs=0");
}

static void test_any_failure_is_something(void **state)
{
	(void)state;
	assert_false(xfer_counts_is_empty(&(struct xfer_counts){.failed_recvs = 1}));
	assert_false(xfer_counts_is_empty(&(struct xfer_counts){.expired_reqs = 1}));
	struct xfer_counts moved = {0};
	put(&moved.moved, 1, 0, 0);
	assert_false(xfer_counts_is_empty(&moved));
}

static void test_workers_add_up(void **state)
{
	(void)state;
	struct xfer_counts a = {.failed_recvs = 1}, b = {.failed_recvs = 2, .expired_reqs = 5}, all = {0};
	put(&a.moved, MS, MIB, 4);
	put(&b.moved, 2 * MS, 2 * MIB, 6);
	put_failure(&b.moved);
	xfer_counts_add(&all, &a);
	xfer_counts_add(&all, &b);
	assert_line(&all, "KV Transfer metrics: Num successful transfers=2, Avg xfer time (ms)=1.5, ",
	            ", Avg MB per transfer=1.5, Throughput (MB/s)=1000.0, Avg number of descriptors=5.0, Num failed "
	            "transfers=1, Num failed recvs=3, Num KV expired reqs=5");
}

/* The largest of everything fits the line. */
static void test_length(void **state)
{
	(void)state;
	struct xfer_figures figures = {UINT64_MAX,
	                               1.7976931348623157e308,
	                               -1.7976931348623157e308,
	                               1.7976931348623157e308,
	                               5e-324,
	                               -1234567890123456.7,
	                               UINT64_MAX,
	                               UINT64_MAX,
	                               UINT64_MAX,
	                               UINT64_MAX,
	                               UINT64_MAX,
	                               UINT64_MAX};
	char line[XFER_LINE_MAX];
	int length = xfer_line_format(line, &figures);
	assert_int_equal(length, strlen(line));
	assert_true(strlen(line) < XFER_LINE_MAX - 1);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_two_transfers),
	        cmocka_unit_test(test_ten_transfers),
	        cmocka_unit_test(test_no_duration_at_all),
	        cmocka_unit_test(test_no_success_prints_integers),
	        cmocka_unit_test(test_any_failure_is_something),
	        cmocka_unit_test(test_workers_add_up),
	        cmocka_unit_test(test_length),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
