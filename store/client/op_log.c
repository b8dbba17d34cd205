/* SPDX-License-Identifier: Apache-2.0 */
#include "store/client/op_log.h"

#include <pthread.h>

#include "store/base/clock.h"

/* A thread that logs keeps its block between calls, unless a huge call made it huge. */
#define KEEP_BYTES ((size_t)1 << 20)

static pthread_once_t key_once = PTHREAD_ONCE_INIT;
static pthread_key_t key;
static bool key_made;
static __thread struct op_block thread_block;

static void free_block(void *block)
{
	op_block_free(block);
}

static void make_key(void)
{
	key_made = pthread_key_create(&key, free_block) == 0;
}

/* The calling thread's block, freed when the thread ends. */
static struct op_block *block_of_thread(void)
{
	pthread_once(&key_once, make_key);
	if (!key_made || (!thread_block.head && pthread_setspecific(key, &thread_block)))
		return NULL;
	return &thread_block;
}

static const struct kvp_block *pack(struct op_block *block, const struct op_log *log, uint64_t elapsed_ns,
                                    uint64_t n_keys, uint64_t total_bytes, size_t count, op_log_record *record,
                                    const void *context)
{
	if (!block || !op_block_begin(block, log->op, log->op_id, n_keys, total_bytes))
		return NULL;
	for (size_t i = 0; i < count; i++) {
		struct op_record one = {0};
		record(context, i, &one);
		op_block_add(block, &one);
	}
	return op_block_finish(block, elapsed_ns);
}

void op_log_write(const struct op_log *log, uint64_t start_ns, uint64_t n_keys, uint64_t total_bytes, size_t count,
                  op_log_record *record, const void *context)
{
	if (!log->probe && perf_op_log_watched())
		/* Begun before anyone watched: not to be printed, but not to be lost silently either. */
		kvp_op_log(NULL, 0, log->op_id, 0, log->op, n_keys);
	if (!log->probe && !log->text)
		return;

	uint64_t elapsed_ns = kv_now_ns() - start_ns;
	struct op_block *block = block_of_thread();
	const struct kvp_block *packed = pack(block, log, elapsed_ns, n_keys, total_bytes, count, record, context);
	if (log->probe)
		kvp_op_log(packed, packed ? packed->block_bytes : 0, log->op_id, elapsed_ns, log->op, n_keys);
	if (log->text)
		mc_log_submit(packed, n_keys);
	if (block && block->capacity > KEEP_BYTES)
		op_block_free(block);
}
