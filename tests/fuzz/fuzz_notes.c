/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fuzzes the note parser, and what reads on from it: whatever the bytes, it may only refuse or give strings that
 * end and addresses that lie in the file.
 *
 * As a test it mutates small ELF files, and its own binary, for KV_FUZZ_SECONDS (5), from the seed KV_FUZZ_SEED
 * (1). With -DKV_LIBFUZZER the same check is libFuzzer's target (clang -fsanitize=fuzzer).
 */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "tests/unit/elf_image.h"
#include "tools/kvprobe/elf_notes.h"
#include "tools/kvprobe/operands.h"
#include "tools/kvprobe/site.h"

static void check_string(const char *text, size_t limit)
{
	MUST(text && strnlen(text, limit + 1) <= limit);
}

static void check_note(const struct elf_file *file, const struct probe_note *note)
{
	static const enum attach_form forms[] = {FORM_INT3, FORM_NOP5, FORM_NOP10};
	struct kvp_operand_spec spec;
	const char *reason;
	char error[64];
	check_string(note->provider, ELF_NAME_MAX);
	check_string(note->name, ELF_NAME_MAX);
	check_string(note->args, ELF_ARGS_MAX);
	MUST(note->site_offset < file->source.size || note->site_offset == 0);
	MUST(note->semaphore_offset < file->source.size || note->semaphore_offset == 0);
	if (operands_parse(note->args, &spec, error, sizeof(error))) {
		for (uint32_t i = 0; i < KVP_ARGS; i++)
			MUST(spec.args[i].reg < KVP_REGISTERS && spec.args[i].size >= 1 && spec.args[i].size <= 8);
	} else {
		MUST(error[0]);
	}
	for (size_t i = 0; i < sizeof(forms) / sizeof(forms[0]); i++)
		MUST(site_form_offset(file, note, forms[i], &reason) >= 0 || reason);
}

/* The bytes in memory of exactly their size. True if they parsed. */
static bool check(const uint8_t *bytes, size_t size)
{
	uint8_t *copy = malloc(size ? size : 1);
	MUST(copy);
	if (size)
		memcpy(copy, bytes, size);
	struct elf_file file;
	struct elf_source source = {.memory = copy, .fd = -1, .size = size};
	bool parsed = elf_file_parse(&file, &source);
	if (parsed) {
		size_t exports;
		MUST(file.n_notes <= ELF_NOTES_MAX);
		for (size_t i = 0; i < file.n_notes; i++)
			check_note(&file, &file.notes[i]);
		elf_file_count_exports(&file, "kvstore_", "_semaphore", &exports);
	} else {
		MUST(file.error[0]);
	}
	elf_file_free(&file);
	free(copy);
	return parsed;
}

#ifdef KV_LIBFUZZER

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
	check(bytes, size);
	return 0;
}

#else

struct sample {
	uint8_t *bytes;
	size_t size;
	size_t tables[3]; /* where changes do something: headers, sections, notes */
};

static uint64_t setting(const char *name, uint64_t otherwise)
{
	const char *text = getenv(name);
	return text ? strtoull(text, NULL, 10) : otherwise;
}

static struct sample small_sample(struct rng *rng)
{
	struct elf_image *image = image_new();
	uint32_t safety[8] = {1, 3, 12, 0, IMAGE_DATA_VA + 8, 0, IMAGE_BASE_VA, 0};
	uint64_t probes = rng_below(rng, 12);
	for (uint64_t i = 0; i < probes; i++)
		image_probe(image, "kvstore", "RC_REMOVE", rng_below(rng, 2) ? "8@%rdi -4@8(%rsp) 2@$5" : "",
		            IMAGE_TEXT_VA + i * 32, IMAGE_BASE_VA, IMAGE_DATA_VA + i * 4);
	image_raw_note(image, "kvprobe", 1, safety, sizeof(safety));
	image_finish(image, rng_below(rng, 4) ? IMAGE_BASE_VA : 0);
	struct sample sample = {.bytes = image->bytes, .size = image->size};
	sample.tables[0] = 0;
	sample.tables[1] = image_header(image)->e_shoff;
	sample.tables[2] = 0x3000;
	free(image);
	return sample;
}

