/* SPDX-License-Identifier: Apache-2.0 */
/* What the collector reads besides: argument strings, perf_points.def, numbers, and blocks in pieces. */
#include <string.h>
#include <unistd.h>

#include "kv_cmocka.h"
#include "probes/probe_abi.h"
#include "tools/kvprobe/assembly.h"
#include "tools/kvprobe/common.h"
#include "tools/kvprobe/def_file.h"
#include "tools/kvprobe/keys.h"
#include "tools/kvprobe/operands.h"

/* --- operands ------------------------------------------------------------------------------------------------ */

static void test_operands_of_every_form(void **state)
{
	(void)state;
	struct kvp_operand_spec spec;
	char error[128];
	assert_true(
	        operands_parse("8@%rdi -4@-20(%rbp) 2@(%rsp) 4@$-7 1@%sil -2@%r15w", &spec, error, sizeof(error)));
	assert_int_equal(spec.n_args, 6);
	const struct kvp_operand *args = spec.args;
	assert_int_equal(args[0].kind, KVP_OPERAND_REGISTER);
	assert_int_equal(args[0].reg, 5);
	assert_int_equal(args[0].size, 8);
	assert_false(args[0].is_signed);
	assert_int_equal(args[1].kind, KVP_OPERAND_MEMORY);
	assert_int_equal(args[1].reg, 6);
	assert_int_equal(args[1].value, -20);
	assert_int_equal(args[1].size, 4);
	assert_true(args[1].is_signed);
	assert_int_equal(args[2].kind, KVP_OPERAND_MEMORY);
	assert_int_equal(args[2].reg, 7);
	assert_int_equal(args[2].value, 0);
	assert_int_equal(args[3].kind, KVP_OPERAND_CONSTANT);
	assert_int_equal(args[3].value, -7);
	assert_int_equal(args[4].reg, 4);
	assert_int_equal(args[5].reg, 15);
	assert_true(operands_parse("", &spec, error, sizeof(error)));
	assert_int_equal(spec.n_args, 0);
	assert_int_equal(spec.args[0].kind, KVP_OPERAND_CONSTANT); /* what is not there reads as 0 */
}

static void test_operands_that_are_refused(void **state)
{
	(void)state;
	static const char *const bad[] = {
	        "8@%xmm0",
	        "3@%rdi",
	        "8@name(%rip)",
	        "8@(%rdi,%rcx,8)",
	        "8@8(%rdi",
	        "8%rdi",
	        "@%rdi",
	        "8@",
	        "8@%",
	        "8@$",
	        "8@$x",
	        "x@%rdi",
	        "16@%rdi",
	        "8@()",
	        "8@(%)",
	        "8@5",
	        "0@%rdi",
	        "8@$99999999999999999999",
	        "8@%rdi 8@%rdi 8@%rdi 8@%rdi 8@%rdi 8@%rdi 8@%rdi",
	        "8@000000000000000000000000000000000000000000000000000000000000000000000000001(%rdi)",
	};
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		struct kvp_operand_spec spec;
		char error[128] = "";
		if (operands_parse(bad[i], &spec, error, sizeof(error)))
			fail_msg("accepted '%s'", bad[i]);
		assert_true(error[0] != '\0');
	}
}

/* --- perf_points.def -------------------------------------------------------------------------------------------- */

static bool read_def(const char *text, struct def_file *def, char *error, size_t size)
{
	char path[] = "/tmp/kvprobe-def-XXXXXX";
	int fd = mkstemp(path);
	assert_true(fd >= 0);
	assert_int_equal(write(fd, text, strlen(text)), strlen(text));
	close(fd);
	bool ok = def_file_read(def, path, error, size);
	unlink(path);
	return ok;
}

static void test_def_is_read_as_the_compiler_reads_it(void **state)
{
	(void)state;
	struct def_file def;
	char error[256];
	assert_true(read_def("/* PERF_POINT(NOT, RC, DEBUG, f, \"in a comment\") */\n"
	                     "PERF_POINT(A_B, RC, KEY_MODULE, site, \"a, (meaning) /* with */ \\\"signs\\\"\")\n"
	                     "// PERF_POINT(NOR, RC, DEBUG, f, \"this\")\n"
	                     "PERF_POINT ( C1 , MASTER,\n\t DEBUG , f, \"x\" )\n",
	                     &def, error, sizeof(error)));
	assert_int_equal(def.n_keys, 2);
	assert_string_equal(def.keys[0].name, "A_B");
	assert_int_equal(def.keys[0].layer, PERF_LAYER_RC);
	assert_int_equal(def.keys[0].level, PERF_LEVEL_KEY_MODULE);
	assert_string_equal(def.keys[1].name, "C1");
	assert_int_equal(def.keys[1].layer, PERF_LAYER_MASTER);
	def_file_free(&def);
}

