/* SPDX-License-Identifier: Apache-2.0 */
/* The limit: every row is kept up to it, whoever writes; beyond it counts and sums go on exactly and P90 is within
 * the stated error. */
#include "tests/unit/kv_cmocka.h"

#include <math.h>

#include "kvstore_status.h"
#include "store/base/thread.h"
#include "store/stats/sketch.h"
#include "store/stats/transfer_stats.h"

#define MIB 1048576.0L

static struct xfer_row some_row(struct rng *rng)
{
	/* 1 us to about 17 s, evenly over the powers of two */
	double seconds = ldexp(1e-6, (int)rng_below(rng, 24)) * (1 + (double)rng_below(rng, 1000) / 1000);
	return (struct xfer_row){seconds, (int64_t)rng_below(rng, 1u << 28), (uint32_t)rng_below(rng, 5000)};
}

struct plain {
	double *seconds;
	size_t n;
	long double sum_s, sum_bytes, sum_descriptors;
};

static void note(struct plain *plain, const struct xfer_row *row)
{
	plain->seconds[plain->n++] = row->duration_s;
	plain->sum_s += row->duration_s;
	plain->sum_bytes += row->bytes;
	plain->sum_descriptors += row->descriptors;
}

static int by_value(const void *a, const void *b)
{
	double left = *(const double *)a, right = *(const double *)b;
	return (left > right) - (left < right);
}

static double p90_ms(struct plain *plain)
{
	qsort(plain->seconds, plain->n, sizeof(double), by_value);
	double at = 0.9 * (double)(plain->n - 1);
	size_t low = (size_t)at, high = low + 1 < plain->n ? low + 1 : low;
	return 1e3 * (plain->seconds[low] + (plain->seconds[high] - plain->seconds[low]) * (at - (double)low));
}

static void assert_close(double got, long double wanted, double relative)
{
	if (!(fabsl(got - wanted) <= relative * fabsl(wanted)))
		fail_msg("%.17g is not within %g of %.17Lg", got, relative, wanted);
}

static void assert_figures(const struct xfer_snapshot *snapshot, struct plain *plain, bool approximate)
{
	struct xfer_reduced got;
	assert_int_equal(xfer_snapshot_reduce(snapshot, &got), KV_OK);
	assert_int_equal(got.successes, plain->n);
	assert_int_equal(got.approximate, approximate);
	assert_close(got.avg_ms, plain->sum_s / plain->n * 1e3L, 1e-12);
	assert_close(got.avg_mib, plain->sum_bytes / MIB / plain->n, 1e-12);
	assert_close(got.mib_per_s, plain->sum_bytes / MIB / plain->sum_s, 1e-12);
	assert_close(got.avg_descriptors, plain->sum_descriptors / plain->n, 1e-12);
	assert_close(got.p90_ms, p90_ms(plain), approximate ? XFER_SKETCH_ERROR : 1e-12);
}

static void check_one_writer(size_t limit, size_t n)
{
	struct xfer_stats *stats = xfer_stats_new(limit);
	struct plain plain = {.seconds = calloc(n, sizeof(double))};
	struct rng rng = {limit + n};
	struct xfer_snapshot copy, taken;

	assert_true(stats && plain.seconds);
	for (size_t i = 0; i < n; i++) {
		struct xfer_row row = some_row(&rng);
		note(&plain, &row);
		assert_int_equal(xfer_stats_record(stats, XFER_DIRECTION_WRITE, &row), KV_OK);
	}
	assert_int_equal(xfer_stats_successes(stats), n);
	assert_int_equal(xfer_stats_is_approximate(stats), n > limit);
	assert_int_equal(xfer_stats_copy(stats, &copy), KV_OK);
	assert_int_equal(xfer_stats_take(stats, &taken), KV_OK);
	assert_true(xfer_stats_is_empty(stats));
	assert_false(xfer_stats_is_approximate(stats));
	assert_int_equal(taken.n_rows, n < limit ? n : limit);
	assert_int_equal(copy.n_rows, taken.n_rows);
	assert_figures(&taken, &plain, n > limit);
	assert_figures(&copy, &plain, n > limit);
	xfer_snapshot_free(&copy);
	xfer_snapshot_free(&taken);
	xfer_stats_free(stats);
	free(plain.seconds);
}

