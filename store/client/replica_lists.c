/* SPDX-License-Identifier: Apache-2.0 */
#include "store/client/replica_lists.h"

#include <stdlib.h>
#include <string.h>

#include "kvstore_status.h"

/* The block: the struct, then these arrays, then the strings. */
struct layout {
	size_t lists, replicas, counts, statuses, strings, total;
};

static uint32_t listed(const struct client_object *object)
{
	return object->status == KV_OK ? object->n_replicas : 0;
}

static struct layout measure(const struct client_object *objects, size_t count)
{
	size_t n_replicas = 0, string_bytes = 0;
	for (size_t i = 0; i < count; i++)
		for (uint32_t r = 0; r < listed(&objects[i]); r++) {
			n_replicas++;
			string_bytes += objects[i].replicas[r].target->endpoint.len + 1;
		}
	struct layout layout = {.lists = sizeof(kvstore_replica_lists_t)};
	layout.replicas = layout.lists + count * sizeof(kvstore_replica_desc_t *);
	layout.counts = layout.replicas + n_replicas * sizeof(kvstore_replica_desc_t);
	layout.statuses = layout.counts + count * sizeof(size_t);
	layout.strings = layout.statuses + count * sizeof(int);
	layout.total = layout.strings + string_bytes;
	return layout;
}

/* Returns where the next string goes. */
static char *describe(kvstore_replica_desc_t *out, const struct client_replica *replica, char *string)
{
	struct kv_str endpoint = replica->target->endpoint;
	*out = (kvstore_replica_desc_t){.type = replica->type,
	                                .status = replica->status,
	                                .size = replica->size,
	                                .address = replica->target->base + replica->offset,
	                                .endpoint = string};
	memcpy(string, endpoint.ptr, endpoint.len);
	string[endpoint.len] = '\0';
	return string + endpoint.len + 1;
}

kvstore_replica_lists_t *replica_lists_make(const struct client_object *objects, size_t count)
{
	struct layout layout = measure(objects, count);
	char *block = malloc(layout.total);
	if (!block)
		return NULL;
	const kvstore_replica_desc_t **lists = (const kvstore_replica_desc_t **)(block + layout.lists);
	kvstore_replica_desc_t *next = (kvstore_replica_desc_t *)(block + layout.replicas);
	size_t *counts = (size_t *)(block + layout.counts);
	int *statuses = (int *)(block + layout.statuses);
	char *string = block + layout.strings;

	for (size_t i = 0; i < count; i++) {
		lists[i] = next;
		counts[i] = listed(&objects[i]);
		statuses[i] = objects[i].status;
		for (size_t r = 0; r < counts[i]; r++)
			string = describe(next++, &objects[i].replicas[r], string);
	}
	kvstore_replica_lists_t *result = (kvstore_replica_lists_t *)block;
	*result = (kvstore_replica_lists_t){.n_keys = count, .status = statuses, .count = counts, .list = lists};
	return result;
}