static void test_def_that_is_refused(void **state)
{
	(void)state;
	static const char *const bad[] = {
	        "",
	        "/* nothing */\n",
	        "PERF_POINT(A, NOLAYER, DEBUG, f, \"x\")",
	        "PERF_POINT(A, RC, NOLEVEL, f, \"x\")",
	        "PERF_POINT(A, RC, DEBUG, f)",
	        "PERF_POINT(A, RC, DEBUG, f, \"x\", y)",
	        "PERF_POINT(A, RC, DEBUG, f, \"x\"",
	        "PERF_POINT(A B, RC, DEBUG, f, \"x\")",
	        "PERF_POINT(A, RC, DEBUG, f, x)",
	        "POINT(A, RC, DEBUG, f, \"x\")",
	        "PERF_POINT(A, RC, DEBUG, f, \"x\")\nPERF_POINT(A, RC, DEBUG, f, \"x\")",
	        "PERF_POINT(A, RC, DEBUG, f, \"x\"); int i;",
	};
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		struct def_file def;
		char error[256] = "";
		if (read_def(bad[i], &def, error, sizeof(error)))
			fail_msg("accepted '%s'", bad[i]);
		assert_true(error[0] != '\0');
		def_file_free(&def);
	}
}

static void test_levels(void **state)
{
	(void)state;
	unsigned int mask;
	assert_true(perf_levels_parse("KEY_MODULE,4", &mask));
	assert_int_equal(mask, 1u << PERF_LEVEL_KEY_MODULE | 1u << PERF_LEVEL_DEBUG);
	assert_false(perf_levels_parse("", &mask));
	assert_false(perf_levels_parse("DEBUG,", &mask));
	assert_false(perf_levels_parse("5", &mask));
	assert_false(perf_levels_parse("0", &mask));
	for (int i = 0; i < n_perf_keys; i++)
		assert_int_equal(perf_key_find(perf_keys[i].name), i);
	assert_int_equal(perf_key_find("NO_SUCH"), -1);
}

/* --- numbers and tables ------------------------------------------------------------------------------------------
 */

static void test_numbers(void **state)
{
	(void)state;
	int64_t number;
	uint64_t ns;
	assert_true(parse_integer("42", 1, 100, &number) && number == 42);
	assert_true(parse_integer("-3", -5, 5, &number) && number == -3);
	static const char *const bad[] = {"",    " 1", "1 ", "+1", "0x1", "1.0", "99999999999999999999",
	                                  "101", "-1", "x"};
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
		assert_false(parse_integer(bad[i], 0, 100, &number));
	assert_true(parse_seconds("0.25", 10, &ns) && ns == 250000000);
	static const char *const no_seconds[] = {"", "0", "-1", "nan", "inf", "11", "1s", " 1", "1e-12"};
	for (size_t i = 0; i < sizeof(no_seconds) / sizeof(no_seconds[0]); i++)
		assert_false(parse_seconds(no_seconds[i], 10, &ns));
}

static void test_printable(void **state)
{
	(void)state;
	char out[32];
	printable(out, sizeof(out), "a b\n\\\xff", 6);
	assert_string_equal(out, "a b\\x0a\\x5c\\xff");
	printable(out, 6, "\n\n\n", 3);
	assert_string_equal(out, "\\x0a");
}

static void test_id_map_against_an_array(void **state)
{
	(void)state;
	enum { KEYS = 512 };
	struct id_map map = {0};
	struct rng rng = {7};
	void *want[KEYS] = {0};
	for (int i = 0; i < 100000; i++) {
		uint64_t key = 1 + rng_below(&rng, KEYS - 1);
		if (rng_below(&rng, 2)) {
			want[key] = &want[rng_below(&rng, KEYS)];
			id_map_set(&map, key << 33, want[key]);
		} else {
			assert_ptr_equal(id_map_take(&map, key << 33), want[key]);
			want[key] = NULL;
		}
		assert_ptr_equal(id_map_get(&map, key << 33), want[key]);
	}
	for (uint64_t key = 1; key < KEYS; key++)
		assert_ptr_equal(id_map_get(&map, key << 33), want[key]);
	id_map_free(&map);
}

