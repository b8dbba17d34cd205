/* SPDX-License-Identifier: Apache-2.0 */
#include "store/base/prefault.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include "store/base/host_memory.h"
#include "store/base/log.h"
#include "store/base/parse.h"
#include "store/base/thread.h"

#define PIECE    ((size_t)1 << 19)     /* between two looks at stop, and how long a lock of the mapping is held */
#define LOOK     ((size_t)64 << 20)    /* between two looks at how much memory there is */
#define SPARE    ((uint64_t)512 << 20) /* of the available memory that is left to others */
#define NICENESS 10                    /* the worker's own threads go first */

static bool wanted(void)
{
	const char *text = getenv("MC_STORE_PREFAULT");
	int on = 1;
	if (text && *text && kv_parse_bool(&on, text))
		kv_warn("MC_STORE_PREFAULT=%.32s is not on or off; taking pages ahead", text);
	return on;
}

/* Taking what no one may need is not worth anyone's end: short of memory the kernel would pick a process. */
static bool is_room(size_t wanted)
{
	uint64_t available = kv_memory_available();
	return available >= SPARE && wanted <= available - SPARE;
}

static void *take_pages(void *arg)
{
	struct kv_prefault *prefault = arg;
	const struct kv_mem *mem = prefault->mem;

	setpriority(PRIO_PROCESS, (id_t)gettid(), NICENESS);
	for (size_t at = 0; at < mem->mapped && !atomic_load(&prefault->stop); at += PIECE) {
		size_t length = mem->mapped - at < PIECE ? mem->mapped - at : PIECE;
		if (at % LOOK == 0 && !is_room(mem->mapped - at)) {
			kv_warn("segment: memory is short; its pages from %zu on are not taken ahead", at);
			break;
		}
		if (madvise((char *)mem->base + at, length, MADV_POPULATE_WRITE) == 0 || errno == EINTR)
			continue;
		if (errno != EINVAL) /* EINVAL: a kernel before 5.14; the first touch does it there */
			kv_warn("segment: pages from %zu on could not be taken ahead: %s", at, strerror(errno));
		break;
	}
	return NULL;
}

void kv_prefault_start(struct kv_prefault *prefault, const struct kv_mem *mem)
{
	if (!wanted())
		return;
	prefault->mem = mem;
	atomic_store(&prefault->stop, false);
	int error = kv_thread_start(&prefault->thread, take_pages, prefault, "kv-prefault");
	if (error)
		kv_warn("segment: no thread to take pages ahead: %s", strerror(error));
	prefault->running = error == 0;
}

void kv_prefault_stop(struct kv_prefault *prefault)
{
	if (!prefault->running)
		return;
	atomic_store(&prefault->stop, true);
	pthread_join(prefault->thread, NULL);
	prefault->running = false;
}
