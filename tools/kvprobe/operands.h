/* SPDX-License-Identifier: Apache-2.0 */
/* The argument string of a probe note: N@%reg, N@off(%reg), N@(%reg), N@$constant; a negative N is signed. */
#ifndef KVPROBE_OPERANDS_H
#define KVPROBE_OPERANDS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "bpf/kvprobe_bpf.h"

/* What the probe ABI says for the machine (ELF e_machine); NULL for a machine that it does not cover. */
enum probe_kind {
	PROBE_DONE,
	PROBE_START,
	PROBE_OP_LOG,
};
const char *operands_of_abi(uint16_t machine, enum probe_kind kind);
int operands_count(enum probe_kind kind);

/* Parse an x86-64 argument string. False: error says what was not understood. */
bool operands_parse(const char *args, struct kvp_operand_spec *spec, char *error, size_t error_size);

#endif
