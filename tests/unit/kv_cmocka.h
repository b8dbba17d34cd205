/* SPDX-License-Identifier: Apache-2.0 */
/* cmocka with what it wants included first, and the random numbers of the tests: the same in every run. */
#ifndef KV_TESTS_CMOCKA_H
#define KV_TESTS_CMOCKA_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

/* An assertion for threads other than the test's own, which cmocka cannot end. */
#define MUST(condition)                                                                                              \
	do {                                                                                                         \
		if (!(condition)) {                                                                                  \
			fprintf(stderr, "%s:%d: does not hold: %s\n", __FILE__, __LINE__, #condition);               \
			abort();                                                                                     \
		}                                                                                                    \
	} while (0)

struct rng {
	uint64_t state;
};

static inline uint64_t rng_next(struct rng *rng)
{
	uint64_t x = rng->state += 0x9e3779b97f4a7c15ull;
	x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ull;
	x = (x ^ x >> 27) * 0x94d049bb133111ebull;
	return x ^ x >> 31;
}

/* 0 .. below - 1 */
static inline uint64_t rng_below(struct rng *rng, uint64_t below)
{
	return rng_next(rng) % below;
}

#endif
