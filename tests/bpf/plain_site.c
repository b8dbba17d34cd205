/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A worker whose probe stands as another build might have it: no pinned registers, arguments of several sizes in
 * registers, memory and constants, one nop, no semaphore, no safety note. kvprobe must read it all the same.
 *
 *   bpf-plain-site      for each line on stdin: fire RC_REMOVE (bytes 70000, keys 300, failed 3, rc -5) 100 times
 */
#include <stdint.h>
#include <stdio.h>
#include <unistd.h>

#include <sys/sdt.h>

static volatile uint32_t bytes = 70000;
static volatile int32_t rc = -5;

static __attribute__((noinline)) void fire(uint64_t elapsed_ns, uint64_t op_id)
{
	volatile uint16_t in_memory = 300;
	int32_t code = rc;
	uint32_t size = bytes;
	__asm__ volatile("" : "+r"(code), "+r"(size)); /* in registers, not read where the probe stands */
	STAP_PROBE6(kvstore, RC_REMOVE, elapsed_ns, size, in_memory, 3, code, op_id);
}

int main(void)
{
	char line[16];
	setvbuf(stdout, NULL, _IOLBF, 0);
	printf("ready %d\n", getpid());
	while (fgets(line, sizeof(line), stdin)) {
		for (uint64_t i = 1; i <= 100; i++)
			fire(i * 1000, i);
		printf("fired 100\n");
	}
	return 0;
}
