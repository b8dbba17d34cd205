/* SPDX-License-Identifier: Apache-2.0 */
#include "store/meta/object.h"

#include <stdlib.h>

struct object *object_create(struct kv_str key, const struct replica *replicas, uint32_t n_replicas)
{
	size_t list = n_replicas * sizeof(*replicas);
	struct object *object = malloc(sizeof(*object) + list + key.len);
	if (!object)
		return NULL;
	char *text = (char *)object->replicas + list;
	memset(object, 0, sizeof(*object));
	if (list)
		memcpy(object->replicas, replicas, list);
	memcpy(text, key.ptr, key.len);
	object->key = text;
	object->key_len = key.len;
	object->n_replicas = (uint8_t)n_replicas;
	return object;
}

void replicas_release(struct replica *replicas, uint32_t count)
{
	for (uint32_t i = 0; i < count; i++) {
		segment_give_back(replicas[i].segment, replicas[i].handle);
		segment_unref(replicas[i].segment);
	}
}

void object_destroy(struct object *object)
{
	replicas_release(object->replicas, object->n_replicas);
	free(object);
}

uint32_t object_drop_dead(struct object *object)
{
	uint32_t left = 0;
	for (uint32_t i = 0; i < object->n_replicas; i++) {
		if (segment_is_live(object->replicas[i].segment))
			object->replicas[left++] = object->replicas[i];
		else
			replicas_release(&object->replicas[i], 1);
	}
	object->n_replicas = (uint8_t)left;
	return left;
}

uint64_t object_pool_bytes(const struct object *object)
{
	return object->n_replicas * range_rounded(object->size);
}
