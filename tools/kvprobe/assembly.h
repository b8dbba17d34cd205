/* SPDX-License-Identifier: Apache-2.0 */
/* Puts the pieces of op_log blocks together again, per thread. A call that misses a piece is dropped silently:
 * the kernel side has counted it as lost. */
#ifndef KVPROBE_ASSEMBLY_H
#define KVPROBE_ASSEMBLY_H

#include "bpf/kvprobe_bpf.h"
#include "tools/kvprobe/common.h"

struct assemblies {
	struct id_map by_thread;
};

struct assembled {
	const void *block;
	size_t size;
	void *owned; /* to be released, or NULL if the block lies in the piece itself */
};

/* Take a piece of piece_size bytes, header included. True: *out is a whole block, to be given to
 * assembled_release before the next piece. */
bool assemblies_add(struct assemblies *all, const struct kvp_piece *piece, size_t piece_size, struct assembled *out);
void assembled_release(struct assembled *call);
/* Drop what has waited for its next piece for seconds. */
void assemblies_expire(struct assemblies *all, uint64_t now_ns);
void assemblies_free(struct assemblies *all);

#endif
