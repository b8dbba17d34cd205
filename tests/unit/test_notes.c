/* SPDX-License-Identifier: Apache-2.0 */
/* The note parser on files that are right, broken and hostile; its own binary among them. */
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "elf_image.h"
#include "tools/kvprobe/elf_notes.h"

#define DONE_ARGS "8@%rdi 8@%rsi 8@%rdx 8@%rcx -8@%r8 8@%r9"

static bool parse(struct elf_image *image, struct elf_file *file)
{
	struct elf_source source = {.memory = image->bytes, .fd = -1, .size = image->size};
	return elf_file_parse(file, &source);
}

static struct elf_image *one_probe(void)
{
	struct elf_image *image = image_new();
	image_probe(image, "kvstore", "RC_REMOVE", DONE_ARGS, IMAGE_TEXT_VA + 0x40, IMAGE_BASE_VA, IMAGE_DATA_VA + 4);
	return image;
}

static void test_a_probe_with_all_its_fields(void **state)
{
	(void)state;
	struct elf_image *image = one_probe();
	struct elf_file file;
	image_finish(image, IMAGE_BASE_VA);
	assert_true(parse(image, &file));
	assert_int_equal(file.n_notes, 1);
	assert_string_equal(file.notes[0].provider, "kvstore");
	assert_string_equal(file.notes[0].name, "RC_REMOVE");
	assert_string_equal(file.notes[0].args, DONE_ARGS);
	assert_int_equal(file.notes[0].site, IMAGE_TEXT_VA + 0x40);
	assert_int_equal(file.notes[0].site_offset, IMAGE_TEXT + 0x40);
	assert_true(file.notes[0].site_executable);
	assert_int_equal(file.notes[0].semaphore_offset, IMAGE_DATA + 4);
	assert_true(file.has_base);
	assert_int_equal(file.probes_address, IMAGE_DATA_VA);
	assert_false(file.safety.present);
	elf_file_free(&file);
	image_free(image);
}

static void test_prelinked_file_is_moved(void **state)
{
	(void)state;
	struct elf_image *image = image_new();
	struct elf_file file;
	image_probe(image, "kvstore", "K", "", IMAGE_TEXT_VA - 0x100000 + 8, IMAGE_BASE_VA - 0x100000,
	            IMAGE_DATA_VA - 0x100000 + 2);
	image_finish(image, IMAGE_BASE_VA);
	assert_true(parse(image, &file));
	assert_int_equal(file.notes[0].site, IMAGE_TEXT_VA + 8);
	assert_int_equal(file.notes[0].semaphore, IMAGE_DATA_VA + 2);
	assert_int_equal(file.notes[0].site_offset, IMAGE_TEXT + 8);
	elf_file_free(&file);
	image_free(image);
}

static void test_safety_note(void **state)
{
	(void)state;
	struct elf_image *image = image_new();
	struct elf_file file;
	struct {
		uint32_t words[4];
		uint64_t addresses[2];
	} desc = {{1, 3, 44, 0}, {IMAGE_DATA_VA + 0x1800, IMAGE_BASE_VA}};
	image_raw_note(image, "kvprobe", 1, &desc, sizeof(desc));
	image_raw_note(image, "kvprobe", 2, &desc, sizeof(desc)); /* another type is not ours */
	image_raw_note(image, "other", 3, &desc, sizeof(desc));
	image_finish(image, IMAGE_BASE_VA);
	assert_true(parse(image, &file));
	assert_int_equal(file.n_notes, 0);
	assert_true(file.safety.present);
	assert_int_equal(file.safety.flags, SAFETY_NO_RED_ZONE | SAFETY_FORK_GUARD);
	assert_int_equal(file.safety.layers, 44);
	assert_int_equal(file.safety.skipped_fork, IMAGE_DATA_VA + 0x1800);
	/* in memory, but in no part of the file */
	assert_non_null(elf_file_segment(&file, file.safety.skipped_fork));
	assert_int_equal(elf_file_offset(&file, file.safety.skipped_fork), 0);
	elf_file_free(&file);
	image_free(image);
}

static void test_a_short_safety_note_promises_nothing(void **state)
{
	(void)state;
	struct elf_image *image = image_new();
	struct elf_file file;
	uint32_t words[4] = {1, 3, 4, 0};
	image_raw_note(image, "kvprobe", 1, words, sizeof(words));
	image_finish(image, IMAGE_BASE_VA);
	assert_true(parse(image, &file));
	assert_false(file.safety.present);
	elf_file_free(&file);
	image_free(image);
}

