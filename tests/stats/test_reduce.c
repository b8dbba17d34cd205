/* SPDX-License-Identifier: Apache-2.0 */
/* The nine figures below the limit: exact ones, against the definition written down plainly. */
#include "tests/unit/kv_cmocka.h"

#include <math.h>
#include <string.h>

#include "kvstore_status.h"
#include "store/stats/transfer_stats.h"

#define MIB 1048576

static void assert_near(double got, double wanted, double tolerance)
{
	if (!(fabs(got - wanted) <= tolerance))
		fail_msg("%.17g is not within %g of %.17g", got, tolerance, wanted);
}

static void record(struct xfer_stats *stats, double seconds, int64_t bytes, uint32_t descriptors)
{
	struct xfer_row row = {seconds, bytes, descriptors};
	assert_int_equal(xfer_stats_record(stats, XFER_DIRECTION_WRITE, &row), KV_OK);
}

static struct xfer_stats *new_stats(void)
{
	struct xfer_stats *stats = xfer_stats_new(0);
	assert_non_null(stats);
	return stats;
}

/* Takes everything and reduces it. */
static struct xfer_reduced reduced(struct xfer_stats *stats)
{
	struct xfer_snapshot snapshot;
	struct xfer_reduced out;
	assert_int_equal(xfer_stats_take(stats, &snapshot), KV_OK);
	assert_int_equal(xfer_snapshot_reduce(&snapshot, &out), KV_OK);
	xfer_snapshot_free(&snapshot);
	return out;
}

struct figures {
	uint64_t successes;
	double avg_ms, p90_ms, avg_mib, mib_per_s, avg_descriptors;
};

static void assert_figures(struct xfer_stats *stats, struct figures wanted)
{
	struct xfer_reduced got = reduced(stats);
	assert_int_equal(got.successes, wanted.successes);
	assert_near(got.avg_ms, wanted.avg_ms, 0.001);
	assert_near(got.p90_ms, wanted.p90_ms, 0.001);
	assert_near(got.avg_mib, wanted.avg_mib, 0.001);
	assert_near(got.mib_per_s, wanted.mib_per_s, 0.001);
	assert_near(got.avg_descriptors, wanted.avg_descriptors, 0.001);
	assert_false(got.approximate);
	for (int i = 0; i < XFER_FAILURES; i++)
		assert_int_equal(got.failures[i], 0);
}

static void golden_two_transfers(void **state)
{
	(void)state;
	struct xfer_stats *stats = new_stats();
	record(stats, 0.001, MIB, 4);
	record(stats, 0.002, 2 * MIB, 6);
	assert_figures(stats, (struct figures){2, 1.5, 1.9, 1.5, 1000.0, 5.0});
	xfer_stats_free(stats);
}

static void golden_ten_transfers(void **state)
{
	(void)state;
	struct xfer_stats *stats = new_stats();
	for (uint32_t i = 1; i <= 10; i++)
		record(stats, i * 1e-3, MIB, i);
	assert_figures(stats, (struct figures){10, 5.5, 9.1, 1.0, 181.818, 5.5});
	xfer_stats_free(stats);
}

static void golden_transfer_without_a_duration(void **state)
{
	(void)state;
	struct xfer_stats *stats = new_stats();
	record(stats, 0, MIB, 1);
	assert_figures(stats, (struct figures){1, 0, 0, 1.0, 0, 1.0});
	xfer_stats_free(stats);
}

static void empty_stats_reduce_to_zeros(void **state)
{
	(void)state;
	struct xfer_stats *stats = new_stats();
	assert_true(xfer_stats_is_empty(stats));
	assert_int_equal(xfer_stats_successes(stats), 0);
	assert_figures(stats, (struct figures){0});
	xfer_stats_free(stats);
	xfer_stats_free(NULL);
}

static void failures_alone_are_not_empty(void **state)
{
	(void)state;
	for (enum xfer_failure failure = 0; failure < XFER_FAILURES; failure++) {
		struct xfer_stats *stats = new_stats();
		for (int i = 0; i <= (int)failure; i++)
			xfer_stats_record_failure(stats, XFER_DIRECTION_READ, failure);
		assert_false(xfer_stats_is_empty(stats));
		struct xfer_reduced got = reduced(stats);
		assert_int_equal(got.successes, 0);
		assert_true(got.avg_ms == 0 && got.p90_ms == 0 && got.mib_per_s == 0);
		for (int i = 0; i < XFER_FAILURES; i++)
			assert_int_equal(got.failures[i], i == (int)failure ? i + 1 : 0);
		assert_true(xfer_stats_is_empty(stats));
		xfer_stats_free(stats);
	}
}

