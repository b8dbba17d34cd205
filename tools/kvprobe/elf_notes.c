/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/kvprobe/elf_notes.h"

#include <elf.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define STAPSDT_OWNER "stapsdt"
#define STAPSDT_TYPE  3
#define KVPROBE_OWNER "kvprobe"
#define KVPROBE_TYPE  1
#define KVPROBE_DESC  32

__attribute__((format(printf, 2, 3))) static bool fail(struct elf_file *file, const char *format, ...)
{
	va_list args;
	va_start(args, format);
	vsnprintf(file->error, sizeof(file->error), format, args);
	va_end(args);
	return false;
}

bool elf_file_read(const struct elf_file *file, uint64_t offset, void *out, size_t length)
{
	if (offset > file->source.size || length > file->source.size - offset)
		return false;
	if (file->source.memory) {
		memcpy(out, file->source.memory + offset, length);
		return true;
	}
	for (size_t got = 0; got < length;) {
		ssize_t n = pread(file->source.fd, (char *)out + got, length - got, (off_t)(offset + got));
		if (n <= 0)
			return false;
		got += (size_t)n;
	}
	return true;
}

/* A copy of a part of the file, with a zero behind it; kept until elf_file_free. */
static char *load(struct elf_file *file, uint64_t offset, uint64_t length)
{
	if (length > ELF_SECTION_MAX || offset > file->source.size || length > file->source.size - offset ||
	    file->n_buffers >= sizeof(file->buffers) / sizeof(file->buffers[0]))
		return NULL;
	char *buffer = malloc(length + 1);
	if (!buffer)
		return NULL;
	if (!elf_file_read(file, offset, buffer, length)) {
		free(buffer);
		return NULL;
	}
	buffer[length] = '\0';
	file->buffers[file->n_buffers++] = buffer;
	return buffer;
}

const struct elf_segment *elf_file_segment(const struct elf_file *file, uint64_t address)
{
	for (size_t i = 0; i < file->n_segments; i++) {
		const struct elf_segment *segment = &file->segments[i];
		if (address >= segment->vaddr && address - segment->vaddr < segment->memory_size)
			return segment;
	}
	return NULL;
}

uint64_t elf_file_offset(const struct elf_file *file, uint64_t address)
{
	const struct elf_segment *segment = elf_file_segment(file, address);
	if (!segment || address - segment->vaddr >= segment->file_size)
		return 0;
	return segment->offset + (address - segment->vaddr);
}

bool elf_file_count_exports(const struct elf_file *file, const char *prefix, const char *suffix, size_t *count)
{
	*count = 0;
	size_t n = file->dynsym_size / sizeof(Elf64_Sym);
	for (size_t i = 0; i < n && file->dynsym_size <= ELF_SECTION_MAX; i++) {
		Elf64_Sym symbol;
		char name[ELF_NAME_MAX + 1] = "";
		if (!elf_file_read(file, file->dynsym_offset + i * sizeof(symbol), &symbol, sizeof(symbol)) ||
		    symbol.st_name > file->dynstr_size)
			return false;
		uint64_t room = file->dynstr_size - symbol.st_name;
		size_t take = room < ELF_NAME_MAX ? (size_t)room : ELF_NAME_MAX;
		if (symbol.st_shndx == SHN_UNDEF)
			continue;
		if (!elf_file_read(file, file->dynstr_offset + symbol.st_name, name, take))
			return false;
		size_t length = strlen(name), tail = strlen(suffix);
		*count += strncmp(name, prefix, strlen(prefix)) == 0 && length >= tail &&
		          strcmp(name + length - tail, suffix) == 0;
	}
	return file->dynsym_size <= ELF_SECTION_MAX;
}

/* --- headers -------------------------------------------------------------------------------------------- */

static bool read_header(struct elf_file *file, Elf64_Ehdr *header)
{
	if (!elf_file_read(file, 0, header, sizeof(*header)))
		return fail(file, "too short for an ELF file");
	if (memcmp(header->e_ident, ELFMAG, SELFMAG) != 0)
		return fail(file, "not an ELF file");
	if (header->e_ident[EI_CLASS] != ELFCLASS64)
		return fail(file, "not a 64-bit ELF file");
	if (header->e_ident[EI_DATA] != ELFDATA2LSB)
		return fail(file, "not a little-endian ELF file");
	if (header->e_machine != EM_X86_64 && header->e_machine != EM_AARCH64)
		return fail(file, "for ELF machine %u; only x86-64 and aarch64 are supported", header->e_machine);
	if (header->e_type != ET_EXEC && header->e_type != ET_DYN)
		return fail(file, "neither a program nor a shared library (ELF type %u)", header->e_type);
	file->type = header->e_type;
	file->machine = header->e_machine;
	return true;
}

