/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Takes a segment's pages in the background, so that the first puts into it need not: a page that is touched
 * for the first time costs a fault, which makes a put several times slower than the copy itself. A thread of low
 * priority walks the mapping in pieces; MC_STORE_PREFAULT=off leaves pages to the first touch, and so does a host or
 * control group whose available memory is less than the rest of the segment and something for others.
 */
#ifndef KV_BASE_PREFAULT_H
#define KV_BASE_PREFAULT_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "store/base/mem.h"

/* Zero-initialised: nothing runs. Owned by whoever owns the memory, not copied while it runs. */
struct kv_prefault {
	const struct kv_mem *mem;
	pthread_t thread;
	atomic_bool stop;
	bool running;
};

/* Start on mem, which must stay mapped until kv_prefault_stop. Without a thread, or with the environment's off,
 * nothing starts: pages then come at the first touch, which is slower and nothing else. */
void kv_prefault_start(struct kv_prefault *prefault, const struct kv_mem *mem);
/* Ends it within the time of one piece (some milliseconds) and joins the thread. Harmless if nothing runs. */
void kv_prefault_stop(struct kv_prefault *prefault);

#endif
