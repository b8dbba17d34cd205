/* SPDX-License-Identifier: Apache-2.0 */
/* The histogram's buckets, as kernel and tool share them, and what is read from them. */
#include "bpf/kvprobe_bpf.h"
#include "kv_cmocka.h"
#include "tools/kvprobe/hist.h"

#define MAX_ERROR 0.032

static void test_buckets_are_contiguous(void **state)
{
	(void)state;
	assert_int_equal(kvp_hist_low(0), 0);
	for (unsigned int i = 0; i < KVP_HIST_BUCKETS; i++) {
		assert_int_equal(kvp_hist_bucket(kvp_hist_low(i)), i);
		assert_int_equal(kvp_hist_bucket(kvp_hist_high(i)), i);
		if (i + 1 < KVP_HIST_BUCKETS)
			assert_int_equal(kvp_hist_high(i) + 1, kvp_hist_low(i + 1));
	}
	assert_int_equal(kvp_hist_high(KVP_HIST_BUCKETS - 1), (1ull << (KVP_HIST_MAX_LOG2 + 1)) - 1);
}

static void test_everything_larger_is_in_the_last(void **state)
{
	(void)state;
	static const uint64_t large[] = {1ull << (KVP_HIST_MAX_LOG2 + 1), 1ull << 63, UINT64_MAX};
	for (size_t i = 0; i < 3; i++)
		assert_int_equal(kvp_hist_bucket(large[i]), KVP_HIST_BUCKETS - 1);
}

static void test_log2_against_the_compiler(void **state)
{
	(void)state;
	struct rng rng = {1};
	for (int bit = 0; bit < 64; bit++) {
		for (int i = 0; i < 1000; i++) {
			uint64_t value = (1ull << bit) | (rng_next(&rng) & ((1ull << bit) - 1));
			assert_int_equal(kvp_log2(value), 63 - __builtin_clzll(value));
		}
	}
}

static double error_of(uint64_t got, uint64_t want)
{
	double difference = got > want ? (double)(got - want) : (double)(want - got);
	return difference / (double)want;
}

/* Values where buckets begin and end, in every octave: the middle of the bucket is never far. */
static void test_error_is_bounded(void **state)
{
	(void)state;
	for (unsigned int i = 1; i < KVP_HIST_BUCKETS; i++) {
		const uint64_t edges[] = {kvp_hist_low(i), kvp_hist_high(i)};
		for (int k = 0; k < 2; k++) {
			uint64_t hist[KVP_HIST_BUCKETS] = {0};
			hist[kvp_hist_bucket(edges[k])] = 1;
			assert_true(error_of(hist_quantile(hist, 0.5), edges[k]) <= MAX_ERROR);
		}
	}
}

static int compare_u64(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
	return (x > y) - (x < y);
}

#define SAMPLES 20011

static void test_quantiles_against_sorted_samples(void **state)
{
	(void)state;
	static const double quantiles[] = {0, 0.1, 0.5, 0.9, 0.99, 0.999, 1};
	uint64_t *samples = calloc(SAMPLES, sizeof(*samples));
	assert_non_null(samples);
	for (uint64_t seed = 1; seed <= 5; seed++) {
		struct rng rng = {seed};
		uint64_t hist[KVP_HIST_BUCKETS] = {0};
		for (int i = 0; i < SAMPLES; i++) {
			samples[i] = 1 + (rng_next(&rng) >> (24 + rng_below(&rng, 38)));
			hist[kvp_hist_bucket(samples[i])]++;
		}
		qsort(samples, SAMPLES, sizeof(*samples), compare_u64);
		for (size_t q = 0; q < sizeof(quantiles) / sizeof(quantiles[0]); q++) {
			double exact_rank = quantiles[q] * SAMPLES;
			size_t rank = (size_t)exact_rank + (exact_rank > (double)(size_t)exact_rank);
			uint64_t want = samples[rank ? rank - 1 : 0];
			assert_true(error_of(hist_quantile(hist, quantiles[q]), want) <= MAX_ERROR);
		}
	}
	free(samples);
}

static void test_empty(void **state)
{
	(void)state;
	uint64_t hist[KVP_HIST_BUCKETS] = {0};
	assert_int_equal(hist_quantile(hist, 0.5), 0);
	struct kvp_cell cell = {.untimed = 3, .failed_calls = 1};
	struct cell_summary summary;
	cell_summarize(&summary, &cell);
	assert_int_equal(summary.calls, 3);
	assert_int_equal(summary.untimed, 3);
	assert_int_equal(summary.avg_ns, 0);
	assert_int_equal(summary.max_ns, 0);
	assert_int_equal(summary.p999_ns, 0);
}

