/* SPDX-License-Identifier: Apache-2.0 */
/* Taking a segment's pages ahead: all of them, none where it is switched off, and a stop that comes early. */
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "kv_cmocka.h"

#include "kvstore_status.h"
#include "store/base/clock.h"
#include "store/base/host_memory.h"
#include "store/base/log.h"
#include "store/base/prefault.h"

#define SIZE ((size_t)32 << 20)

static size_t pages_present(const struct kv_mem *mem)
{
	size_t pages = mem->mapped / (size_t)sysconf(_SC_PAGESIZE), present = 0;
	unsigned char *in_core = malloc(pages);
	assert_non_null(in_core);
	assert_int_equal(mincore(mem->base, mem->mapped, in_core), 0);
	for (size_t i = 0; i < pages; i++)
		present += in_core[i] & 1;
	free(in_core);
	return present;
}

static void takes_every_page(void **state)
{
	(void)state;
	struct kv_mem mem;
	struct kv_prefault prefault = {0};
	assert_int_equal(kv_mem_map(&mem, SIZE, -1, "test"), 0);
	assert_int_equal(pages_present(&mem), 0);
	kv_prefault_start(&prefault, &mem);
	uint64_t deadline = kv_now_ns() + 60 * KV_NS_PER_S;
	while (pages_present(&mem) < SIZE / (size_t)sysconf(_SC_PAGESIZE) && kv_now_ns() < deadline)
		nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
	assert_int_equal(pages_present(&mem), SIZE / (size_t)sysconf(_SC_PAGESIZE));
	kv_prefault_stop(&prefault);
	kv_prefault_stop(&prefault);
	kv_mem_unmap(&mem);
}

static void off_takes_none(void **state)
{
	(void)state;
	struct kv_mem mem;
	struct kv_prefault prefault = {0};
	assert_int_equal(kv_mem_map(&mem, SIZE, -1, "test"), 0);
	setenv("MC_STORE_PREFAULT", "off", 1);
	kv_prefault_start(&prefault, &mem);
	unsetenv("MC_STORE_PREFAULT");
	assert_false(prefault.running);
	kv_prefault_stop(&prefault);
	assert_int_equal(pages_present(&mem), 0);
	kv_mem_unmap(&mem);
}

static void stops_before_the_end(void **state)
{
	(void)state;
	struct kv_mem mem;
	struct kv_prefault prefault = {0};
	/* More than can be taken before the stop. */
	assert_int_equal(kv_mem_map(&mem, kv_memory_total() / 2, -1, "test"), 0);
	kv_prefault_start(&prefault, &mem);
	kv_prefault_stop(&prefault);
	assert_false(prefault.running);
	kv_mem_unmap(&mem);
}

/* All of the host's memory: the thread must see at once that it cannot be had, and take nothing. */
static void takes_nothing_where_memory_is_short(void **state)
{
	(void)state;
	struct kv_mem mem;
	struct kv_prefault prefault = {0};
	assert_int_equal(kv_mem_map(&mem, kv_memory_total() / 4096 * 4096, -1, "test"), 0);
	kv_prefault_start(&prefault, &mem);
	nanosleep(&(struct timespec){.tv_nsec = 50000000}, NULL);
	assert_int_equal(pages_present(&mem), 0);
	kv_prefault_stop(&prefault);
	kv_mem_unmap(&mem);
	assert_true(kv_memory_available() < kv_memory_total());
	kv_log_set_level(KV_LOG_ERROR + 1);
	assert_int_equal(kv_mem_map(&mem, kv_memory_total() + 1, -1, "test"), KV_INTERNAL_ERROR);
	kv_log_set_level(KV_LOG_WARNING);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(takes_every_page),
	        cmocka_unit_test(off_takes_none),
	        cmocka_unit_test(stops_before_the_end),
	        cmocka_unit_test(takes_nothing_where_memory_is_short),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
