/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What test_matrix.py builds in every way that a user's build may: a few scopes, one of them inlined into many
 * places. MATRIX_LIBRARY leaves main out, MATRIX_CALLER leaves everything but main out.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

int matrix_calls(int rounds);

#ifndef MATRIX_CALLER
#include "probes/perf_points.h"

#define KEY_MISSING (-704)

static inline int inlined_site(uint64_t op_id, int good)
{
	PERF_SCOPE(RC_REMOVE, perf, op_id, 1, 0);
	if (!good)
		return (int)perf_result(&perf, 0, 1, KEY_MISSING);
	return (int)perf_result(&perf, 4096, 1, 0);
}

__attribute__((visibility("default"))) int matrix_calls(int rounds)
{
	int failed = 0;
	for (int i = 0; i < rounds; i++) {
		PERF_SCOPE(MASTER_RPC_REMOVE, perf, (uint64_t)i, 3, 0);
		failed += inlined_site((uint64_t)i, 1) != 0;
		failed += inlined_site((uint64_t)i, 0) != 0;
		failed += inlined_site((uint64_t)i, i % 2) != 0;
		perf_set(&perf, 12288, 3, 1, KEY_MISSING);
	}
	return failed;
}
#endif

#ifndef MATRIX_LIBRARY
int main(int argc, char **argv)
{
	int rounds = argc > 1 ? atoi(argv[1]) : 10;
	int failed = matrix_calls(rounds);
	printf("%d\n", failed);
	return failed == rounds + (rounds + 1) / 2 ? 0 : 1;
}
#endif
