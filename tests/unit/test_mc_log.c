/* SPDX-License-Identifier: Apache-2.0 */
/* The MC_LOG text, byte for byte. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "probes/mc_log.h"
#include "probes/op_block.h"

static struct op_block block;

static void begin(enum kvp_op op, uint64_t n_keys, uint64_t total_bytes)
{
	assert_true(op_block_begin(&block, op, 0x9f1c2b3a4d5e6f70u, n_keys, total_bytes));
}

static void add(struct op_record record)
{
	if (!record.key_len && record.key)
		record.key_len = strlen(record.key);
	if (record.endpoint)
		record.endpoint_len = strlen(record.endpoint);
	op_block_add(&block, &record);
}

static void assert_formats(uint64_t elapsed_ns, struct mc_log_style style, int64_t lines, const char *want)
{
	struct mc_text out = {0};
	const struct kvp_block *head = op_block_finish(&block, elapsed_ns);
	assert_int_equal(mc_log_format(&out, head, head->block_bytes, &style), lines);
	assert_false(out.failed);
	assert_int_equal(out.length, strlen(want));
	if (out.length)
		assert_memory_equal(out.text, want, out.length);
	free(out.text);
}

static const struct mc_log_style plain;

static void put(void **state)
{
	(void)state;
	begin(KVP_OP_PUT, 2, 2097152);
	add((struct op_record){.key = "layer.0.req_0", .success = true, .has_size = true, .size = 1048576});
	add((struct op_record){.key = "layer.1.req_0", .has_size = true, .size = 1048576, .rc = -200});
	assert_formats(1849999, plain, 2,
	               "[batch_put_from_multi_buffers] elapsed_us=1849 num_keys=2 total_bytes=2097152\n"
	               "success=1 key=layer.0.req_0 size=1048576\n"
	               "success=0 key=layer.1.req_0 size=1048576\n");
}

static void put_without_sizes(void **state)
{
	(void)state;
	begin(KVP_OP_PUT, 1, 0);
	add((struct op_record){.key = "a", .rc = -600});
	assert_formats(0, plain, 1,
	               "[batch_put_from_multi_buffers] elapsed_us=0 num_keys=1 total_bytes=0\nsuccess=0 key=a\n");
}

static void is_exist(void **state)
{
	(void)state;
	begin(KVP_OP_IS_EXIST, 2, 0);
	add((struct op_record){.key = "layer.0.req_0", .success = true});
	add((struct op_record){.key = "layer.1.req_0"});
	assert_formats(484000, plain, 2,
	               "[batch_is_exist] elapsed_us=484 num_keys=2\n"
	               "success=1 key=layer.0.req_0\nsuccess=0 key=layer.1.req_0\n");
}

static void get(void **state)
{
	(void)state;
	begin(KVP_OP_GET, 4, 0);
	add((struct op_record){.key = "layer.0.req_0",
	                       .success = true,
	                       .has_size = true,
	                       .size = 1048576,
	                       .replica = KVP_REPLICA_MEMORY,
	                       .endpoint = "192.0.2.7:14024"});
	add((struct op_record){.key = "layer.1.req_0",
	                       .success = true,
	                       .has_size = true,
	                       .size = 1,
	                       .replica = KVP_REPLICA_LOCAL_DISK,
	                       .endpoint = "[2001:db8::1]:14024"});
	add((struct op_record){.key = "layer.2.req_0", .has_size = true, .size = 1048576, .rc = -704});
	add((struct op_record){.key = "layer.3.req_0",
	                       .success = true,
	                       .has_size = true,
	                       .size = 7,
	                       .replica = KVP_REPLICA_DISK,
	                       .endpoint = "/data/x"});
	const char *text = "[batch_get_into_multi_buffers] elapsed_us=158237 num_keys=4\n"
	                   "success=1 key=layer.0.req_0 size=1048576 replica=memory endpoint=192.0.2.7:14024\n"
	                   "success=1 key=layer.1.req_0 size=1 replica=local_disk endpoint=[2001:db8::1]:14024\n"
	                   "success=0 key=layer.2.req_0 size=1048576\n"
	                   "success=1 key=layer.3.req_0 size=7 replica=disk endpoint=/data/x\n";
	assert_formats(158237123, plain, 4, text);
}

static void register_and_empty(void **state)
{
	(void)state;
	begin(KVP_OP_REGISTER, 0, 16777216);
	assert_formats(92000, plain, 0, "[register_buffer] elapsed_us=92 total_bytes=16777216\n");
	begin(KVP_OP_IS_EXIST, 0, 0);
	assert_formats(1000, plain, 0, "[batch_is_exist] elapsed_us=1 num_keys=0\n");
	begin(KVP_OP_REPLICA_DESC, UINT64_MAX, 0);
	assert_formats(UINT64_MAX, plain, 0,
	               "[batch_get_replica_desc] elapsed_us=18446744073709551 num_keys=18446744073709551615\n");
}

static void keys_are_escaped(void **state)
{
	(void)state;
	char key[256];
	char want[2048] = "[batch_is_exist] elapsed_us=0 num_keys=1\nsuccess=1 key=";
	char *at = want + strlen(want);
	for (int c = 0; c < 256; c++) {
		key[c] = (char)c;
		if (c > 0x20 && c < 0x7f && c != '\\')
			*at++ = (char)c;
		else
			at += sprintf(at, "\\x%02x", (unsigned)c);
	}
	strcpy(at, "\n");
	begin(KVP_OP_IS_EXIST, 1, 0);
	add((struct op_record){.key = key, .key_len = sizeof(key), .success = true});
	assert_formats(0, plain, 1, want);
	/* a key that tries to forge a line */
	begin(KVP_OP_IS_EXIST, 1, 0);
	add((struct op_record){.key = "a\nsuccess=1 key=b"});
	assert_formats(0, plain, 1,
	               "[batch_is_exist] elapsed_us=0 num_keys=1\nsuccess=0 key=a\\x0asuccess=1\\x20key=b\n");
}

