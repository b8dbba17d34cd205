/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a site looks like in the file, and where on it to attach. On x86-64 a site is a nop of 1, of 5 and of
 * 10 bytes (docs/architecture.md): every tool can attach to the first; a kernel that turns one of the others
 * into a call makes a hit several times cheaper, where the binary says that this is safe.
 */
#ifndef KVPROBE_SITE_H
#define KVPROBE_SITE_H

#include "tools/kvprobe/elf_notes.h"

enum attach_form {
	FORM_AUTO,
	FORM_INT3,
	FORM_NOP5,
	FORM_NOP10,
};

#define SITE_BYTES 16 /* of the three nops together */

const char *form_name(enum attach_form form);
/* FORM_AUTO with false for a name that is none. */
bool form_of_name(const char *name, enum attach_form *out);

/* The form that the running kernel optimises: FORM_NOP5, FORM_NOP10, or FORM_INT3 for none. */
enum attach_form form_of_kernel(void);

/* Which of its three nops a site may be attached at in this form, as an offset from the note's address;
 * -1: not in this form, *reason says why. */
int site_form_offset(const struct elf_file *elf, const struct probe_note *note, enum attach_form form,
                     const char **reason);

/* The exact bytes of a site of this machine, and their number. */
const uint8_t *site_bytes(uint16_t machine, size_t *length);

#endif