static bool read_segments(struct elf_file *file, const Elf64_Ehdr *header)
{
	if (header->e_phnum == 0)
		return true;
	if (header->e_phentsize != sizeof(Elf64_Phdr) || header->e_phnum > ELF_SEGMENTS_MAX)
		return fail(file, "broken program header table");
	Elf64_Phdr *headers = (Elf64_Phdr *)(void *)load(file, header->e_phoff, header->e_phnum * sizeof(Elf64_Phdr));
	if (!headers)
		return fail(file, "program header table lies outside the file");
	file->segments = calloc(header->e_phnum, sizeof(*file->segments));
	if (!file->segments)
		return fail(file, "out of memory");
	for (size_t i = 0; i < header->e_phnum; i++) {
		const Elf64_Phdr *h = &headers[i];
		uint64_t end;
		if (h->p_type != PT_LOAD)
			continue;
		if (__builtin_add_overflow(h->p_vaddr, h->p_memsz, &end) || h->p_filesz > h->p_memsz ||
		    h->p_offset > file->source.size || h->p_filesz > file->source.size - h->p_offset)
			return fail(file, "segment %zu lies outside the file", i);
		file->segments[file->n_segments++] = (struct elf_segment){
		        .vaddr = h->p_vaddr,
		        .offset = h->p_offset,
		        .file_size = h->p_filesz,
		        .memory_size = h->p_memsz,
		        .executable = (h->p_flags & PF_X) != 0,
		        .writable = (h->p_flags & PF_W) != 0,
		};
	}
	return true;
}

struct sections {
	const Elf64_Shdr *headers;
	size_t count;
	const char *names;
	uint64_t names_size;
};

static bool read_sections(struct elf_file *file, const Elf64_Ehdr *header, struct sections *sections)
{
	*sections = (struct sections){0};
	if (header->e_shoff == 0)
		return true;
	if (header->e_shentsize != sizeof(Elf64_Shdr))
		return fail(file, "broken section header table");
	size_t count = header->e_shnum, names = header->e_shstrndx;
	Elf64_Shdr first;
	if (!elf_file_read(file, header->e_shoff, &first, sizeof(first)))
		return fail(file, "section header table lies outside the file");
	if (count == 0) /* too many for the header's field: the first section has the number */
		count = first.sh_size > ELF_SECTIONS_MAX ? ELF_SECTIONS_MAX + 1 : (size_t)first.sh_size;
	if (names == SHN_XINDEX)
		names = first.sh_link;
	if (count > ELF_SECTIONS_MAX)
		return fail(file, "more than %d sections", ELF_SECTIONS_MAX);
	if (count == 0)
		return true;
	const Elf64_Shdr *headers =
	        (const Elf64_Shdr *)(void *)load(file, header->e_shoff, count * sizeof(Elf64_Shdr));
	if (!headers)
		return fail(file, "section header table lies outside the file");
	if (names >= count)
		return fail(file, "no table of section names");
	const char *text = load(file, headers[names].sh_offset, headers[names].sh_size);
	if (!text)
		return fail(file, "table of section names lies outside the file, or exceeds %u bytes",
		            ELF_SECTION_MAX);
	*sections = (struct sections){headers, count, text, headers[names].sh_size};
	return true;
}

static const char *section_name(const struct sections *sections, const Elf64_Shdr *section)
{
	/* load() put a zero behind the table, so every name ends */
	return section->sh_name < sections->names_size ? sections->names + section->sh_name : "";
}

/* --- notes ------------------------------------------------------------------------------------------------ */

static uint32_t u32_at(const char *at)
{
	uint32_t value;
	memcpy(&value, at, sizeof(value));
	return value;
}

static uint64_t u64_at(const char *at)
{
	uint64_t value;
	memcpy(&value, at, sizeof(value));
	return value;
}

/* The string at *at, at most limit long and terminated before end; *at moves past it. */
static const char *take_string(const char **at, const char *end, size_t limit)
{
	const char *start = *at;
	size_t room = (size_t)(end - start);
	const char *stop = memchr(start, '\0', room < limit + 1 ? room : limit + 1);
	if (!stop)
		return NULL;
	*at = stop + 1;
	return start;
}

static bool add_probe(struct elf_file *file, const char *desc, uint32_t length)
{
	if (length < 24)
		return fail(file, "probe note %zu is too short", file->n_notes);
	if (file->n_notes >= ELF_NOTES_MAX)
		return fail(file, "more than %d probe notes", ELF_NOTES_MAX);
	struct probe_note note = {.site = u64_at(desc), .base = u64_at(desc + 8), .semaphore = u64_at(desc + 16)};
	const char *at = desc + 24, *end = desc + length;
	note.provider = take_string(&at, end, ELF_NAME_MAX);
	note.name = note.provider ? take_string(&at, end, ELF_NAME_MAX) : NULL;
	note.args = note.name ? take_string(&at, end, ELF_ARGS_MAX) : NULL;
	if (!note.args)
		return fail(file, "probe note %zu has an unterminated or overlong string", file->n_notes);
	if ((file->n_notes & (file->n_notes - 1)) == 0) {
		size_t room = file->n_notes ? file->n_notes * 2 : 16;
		struct probe_note *bigger = realloc(file->notes, room < 16 ? 16 * sizeof(note) : room * sizeof(note));
		if (!bigger)
			return fail(file, "out of memory");
		file->notes = bigger;
	}
	file->notes[file->n_notes++] = note;
	return true;
}