static void options_go_in_front(void **state)
{
	(void)state;
	begin(KVP_OP_GET, 1, 0);
	add((struct op_record){.key = "k", .has_size = true, .size = 5, .rc = -704});
	struct mc_log_style style = {.rc = true};
	assert_formats(1000, style, 1,
	               "[batch_get_into_multi_buffers] elapsed_us=1 num_keys=1\nsuccess=0 key=k size=5 rc=-704\n");
	style = (struct mc_log_style){
	        .timestamp = true, .show_pid = true, .trace_id = true, .pid = 42, .time_ns = 1764657540123456789u};
	const char *text = "2025-12-02T06:39:00.123456Z pid=42 trace_id=9f1c2b3a4d5e6f70 "
	                   "[batch_get_into_multi_buffers] elapsed_us=1 "
	                   "num_keys=1\n"
	                   "2025-12-02T06:39:00.123456Z pid=42 trace_id=9f1c2b3a4d5e6f70 success=0 key=k size=5\n";
	assert_formats(1000, style, 1, text);
	style = (struct mc_log_style){.timestamp = true, .time_ns = 1764657540000007000u};
	assert_formats(1000, style, 1,
	               "2025-12-02T06:39:00.000007Z [batch_get_into_multi_buffers] elapsed_us=1 num_keys=1\n"
	               "2025-12-02T06:39:00.000007Z success=0 key=k size=5\n");
}

static void rc_is_for_failures_only(void **state)
{
	(void)state;
	begin(KVP_OP_GET, 2, 0);
	add((struct op_record){.key = "a", .success = true, .has_size = true, .size = 1});
	add((struct op_record){.key = "b", .rc = INT32_MIN});
	assert_formats(0, (struct mc_log_style){.rc = true}, 2,
	               "[batch_get_into_multi_buffers] elapsed_us=0 num_keys=2\n"
	               "success=1 key=a size=1\nsuccess=0 key=b rc=-2147483648\n");
}

static void prefix_filter(void **state)
{
	(void)state;
	struct mc_log_style style = {.key_prefix = "layer.1", .key_prefix_len = 7};
	begin(KVP_OP_IS_EXIST, 3, 0);
	add((struct op_record){.key = "layer.0"});
	add((struct op_record){.key = "layer.1.x", .success = true});
	add((struct op_record){.key = "layer"});
	assert_formats(0, style, 1, "[batch_is_exist] elapsed_us=0 num_keys=3\nsuccess=1 key=layer.1.x\n");
	style.key_prefix = "nothing";
	assert_formats(0, style, 0, "");
	begin(KVP_OP_REGISTER, 0, 1);
	assert_formats(0, style, 0, "");
}

static void malformed_is_taken_back(void **state)
{
	(void)state;
	struct mc_text out = {0};
	begin(KVP_OP_IS_EXIST, 2, 0);
	add((struct op_record){.key = "a", .success = true});
	add((struct op_record){.key = "b", .success = true});
	const struct kvp_block *head = op_block_finish(&block, 0);
	assert_int_equal(mc_log_format(&out, head, head->block_bytes, &plain), 2);
	size_t length = out.length;
	block.head->n_records = 3;
	assert_int_equal(mc_log_format(&out, head, head->block_bytes, &plain), -1);
	assert_int_equal(out.length, length);
	assert_int_equal(mc_log_format(&out, head, 10, &plain), -1);
	assert_int_equal(mc_log_format(&out, NULL, 0, &plain), -1);
	free(out.text);
}

static void op_names(void **state)
{
	(void)state;
	for (uint16_t op = 1; op < KVP_OP_COUNT; op++)
		assert_int_equal(mc_log_op_number(mc_log_op_name(op)), op);
	assert_null(mc_log_op_name(0));
	assert_null(mc_log_op_name(KVP_OP_COUNT));
	assert_int_equal(mc_log_op_number("put"), 0);
}

static int free_block(void **state)
{
	(void)state;
	op_block_free(&block);
	return 0;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(put),
	        cmocka_unit_test(put_without_sizes),
	        cmocka_unit_test(is_exist),
	        cmocka_unit_test(get),
	        cmocka_unit_test(register_and_empty),
	        cmocka_unit_test(keys_are_escaped),
	        cmocka_unit_test(options_go_in_front),
	        cmocka_unit_test(rc_is_for_failures_only),
	        cmocka_unit_test(prefix_filter),
	        cmocka_unit_test(malformed_is_taken_back),
	        cmocka_unit_test(op_names),
	};
	return cmocka_run_group_tests(tests, NULL, free_block);
}
