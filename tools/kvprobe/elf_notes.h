/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The probe notes of an ELF file: .note.stapsdt and kvprobe's own safety note. The file may come from a
 * container and be broken or hostile: every offset, length and string is checked, every size has a limit,
 * and the file is read piece by piece, so that cutting it short meanwhile harms no one.
 */
#ifndef KVPROBE_ELF_NOTES_H
#define KVPROBE_ELF_NOTES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define ELF_NOTES_MAX    10000
#define ELF_NAME_MAX     256  /* provider, probe name */
#define ELF_ARGS_MAX     1024 /* argument string */
#define ELF_SECTIONS_MAX 65535
#define ELF_SEGMENTS_MAX 4096
#define ELF_SECTION_MAX  (16u << 20) /* bytes of a note section or of the section names */

/* Where the bytes come from: memory, or a file descriptor if memory is NULL. */
struct elf_source {
	const uint8_t *memory;
	int fd;
	uint64_t size;
};

struct elf_segment { /* PT_LOAD */
	uint64_t vaddr, offset, file_size, memory_size;
	bool executable, writable;
};

struct probe_note {
	const char *provider, *name, *args;
	uint64_t site, base, semaphore; /* link-time addresses, after the prelink adjustment; semaphore 0: none */
	uint64_t site_offset;           /* file offsets; 0: the address is in no segment's file part */
	uint64_t semaphore_offset;
	bool site_executable;
};

#define SAFETY_VERSION     1
#define SAFETY_NO_RED_ZONE 1u
#define SAFETY_FORK_GUARD  2u

struct safety_note {
	bool present;
	uint32_t version, flags, layers; /* layers: bit 1 << enum perf_layer */
	uint64_t skipped_fork;           /* link-time address of the u64 counter */
	uint64_t base;
};

struct elf_file {
	struct elf_source source;
	uint16_t type, machine;
	struct elf_segment *segments;
	size_t n_segments;
	struct probe_note *notes;
	size_t n_notes;
	bool has_base;
	uint64_t base_address;                /* of .stapsdt.base */
	uint64_t probes_address, probes_size; /* of section .probes, 0 if there is none */
	uint64_t dynsym_offset, dynsym_size;  /* .dynsym and .dynstr; 0 if there is none */
	uint64_t dynstr_offset, dynstr_size;
	struct safety_note safety;
	char error[200];
	void *buffers[64]; /* what the strings point into */
	size_t n_buffers;
};

/* Parse. False: file->error says why; a file without notes is no error. elf_file_free in both cases. The
 * source is kept for elf_file_read and must outlive the file. */
bool elf_file_parse(struct elf_file *file, const struct elf_source *source);
void elf_file_free(struct elf_file *file);

/* Read exactly length bytes at a file offset. */
bool elf_file_read(const struct elf_file *file, uint64_t offset, void *out, size_t length);
/* The file offset of a link-time address, or 0 if no segment's file part holds it. */
uint64_t elf_file_offset(const struct elf_file *file, uint64_t address);
/* How many dynamic symbols that this file defines begin and end so. False: the table is broken. */
bool elf_file_count_exports(const struct elf_file *file, const char *prefix, const char *suffix, size_t *count);
/* The segment that holds a link-time address in memory, or NULL. */
const struct elf_segment *elf_file_segment(const struct elf_file *file, uint64_t address);

#endif
