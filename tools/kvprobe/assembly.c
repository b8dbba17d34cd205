/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/kvprobe/assembly.h"

#include <stdlib.h>
#include <string.h>

#include "probes/probe_abi.h"

#define EXPIRY_NS 5000000000ull

struct assembly {
	uint64_t op_id;
	uint64_t last_ns;
	uint32_t total, got;
	uint8_t *bytes;
};

static uint64_t thread_of(const struct kvp_piece *piece)
{
	return (uint64_t)piece->tgid << 32 | piece->tid;
}

static void drop(struct assemblies *all, uint64_t thread)
{
	struct assembly *assembly = id_map_take(&all->by_thread, thread);
	if (assembly) {
		free(assembly->bytes);
		free(assembly);
	}
}

static struct assembly *begin(struct assemblies *all, const struct kvp_piece *piece)
{
	drop(all, thread_of(piece));
	if (piece->total > KVP_BLOCK_MAX)
		return NULL;
	struct assembly *assembly = need_memory(calloc(1, sizeof(*assembly)));
	assembly->op_id = piece->op_id;
	assembly->total = piece->total;
	assembly->bytes = need_memory(malloc(piece->total));
	id_map_set(&all->by_thread, thread_of(piece), assembly);
	return assembly;
}

bool assemblies_add(struct assemblies *all, const struct kvp_piece *piece, size_t piece_size, struct assembled *out)
{
	if (piece_size < sizeof(*piece) || piece->length > piece_size - sizeof(*piece))
		return false;
	if (piece->offset == 0 && piece->length == piece->total) {
		*out = (struct assembled){.block = piece + 1, .size = piece->total};
		return true;
	}
	struct assembly *assembly =
	        piece->offset == 0 ? begin(all, piece) : id_map_get(&all->by_thread, thread_of(piece));
	if (!assembly || assembly->op_id != piece->op_id || assembly->total != piece->total ||
	    assembly->got != piece->offset || piece->length > assembly->total - assembly->got) {
		drop(all, thread_of(piece));
		return false;
	}
	memcpy(assembly->bytes + assembly->got, piece + 1, piece->length);
	assembly->got += piece->length;
	assembly->last_ns = piece->mono_ns;
	if (assembly->got < assembly->total)
		return false;
	*out = (struct assembled){.block = assembly->bytes, .size = assembly->total, .owned = assembly->bytes};
	assembly->bytes = NULL;
	drop(all, thread_of(piece));
	return true;
}

void assembled_release(struct assembled *call)
{
	free(call->owned);
	call->owned = NULL;
}

void assemblies_expire(struct assemblies *all, uint64_t now_ns)
{
	for (size_t i = 0; i < all->by_thread.capacity; i++) {
		const struct id_map_entry *entry = &all->by_thread.entries[i];
		const struct assembly *assembly = entry->value;
		if (entry->key && now_ns > assembly->last_ns && now_ns - assembly->last_ns > EXPIRY_NS)
			drop(all, entry->key); /* moves entries; one that slips is met the next time */
	}
}

void assemblies_free(struct assemblies *all)
{
	for (size_t i = 0; i < all->by_thread.capacity; i++) {
		struct assembly *assembly = all->by_thread.entries[i].value;
		if (all->by_thread.entries[i].key) {
			free(assembly->bytes);
			free(assembly);
		}
	}
	id_map_free(&all->by_thread);
}
