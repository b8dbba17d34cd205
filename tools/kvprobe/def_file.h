/* SPDX-License-Identifier: Apache-2.0 */
/* perf_points.def read as text, so that binaries can be judged by another list than the one built in. */
#ifndef KVPROBE_DEF_FILE_H
#define KVPROBE_DEF_FILE_H

#include <stdbool.h>
#include <stddef.h>

#include "probes/perf_points.h"

struct def_key {
	char *name;
	enum perf_layer layer;
	enum perf_level level;
};

struct def_file {
	struct def_key *keys;
	size_t n_keys, room;
};

/* False: error says what and in which line. */
bool def_file_read(struct def_file *def, const char *path, char *error, size_t error_size);
void def_file_free(struct def_file *def);

#endif