static void test_addresses_outside_of_all_segments(void **state)
{
	(void)state;
	struct elf_image *image = image_new();
	struct elf_file file;
	image_probe(image, "kvstore", "A", "", UINT64_MAX, IMAGE_BASE_VA, UINT64_MAX);
	image_probe(image, "kvstore", "B", "", IMAGE_DATA_VA, IMAGE_BASE_VA, 0);
	image_finish(image, IMAGE_BASE_VA);
	assert_true(parse(image, &file));
	assert_int_equal(file.notes[0].site_offset, 0);
	assert_int_equal(file.notes[0].semaphore_offset, 0);
	assert_false(file.notes[0].site_executable);
	assert_int_equal(file.notes[1].site_offset, IMAGE_DATA);
	assert_false(file.notes[1].site_executable);
	elf_file_free(&file);
	image_free(image);
}

/* --- refusals ------------------------------------------------------------------------------------------------ */

static void refuse(struct elf_image *image, const char *word)
{
	struct elf_file file;
	bool parsed = parse(image, &file);
	if (parsed || !strstr(file.error, word))
		print_error("parsed %d, error '%s', want '%s'\n", parsed, file.error, word);
	assert_false(parsed);
	assert_non_null(strstr(file.error, word));
	elf_file_free(&file);
	image_free(image);
}

static struct elf_image *finished(void)
{
	struct elf_image *image = one_probe();
	image_finish(image, IMAGE_BASE_VA);
	return image;
}

static void test_files_of_other_kinds(void **state)
{
	(void)state;
	struct elf_image *image = finished();
	image->size = 10;
	refuse(image, "too short");
	image = finished();
	image->bytes[0] = 'M';
	refuse(image, "not an ELF file");
	image = finished();
	image->bytes[EI_CLASS] = ELFCLASS32;
	refuse(image, "64-bit");
	image = finished();
	image->bytes[EI_DATA] = ELFDATA2MSB;
	refuse(image, "little-endian");
	image = finished();
	image_header(image)->e_machine = EM_ARM;
	refuse(image, "machine");
	image = finished();
	image_header(image)->e_type = ET_REL;
	refuse(image, "neither a program");
}

static void test_tables_outside_the_file(void **state)
{
	(void)state;
	static const uint64_t bad[] = {UINT64_MAX, UINT64_MAX - 64, IMAGE_MAX * 2ull, 1ull << 63};
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		struct elf_image *image = finished();
		image_header(image)->e_shoff = bad[i];
		refuse(image, "section header table");
		image = finished();
		image_header(image)->e_phoff = bad[i];
		refuse(image, "program header table");
		image = finished();
		Elf64_Shdr *sections = (Elf64_Shdr *)(void *)(image->bytes + image_header(image)->e_shoff);
		sections[1].sh_size = bad[i];
		refuse(image, "section .note.stapsdt");
		image = finished();
		sections = (Elf64_Shdr *)(void *)(image->bytes + image_header(image)->e_shoff);
		sections[1].sh_offset = bad[i];
		refuse(image, "section .note.stapsdt");
		image = finished();
		Elf64_Phdr *segments = (Elf64_Phdr *)(void *)(image->bytes + sizeof(Elf64_Ehdr));
		segments[0].p_filesz = segments[0].p_memsz = bad[i];
		refuse(image, "outside the file");
	}
	struct elf_image *image = finished();
	image_header(image)->e_shstrndx = 99;
	refuse(image, "section names");
	image = finished();
	image_header(image)->e_shentsize = 1;
	refuse(image, "section header table");
}

static void test_section_count_in_the_first_section(void **state)
{
	(void)state;
	struct elf_image *image = finished();
	struct elf_file file;
	Elf64_Ehdr *header = image_header(image);
	Elf64_Shdr *sections = (Elf64_Shdr *)(void *)(image->bytes + header->e_shoff);
	sections[0].sh_size = header->e_shnum;
	header->e_shnum = 0;
	assert_true(parse(image, &file));
	assert_int_equal(file.n_notes, 1);
	elf_file_free(&file);
	sections[0].sh_size = UINT64_MAX;
	refuse(image, "sections");
}

static void test_notes_that_do_not_hold_together(void **state)
{
	(void)state;
	/* a length that runs past the section, near the overflow too */
	static const uint32_t lengths[] = {0x10000, 0xfffffff0, 0xffffffff};
	for (size_t i = 0; i < 3; i++) {
		for (size_t field = 0; field < 2; field++) {
			struct elf_image *image = one_probe();
			memcpy(image->notes + field * 4, &lengths[i], 4);
			image_finish(image, IMAGE_BASE_VA);
			refuse(image, "past its end");
		}
	}
	/* no terminator */
	struct elf_image *image = image_new();
	char desc[64];
	memset(desc, 'x', sizeof(desc));
	image_raw_note(image, "stapsdt", 3, desc, sizeof(desc));
	image_finish(image, IMAGE_BASE_VA);
	refuse(image, "unterminated");
	/* too short for the addresses */
	image = image_new();
	image_raw_note(image, "stapsdt", 3, desc, 20);
	image_finish(image, IMAGE_BASE_VA);
	refuse(image, "too short");
}

