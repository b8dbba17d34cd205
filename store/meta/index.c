/* SPDX-License-Identifier: Apache-2.0 */
#include "store/meta/index.h"

#include <stdlib.h>
#include <xxhash.h>

#include "store/meta/object.h"

#define FIRST_CAPACITY 16u
#define KEPT_CAPACITY  64u /* of an empty table; more is given back */

uint64_t index_hash(struct kv_str key)
{
	return XXH3_64bits(key.ptr, key.len);
}

size_t index_find(const struct index *index, uint64_t hash, struct kv_str key)
{
	if (index->count == 0)
		return INDEX_NONE;
	size_t mask = index->capacity - 1;
	for (size_t at = hash & mask; index->slots[at].object; at = (at + 1) & mask) {
		if (index->slots[at].hash == hash && object_has_key(index->slots[at].object, key))
			return at;
	}
	return INDEX_NONE;
}

static void place(struct index_slot *slots, size_t mask, uint64_t hash, struct object *object)
{
	size_t at = hash & mask;
	while (slots[at].object)
		at = (at + 1) & mask;
	slots[at] = (struct index_slot){hash, object};
}

static bool grow(struct index *index)
{
	size_t capacity = index->capacity ? index->capacity * 2 : FIRST_CAPACITY;
	struct index_slot *slots = calloc(capacity, sizeof(*slots));
	if (!slots)
		return false;
	for (size_t i = 0; i < index->capacity; i++) {
		if (index->slots[i].object)
			place(slots, capacity - 1, index->slots[i].hash, index->slots[i].object);
	}
	free(index->slots);
	index->slots = slots;
	index->capacity = capacity;
	return true;
}

bool index_add(struct index *index, uint64_t hash, struct object *object)
{
	if ((index->count + 1) * 4 > index->capacity * 3 && !grow(index))
		return false;
	place(index->slots, index->capacity - 1, hash, object);
	index->count++;
	return true;
}

void index_remove(struct index *index, size_t slot)
{
	size_t mask = index->capacity - 1, hole = slot;
	/* Move back what probing would no longer reach across the hole. */
	for (size_t at = (hole + 1) & mask; index->slots[at].object; at = (at + 1) & mask) {
		size_t home = index->slots[at].hash & mask;
		if (((at - home) & mask) >= ((at - hole) & mask)) {
			index->slots[hole] = index->slots[at];
			hole = at;
		}
	}
	index->slots[hole].object = NULL;
	index->count--;
	if (index->count == 0 && index->capacity > KEPT_CAPACITY)
		index_destroy(index);
}

void index_destroy(struct index *index)
{
	free(index->slots);
	*index = (struct index){.slots = NULL};
}
