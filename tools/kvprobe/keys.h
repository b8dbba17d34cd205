/* SPDX-License-Identifier: Apache-2.0 */
/* The PerfKeys that this build knows: perf_points.def as a table. A key's number is its row. */
#ifndef KVPROBE_KEYS_H
#define KVPROBE_KEYS_H

#include "probes/perf_points.h"

struct perf_key {
	const char *name;
	enum perf_layer layer;
	enum perf_level level;
	const char *site;
	const char *meaning;
};

extern const struct perf_key perf_keys[];
extern const int n_perf_keys;

/* The number of a key, or -1. */
int perf_key_find(const char *name);
/* "RC", "KEY_MODULE" and so on, as in perf_points.def; "?" if it is none. */
const char *perf_layer_name(enum perf_layer layer);
const char *perf_level_name(enum perf_level level);
/* The layer or level of a name or (level) number; 0 if it is none. */
enum perf_layer perf_layer_number(const char *name);
enum perf_level perf_level_number(const char *name);
/* "KEY_MODULE,3" as a mask, bit 1 << level. False: one of them is none. */
bool perf_levels_parse(const char *text, unsigned int *mask);

#endif
