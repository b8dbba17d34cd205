/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What every subcommand uses: exit codes, diagnostics (stderr only), bounded number parsing, and a hash table
 * from 64-bit keys to pointers.
 */
#ifndef KVPROBE_COMMON_H
#define KVPROBE_COMMON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

enum exit_code {
	EXIT_DONE = 0,     /* done, or ended by SIGINT or SIGTERM */
	EXIT_RUNTIME = 1,  /* runtime failure, failed check */
	EXIT_NO_MATCH = 2, /* no such pid, no probes, nothing matches */
	EXIT_NO_RIGHT = 3, /* a right or a kernel feature is missing */
	EXIT_LOST = 4,     /* finished, but data was lost */
	EXIT_USAGE = 64,
};

/* 0: errors and warnings; 1: -v. */
extern int verbosity;

/* "kvprobe: message" on stderr. */
void say(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* From now on what say says goes into text, a line each, instead of to stderr; NULL: back to stderr. */
void say_into(char *text, size_t size);
/* On stderr, only with -v. */
void say_more(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* A decimal integer in [min, max], nothing around it. */
bool parse_integer(const char *text, int64_t min, int64_t max, int64_t *out);
/* Seconds with an optional fraction, in (0, max], as nanoseconds. */
bool parse_seconds(const char *text, double max, uint64_t *out_ns);

uint64_t now_mono_ns(void);
uint64_t now_real_ns(void);

/* Copy, with every byte that is not printable ASCII, and the backslash, as \xNN. Always terminated. */
void printable(char *out, size_t out_size, const char *text, size_t length);

/* malloc and friends that end the program with a message: a tool has no better answer. */
void *need_memory(void *memory);
void *grow_array(void *array, size_t *capacity, size_t needed, size_t item_size);
char *format_text(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Open-addressed map, key 0 not allowed. Zero-initialised is empty. */
struct id_map {
	struct id_map_entry {
		uint64_t key;
		void *value;
	} * entries;
	size_t capacity, count;
};
void *id_map_get(const struct id_map *map, uint64_t key);
void id_map_set(struct id_map *map, uint64_t key, void *value);
/* Removes and returns what was there. */
void *id_map_take(struct id_map *map, uint64_t key);
void id_map_free(struct id_map *map);

#endif