static void test_limits_of_strings_and_notes(void **state)
{
	(void)state;
	char longest[ELF_NAME_MAX + 2];
	memset(longest, 'n', sizeof(longest));
	longest[ELF_NAME_MAX] = '\0';
	struct elf_image *image = image_new();
	struct elf_file file;
	image_probe(image, "p", longest, "", IMAGE_TEXT_VA, IMAGE_BASE_VA, 0);
	image_finish(image, IMAGE_BASE_VA);
	assert_true(parse(image, &file));
	elf_file_free(&file);
	image_free(image);

	longest[ELF_NAME_MAX] = 'n';
	longest[ELF_NAME_MAX + 1] = '\0';
	image = image_new();
	image_probe(image, "p", longest, "", IMAGE_TEXT_VA, IMAGE_BASE_VA, 0);
	image_finish(image, IMAGE_BASE_VA);
	refuse(image, "overlong");
}

static void test_many_notes(void **state)
{
	(void)state;
	struct elf_image *image = image_new();
	struct elf_file file;
	for (int i = 0; i < 3000; i++)
		image_probe(image, "kvstore", "K", "8@%rdi", IMAGE_TEXT_VA + (uint64_t)i % 0x1000, IMAGE_BASE_VA, 0);
	image_finish(image, IMAGE_BASE_VA);
	assert_true(parse(image, &file));
	assert_int_equal(file.n_notes, 3000);
	assert_string_equal(file.notes[2999].args, "8@%rdi");
	elf_file_free(&file);
	image_free(image);
}

static void test_more_notes_than_the_limit(void **state)
{
	(void)state;
	/* the same bytes again in one note section after the other: the limit is of the file */
	struct elf_image *image = image_new();
	for (int i = 0; i < 3000; i++)
		image_probe(image, "kvstore", "K", "", IMAGE_TEXT_VA, IMAGE_BASE_VA, 0);
	image_finish(image, IMAGE_BASE_VA);
	Elf64_Ehdr *header = image_header(image);
	Elf64_Shdr *sections = (Elf64_Shdr *)(void *)(image->bytes + header->e_shoff);
	Elf64_Shdr more[IMAGE_SECTIONS];
	memcpy(more, sections, header->e_shnum * sizeof(*sections));
	for (size_t i = header->e_shnum; i < 10; i++)
		more[i] = sections[1];
	header->e_shoff = image_append(image, more, 10 * sizeof(*more));
	header->e_shnum = 10;
	refuse(image, "more than 10000");
}

/* --- a real file ---------------------------------------------------------------------------------------------- */

static void test_own_binary_by_descriptor(void **state)
{
	(void)state;
	struct elf_file file;
	struct stat st;
	int fd = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
	assert_true(fd >= 0 && fstat(fd, &st) == 0);
	struct elf_source source = {.fd = fd, .size = (uint64_t)st.st_size};
	assert_true(elf_file_parse(&file, &source));
	for (size_t i = 0; i < file.n_notes; i++) {
		assert_true(file.notes[i].site_executable);
		assert_true(file.notes[i].site_offset != 0);
	}
	elf_file_free(&file);

	/* cut short after its size was taken, as a writer could do */
	source.size = (uint64_t)st.st_size + 4096;
	uint8_t byte;
	file = (struct elf_file){.source = source};
	assert_false(elf_file_read(&file, (uint64_t)st.st_size, &byte, 1));
	close(fd);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_a_probe_with_all_its_fields),
	        cmocka_unit_test(test_prelinked_file_is_moved),
	        cmocka_unit_test(test_safety_note),
	        cmocka_unit_test(test_a_short_safety_note_promises_nothing),
	        cmocka_unit_test(test_addresses_outside_of_all_segments),
	        cmocka_unit_test(test_files_of_other_kinds),
	        cmocka_unit_test(test_tables_outside_the_file),
	        cmocka_unit_test(test_section_count_in_the_first_section),
	        cmocka_unit_test(test_notes_that_do_not_hold_together),
	        cmocka_unit_test(test_limits_of_strings_and_notes),
	        cmocka_unit_test(test_many_notes),
	        cmocka_unit_test(test_more_notes_than_the_limit),
	        cmocka_unit_test(test_own_binary_by_descriptor),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
