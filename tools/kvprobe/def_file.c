/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/kvprobe/def_file.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/kvprobe/common.h"
#include "tools/kvprobe/keys.h"

#define DEF_FILE_MAX (4u << 20)
#define FIELDS       5

static char *read_text(const char *path, char *error, size_t error_size)
{
	FILE *file = fopen(path, "re");
	if (!file) {
		snprintf(error, error_size, "%s: %s", path, strerror(errno));
		return NULL;
	}
	char *text = need_memory(malloc(DEF_FILE_MAX + 1));
	size_t length = fread(text, 1, DEF_FILE_MAX + 1, file);
	bool failed = ferror(file) || length > DEF_FILE_MAX || memchr(text, '\0', length);
	fclose(file);
	if (failed) {
		snprintf(error, error_size, "%s: not readable, larger than %u bytes, or not text", path,
		         DEF_FILE_MAX);
		free(text);
		return NULL;
	}
	text[length] = '\0';
	return text;
}

/* Comments become blanks, line ends stay, so that positions still tell the line. */
static void blank_comments(char *text)
{
	bool in_string = false;
	for (char *at = text; *at; at++) {
		if (in_string) {
			if (*at == '\\' && at[1])
				at++;
			else if (*at == '"')
				in_string = false;
			continue;
		}
		if (*at == '"') {
			in_string = true;
			continue;
		}
		bool block = at[0] == '/' && at[1] == '*', line = at[0] == '/' && at[1] == '/';
		if (!block && !line)
			continue;
		const char *end = block ? strstr(at + 2, "*/") : strchr(at, '\n');
		end = !end ? at + strlen(at) : block ? end + 2 : end;
		for (; at < end; at++)
			if (*at != '\n')
				*at = ' ';
		at--;
	}
}

static char *trim(char *from, char *to)
{
	while (from < to && isspace((unsigned char)*from))
		from++;
	while (to > from && isspace((unsigned char)to[-1]))
		to--;
	*to = '\0';
	return from;
}

/* Split the text between the parentheses at its commas. Returns what follows the closing one, or NULL. */
static char *split(char *at, char *fields[FIELDS])
{
	char *start = at;
	int n = 0;
	for (bool in_string = false; *at; at++) {
		if (in_string && *at == '\\' && at[1]) {
			at++;
			continue;
		}
		if (*at == '"')
			in_string = !in_string;
		if (in_string || (*at != ',' && *at != ')'))
			continue;
		bool last = *at == ')';
		if (n == FIELDS)
			return NULL;
		fields[n++] = trim(start, at);
		start = at + 1;
		if (last)
			return n == FIELDS ? at + 1 : NULL;
	}
	return NULL;
}

static bool add_key(struct def_file *def, char *fields[FIELDS])
{
	struct def_key key = {.layer = perf_layer_number(fields[1]), .level = perf_level_number(fields[2])};
	if (!key.layer || !key.level || !fields[0][0] || fields[4][0] != '"')
		return false;
	for (const char *c = fields[0]; *c; c++)
		if (!isalnum((unsigned char)*c) && *c != '_')
			return false;
	for (size_t i = 0; i < def->n_keys; i++)
		if (strcmp(def->keys[i].name, fields[0]) == 0)
			return false;
	key.name = need_memory(strdup(fields[0]));
	def->keys = grow_array(def->keys, &def->room, def->n_keys + 1, sizeof(*def->keys));
	def->keys[def->n_keys++] = key;
	return true;
}

bool def_file_read(struct def_file *def, const char *path, char *error, size_t error_size)
{
	static const char macro[] = "PERF_POINT";
	*def = (struct def_file){0};
	char *text = read_text(path, error, error_size);
	if (!text)
		return false;
	blank_comments(text);
	bool ok = true;
	size_t line = 1;
	char *at = text;
	while (ok && *at) {
		if (isspace((unsigned char)*at)) {
			line += *at++ == '\n';
			continue;
		}
		char *fields[FIELDS], *next = NULL;
		if (strncmp(at, macro, strlen(macro)) == 0) {
			char *open = at + strlen(macro);
			while (*open == ' ')
				open++;
			size_t lines = 0;
			for (char *c = open; *c && *c != '"'; c++)
				lines += *c == '\n';
			next = *open == '(' ? split(open + 1, fields) : NULL;
			ok = next && add_key(def, fields);
			if (ok)
				line += lines;
		} else {
			ok = false;
		}
		if (ok)
			at = next;
	}
	free(text);
	if (!ok)
		snprintf(error, error_size,
		         "%s:%zu: not PERF_POINT(NAME, LAYER, LEVEL, site, \"meaning\"), or a name twice", path,
		         line);
	else if (def->n_keys == 0)
		snprintf(error, error_size, "%s: no PERF_POINT in it", path);
	return ok && def->n_keys > 0;
}

void def_file_free(struct def_file *def)
{
	for (size_t i = 0; i < def->n_keys; i++)
		free(def->keys[i].name);
	free(def->keys);
	*def = (struct def_file){0};
}