static void every_row_up_to_the_limit_is_exact(void **state)
{
	(void)state;
	static const size_t limits[] = {1, 2, 15, 16, 17, 63, 64, 65, 1000, 5000};
	for (size_t i = 0; i < sizeof(limits) / sizeof(limits[0]); i++) {
		check_one_writer(limits[i], limits[i]);
		if (limits[i] > 1)
			check_one_writer(limits[i], limits[i] - 1);
	}
}

static void one_row_beyond_the_limit_says_so(void **state)
{
	(void)state;
	static const size_t limits[] = {1, 2, 16, 17, 64, 65, 1000, 5000};
	for (size_t i = 0; i < sizeof(limits) / sizeof(limits[0]); i++)
		check_one_writer(limits[i], limits[i] + 1);
}

static void far_beyond_the_limit_sums_stay_exact(void **state)
{
	(void)state;
	check_one_writer(1, 50000);
	check_one_writer(100, 50000);
	check_one_writer(25000, 50000);
}

static void limit_counts_anew_after_each_take(void **state)
{
	(void)state;
	struct xfer_stats *stats = xfer_stats_new(10);
	assert_non_null(stats);
	for (int round = 0; round < 5; round++) {
		struct xfer_snapshot taken;
		size_t n = round % 2 ? 10 : 11;
		for (size_t i = 0; i < n; i++)
			assert_int_equal(xfer_stats_record(stats, XFER_DIRECTION_READ, &(struct xfer_row){1, 1, 1}),
			                 0);
		assert_int_equal(xfer_stats_take(stats, &taken), KV_OK);
		assert_int_equal(taken.n_rows, 10);
		assert_int_equal(taken.overflow != NULL, n > 10);
		xfer_snapshot_free(&taken);
	}
	xfer_stats_free(stats);
}

/* --- many writers ------------------------------------------------------------------------------------ */

enum { WRITERS = 24 }; /* more than there are shards */

struct share {
	struct xfer_stats *stats;
	size_t n;
};

static void *write_share(void *arg)
{
	const struct share *share = arg;
	for (size_t i = 0; i < share->n; i++)
		MUST(xfer_stats_record(share->stats, XFER_DIRECTION_WRITE, &(struct xfer_row){0.001, 8, 2}) == KV_OK);
	return NULL;
}

/* n rows from threads with unequal shares, so that some draw much of the limit and use little of it. */
static void check_many_writers(size_t limit, size_t n)
{
	struct xfer_stats *stats = xfer_stats_new(limit);
	struct share shares[WRITERS];
	pthread_t threads[WRITERS];
	struct xfer_snapshot taken;
	size_t left = n;

	assert_non_null(stats);
	for (size_t i = 0; i < WRITERS; i++) {
		size_t part = i + 1 == WRITERS ? left : left / (i % 3 ? 8 : 64);
		shares[i] = (struct share){stats, part};
		left -= part;
	}
	for (size_t i = 0; i < WRITERS; i++)
		assert_int_equal(kv_thread_start(&threads[i], write_share, &shares[i], "writer"), 0);
	for (size_t i = 0; i < WRITERS; i++)
		pthread_join(threads[i], NULL);
	assert_int_equal(xfer_stats_take(stats, &taken), KV_OK);
	assert_int_equal(xfer_snapshot_successes(&taken), n);
	assert_int_equal(taken.n_rows, n < limit ? n : limit);
	assert_int_equal(taken.overflow != NULL, n > limit);
	xfer_snapshot_free(&taken);
	xfer_stats_free(stats);
}

static void limit_is_exact_for_many_writers(void **state)
{
	(void)state;
	static const size_t limits[] = {1, 20, 500, 3000, 20000};
	for (size_t i = 0; i < sizeof(limits) / sizeof(limits[0]); i++) {
		check_many_writers(limits[i], limits[i]);
		check_many_writers(limits[i], limits[i] + 1);
		check_many_writers(limits[i], limits[i] * 3);
	}
}

/* --- merging ----------------------------------------------------------------------------------------- */