/* What the kernel side does for one timed call. */
static void put(struct kvp_cell *cell, uint64_t elapsed_ns, uint64_t bytes)
{
	cell->bytes += bytes;
	cell->sum_ns += elapsed_ns;
	cell->hist[kvp_hist_bucket(elapsed_ns)]++;
	if (elapsed_ns > cell->max_ns)
		cell->max_ns = elapsed_ns;
	if (!cell->min_ns || elapsed_ns < cell->min_ns)
		cell->min_ns = elapsed_ns;
}

static uint64_t calls_of(const struct kvp_cell *cell)
{
	struct cell_summary summary;
	cell_summarize(&summary, cell);
	return summary.calls;
}

static void test_summary_stays_between_minimum_and_maximum(void **state)
{
	(void)state;
	struct kvp_cell cell = {0};
	struct cell_summary summary;
	for (int i = 0; i < 1000; i++)
		put(&cell, 1000003, 8); /* not the middle of its bucket */
	cell_summarize(&summary, &cell);
	assert_int_equal(summary.avg_ns, 1000003);
	assert_int_equal(summary.p50_ns, 1000003);
	assert_int_equal(summary.p999_ns, 1000003);
	assert_int_equal(summary.max_ns, 1000003);
	assert_int_equal(summary.bytes, 8000);
}

static void test_interval_is_the_difference(void **state)
{
	(void)state;
	struct kvp_cell before = {0}, now, change;
	put(&before, 5000000, 10);
	now = before;
	put(&now, 1000, 1);
	put(&now, 3000, 2);
	cell_subtract(&change, &now, &before);
	assert_int_equal(calls_of(&change), 2);
	assert_int_equal(change.bytes, 3);
	assert_int_equal(change.sum_ns, 4000);
	/* the upper edge of the highest bucket that grew, not the run's maximum */
	assert_int_equal(change.max_ns, kvp_hist_high(kvp_hist_bucket(3000)));
	assert_int_equal(change.min_ns, 0);

	/* capped by the run's maximum */
	before = now;
	put(&now, 5000001, 0);
	cell_subtract(&change, &now, &before);
	assert_int_equal(change.max_ns, 5000001);

	/* nothing came */
	cell_subtract(&change, &now, &now);
	assert_int_equal(calls_of(&change), 0);
	assert_int_equal(change.max_ns, 0);
}

static void test_interval_beyond_the_last_bucket(void **state)
{
	(void)state;
	struct kvp_cell before = {0}, now = {0}, change;
	put(&now, 1ull << 60, 0);
	cell_subtract(&change, &now, &before);
	assert_int_equal(change.max_ns, 1ull << 60);
}

static void test_workers_add_up(void **state)
{
	(void)state;
	struct kvp_cell a = {0}, b = {0}, sum = {0};
	put(&a, 100, 1);
	put(&b, 50, 2);
	put(&b, 900, 3);
	cell_add(&sum, &a);
	cell_add(&sum, &b);
	assert_int_equal(calls_of(&sum), 3);
	assert_int_equal(sum.bytes, 6);
	assert_int_equal(sum.min_ns, 50);
	assert_int_equal(sum.max_ns, 900);
	assert_int_equal(sum.hist[kvp_hist_bucket(50)], 1);
}

/* What the kernel side does for a firing that is an event: it has no duration. */
static void put_event(struct kvp_cell *cell, int64_t rc)
{
	cell->hist[0]++;
	cell->failed_keys++;
	cell->failed_calls += rc < 0;
}

static void test_events_are_calls_without_a_duration(void **state)
{
	(void)state;
	struct kvp_cell cell = {0};
	struct cell_summary summary;
	for (int i = 0; i < 1000; i++)
		put_event(&cell, -800);
	cell_summarize(&summary, &cell);
	assert_int_equal(summary.calls, 1000);
	assert_int_equal(summary.failed_calls, 1000);
	assert_int_equal(summary.untimed, 0);
	assert_int_equal(summary.avg_ns, 0);
	assert_int_equal(summary.max_ns, 0);
	assert_int_equal(summary.p50_ns, 0);

	/* nor do they move the figures of the timed ones */
	put(&cell, 1000003, 8);
	put(&cell, 1000003, 8);
	cell.untimed++;
	cell_summarize(&summary, &cell);
	assert_int_equal(summary.calls, 1003);
	assert_int_equal(summary.untimed, 1);
	assert_int_equal(hist_timed(cell.hist), 2);
	assert_int_equal(summary.avg_ns, 1000003);
	assert_int_equal(summary.p50_ns, 1000003);
	assert_int_equal(summary.p999_ns, 1000003);
	assert_int_equal(hist_quantile(cell.hist, 0.0), hist_quantile(cell.hist, 1.0));
	assert_true(cell_quantile_linear(&cell, 0.0) == 1000003);
}

