/* SPDX-License-Identifier: Apache-2.0 */
/* Memory that is refused: each call says so, and nothing is lost or counted twice. Linked with --wrap for the
 * allocators. */
#include "tests/unit/kv_cmocka.h"

#include "kvstore_status.h"
#include "store/stats/prom_text.h"
#include "store/stats/transfer_stats.h"

static int grants = -1; /* allocations until the first that fails; below 0: none does */

static bool refused(void)
{
	if (grants > 0)
		grants--;
	return grants == 0;
}

void *__real_malloc(size_t size);
void *__real_calloc(size_t n, size_t size);
void *__real_realloc(void *old, size_t size);
void *__real_aligned_alloc(size_t alignment, size_t size);
void *__wrap_malloc(size_t size);
void *__wrap_calloc(size_t n, size_t size);
void *__wrap_realloc(void *old, size_t size);
void *__wrap_aligned_alloc(size_t alignment, size_t size);

void *__wrap_malloc(size_t size)
{
	return refused() ? NULL : __real_malloc(size);
}

void *__wrap_calloc(size_t n, size_t size)
{
	return refused() ? NULL : __real_calloc(n, size);
}

void *__wrap_realloc(void *old, size_t size)
{
	return refused() ? NULL : __real_realloc(old, size);
}

void *__wrap_aligned_alloc(size_t alignment, size_t size)
{
	return refused() ? NULL : __real_aligned_alloc(alignment, size);
}

/* The n-th allocation from now on fails, and all after it. */
static void refuse_from(int n)
{
	grants = n;
}

static void refuse_nothing(void)
{
	grants = -1;
}

static const struct xfer_row some_row = {0.001, 4096, 2};

static int record(struct xfer_stats *stats)
{
	return xfer_stats_record(stats, XFER_DIRECTION_WRITE, &some_row);
}

static void new_objects_are_null(void **state)
{
	(void)state;
	refuse_from(1);
	struct xfer_stats *stats = xfer_stats_new(0);
	struct xfer_metrics *metrics = xfer_metrics_new("m", "0", "producer");
	refuse_nothing();
	assert_null(stats);
	assert_null(metrics);
}

static void record_refuses_and_goes_on_later(void **state)
{
	(void)state;
	struct xfer_stats *stats = xfer_stats_new(0);
	uint64_t recorded = 0, refusals = 0;
	assert_non_null(stats);
	for (int round = 0; round < 300; round++) {
		refuse_from(1);
		int status = record(stats);
		refuse_nothing();
		assert_true(status == KV_OK || status == KV_INTERNAL_ERROR);
		recorded += status == KV_OK;
		refusals += status != KV_OK;
		assert_int_equal(xfer_stats_successes(stats), recorded);
		if (status)
			assert_int_equal(record(stats), KV_OK);
		recorded += status != KV_OK;
	}
	assert_true(refusals > 1); /* at first, and whenever it must grow */
	assert_int_equal(xfer_stats_successes(stats), recorded);
	xfer_stats_free(stats);
}

static void record_beyond_the_limit_refuses_without_a_sketch(void **state)
{
	(void)state;
	struct xfer_stats *stats = xfer_stats_new(1);
	assert_non_null(stats);
	assert_int_equal(record(stats), KV_OK);
	refuse_from(1);
	int status = record(stats);
	refuse_nothing();
	assert_int_equal(status, KV_INTERNAL_ERROR);
	assert_false(xfer_stats_is_approximate(stats));
	assert_int_equal(record(stats), KV_OK);
	assert_true(xfer_stats_is_approximate(stats));
	assert_int_equal(xfer_stats_successes(stats), 2);
	xfer_stats_free(stats);
}

/* take, copy and the others with the 1st, 2nd, ... allocation refused until they do without. */
static int cut(struct xfer_stats *stats, bool take, struct xfer_snapshot *out)
{
	return take ? xfer_stats_take(stats, out) : xfer_stats_copy(stats, out);
}

static void cut_without_memory_takes_nothing(void **state)
{
	(void)state;
	for (int take = 0; take < 2; take++) {
		struct xfer_stats *stats = xfer_stats_new(100);
		struct xfer_snapshot out;
		assert_non_null(stats);
		for (int i = 0; i < 150; i++)
			assert_int_equal(record(stats), KV_OK);
		xfer_stats_record_failure(stats, XFER_DIRECTION_WRITE, XFER_FAILED_RECV);
		int status = KV_INTERNAL_ERROR, n = 0;
		while (status) {
			refuse_from(++n);
			status = cut(stats, take, &out);
			refuse_nothing();
			assert_true(status == KV_OK || (status == KV_INTERNAL_ERROR && xfer_snapshot_is_empty(&out)));
			if (status)
				assert_int_equal(xfer_stats_successes(stats), 150);
		}
		assert_true(n > 1);
		assert_int_equal(xfer_snapshot_successes(&out), 150);
		assert_int_equal(out.failures[XFER_FAILED_RECV], 1);
		assert_int_equal(xfer_stats_successes(stats), take ? 0 : 150);
		xfer_snapshot_free(&out);
		xfer_stats_free(stats);
	}
}

static void reduce_and_merge_say_so(void **state)
{
	(void)state;
	for (size_t limit = 5; limit <= 50; limit += 45) {
		struct xfer_snapshot snapshot = {.row_limit = limit}, sum = {.row_limit = limit};
		struct xfer_reduced figures;
		for (int i = 0; i < 20; i++)
			assert_int_equal(xfer_snapshot_push(&snapshot, &some_row), KV_OK);
		refuse_from(1);
		int reduced = xfer_snapshot_reduce(&snapshot, &figures);
		int added = xfer_snapshot_add(&sum, &snapshot);
		int pushed = xfer_snapshot_push(&sum, &some_row);
		refuse_nothing();
		assert_int_equal(reduced, KV_INTERNAL_ERROR);
		assert_int_equal(added, KV_INTERNAL_ERROR);
		assert_int_equal(pushed, KV_INTERNAL_ERROR);
		assert_true(xfer_snapshot_is_empty(&sum));
		assert_int_equal(xfer_snapshot_add(&sum, &snapshot), KV_OK);
		assert_int_equal(xfer_snapshot_successes(&sum), 20);
		xfer_snapshot_free(&sum);
		xfer_snapshot_free(&snapshot);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(new_objects_are_null),
	        cmocka_unit_test(record_refuses_and_goes_on_later),
	        cmocka_unit_test(record_beyond_the_limit_refuses_without_a_sketch),
	        cmocka_unit_test(cut_without_memory_takes_nothing),
	        cmocka_unit_test(reduce_and_merge_say_so),
	};
	return cmocka_run_group_tests_name("stats-no_memory", tests, NULL, NULL);
}