static int by_value(const void *a, const void *b)
{
	double left = *(const double *)a, right = *(const double *)b;
	return (left > right) - (left < right);
}

/* As the definition has it: of the sorted values, linear between the neighbours of 0.9 * (n - 1). */
static double plain_p90(const struct xfer_row *rows, size_t n)
{
	double *sorted = malloc(n * sizeof(*sorted));
	assert_non_null(sorted);
	for (size_t i = 0; i < n; i++)
		sorted[i] = rows[i].duration_s;
	qsort(sorted, n, sizeof(*sorted), by_value);
	double at = 0.9 * (double)(n - 1);
	size_t low = (size_t)floor(at), high = low + 1 < n ? low + 1 : low;
	double value = sorted[low] + (sorted[high] - sorted[low]) * (at - (double)low);
	free(sorted);
	return value;
}

enum shape { SCATTERED, SORTED, REVERSED, EQUAL, FEW_VALUES, SHAPES };

static double duration_of(enum shape shape, size_t i, size_t n, struct rng *rng)
{
	switch (shape) {
	case SORTED:
		return (double)i * 1e-6;
	case REVERSED:
		return (double)(n - i) * 1e-6;
	case EQUAL:
		return 0.0125;
	case FEW_VALUES:
		return (double)rng_below(rng, 3) * 1e-3;
	default:
		return (double)rng_below(rng, 1000000000) * 1e-8;
	}
}

static void compare_with_plain(enum shape shape, size_t n, struct rng *rng)
{
	struct xfer_stats *stats = new_stats();
	struct xfer_snapshot snapshot;
	struct xfer_reduced got;
	long double seconds = 0, bytes = 0, descriptors = 0;

	for (size_t i = 0; i < n; i++)
		record(stats, duration_of(shape, i, n, rng), (int64_t)rng_below(rng, 1u << 30),
		       (uint32_t)rng_below(rng, 4096));
	assert_int_equal(xfer_stats_take(stats, &snapshot), KV_OK);
	assert_int_equal(snapshot.n_rows, n);
	for (size_t i = 0; i < n; i++) {
		seconds += snapshot.rows[i].duration_s;
		bytes += snapshot.rows[i].bytes;
		descriptors += snapshot.rows[i].descriptors;
	}
	assert_int_equal(xfer_snapshot_reduce(&snapshot, &got), KV_OK);
	assert_near(got.p90_ms, plain_p90(snapshot.rows, n) * 1e3, 1e-9);
	assert_near(got.avg_ms, (double)(seconds / n) * 1e3, 1e-9);
	assert_near(got.avg_mib, (double)(bytes / MIB / n), 1e-9);
	assert_near(got.avg_descriptors, (double)(descriptors / n), 1e-9);
	double rate = seconds > 0 ? (double)(bytes / MIB / seconds) : 0;
	assert_near(got.mib_per_s, rate, 1e-9 * (1 + rate));
	xfer_snapshot_free(&snapshot);
	xfer_stats_free(stats);
}

static void figures_equal_the_plain_definition(void **state)
{
	(void)state;
	static const size_t sizes[] = {1,  2,  3,  4,  5,   9,   10,  11,   12,   20,
	                               21, 63, 64, 65, 100, 101, 127, 1000, 1001, 20000};
	struct rng rng = {3};
	for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++)
		for (enum shape shape = 0; shape < SHAPES; shape++)
			compare_with_plain(shape, sizes[i], &rng);
}

static void extreme_rows_keep_the_sums_exact(void **state)
{
	(void)state;
	struct xfer_stats *stats = new_stats();
	record(stats, 1, INT64_MAX, UINT32_MAX);
	record(stats, 1, INT64_MAX, UINT32_MAX);
	record(stats, 1, INT64_MAX, UINT32_MAX);
	struct xfer_reduced got = reduced(stats);
	assert_near(got.avg_mib, 0x1p43, 1);
	assert_near(got.mib_per_s, 0x1p43, 1);
	assert_near(got.avg_descriptors, UINT32_MAX, 0);
	xfer_stats_free(stats);
}

/* A clock that was set back may give one: it counts, and the throughput is then nothing. */
static void negative_duration_gives_no_throughput(void **state)
{
	(void)state;
	struct xfer_stats *stats = new_stats();
	record(stats, -0.5, MIB, 1);
	assert_figures(stats, (struct figures){1, -500, -500, 1, 0, 1});
	xfer_stats_free(stats);
}

