/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/kvprobe/operands.h"

#include <elf.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const x86_abi[] = {
        [PROBE_DONE] = "8@%rdi 8@%rsi 8@%rdx 8@%rcx -8@%r8 8@%r9",
        [PROBE_START] = "8@%rdi 8@%rsi 8@%rdx",
        [PROBE_OP_LOG] = "8@%rdi 8@%rsi 8@%rdx 8@%rcx 8@%r8 8@%r9",
};
static const char *const arm64_abi[] = {
        [PROBE_DONE] = "8@x0 8@x1 8@x2 8@x3 -8@x4 8@x5",
        [PROBE_START] = "8@x0 8@x1 8@x2",
        [PROBE_OP_LOG] = "8@x0 8@x1 8@x2 8@x3 8@x4 8@x5",
};

const char *operands_of_abi(uint16_t machine, enum probe_kind kind)
{
	if (machine == EM_X86_64)
		return x86_abi[kind];
	if (machine == EM_AARCH64)
		return arm64_abi[kind];
	return NULL;
}

int operands_count(enum probe_kind kind)
{
	return kind == PROBE_START ? 3 : 6;
}

/* Every name of a register; the row is its number in struct kvp_operand. */
static const char *const registers[KVP_REGISTERS][4] = {
        {"rax", "eax", "ax", "al"},      {"rbx", "ebx", "bx", "bl"},      {"rcx", "ecx", "cx", "cl"},
        {"rdx", "edx", "dx", "dl"},      {"rsi", "esi", "si", "sil"},     {"rdi", "edi", "di", "dil"},
        {"rbp", "ebp", "bp", "bpl"},     {"rsp", "esp", "sp", "spl"},     {"r8", "r8d", "r8w", "r8b"},
        {"r9", "r9d", "r9w", "r9b"},     {"r10", "r10d", "r10w", "r10b"}, {"r11", "r11d", "r11w", "r11b"},
        {"r12", "r12d", "r12w", "r12b"}, {"r13", "r13d", "r13w", "r13b"}, {"r14", "r14d", "r14w", "r14b"},
        {"r15", "r15d", "r15w", "r15b"},
};

static bool parse_register(const char *text, size_t length, uint8_t *out)
{
	for (uint8_t i = 0; i < KVP_REGISTERS; i++) {
		for (int k = 0; k < 4; k++) {
			if (strlen(registers[i][k]) == length && memcmp(registers[i][k], text, length) == 0) {
				*out = i;
				return true;
			}
		}
	}
	return false;
}

static bool parse_number(const char *text, const char **end, int64_t *out)
{
	char *stop;
	errno = 0;
	*out = strtoll(text, &stop, 0);
	*end = stop;
	return stop != text && errno == 0;
}

/* text is one operand, terminated. */
static bool parse_operand(const char *text, struct kvp_operand *out)
{
	int64_t size;
	const char *at;
	*out = (struct kvp_operand){0};
	if (!parse_number(text, &at, &size) || *at != '@')
		return false;
	at++;
	out->is_signed = size < 0;
	size = size < 0 ? -size : size;
	if (size != 1 && size != 2 && size != 4 && size != 8)
		return false;
	out->size = (uint8_t)size;
	if (*at == '$') {
		out->kind = KVP_OPERAND_CONSTANT;
		return parse_number(at + 1, &at, &out->value) && *at == '\0';
	}
	if (*at == '%') {
		out->kind = KVP_OPERAND_REGISTER;
		return parse_register(at + 1, strlen(at + 1), &out->reg);
	}
	out->kind = KVP_OPERAND_MEMORY;
	if (*at != '(' && !parse_number(at, &at, &out->value))
		return false;
	size_t length = strlen(at);
	return length > 3 && at[0] == '(' && at[1] == '%' && at[length - 1] == ')' &&
	       parse_register(at + 2, length - 3, &out->reg);
}

bool operands_parse(const char *args, struct kvp_operand_spec *spec, char *error, size_t error_size)
{
	memset(spec, 0, sizeof(*spec));
	while (*args) {
		char text[64];
		size_t length = strcspn(args, " ");
		if (length == 0) {
			args++;
			continue;
		}
		if (spec->n_args >= KVP_ARGS) {
			snprintf(error, error_size, "more than %d arguments", KVP_ARGS);
			return false;
		}
		snprintf(text, sizeof(text), "%.*s", (int)(length < sizeof(text) ? length : sizeof(text) - 1), args);
		if (length >= sizeof(text) || !parse_operand(text, &spec->args[spec->n_args])) {
			snprintf(error, error_size, "argument '%s' is of a form that kvprobe does not read", text);
			return false;
		}
		spec->n_args++;
		args += length;
	}
	/* what the probe does not have reads as the constant 0 */
	for (uint32_t i = spec->n_args; i < KVP_ARGS; i++)
		spec->args[i] = (struct kvp_operand){.kind = KVP_OPERAND_CONSTANT, .size = 8};
	return true;
}
