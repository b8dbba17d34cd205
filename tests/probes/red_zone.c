/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Functions that would be leaves without their probes, full of values that a compiler likes to keep below the stack
 * pointer or in registers. If a hit overwrote anything, a sum would come out wrong. Driven by test_red_zone.py:
 *
 *   says "ready", gets a line, makes some calls, says "warm", gets a line, makes ROUNDS calls, says "wrong N".
 */
#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "probes/perf_points.h"

#define VALUES 14
#define WARM   100

/* Every value is live across both ends of the scope. */
__attribute__((noinline)) static uint64_t leaf(uint64_t seed)
{
	volatile uint64_t value[VALUES];
	uint64_t in_register = seed * 3, other = seed ^ 0x5555;
	for (unsigned i = 0; i < VALUES; i++)
		value[i] = seed + i;
	{
		PERF_SCOPE(RC_REMOVE, perf, seed, 1, 7);
		value[VALUES - 1] += 1;
		perf_set(&perf, seed, 1, 0, 0);
	}
	uint64_t sum = in_register + other;
	for (unsigned i = 0; i < VALUES; i++)
		sum += value[i];
	return sum;
}

/* A leaf without a probe: its red zone is its own, and a hit in the frame below must have left nothing there. */
__attribute__((noinline)) static uint64_t without_probe(uint64_t seed)
{
	volatile uint64_t value[VALUES];
	uint64_t sum = 0;
	for (unsigned i = 0; i < VALUES; i++)
		value[i] = seed + i;
	value[VALUES - 1] += 1;
	for (unsigned i = 0; i < VALUES; i++)
		sum += value[i];
	return sum + seed * 3 + (seed ^ 0x5555);
}

static uint64_t count_wrong(uint64_t rounds)
{
	uint64_t wrong = 0;
	for (uint64_t i = 0; i < rounds; i++)
		wrong += leaf(i) != without_probe(i);
	return wrong;
}

static void tell(const char *word)
{
	puts(word);
	fflush(stdout);
	if (getchar() == EOF)
		exit(1);
}

int main(int argc, char **argv)
{
	uint64_t rounds = argc > 1 ? strtoull(argv[1], NULL, 10) : 1000;
	tell("ready");
	uint64_t wrong = count_wrong(WARM);
	tell("warm");
	wrong += count_wrong(rounds);
	printf("wrong %" PRIu64 "\n", wrong);
	return wrong != 0;
}
