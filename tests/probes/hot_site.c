/* SPDX-License-Identifier: Apache-2.0 */
/* Compiled and disassembled by test_disasm.py: what a site adds to a function, watched by no one. */
#include "probes/perf_points.h"

uint64_t plain(uint64_t op_id);
uint64_t instrumented(uint64_t op_id);
uint64_t two_ways_out(uint64_t op_id, int64_t rc);

__attribute__((noinline)) uint64_t plain(uint64_t op_id)
{
	return op_id + 1;
}

__attribute__((noinline)) uint64_t instrumented(uint64_t op_id)
{
	PERF_SCOPE(RC_REMOVE, perf, op_id, 1, 0);
	perf_set(&perf, 0, 1, 0, 0);
	return op_id + 1;
}

__attribute__((noinline)) uint64_t two_ways_out(uint64_t op_id, int64_t rc)
{
	PERF_SCOPE(RC_REMOVE, perf, op_id, 1, 0);
	if (rc < 0)
		return (uint64_t)perf_result(&perf, 0, 1, rc);
	perf_set(&perf, 0, 1, 0, 0);
	return op_id + 1;
}
