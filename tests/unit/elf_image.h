/* SPDX-License-Identifier: Apache-2.0 */
/* Makes small ELF files in memory, with probe notes as the linker would leave them, right or wrong as asked. */
#ifndef KV_TESTS_ELF_IMAGE_H
#define KV_TESTS_ELF_IMAGE_H

#include <elf.h>
#include <string.h>

#include "kv_cmocka.h"

#define IMAGE_MAX      (1u << 20)
#define IMAGE_TEXT     0x1000u /* file offset of the executable segment */
#define IMAGE_TEXT_VA  0x401000u
#define IMAGE_DATA     0x2000u
#define IMAGE_DATA_VA  0x602000u
#define IMAGE_BASE_VA  0x401f00u
#define IMAGE_SECTIONS 16

struct elf_image {
	uint8_t *bytes;
	size_t size;
	Elf64_Shdr sections[IMAGE_SECTIONS];
	size_t n_sections;
	char names[256];
	size_t names_size;
	uint8_t notes[1u << 18]; /* of .note.stapsdt */
	size_t notes_size;
};

static inline size_t image_append(struct elf_image *image, const void *bytes, size_t size)
{
	size_t at = (image->size + 7) & ~(size_t)7;
	assert_true(at + size <= IMAGE_MAX);
	memcpy(image->bytes + at, bytes, size);
	image->size = at + size;
	return at;
}

static inline Elf64_Shdr *image_section(struct elf_image *image, const char *name, uint32_t type, const void *bytes,
                                        size_t size)
{
	Elf64_Shdr *section = &image->sections[image->n_sections++];
	*section = (Elf64_Shdr){
	        .sh_name = (Elf64_Word)image->names_size,
	        .sh_type = type,
	        .sh_offset = bytes ? image_append(image, bytes, size) : 0,
	        .sh_size = size,
	};
	strcpy(image->names + image->names_size, name);
	image->names_size += strlen(name) + 1;
	return section;
}

static inline struct elf_image *image_new(void)
{
	struct elf_image *image = calloc(1, sizeof(*image));
	assert_non_null(image);
	image->bytes = calloc(1, IMAGE_MAX);
	assert_non_null(image->bytes);
	image->size = 0x3000; /* headers, text, data */
	image->n_sections = 1;
	image->names_size = 1;
	return image;
}

/* One note: owner, type, description. */
static inline void image_raw_note(struct elf_image *image, const char *owner, uint32_t type, const void *desc,
                                  size_t size)
{
	uint32_t head[3] = {(uint32_t)strlen(owner) + 1, (uint32_t)size, type};
	uint8_t *at = image->notes + image->notes_size;
	memcpy(at, head, sizeof(head));
	strcpy((char *)at + 12, owner);
	size_t desc_at = 12 + ((head[0] + 3) & ~3u);
	memcpy(at + desc_at, desc, size);
	image->notes_size += desc_at + ((size + 3) & ~(size_t)3);
}

static inline void image_probe(struct elf_image *image, const char *provider, const char *name, const char *args,
                               uint64_t site, uint64_t base, uint64_t semaphore)
{
	uint8_t desc[4096];
	uint64_t addresses[3] = {site, base, semaphore};
	size_t size = sizeof(addresses);
	memcpy(desc, addresses, sizeof(addresses));
	const char *const strings[] = {provider, name, args};
	for (int i = 0; i < 3; i++) {
		strcpy((char *)desc + size, strings[i]);
		size += strlen(strings[i]) + 1;
	}
	image_raw_note(image, "stapsdt", 3, desc, size);
}

/* Write headers and tables. base_address 0: no .stapsdt.base. */
static inline void image_finish(struct elf_image *image, uint64_t base_address)
{
	image_section(image, ".note.stapsdt", SHT_NOTE, image->notes, image->notes_size);
	if (base_address)
		image_section(image, ".stapsdt.base", SHT_PROGBITS, NULL, 1)->sh_addr = base_address;
	Elf64_Shdr *probes = image_section(image, ".probes", SHT_PROGBITS, NULL, 64);
	probes->sh_addr = IMAGE_DATA_VA;
	probes->sh_offset = IMAGE_DATA;
	size_t names_index = image->n_sections;
	Elf64_Shdr *names = image_section(image, ".shstrtab", SHT_STRTAB, NULL, 0);
	names->sh_size = image->names_size;
	names->sh_offset = image_append(image, image->names, image->names_size);
	size_t table = image_append(image, image->sections, image->n_sections * sizeof(Elf64_Shdr));

	Elf64_Phdr segments[2] = {
	        {.p_type = PT_LOAD,
	         .p_flags = PF_R | PF_X,
	         .p_offset = IMAGE_TEXT,
	         .p_vaddr = IMAGE_TEXT_VA,
	         .p_filesz = 0x1000,
	         .p_memsz = 0x1000},
	        {.p_type = PT_LOAD,
	         .p_flags = PF_R | PF_W,
	         .p_offset = IMAGE_DATA,
	         .p_vaddr = IMAGE_DATA_VA,
	         .p_filesz = 0x1000,
	         .p_memsz = 0x2000},
	};
	Elf64_Ehdr header = {
	        .e_ident = {ELFMAG0, ELFMAG1, ELFMAG2, ELFMAG3, ELFCLASS64, ELFDATA2LSB, EV_CURRENT},
	        .e_type = ET_DYN,
	        .e_machine = EM_X86_64,
	        .e_phoff = sizeof(header),
	        .e_shoff = table,
	        .e_phentsize = sizeof(Elf64_Phdr),
	        .e_phnum = 2,
	        .e_shentsize = sizeof(Elf64_Shdr),
	        .e_shnum = (Elf64_Half)image->n_sections,
	        .e_shstrndx = (Elf64_Half)names_index,
	};
	memcpy(image->bytes, &header, sizeof(header));
	memcpy(image->bytes + sizeof(header), segments, sizeof(segments));
}

static inline Elf64_Ehdr *image_header(struct elf_image *image)
{
	return (Elf64_Ehdr *)(void *)image->bytes;
}

static inline void image_free(struct elf_image *image)
{
	free(image->bytes);
	free(image);
}

#endif
