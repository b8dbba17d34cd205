/* SPDX-License-Identifier: Apache-2.0 */
/* Rounding and writing of numbers, against Python itself: a python3 is fed the bits of many doubles and answers with
 * its round and its repr. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "kv_cmocka.h"
#include "tools/kvprobe/python_number.h"

#define LINE 256

static const char python_script[] = "import struct, sys\n"
                                    "for line in sys.stdin:\n"
                                    "    value = struct.unpack('<d', int(line, 16).to_bytes(8, 'little'))[0]\n"
                                    "    print(repr(value), repr(round(value, 1)), repr(round(value, 3)))\n";

static uint64_t bits_of(double value)
{
	uint64_t bits;
	memcpy(&bits, &value, sizeof(bits));
	return bits;
}

static double double_of(uint64_t bits)
{
	double value;
	memcpy(&value, &bits, sizeof(value));
	return value;
}

/* --- the values ------------------------------------------------------------------------------------------ */

struct values {
	double *of;
	size_t count, room;
};

static void add(struct values *values, double value)
{
	assert_true(values->count < values->room);
	values->of[values->count++] = value;
}

static void add_edges(struct values *values)
{
	static const double edges[] = {0.0,
	                               -0.0,
	                               INFINITY,
	                               -INFINITY,
	                               NAN,
	                               5e-324,
	                               2.2250738585072014e-308,
	                               1e-5,
	                               1e-4,
	                               9.999e-5,
	                               0.0001234,
	                               1e15,
	                               1e16,
	                               9999999999999998.0,
	                               1e17,
	                               1e22,
	                               1e23,
	                               123456789012345680.0,
	                               1.7976931348623157e308,
	                               0.1,
	                               0.2,
	                               0.3,
	                               0.1 + 0.2,
	                               1.0 / 3,
	                               2.0 / 3,
	                               1000.0,
	                               181.818,
	                               1e100};
	for (size_t i = 0; i < sizeof(edges) / sizeof(edges[0]); i++) {
		add(values, edges[i]);
		add(values, -edges[i]);
	}
}

/* Exact ties of one and of three decimals, and their neighbours on both sides. */
static void add_ties(struct values *values)
{
	for (int i = 0; i < 2000; i++) {
		double ties[] = {i + 0.25, i + 0.75, i + 0.0625, i + 0.1875, i * 0.001 + 0.0005, i * 0.1 + 0.05};
		for (size_t k = 0; k < sizeof(ties) / sizeof(ties[0]); k++) {
			add(values, ties[k]);
			add(values, nextafter(ties[k], 0));
			add(values, nextafter(ties[k], INFINITY));
		}
	}
}

static void add_powers_of_two(struct values *values)
{
	for (int exponent = -1074; exponent <= 1023; exponent++)
		add(values, ldexp(1, exponent));
}

static void add_random(struct values *values)
{
	struct rng rng = {42};
	for (int i = 0; i < 20000; i++)
		add(values, double_of(rng_next(&rng)));
	for (int i = 0; i < 20000; i++) /* as the figures are */
		add(values,
		    (double)(rng_next(&rng) >> (12 + rng_below(&rng, 52))) / (double)(1 + rng_below(&rng, 1000000)));
}

/* --- against Python ------------------------------------------------------------------------------------- */

static void feed(const struct values *values, const char *dir)
{
	char path[LINE];
	snprintf(path, sizeof(path), "%s/in", dir);
	FILE *in = fopen(path, "we");
	assert_non_null(in);
	for (size_t i = 0; i < values->count; i++)
		fprintf(in, "%016" PRIx64 "\n", bits_of(values->of[i]));
	assert_int_equal(fclose(in), 0);
	snprintf(path, sizeof(path), "%s/script.py", dir);
	FILE *script = fopen(path, "we");
	assert_non_null(script);
	fputs(python_script, script);
	assert_int_equal(fclose(script), 0);
}

/* True: python3 answered for every value. */
static void compare(const struct values *values, FILE *answers)
{
	size_t wrong = 0;
	for (size_t i = 0; i < values->count; i++) {
		char line[LINE], want[3][PYTHON_NUMBER_MAX], got[3][PYTHON_NUMBER_MAX];
		assert_non_null(fgets(line, sizeof(line), answers));
		assert_int_equal(sscanf(line, "%39s %39s %39s", want[0], want[1], want[2]), 3);
		python_repr(values->of[i], got[0]);
		python_repr(python_round(values->of[i], 1), got[1]);
		python_repr(python_round(values->of[i], 3), got[2]);
		for (int k = 0; k < 3; k++)
			if (strcmp(got[k], want[k]) != 0 && wrong++ < 20)
				print_error("%a: %s, Python says %s\n", values->of[i], got[k], want[k]);
	}
	assert_int_equal(wrong, 0);
}

static void test_against_python(void **state)
{
	(void)state;
	struct values values = {.room = 100000};
	char dir[] = "/tmp/kvprobe-number-XXXXXX", command[LINE];
	values.of = calloc(values.room, sizeof(*values.of));
	assert_non_null(values.of);
	assert_non_null(mkdtemp(dir));
	add_edges(&values);
	add_ties(&values);
	add_powers_of_two(&values);
	add_random(&values);
	feed(&values, dir);
	/* a Python that is run by a sanitized test must not be */
	snprintf(command, sizeof(command), "env -u LD_PRELOAD timeout 120 python3 %s/script.py < %s/in", dir, dir);
	FILE *answers = popen(command, "re");
	assert_non_null(answers);
	compare(&values, answers);
	assert_int_equal(pclose(answers), 0);
	snprintf(command, sizeof(command), "rm -r %s", dir);
	assert_int_equal(system(command), 0);
	free(values.of);
}

/* A few by heart, for those who read this. */
static void test_examples(void **state)
{
	(void)state;
	static const struct {
		double value;
		const char *text;
	} examples[] = {
	        {1.5, "1.5"},       {1000, "1000.0"}, {181.818, "181.818"},
	        {0, "0.0"},         {1e-5, "1e-05"},  {1e16, "1e+16"},
	        {0.0001, "0.0001"}, {-2.5, "-2.5"},   {1e15, "1000000000000000.0"},
	};
	for (size_t i = 0; i < sizeof(examples) / sizeof(examples[0]); i++) {
		char text[PYTHON_NUMBER_MAX];
		python_repr(examples[i].value, text);
		assert_string_equal(text, examples[i].text);
	}
	assert_true(python_round(0.25, 1) == 0.2);   /* an exact tie: to even */
	assert_true(python_round(2.675, 2) == 2.67); /* not a tie: the double lies below */
	assert_true(python_round(0.0005, 3) == 0.001);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_against_python),
	        cmocka_unit_test(test_examples),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
