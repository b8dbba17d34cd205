/* SPDX-License-Identifier: Apache-2.0 */
/* The answers' list of segments: what a call's keys refer to, each segment once. */
#include "store/meta/meta_private.h"

#include "kvstore.h"

#define FIRST_ROOM 16u

void meta_reply_init(struct meta_reply *reply, struct kv_arena *arena)
{
	*reply = (struct meta_reply){.arena = arena};
}

static uint32_t first_slot(const struct meta_reply *reply, const struct segment *segment)
{
	uint64_t mixed = (uint64_t)(uintptr_t)segment * 0x9e3779b97f4a7c15ull;
	return (uint32_t)(mixed >> 32) & (reply->n_slots - 1);
}

/* By address and by id: between two keys of a call a segment may die and another take its place in memory. */
static bool is_entry_of(const struct meta_reply *reply, uint32_t index, const struct segment *segment)
{
	return reply->known[index] == segment && kv_id_equal(reply->segments[index].id, segment->id);
}

static uint32_t slot_of(const struct meta_reply *reply, const struct segment *segment)
{
	uint32_t mask = reply->n_slots - 1, at = first_slot(reply, segment);
	while (reply->slots[at] && !is_entry_of(reply, reply->slots[at] - 1, segment))
		at = (at + 1) & mask;
	return at;
}

/* Twice the room; the table of slots is always at least twice as large as the list. */
static bool grow(struct meta_reply *reply)
{
	uint32_t room = reply->room ? reply->room * 2 : FIRST_ROOM;
	struct kvm_segment *segments = kv_arena_alloc(reply->arena, room * sizeof(*segments));
	const struct segment **known = kv_arena_alloc(reply->arena, room * sizeof(*known));
	uint32_t *slots = kv_arena_calloc(reply->arena, room * 2, sizeof(*slots));
	if (!segments || !known || !slots)
		return false;
	if (reply->n_segments) {
		memcpy(segments, reply->segments, reply->n_segments * sizeof(*segments));
		memcpy(known, reply->known, reply->n_segments * sizeof(*known));
	}
	reply->segments = segments;
	reply->known = known;
	reply->slots = slots;
	reply->room = room;
	reply->n_slots = room * 2;
	/* The entries differ, and their segments may be gone by now: they are not looked at. */
	for (uint32_t i = 0; i < reply->n_segments; i++) {
		uint32_t at = first_slot(reply, known[i]);
		while (slots[at])
			at = (at + 1) & (reply->n_slots - 1);
		slots[at] = i + 1;
	}
	return true;
}

/* The segment's index in the list, or UINT32_MAX without memory. */
static uint32_t index_of(struct meta_reply *reply, const struct segment *segment)
{
	if (reply->n_segments == reply->room && !grow(reply))
		return UINT32_MAX;
	uint32_t slot = slot_of(reply, segment);
	if (reply->slots[slot])
		return reply->slots[slot] - 1;
	/* Copied: the segment may be gone before the answer is sent. */
	char *endpoint = kv_arena_alloc(reply->arena, segment->endpoint_len);
	if (!endpoint || reply->n_segments >= KVW_MAX_SEGMENTS)
		return UINT32_MAX;
	memcpy(endpoint, segment->endpoint, segment->endpoint_len);
	uint32_t index = reply->n_segments++;
	reply->segments[index] = (struct kvm_segment){.id = segment->id,
	                                              .endpoint = {endpoint, segment->endpoint_len},
	                                              .base = segment->base,
	                                              .size = segment->size,
	                                              .rkey = segment->rkey,
	                                              .transports = segment->transports};
	reply->known[index] = segment;
	reply->slots[slot] = index + 1;
	return index;
}

bool reply_replicas(struct meta_reply *reply, const struct object *object, struct kvm_key_replicas *out)
{
	out->replicas = kv_arena_alloc(reply->arena, object->n_replicas * sizeof(*out->replicas));
	if (!out->replicas)
		return false;
	for (uint32_t i = 0; i < object->n_replicas; i++) {
		uint32_t index = index_of(reply, object->replicas[i].segment);
		if (index == UINT32_MAX)
			return false;
		out->replicas[i] = (struct kvm_replica){.segment = index,
		                                        .offset = object->replicas[i].offset,
		                                        .size = object->size,
		                                        .type = KVSTORE_REPLICA_MEMORY,
		                                        .status = object->complete ? KVSTORE_REPLICA_COMPLETE
		                                                                   : KVSTORE_REPLICA_PROCESSING};
	}
	out->n_replicas = object->n_replicas;
	return true;
}
