/* SPDX-License-Identifier: Apache-2.0 */
/* Readings of the kernel's cells: what they hold, or what came since the reading before. */
#ifndef KVPROBE_SNAPSHOT_H
#define KVPROBE_SNAPSHOT_H

#include "tools/kvprobe/hist.h"
#include "tools/kvprobe/session.h"

/* The readings before, per slot an array of cells. Zeroed: none yet. */
struct snapshot {
	struct kvp_cell **by_slot;
	uint32_t n_slots;
};

/* Read one cell of a worker's slot. before NULL: since the start; else what came since the last reading of this cell
 * through *before, which remembers this one. */
void snapshot_read(struct snapshot *before, const struct session *session, uint32_t slot, int key,
                   struct kvp_cell *out);
void snapshot_free(struct snapshot *snapshot);

#endif