static void test_interval_of_events(void **state)
{
	(void)state;
	struct kvp_cell before = {0}, now, change;
	put(&before, 5000, 1);
	now = before;
	put_event(&now, -800);
	put_event(&now, -800);
	cell_subtract(&change, &now, &before);
	assert_int_equal(calls_of(&change), 2);
	assert_int_equal(cell_calls(&change), 2);
	assert_int_equal(hist_timed(change.hist), 0);
	assert_int_equal(change.max_ns, 0);
	assert_true(cell_quantile_linear(&change, 0.9) == 0);
}

static double linear_of_sorted(const uint64_t *samples, size_t n, double quantile)
{
	double position = quantile * (double)(n - 1);
	size_t rank = (size_t)position;
	double low = (double)samples[rank], high = rank + 1 < n ? (double)samples[rank + 1] : low;
	return low + (position - (double)rank) * (high - low);
}

static void test_linear_quantiles_against_sorted_samples(void **state)
{
	(void)state;
	static const double quantiles[] = {0, 0.1, 0.5, 0.9, 0.99, 1};
	static const size_t sizes[] = {1, 2, 3, 10, 11, 97, 1000};
	uint64_t samples[1000];
	struct rng rng = {17};
	for (size_t k = 0; k < sizeof(sizes) / sizeof(sizes[0]); k++) {
		struct kvp_cell cell = {0};
		for (size_t i = 0; i < sizes[k]; i++) {
			samples[i] = 1 + (rng_next(&rng) >> (24 + rng_below(&rng, 38)));
			put(&cell, samples[i], 0);
			put_event(&cell, -800);
		}
		qsort(samples, sizes[k], sizeof(*samples), compare_u64);
		for (size_t q = 0; q < sizeof(quantiles) / sizeof(quantiles[0]); q++) {
			double want = linear_of_sorted(samples, sizes[k], quantiles[q]);
			double got = cell_quantile_linear(&cell, quantiles[q]);
			assert_true(got >= want * (1 - KVP_HIST_ERROR) && got <= want * (1 + KVP_HIST_ERROR));
		}
		if (sizes[k] == 1) /* minimum and maximum leave no doubt */
			assert_true(cell_quantile_linear(&cell, 0.9) == (double)samples[0]);
	}
}

static void test_linear_quantile_between_buckets(void **state)
{
	(void)state;
	struct kvp_cell cell = {.max_ns = 31};
	cell.hist[kvp_hist_bucket(10)] = 9; /* buckets below 32 hold one value each */
	cell.hist[kvp_hist_bucket(30)] = 2;
	assert_true(cell_quantile_linear(&cell, 0.8) == 10);  /* rank 8 of 0 .. 10 */
	assert_true(cell_quantile_linear(&cell, 0.85) == 20); /* halfway from rank 8 to 9 */
	assert_true(cell_quantile_linear(&cell, 0.9) == 30);
	assert_true(cell_quantile_linear(&cell, 1) == 30);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_buckets_are_contiguous),
	        cmocka_unit_test(test_everything_larger_is_in_the_last),
	        cmocka_unit_test(test_log2_against_the_compiler),
	        cmocka_unit_test(test_error_is_bounded),
	        cmocka_unit_test(test_quantiles_against_sorted_samples),
	        cmocka_unit_test(test_empty),
	        cmocka_unit_test(test_summary_stays_between_minimum_and_maximum),
	        cmocka_unit_test(test_interval_is_the_difference),
	        cmocka_unit_test(test_interval_beyond_the_last_bucket),
	        cmocka_unit_test(test_workers_add_up),
	        cmocka_unit_test(test_events_are_calls_without_a_duration),
	        cmocka_unit_test(test_interval_of_events),
	        cmocka_unit_test(test_linear_quantiles_against_sorted_samples),
	        cmocka_unit_test(test_linear_quantile_between_buckets),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