static void take_safety(struct elf_file *file, const char *desc, uint32_t length)
{
	if (length < KVPROBE_DESC)
		return;
	file->safety = (struct safety_note){
	        .present = true,
	        .version = u32_at(desc),
	        .flags = u32_at(desc + 4),
	        .layers = u32_at(desc + 8),
	        .skipped_fork = u64_at(desc + 16),
	        .base = u64_at(desc + 24),
	};
}

static bool read_notes(struct elf_file *file, const Elf64_Shdr *section, const char *name)
{
	const char *at = load(file, section->sh_offset, section->sh_size);
	if (!at)
		return fail(file, "section %s lies outside the file, exceeds %u bytes or is one of too many", name,
		            ELF_SECTION_MAX);
	uint64_t left = section->sh_size;
	while (left >= sizeof(Elf64_Nhdr)) {
		uint64_t owner_length = u32_at(at), desc_length = u32_at(at + 4);
		uint32_t type = u32_at(at + 8);
		uint64_t owner_room = (owner_length + 3) & ~3ull, desc_room = (desc_length + 3) & ~3ull;
		const char *owner = at + sizeof(Elf64_Nhdr), *desc = owner + owner_room;
		left -= sizeof(Elf64_Nhdr);
		if (owner_room > left || desc_length > left - owner_room)
			return fail(file, "a note of section %s runs past its end", name);
		if (owner_length == sizeof(STAPSDT_OWNER) && memcmp(owner, STAPSDT_OWNER, owner_length) == 0 &&
		    type == STAPSDT_TYPE) {
			if (!add_probe(file, desc, (uint32_t)desc_length))
				return false;
		} else if (owner_length == sizeof(KVPROBE_OWNER) && memcmp(owner, KVPROBE_OWNER, owner_length) == 0 &&
		           type == KVPROBE_TYPE) {
			take_safety(file, desc, (uint32_t)desc_length);
		}
		if (desc_room > left - owner_room) /* the last note's padding may be missing */
			break;
		left -= owner_room + desc_room;
		at = desc + desc_room;
	}
	return true;
}

/* A prelinked file was moved after its notes were written: .stapsdt.base moved along and tells by how much. */
static void settle_addresses(struct elf_file *file)
{
	for (size_t i = 0; i < file->n_notes; i++) {
		struct probe_note *note = &file->notes[i];
		uint64_t moved = file->has_base && note->base ? file->base_address - note->base : 0;
		note->site += moved;
		note->base += moved;
		if (note->semaphore)
			note->semaphore += moved;
		const struct elf_segment *segment = elf_file_segment(file, note->site);
		note->site_executable = segment && segment->executable;
		note->site_offset = elf_file_offset(file, note->site);
		note->semaphore_offset = note->semaphore ? elf_file_offset(file, note->semaphore) : 0;
	}
	if (file->safety.present && file->has_base && file->safety.base) {
		uint64_t moved = file->base_address - file->safety.base;
		file->safety.base += moved;
		file->safety.skipped_fork += moved;
	}
}

bool elf_file_parse(struct elf_file *file, const struct elf_source *source)
{
	*file = (struct elf_file){.source = *source};
	Elf64_Ehdr header;
	struct sections sections;
	if (!read_header(file, &header) || !read_segments(file, &header) || !read_sections(file, &header, &sections))
		return false;
	for (size_t i = 0; i < sections.count; i++) {
		const Elf64_Shdr *section = &sections.headers[i];
		const char *name = section_name(&sections, section);
		if (section->sh_type == SHT_NOTE &&
		    (strcmp(name, ".note.stapsdt") == 0 || strcmp(name, ".note.kvprobe") == 0)) {
			if (!read_notes(file, section, name))
				return false;
		} else if (strcmp(name, ".stapsdt.base") == 0) {
			file->has_base = true;
			file->base_address = section->sh_addr;
		} else if (strcmp(name, ".probes") == 0) {
			file->probes_address = section->sh_addr;
			file->probes_size = section->sh_size;
		} else if (strcmp(name, ".dynsym") == 0) {
			file->dynsym_offset = section->sh_offset;
			file->dynsym_size = section->sh_size;
		} else if (strcmp(name, ".dynstr") == 0) {
			file->dynstr_offset = section->sh_offset;
			file->dynstr_size = section->sh_size;
		}
	}
	settle_addresses(file);
	return true;
}

void elf_file_free(struct elf_file *file)
{
	for (size_t i = 0; i < file->n_buffers; i++)
		free(file->buffers[i]);
	free(file->segments);
	free(file->notes);
	file->n_buffers = file->n_segments = file->n_notes = 0;
	file->segments = NULL;
	file->notes = NULL;
}