/* This program: with the sites of libkvstore, as the linker wrote it. */
static struct sample own_binary(void)
{
	struct sample sample = {0};
	FILE *file = fopen("/proc/self/exe", "re");
	MUST(file && fseek(file, 0, SEEK_END) == 0);
	long size = ftell(file);
	MUST(size > 0 && fseek(file, 0, SEEK_SET) == 0);
	sample.bytes = malloc((size_t)size);
	MUST(sample.bytes && fread(sample.bytes, 1, (size_t)size, file) == (size_t)size);
	sample.size = (size_t)size;
	fclose(file);
	uint64_t table;
	memcpy(&table, sample.bytes + offsetof(Elf64_Ehdr, e_shoff), sizeof(table));
	sample.tables[1] = table;
	sample.tables[2] = table > 0x8000 ? table - 0x8000 : 0; /* notes and names lie at the end */
	return sample;
}

static void change(struct rng *rng, uint8_t *bytes, const struct sample *sample)
{
	static const uint64_t interesting[] = {0,
	                                       1,
	                                       0x7f,
	                                       0xff,
	                                       0xffff,
	                                       0x7fffffff,
	                                       0xffffffff,
	                                       1ull << 63,
	                                       UINT64_MAX,
	                                       UINT64_MAX - 7,
	                                       0xfffffffffffff000ull};
	size_t at = sample->tables[rng_below(rng, 3)];
	size_t room = sample->size - at < 2048 ? sample->size - at : 2048;
	if (room < 16)
		return;
	at += rng_below(rng, room - 8);
	uint64_t value = rng_below(rng, 2) ? interesting[rng_below(rng, 11)] : rng_next(rng);
	switch (rng_below(rng, 4)) {
	case 0:
		bytes[at] ^= (uint8_t)(1u << rng_below(rng, 8));
		break;
	case 1:
		memcpy(bytes + at, &value, 4);
		break;
	case 2:
		memcpy(bytes + (at & ~(size_t)7), &value, 8);
		break;
	default:
		memcpy(bytes + at, &value, 1 + rng_below(rng, 8));
	}
}

/* Some changes, perhaps a shorter end. True if it still parsed. */
static bool one_round(struct rng *rng, const struct sample *sample)
{
	uint8_t *bytes = malloc(sample->size);
	MUST(bytes);
	memcpy(bytes, sample->bytes, sample->size);
	for (uint64_t n = 1 + rng_below(rng, 6); n; n--)
		change(rng, bytes, sample);
	size_t size = rng_below(rng, 8) ? sample->size : rng_below(rng, sample->size + 1);
	bool parsed = check(bytes, size);
	free(bytes);
	return parsed;
}

static void test_mutated_files(void **state)
{
	(void)state;
	uint64_t seed = setting("KV_FUZZ_SEED", 1), seconds = setting("KV_FUZZ_SECONDS", 5), rounds = 0, parsed = 0;
	struct rng rng = {seed};
	struct sample own = own_binary();
	struct timespec start, now;
	print_message("seed %lu, %lu s\n", seed, seconds);
	assert_true(check(own.bytes, own.size));
	clock_gettime(CLOCK_MONOTONIC, &start);
	do {
		struct sample small = small_sample(&rng);
		assert_true(check(small.bytes, small.size));
		for (int i = 0; i < 50; i++, rounds++)
			parsed += one_round(&rng, &small);
		free(small.bytes);
		parsed += one_round(&rng, &own);
		rounds++;
		clock_gettime(CLOCK_MONOTONIC, &now);
	} while ((uint64_t)(now.tv_sec - start.tv_sec) < seconds);
	print_message("%lu rounds, %lu of them parsed\n", rounds, parsed);
	/* a fuzzer whose every file is refused at the first byte tests nothing, nor does one that changes nothing */
	assert_true(parsed > rounds / 100 && parsed < rounds);
	free(own.bytes);
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(test_mutated_files)};
	return cmocka_run_group_tests(tests, NULL, NULL);
}

#endif
