/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/kvprobe/keys.h"

#include <string.h>

#define PERF_POINT(NAME, LAYER, LEVEL, SITE, MEANING)                                                                \
	{.name = #NAME, .layer = PERF_LAYER_##LAYER, .level = PERF_LEVEL_##LEVEL, .site = #SITE, .meaning = MEANING},
const struct perf_key perf_keys[] = {
#include "perf_points.def"
};
#undef PERF_POINT

const int n_perf_keys = sizeof(perf_keys) / sizeof(perf_keys[0]);

static const char *const layer_names[] = {
        [PERF_LAYER_PY] = "PY",         [PERF_LAYER_RC] = "RC",
        [PERF_LAYER_CLIENT] = "CLIENT", [PERF_LAYER_TRANSFER] = "TRANSFER",
        [PERF_LAYER_MASTER] = "MASTER", [PERF_LAYER_XFER] = "XFER",
};
static const char *const level_names[] = {
        [PERF_LEVEL_SUB_SYSTEM] = "SUB_SYSTEM",
        [PERF_LEVEL_KEY_MODULE] = "KEY_MODULE",
        [PERF_LEVEL_MODULE] = "MODULE",
        [PERF_LEVEL_DEBUG] = "DEBUG",
};
#define COUNT_OF(array) (sizeof(array) / sizeof((array)[0]))

int perf_key_find(const char *name)
{
	for (int i = 0; i < n_perf_keys; i++)
		if (strcmp(perf_keys[i].name, name) == 0)
			return i;
	return -1;
}

const char *perf_layer_name(enum perf_layer layer)
{
	return layer > 0 && layer < COUNT_OF(layer_names) ? layer_names[layer] : "?";
}

const char *perf_level_name(enum perf_level level)
{
	return level > 0 && level < COUNT_OF(level_names) ? level_names[level] : "?";
}

enum perf_layer perf_layer_number(const char *name)
{
	for (size_t i = 1; i < COUNT_OF(layer_names); i++)
		if (strcmp(layer_names[i], name) == 0)
			return (enum perf_layer)i;
	return 0;
}

enum perf_level perf_level_number(const char *name)
{
	for (size_t i = 1; i < COUNT_OF(level_names); i++) {
		char digit[2] = {(char)('0' + i), '\0'};
		if (strcasecmp(level_names[i], name) == 0 || strcmp(digit, name) == 0)
			return (enum perf_level)i;
	}
	return 0;
}

bool perf_levels_parse(const char *text, unsigned int *mask)
{
	*mask = 0;
	while (true) {
		char name[32];
		size_t length = strcspn(text, ",");
		if (length == 0 || length >= sizeof(name))
			return false;
		memcpy(name, text, length);
		name[length] = '\0';
		enum perf_level level = perf_level_number(name);
		if (!level)
			return false;
		*mask |= 1u << level;
		if (text[length] == '\0')
			return true;
		text += length + 1;
	}
}
