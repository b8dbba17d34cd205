/* SPDX-License-Identifier: Apache-2.0 */
/* The op_log block: what is packed comes out again, and a block that lies is refused. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "probes/op_block.h"

static struct op_record record_of(const char *key, const char *endpoint)
{
	return (struct op_record){.key = key,
	                          .key_len = strlen(key),
	                          .success = true,
	                          .has_size = true,
	                          .size = 4096,
	                          .replica = endpoint ? KVP_REPLICA_MEMORY : KVP_REPLICA_NONE,
	                          .endpoint = endpoint,
	                          .endpoint_len = endpoint ? strlen(endpoint) : 0};
}

static void assert_text(const char *got, size_t got_len, const char *want)
{
	assert_int_equal(got_len, strlen(want));
	assert_memory_equal(got, want, got_len);
}

static void round_trip(void **state)
{
	(void)state;
	struct op_block block = {0};
	struct op_record a = record_of("layer.0", "192.0.2.7:14024"), b = record_of("layer.1", "192.0.2.7:14024");
	struct op_record c = record_of("", NULL), d = record_of("layer.3", "192.0.2.8:1");
	c.success = false;
	c.has_size = false;
	c.rc = -704;

	assert_true(op_block_begin(&block, KVP_OP_GET, 77, 4, 9));
	op_block_add(&block, &a);
	op_block_add(&block, &b);
	op_block_add(&block, &c);
	op_block_add(&block, &b);
	op_block_add(&block, &d);
	const struct kvp_block *head = op_block_finish(&block, 1234);
	assert_int_equal(head->magic, KVP_BLOCK_MAGIC);
	assert_int_equal(head->version, KVP_BLOCK_VERSION);
	assert_int_equal(head->op, KVP_OP_GET);
	assert_int_equal(head->op_id, 77);
	assert_int_equal(head->elapsed_ns, 1234);
	assert_int_equal(head->n_keys, 4);
	assert_int_equal(head->total_bytes, 9);
	assert_int_equal(head->lost_keys, 0);
	assert_int_equal(head->n_records, 5);
	assert_int_equal(head->pid, getpid());
	assert_int_equal(head->block_bytes % 8, 0);

	struct op_block_cursor cursor;
	struct op_record out;
	assert_true(op_block_open(&cursor, head, head->block_bytes));
	assert_int_equal(op_block_next(&cursor, &out), 1);
	assert_text(out.key, out.key_len, "layer.0");
	assert_text(out.endpoint, out.endpoint_len, "192.0.2.7:14024");
	assert_true(out.success && out.has_size);
	assert_int_equal(out.size, 4096);
	assert_int_equal(out.replica, KVP_REPLICA_MEMORY);
	assert_int_equal(op_block_next(&cursor, &out), 1);
	assert_text(out.key, out.key_len, "layer.1");
	assert_text(out.endpoint, out.endpoint_len, "192.0.2.7:14024");
	assert_int_equal(op_block_next(&cursor, &out), 1);
	assert_int_equal(out.key_len, 0);
	assert_false(out.success || out.has_size);
	assert_int_equal(out.rc, -704);
	assert_int_equal(out.endpoint_len, 0);
	/* the same endpoint again, with a record without one in between */
	assert_int_equal(op_block_next(&cursor, &out), 1);
	assert_text(out.endpoint, out.endpoint_len, "192.0.2.7:14024");
	assert_int_equal(op_block_next(&cursor, &out), 1);
	assert_text(out.endpoint, out.endpoint_len, "192.0.2.8:1");
	assert_int_equal(op_block_next(&cursor, &out), 0);
	op_block_free(&block);
}

static void endpoint_is_stored_once(void **state)
{
	(void)state;
	struct op_block block = {0};
	struct op_record record = record_of("key.1234", "192.0.2.7:14024.");

	assert_true(op_block_begin(&block, KVP_OP_GET, 1, 1000, 0));
	for (int i = 0; i < 1000; i++)
		op_block_add(&block, &record);
	/* the buffer moved many times meanwhile; still one copy of the 16 bytes */
	assert_int_equal(op_block_finish(&block, 1)->block_bytes, sizeof(struct kvp_block) + 16 + 1000 * (24 + 8));
	/* and the next call starts afresh */
	assert_true(op_block_begin(&block, KVP_OP_GET, 2, 1, 0));
	op_block_add(&block, &record);
	assert_int_equal(op_block_finish(&block, 1)->block_bytes, sizeof(struct kvp_block) + 24 + 8 + 16);
	op_block_free(&block);
}

static void limits_are_counted(void **state)
{
	(void)state;
	struct op_block block = {0};
	struct op_record record = record_of("k", NULL);

	assert_true(op_block_begin(&block, KVP_OP_IS_EXIST, 1, KVP_BLOCK_KEYS + 10, 0));
	for (uint32_t i = 0; i < KVP_BLOCK_KEYS + 10; i++)
		op_block_add(&block, &record);
	const struct kvp_block *head = op_block_finish(&block, 1);
	assert_int_equal(head->n_records, KVP_BLOCK_KEYS);
	assert_int_equal(head->lost_keys, 10);

	char *key = malloc(KVP_KEY_MAX + 100);
	assert_non_null(key);
	memset(key, 'x', KVP_KEY_MAX + 100);
	record = (struct op_record){.key = key, .key_len = KVP_KEY_MAX + 100};
	assert_true(op_block_begin(&block, KVP_OP_IS_EXIST, 1, 5000, 0));
	for (int i = 0; i < 5000; i++)
		op_block_add(&block, &record);
	head = op_block_finish(&block, 1);
	assert_true(head->block_bytes <= KVP_BLOCK_MAX);
	assert_true(head->lost_keys > 0);
	assert_int_equal(head->n_records + head->lost_keys, 5000);
	struct op_block_cursor cursor;
	struct op_record out;
	assert_true(op_block_open(&cursor, head, head->block_bytes));
	assert_int_equal(op_block_next(&cursor, &out), 1);
	assert_int_equal(out.key_len, KVP_KEY_MAX);
	free(key);
	op_block_free(&block);
}

