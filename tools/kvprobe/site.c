/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/kvprobe/site.h"

#include <elf.h>
#include <errno.h>
#include <string.h>
#include <unistd.h>

static const uint8_t x86_site[SITE_BYTES] = {
        0x90,                                                       /* nop */
        0x0f, 0x1f, 0x44, 0x00, 0x00,                               /* nopl 0(%rax,%rax,1) */
        0x66, 0x2e, 0x0f, 0x1f, 0x84, 0x00, 0x00, 0x00, 0x00, 0x00, /* cs nopw 0(%rax,%rax,1) */
};
static const uint8_t arm64_site[4] = {0x1f, 0x20, 0x03, 0xd5}; /* nop */

static const struct {
	const char *name;
	int offset;
	unsigned int length;
} forms[] = {
        [FORM_AUTO] = {"auto", 0, 0},
        [FORM_INT3] = {"int3", 0, 1},
        [FORM_NOP5] = {"nop5", 1, 5},
        [FORM_NOP10] = {"nop10", 6, 10},
};

const uint8_t *site_bytes(uint16_t machine, size_t *length)
{
	*length = machine == EM_X86_64 ? sizeof(x86_site) : sizeof(arm64_site);
	return machine == EM_X86_64 ? x86_site : arm64_site;
}

const char *form_name(enum attach_form form)
{
	return forms[form].name;
}

bool form_of_name(const char *name, enum attach_form *out)
{
	for (size_t i = 0; i < sizeof(forms) / sizeof(forms[0]); i++) {
		if (strcmp(forms[i].name, name) == 0) {
			*out = (enum attach_form)i;
			return true;
		}
	}
	return false;
}

enum attach_form form_of_kernel(void)
{
#if defined(__x86_64__)
	/* uprobe(2), which only the kernel's own trampoline may call: how it refuses tells which form it is for */
	errno = 0;
	syscall(336);
	if (errno == ENXIO)
		return FORM_NOP5;
	if (errno == EPROTO)
		return FORM_NOP10;
#endif
	return FORM_INT3;
}

int site_form_offset(const struct elf_file *elf, const struct probe_note *note, enum attach_form form,
                     const char **reason)
{
	const uint32_t both = SAFETY_NO_RED_ZONE | SAFETY_FORK_GUARD;
	uint8_t bytes[SITE_BYTES];
	*reason = NULL;
	if (form == FORM_INT3)
		return 0;
	if (elf->machine != EM_X86_64)
		*reason = "the machine has one form only";
	else if (!elf->safety.present)
		*reason = "the file has no kvprobe safety note";
	else if (elf->safety.version != SAFETY_VERSION)
		*reason = "the file's kvprobe safety note is of another version";
	else if ((elf->safety.flags & both) != both)
		*reason = "the file's kvprobe safety note does not promise both no red zone and a fork guard";
	else if (!elf_file_read(elf, note->site_offset, bytes, sizeof(bytes)) ||
	         memcmp(bytes, x86_site, sizeof(bytes)) != 0)
		*reason = "the site is not the three nops";
	else if (((note->site + (uint64_t)forms[form].offset) & 4095) + forms[form].length > 4096)
		*reason = "the nop crosses a page";
	return *reason ? -1 : forms[form].offset;
}
