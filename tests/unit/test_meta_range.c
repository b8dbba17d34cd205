/* SPDX-License-Identifier: Apache-2.0 */
/* The range allocator against a model: a map of which unit belongs to whom. */
#include "tests/unit/kv_cmocka.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "store/meta/range_alloc.h"

struct held {
	uint64_t offset, size;
	uint32_t handle;
};

static void random_use_agrees_with_a_model(void **state)
{
	(void)state;
	enum { UNITS = 4096, MOST = 2000, STEPS = 60000 };
	struct range_alloc ranges;
	assert_true(range_init(&ranges, UNITS * RANGE_ALIGN));
	uint8_t *taken = calloc(1, UNITS);
	struct held *held = calloc(MOST, sizeof(*held));
	size_t n = 0;
	struct rng rng = {7};
	for (int step = 0; step < STEPS; step++) {
		bool take = n == 0 || (n < MOST && rng_below(&rng, 100) < 52);
		if (take) {
			uint64_t size = 1 + rng_below(&rng, 1ull << rng_below(&rng, 15));
			uint64_t units = (size + RANGE_ALIGN - 1) / RANGE_ALIGN;
			struct held *h = &held[n];
			h->size = units;
			if (range_take(&ranges, size, &h->offset, &h->handle)) {
				assert_int_equal(h->offset % RANGE_ALIGN, 0);
				assert_true(h->offset / RANGE_ALIGN + units <= UNITS);
				for (uint64_t u = 0; u < units; u++) {
					assert_false(taken[h->offset / RANGE_ALIGN + u]);
					taken[h->offset / RANGE_ALIGN + u] = 1;
				}
				n++;
			} else {
				/* Refused only if no run of free units is long enough. */
				uint64_t run = 0, longest = 0;
				for (size_t u = 0; u < UNITS; u++) {
					run = taken[u] ? 0 : run + 1;
					longest = run > longest ? run : longest;
				}
				assert_true(longest < units);
				assert_int_equal(longest * RANGE_ALIGN, range_largest_free(&ranges));
			}
		} else {
			size_t at = rng_below(&rng, n);
			memset(taken + held[at].offset / RANGE_ALIGN, 0, held[at].size);
			range_free(&ranges, held[at].handle);
			held[at] = held[--n];
		}
		if (step % 500 == 0)
			assert_true(range_check(&ranges));
	}
	while (n > 0)
		range_free(&ranges, held[--n].handle);
	assert_true(range_check(&ranges));
	assert_int_equal(ranges.used, 0);
	assert_int_equal(range_largest_free(&ranges), UNITS * RANGE_ALIGN);
	free(taken);
	free(held);
	range_destroy(&ranges);
}

static void all_of_it_can_be_used(void **state)
{
	(void)state;
	enum { N = 1024 };
	struct range_alloc ranges;
	uint32_t handles[N];
	uint64_t offset;
	assert_true(range_init(&ranges, (uint64_t)N << 20));
	for (int round = 0; round < 3; round++) {
		for (int i = 0; i < N; i++)
			assert_true(range_take(&ranges, 1 << 20, &offset, &handles[i]));
		assert_int_equal(ranges.used, ranges.capacity);
		uint32_t none;
		assert_false(range_take(&ranges, 1, &offset, &none));
		/* Every second one: no neighbours to join. */
		for (int i = 0; i < N; i += 2)
			range_free(&ranges, handles[i]);
		assert_int_equal(range_largest_free(&ranges), 1 << 20);
		assert_false(range_take(&ranges, (1 << 20) + 1, &offset, &none));
		for (int i = 1; i < N; i += 2)
			range_free(&ranges, handles[i]);
		assert_int_equal(range_largest_free(&ranges), (uint64_t)N << 20);
		assert_true(range_check(&ranges));
	}
	range_destroy(&ranges);
}

static void odd_sizes_are_handled(void **state)
{
	(void)state;
	struct range_alloc ranges;
	uint64_t offset;
	uint32_t handle;
	assert_true(range_init(&ranges, 63));
	assert_int_equal(ranges.capacity, 0);
	assert_false(range_take(&ranges, 1, &offset, &handle));
	range_destroy(&ranges);

	assert_true(range_init(&ranges, 1000));
	assert_int_equal(ranges.capacity, 960);
	assert_false(range_take(&ranges, 961, &offset, &handle));
	assert_false(range_take(&ranges, UINT64_MAX, &offset, &handle));
	assert_false(range_take(&ranges, 0, &offset, &handle));
	assert_true(range_take(&ranges, 960, &offset, &handle));
	range_free(&ranges, handle);
	assert_true(range_check(&ranges));
	range_destroy(&ranges);
	assert_int_equal(range_rounded(1), 64);
	assert_int_equal(range_rounded(64), 64);
	assert_int_equal(range_rounded(UINT64_MAX), 0);

	/* The largest that 64 bits can say. */
	assert_true(range_init(&ranges, UINT64_MAX));
	assert_true(range_take(&ranges, 1ull << 62, &offset, &handle));
	range_free(&ranges, handle);
	assert_true(range_check(&ranges));
	range_destroy(&ranges);
}

/* Random sizes, equally many per power of two from 64 KiB to 16 MiB, in 1 GiB; one in twenty goes when a request
 * is refused. */
static void churn_does_not_fragment_badly(void **state)
{
	(void)state;
	struct range_alloc ranges;
	static uint32_t handles[20000];
	size_t n = 0;
	uint64_t refused = 0;
	double used = 0;
	struct rng rng = {1};
	assert_true(range_init(&ranges, 1ull << 30));
	for (int i = 0; i < 100000; i++) {
		uint64_t size = (uint64_t)exp2(16 + 8 * ((double)rng_below(&rng, 1 << 20) / (1 << 20)));
		uint64_t offset;
		if (range_take(&ranges, size, &offset, &handles[n])) {
			n++;
			continue;
		}
		refused++;
		used += (double)ranges.used / (double)ranges.capacity;
		uint64_t goal = ranges.used / 20 * 19;
		while (ranges.used > goal) {
			size_t at = rng_below(&rng, n);
			range_free(&ranges, handles[at]);
			handles[at] = handles[--n];
		}
	}
	assert_true(range_check(&ranges));
	assert_true(refused > 100);
	print_message("used when a request is refused: %.1f %% on average\n", 100 * used / (double)refused);
	assert_true(used / (double)refused > 0.80);
	range_destroy(&ranges);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(random_use_agrees_with_a_model),
	        cmocka_unit_test(all_of_it_can_be_used),
	        cmocka_unit_test(odd_sizes_are_handled),
	        cmocka_unit_test(churn_does_not_fragment_badly),
	};
	return cmocka_run_group_tests_name("meta-range", tests, NULL, NULL);
}