/* Parts with a limit of their own, the sum with another. */
static void check_merge(size_t part_limit, size_t sum_limit, size_t parts, size_t rows_per_part)
{
	struct xfer_snapshot sum = {.row_limit = sum_limit};
	struct plain plain = {.seconds = calloc(parts * rows_per_part, sizeof(double))};
	struct xfer_stats *live = xfer_stats_new(sum_limit);
	struct rng rng = {part_limit};
	size_t kept = 0;

	assert_true(plain.seconds && live);
	for (size_t p = 0; p < parts; p++) {
		struct xfer_snapshot part = {.row_limit = part_limit};
		for (size_t i = 0; i < rows_per_part; i++) {
			struct xfer_row row = some_row(&rng);
			note(&plain, &row);
			assert_int_equal(xfer_snapshot_push(&part, &row), KV_OK);
		}
		part.failures[XFER_EXPIRED_REQ] = 1;
		kept += part.n_rows;
		assert_int_equal(xfer_snapshot_add(&sum, &part), KV_OK);
		assert_int_equal(xfer_stats_add(live, &part), KV_OK);
		xfer_snapshot_free(&part);
	}
	size_t wanted = kept < sum_limit ? kept : sum_limit;
	struct xfer_snapshot taken;
	assert_int_equal(xfer_stats_take(live, &taken), KV_OK);
	const struct xfer_snapshot *both[] = {&sum, &taken};
	for (int i = 0; i < 2; i++) {
		assert_int_equal(both[i]->n_rows, wanted);
		assert_int_equal(both[i]->failures[XFER_EXPIRED_REQ], parts);
		assert_figures(both[i], &plain, wanted < parts * rows_per_part);
	}
	xfer_snapshot_free(&sum);
	xfer_snapshot_free(&taken);
	xfer_stats_free(live);
	free(plain.seconds);
}

static void merges_across_the_limit_lose_nothing(void **state)
{
	(void)state;
	check_merge(100, 1000, 10, 100); /* exactly full */
	check_merge(100, 999, 10, 100);  /* the sum is beyond its limit */
	check_merge(99, 5000, 10, 100);  /* every part is beyond its own */
	check_merge(50, 300, 10, 100);   /* both */
}

/* The quantile of any single duration, to the stated error; below 32 ns to 1 ns. */
static void sketch_is_within_its_error_at_every_magnitude(void **state)
{
	(void)state;
	struct rng rng = {5};
	for (int i = 0; i < 3000; i++) {
		double seconds = ldexp(1e-9, i % 60) * (1 + (double)rng_below(&rng, 4096) / 4096);
		struct xfer_snapshot one = {.row_limit = 1};
		struct xfer_reduced got;
		for (int k = 0; k < 2; k++)
			assert_int_equal(xfer_snapshot_push(&one, &(struct xfer_row){seconds, 1, 1}), KV_OK);
		assert_int_equal(xfer_snapshot_reduce(&one, &got), KV_OK);
		assert_true(got.approximate);
		if (!(fabs(got.p90_ms - seconds * 1e3) <= seconds * 1e3 * XFER_SKETCH_ERROR + 1e-6))
			fail_msg("%.17g ms for %.17g s", got.p90_ms, seconds);
		xfer_snapshot_free(&one);
	}
}

static void durations_are_whole_nanoseconds_halves_to_even(void **state)
{
	static const struct {
		double seconds;
		uint64_t ns;
	} cases[] = {{0.5e-9, 0},
	             {1.5e-9, 2},
	             {2.5e-9, 2},
	             {3.5e-9, 4},
	             {2.6e-9, 3},
	             {-1, 0},
	             {1e300, 9200000000000000000}};
	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
		assert_int_equal(xfer_row_ns(&(struct xfer_row){.duration_s = cases[i].seconds}), cases[i].ns);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(every_row_up_to_the_limit_is_exact),
	        cmocka_unit_test(one_row_beyond_the_limit_says_so),
	        cmocka_unit_test(far_beyond_the_limit_sums_stay_exact),
	        cmocka_unit_test(limit_counts_anew_after_each_take),
	        cmocka_unit_test(limit_is_exact_for_many_writers),
	        cmocka_unit_test(merges_across_the_limit_lose_nothing),
	        cmocka_unit_test(sketch_is_within_its_error_at_every_magnitude),
	        cmocka_unit_test(durations_are_whole_nanoseconds_halves_to_even),
	};
	return cmocka_run_group_tests_name("stats-limit", tests, NULL, NULL);
}