/* --- blocks in pieces ---------------------------------------------------------------------------------------------
 */

#define BLOCK 1000u

static uint8_t block_bytes[BLOCK];

/* One piece, from..to of the block, on its way through the ring. */
static bool send(struct assemblies *all, uint32_t tid, uint64_t op_id, uint32_t from, uint32_t to,
                 struct assembled *out)
{
	static union {
		struct kvp_piece head;
		uint8_t room[sizeof(struct kvp_piece) + BLOCK];
	} piece;
	piece.head = (struct kvp_piece){.tgid = 1,
	                                .tid = tid,
	                                .op_id = op_id,
	                                .mono_ns = 1,
	                                .total = BLOCK,
	                                .offset = from,
	                                .length = to - from};
	memcpy(&piece.head + 1, block_bytes + from, to - from);
	return assemblies_add(all, &piece.head, sizeof(piece.head) + to - from, out);
}

static void expect_block(struct assembled *call)
{
	assert_int_equal(call->size, BLOCK);
	assert_memory_equal(call->block, block_bytes, BLOCK);
	assembled_release(call);
}

static void fill_block(void)
{
	for (size_t i = 0; i < BLOCK; i++)
		block_bytes[i] = (uint8_t)(i * 7);
}

static void test_pieces_of_two_threads_between_each_other(void **state)
{
	(void)state;
	struct assemblies all = {0};
	struct assembled call;
	fill_block();
	assert_true(send(&all, 9, 1, 0, BLOCK, &call));
	expect_block(&call);
	assert_false(send(&all, 1, 5, 0, 400, &call));
	assert_false(send(&all, 2, 6, 0, 300, &call));
	assert_true(send(&all, 1, 5, 400, BLOCK, &call));
	expect_block(&call);
	assert_true(send(&all, 2, 6, 300, BLOCK, &call));
	expect_block(&call);
	assemblies_free(&all);
}

static void test_calls_that_miss_a_piece_are_dropped(void **state)
{
	(void)state;
	struct assemblies all = {0};
	struct assembled call;
	fill_block();
	/* the middle is missing */
	assert_false(send(&all, 1, 1, 0, 100, &call));
	assert_false(send(&all, 1, 1, 200, BLOCK, &call));
	assert_false(send(&all, 1, 1, 100, 200, &call));
	/* the end is missing, another call of the thread follows */
	assert_false(send(&all, 1, 2, 0, 100, &call));
	assert_false(send(&all, 1, 3, 0, 500, &call));
	assert_true(send(&all, 1, 3, 500, BLOCK, &call));
	expect_block(&call);
	/* the beginning is missing */
	assert_false(send(&all, 1, 4, 500, BLOCK, &call));
	/* the end of another call */
	assert_false(send(&all, 1, 5, 0, 500, &call));
	assert_false(send(&all, 1, 6, 500, BLOCK, &call));
	assert_int_equal(all.by_thread.count, 0);
	/* what never ends is forgotten */
	assert_false(send(&all, 1, 7, 0, 500, &call));
	assemblies_expire(&all, UINT64_MAX);
	assert_int_equal(all.by_thread.count, 0);
	assemblies_free(&all);
}

static void test_pieces_that_lie(void **state)
{
	(void)state;
	struct assemblies all = {0};
	struct assembled call;
	struct kvp_piece piece = {.tgid = 1, .tid = 1, .total = 100, .length = 100};
	assert_false(assemblies_add(&all, &piece, sizeof(piece), &call)); /* says more than it has */
	assert_false(assemblies_add(&all, &piece, 8, &call));
	piece = (struct kvp_piece){.tgid = 1, .tid = 1, .total = UINT32_MAX};
	assert_false(assemblies_add(&all, &piece, sizeof(piece), &call)); /* larger than any block */
	assert_int_equal(all.by_thread.count, 0);
	assemblies_free(&all);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_operands_of_every_form),
	        cmocka_unit_test(test_operands_that_are_refused),
	        cmocka_unit_test(test_def_is_read_as_the_compiler_reads_it),
	        cmocka_unit_test(test_def_that_is_refused),
	        cmocka_unit_test(test_levels),
	        cmocka_unit_test(test_numbers),
	        cmocka_unit_test(test_printable),
	        cmocka_unit_test(test_id_map_against_an_array),
	        cmocka_unit_test(test_pieces_of_two_threads_between_each_other),
	        cmocka_unit_test(test_calls_that_miss_a_piece_are_dropped),
	        cmocka_unit_test(test_pieces_that_lie),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
