/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/kvprobe/snapshot.h"

#include <stdlib.h>
#include <string.h>

#define READ_TRIES 4

/* A firing counts in several steps. One that is met between them is read again, so that its bytes and its bucket
 * are in the same reading; where firings never pause, a reading may still be off by those under way. */
static void read_settled(struct kvp_cell *out, const struct kvp_cell *cell)
{
	for (int i = 0; i < READ_TRIES; i++) {
		*out = *cell;
		__asm__ volatile("" ::: "memory"); /* the comparison reads the cell afresh */
		if (memcmp(out, cell, sizeof(*out)) == 0)
			return;
	}
}

static struct kvp_cell *cells_of(struct snapshot *snapshot, uint32_t n_slots, uint32_t slot)
{
	if (!snapshot->by_slot) {
		snapshot->by_slot = need_memory(calloc(n_slots, sizeof(*snapshot->by_slot)));
		snapshot->n_slots = n_slots;
	}
	if (!snapshot->by_slot[slot])
		snapshot->by_slot[slot] = need_memory(calloc((size_t)n_perf_keys, sizeof(struct kvp_cell)));
	return snapshot->by_slot[slot];
}

void snapshot_read(struct snapshot *before, const struct session *session, uint32_t slot, int key,
                   struct kvp_cell *out)
{
	struct kvp_cell now;
	read_settled(&now, &session->kernel.cells[(size_t)slot * (size_t)n_perf_keys + (size_t)key]);
	if (!before) {
		*out = now;
		return;
	}
	struct kvp_cell *earlier = &cells_of(before, session->options->workers, slot)[key];
	cell_subtract(out, &now, earlier);
	*earlier = now;
}

void snapshot_free(struct snapshot *snapshot)
{
	for (uint32_t i = 0; i < snapshot->n_slots; i++)
		free(snapshot->by_slot[i]);
	free(snapshot->by_slot);
	*snapshot = (struct snapshot){0};
}
