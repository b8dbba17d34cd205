/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An id is a bijective mix of a counter that starts at a random number per process: within a process two ids
 * differ for certain, between processes for all practical purposes. Threads take the counter in chunks, so
 * that the usual call touches thread-local memory only.
 */
#include "store/base/op_id.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/random.h>
#include <unistd.h>

#include "store/base/clock.h"

#define CHUNK 4096u

static pthread_once_t seed_once = PTHREAD_ONCE_INIT;
static _Atomic uint64_t next_chunk;
/* Initial-exec: two words of the static block, no call to find them. */
static __thread uint64_t next_id __attribute__((tls_model("initial-exec")));
static __thread uint32_t ids_left __attribute__((tls_model("initial-exec")));

static uint64_t mix(uint64_t x)
{
	x ^= x >> 30;
	x *= 0xbf58476d1ce4e5b9ull;
	x ^= x >> 27;
	x *= 0x94d049bb133111ebull;
	x ^= x >> 31;
	return x;
}

static void random_bytes(void *out, size_t size)
{
	size_t have = 0;
	while (have < size) {
		ssize_t got = getrandom((char *)out + have, size - have, 0);
		if (got > 0)
			have += (size_t)got;
		else if (errno != EINTR)
			break;
	}
	/* Only a system without getrandom comes here: time, pid and an address still tell processes apart. */
	for (; have < size; have++) {
		uint64_t weak = mix(kv_now_ns() ^ ((uint64_t)getpid() << 32) ^ (uintptr_t)&have);
		((unsigned char *)out)[have] = (unsigned char)(weak >> 24);
	}
}

static void seed(void)
{
	uint64_t start;
	random_bytes(&start, sizeof(start));
	atomic_store_explicit(&next_chunk, start, memory_order_relaxed);
}

static void reseed_child(void)
{
	seed();
	ids_left = 0;
}

static void seed_first(void)
{
	seed();
	pthread_atfork(NULL, NULL, reseed_child);
}

static __attribute__((noinline)) void take_chunk(void)
{
	pthread_once(&seed_once, seed_first);
	next_id = atomic_fetch_add_explicit(&next_chunk, CHUNK, memory_order_relaxed);
	ids_left = CHUNK;
}

uint64_t kv_op_id_new(void)
{
	uint64_t id;
	do {
		if (__builtin_expect(ids_left == 0, 0))
			take_chunk();
		ids_left--;
		id = mix(next_id++);
	} while (__builtin_expect(id == 0, 0));
	return id;
}

struct kv_id kv_id_new(void)
{
	struct kv_id id;
	do {
		random_bytes(&id, sizeof(id));
	} while (id.hi == 0 && id.lo == 0);
	return id;
}