static void impossible_rows_are_refused(void **state)
{
	(void)state;
	static const struct xfer_row rows[] = {{(double)NAN, 1, 1},
	                                       {(double)INFINITY, 1, 1},
	                                       {-(double)INFINITY, 1, 1},
	                                       {1, -1, 1},
	                                       {1, INT64_MIN, 1}};
	struct xfer_stats *stats = new_stats();
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		assert_int_equal(xfer_stats_record(stats, XFER_DIRECTION_WRITE, &rows[i]), KV_INVALID_PARAMS);
		assert_int_equal(xfer_stats_record(stats, XFER_DIRECTION_READ, &rows[i]), KV_INVALID_PARAMS);
	}
	assert_true(xfer_stats_is_empty(stats));
	xfer_stats_free(stats);
}

static void take_hands_off_and_copy_does_not(void **state)
{
	(void)state;
	struct xfer_stats *stats = new_stats();
	struct xfer_snapshot copy, taken, after;
	record(stats, 0.25, 7, 3);
	xfer_stats_record_failure(stats, XFER_DIRECTION_WRITE, XFER_FAILED_TRANSFER);
	assert_int_equal(xfer_stats_copy(stats, &copy), KV_OK);
	assert_int_equal(xfer_stats_successes(stats), 1);
	assert_int_equal(xfer_stats_take(stats, &taken), KV_OK);
	assert_true(xfer_stats_is_empty(stats));
	record(stats, 0.5, 8, 4);
	const struct xfer_snapshot *both[] = {&copy, &taken};
	for (int i = 0; i < 2; i++) {
		assert_int_equal(both[i]->n_rows, 1);
		assert_int_equal(both[i]->rows[0].bytes, 7);
		assert_int_equal(both[i]->failures[XFER_FAILED_TRANSFER], 1);
	}
	assert_int_equal(xfer_stats_take(stats, &after), KV_OK);
	assert_int_equal(after.n_rows, 1);
	assert_int_equal(after.rows[0].bytes, 8);
	assert_int_equal(after.failures[XFER_FAILED_TRANSFER], 0);
	xfer_snapshot_free(&copy);
	xfer_snapshot_free(&taken);
	xfer_snapshot_free(&after);
	assert_true(xfer_snapshot_is_empty(&after));
	xfer_stats_free(stats);
}

static void merged_snapshots_keep_order_and_counts(void **state)
{
	(void)state;
	struct xfer_snapshot sum = {0}, part = {0}, nothing = {0};
	for (int64_t i = 0; i < 100; i++)
		assert_int_equal(xfer_snapshot_push(&part, &(struct xfer_row){0.001, i, 1}), KV_OK);
	part.failures[XFER_FAILED_RECV] = 2;
	assert_int_equal(xfer_snapshot_add(&sum, &nothing), KV_OK);
	assert_true(xfer_snapshot_is_empty(&sum));
	assert_int_equal(xfer_snapshot_add(&sum, &part), KV_OK);
	assert_int_equal(xfer_snapshot_add(&sum, &part), KV_OK);
	assert_int_equal(xfer_snapshot_add(&sum, &sum), KV_OK); /* itself, too */
	assert_int_equal(xfer_snapshot_successes(&sum), 400);
	assert_int_equal(sum.failures[XFER_FAILED_RECV], 8);
	for (size_t i = 0; i < 400; i++)
		assert_int_equal(sum.rows[i].bytes, i % 100);

	struct xfer_stats *stats = new_stats();
	record(stats, 1, 1000, 1);
	assert_int_equal(xfer_stats_add(stats, &sum), KV_OK);
	assert_int_equal(xfer_stats_successes(stats), 401);
	assert_int_equal(reduced(stats).failures[XFER_FAILED_RECV], 8);
	xfer_snapshot_free(&sum);
	xfer_snapshot_free(&part);
	xfer_stats_free(stats);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(golden_two_transfers),
	        cmocka_unit_test(golden_ten_transfers),
	        cmocka_unit_test(golden_transfer_without_a_duration),
	        cmocka_unit_test(empty_stats_reduce_to_zeros),
	        cmocka_unit_test(failures_alone_are_not_empty),
	        cmocka_unit_test(figures_equal_the_plain_definition),
	        cmocka_unit_test(extreme_rows_keep_the_sums_exact),
	        cmocka_unit_test(negative_duration_gives_no_throughput),
	        cmocka_unit_test(impossible_rows_are_refused),
	        cmocka_unit_test(take_hands_off_and_copy_does_not),
	        cmocka_unit_test(merged_snapshots_keep_order_and_counts),
	};
	return cmocka_run_group_tests_name("stats-reduce", tests, NULL, NULL);
}