/* Walks a block to its end: 0, or -1 where it is malformed. Everything it hands out must lie inside. */
static int walk(const uint8_t *bytes, size_t size)
{
	struct op_block_cursor cursor;
	struct op_record out;
	int more;

	if (!op_block_open(&cursor, bytes, size))
		return -1;
	while ((more = op_block_next(&cursor, &out)) > 0) {
		assert_true((const uint8_t *)out.key >= bytes);
		assert_true((const uint8_t *)out.key + out.key_len <= bytes + size);
		if (out.endpoint_len)
			assert_true((const uint8_t *)out.endpoint + out.endpoint_len <= bytes + size);
	}
	return more;
}

/* A copy on the heap of exactly the size, so that a sanitizer sees a step outside. */
static int walk_copy(const void *bytes, size_t size)
{
	uint8_t *copy = malloc(size ? size : 1);
	assert_non_null(copy);
	memcpy(copy, bytes, size);
	int result = walk(copy, size);
	free(copy);
	return result;
}

static struct op_block two_records(void)
{
	struct op_block block = {0};
	struct op_record a = record_of("alpha", "h:1"), b = record_of("beta", "h:1");
	assert_true(op_block_begin(&block, KVP_OP_GET, 1, 2, 0));
	op_block_add(&block, &a);
	op_block_add(&block, &b);
	op_block_finish(&block, 1);
	return block;
}

static void lies_are_refused(void **state)
{
	(void)state;
	struct op_block block = two_records();
	struct kvp_block *head = block.head;
	struct kvp_block good = *head;
	struct kvp_record *first = (struct kvp_record *)(head + 1);
	struct kvp_record *second = (struct kvp_record *)((char *)first + first->record_bytes);
	struct kvp_record good_first = *first, good_second = *second;
	size_t size = head->block_bytes;

	assert_int_equal(walk_copy(head, size), 0);
	for (size_t cut = 0; cut < size; cut++)
		assert_int_equal(walk_copy(head, cut), -1);
#define HEAD_LIE(field, value)                                                                                       \
	do {                                                                                                         \
		head->field = (value);                                                                               \
		assert_int_equal(walk_copy(head, size), -1);                                                         \
		*head = good;                                                                                        \
	} while (0)
	HEAD_LIE(magic, 1);
	HEAD_LIE(version, KVP_BLOCK_VERSION + 1);
	HEAD_LIE(op, 0);
	HEAD_LIE(op, KVP_OP_COUNT);
	HEAD_LIE(block_bytes, (uint32_t)size + 8);
	HEAD_LIE(block_bytes, (uint32_t)size - 8);
	HEAD_LIE(block_bytes, 8);
	HEAD_LIE(block_bytes, UINT32_MAX);
	HEAD_LIE(n_records, 1);
	HEAD_LIE(n_records, 3);
	HEAD_LIE(n_records, UINT32_MAX);
#define RECORD_LIE(which, field, value)                                                                              \
	do {                                                                                                         \
		which->field = (value);                                                                              \
		assert_int_equal(walk_copy(head, size), -1);                                                         \
		*which = good_##which;                                                                               \
	} while (0)
	RECORD_LIE(first, record_bytes, 0);
	RECORD_LIE(first, record_bytes, 65528);
	RECORD_LIE(first, key_len, UINT16_MAX);
	RECORD_LIE(first, endpoint_len, UINT16_MAX);
	RECORD_LIE(first, replica, 9);
	RECORD_LIE(first, flags, KVP_RECORD_SAME_ENDPOINT);
	RECORD_LIE(second, endpoint_len, 1);
	RECORD_LIE(second, key_len, 400);
	/* the first record has no endpoint to be the same as */
	first->endpoint_len = 0;
	first->flags = KVP_RECORD_SAME_ENDPOINT;
	assert_int_equal(walk_copy(head, size), -1);
	op_block_free(&block);
}

static void every_changed_byte_is_survived(void **state)
{
	(void)state;
	struct op_block block = two_records();
	uint8_t *bytes = (uint8_t *)block.head;
	size_t size = block.head->block_bytes;
	for (size_t i = 0; i < size; i++) {
		uint8_t good = bytes[i];
		for (int value = 0; value < 256; value++) {
			bytes[i] = (uint8_t)value;
			int result = walk_copy(bytes, size);
			assert_true(result == 0 || result == -1);
		}
		bytes[i] = good;
	}
	op_block_free(&block);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(round_trip),
	        cmocka_unit_test(endpoint_is_stored_once),
	        cmocka_unit_test(limits_are_counted),
	        cmocka_unit_test(lies_are_refused),
	        cmocka_unit_test(every_changed_byte_is_survived),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
