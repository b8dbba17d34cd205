/* SPDX-License-Identifier: Apache-2.0 */
#include "probes/op_block.h"

#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#define RECORD_HEAD    sizeof(struct kvp_record)
#define BLOCK_HEAD     sizeof(struct kvp_block)
#define FIRST_BLOCK    8192u
#define ENDPOINT_LIMIT KVP_KEY_MAX

_Static_assert(sizeof(struct kvp_block) == 64, "the block's header is part of the probe ABI");
_Static_assert(sizeof(struct kvp_record) == 24, "the record's header is part of the probe ABI");
_Static_assert(RECORD_HEAD + KVP_KEY_MAX + ENDPOINT_LIMIT + 8 <= UINT16_MAX, "a record's size fits its field");

static size_t padded(size_t size)
{
	return (size + 7) & ~(size_t)7;
}

/* Room for `more` bytes behind what is there. The last endpoint lies inside the buffer and moves with it. */
static bool reserve(struct op_block *block, size_t used, size_t more)
{
	if (used + more <= block->capacity)
		return true;
	size_t capacity = block->capacity ? block->capacity : FIRST_BLOCK;
	while (capacity < used + more)
		capacity *= 2;
	size_t endpoint_at = block->last_endpoint ? (size_t)(block->last_endpoint - (const char *)block->head) : 0;
	struct kvp_block *grown = realloc(block->head, capacity);
	if (!grown)
		return false;
	block->head = grown;
	block->capacity = capacity;
	if (block->last_endpoint)
		block->last_endpoint = (const char *)grown + endpoint_at;
	return true;
}

bool op_block_begin(struct op_block *block, enum kvp_op op, uint64_t op_id, uint64_t n_keys, uint64_t total_bytes)
{
	block->last_endpoint = NULL;
	block->last_endpoint_len = 0;
	if (!reserve(block, 0, BLOCK_HEAD))
		return false;
	*block->head = (struct kvp_block){
	        .magic = KVP_BLOCK_MAGIC,
	        .version = KVP_BLOCK_VERSION,
	        .op = (uint16_t)op,
	        .block_bytes = BLOCK_HEAD,
	        .op_id = op_id,
	        .n_keys = n_keys,
	        .total_bytes = total_bytes,
	};
	return true;
}

void op_block_add(struct op_block *block, const struct op_record *record)
{
	size_t key_len = record->key_len < KVP_KEY_MAX ? record->key_len : KVP_KEY_MAX;
	size_t endpoint_len = record->endpoint_len < ENDPOINT_LIMIT ? record->endpoint_len : ENDPOINT_LIMIT;
	bool same = endpoint_len && block->last_endpoint && endpoint_len == block->last_endpoint_len &&
	            memcmp(record->endpoint, block->last_endpoint, endpoint_len) == 0;
	size_t stored_endpoint = same ? 0 : endpoint_len;
	size_t bytes = padded(RECORD_HEAD + key_len + stored_endpoint);
	size_t used = block->head->block_bytes;

	if (block->head->n_records >= KVP_BLOCK_KEYS || used + bytes > KVP_BLOCK_MAX ||
	    !reserve(block, used, bytes)) {
		block->head->lost_keys++;
		return;
	}
	struct kvp_record head = {
	        .size = record->size,
	        .rc = record->rc,
	        .key_len = (uint16_t)key_len,
	        .endpoint_len = (uint16_t)stored_endpoint,
	        .replica = (uint8_t)record->replica,
	        .flags = (uint8_t)((record->success ? KVP_RECORD_SUCCESS : 0) |
	                           (record->has_size ? KVP_RECORD_SIZE : 0) | (same ? KVP_RECORD_SAME_ENDPOINT : 0)),
	        .record_bytes = (uint16_t)bytes,
	};
	char *at = (char *)block->head + used;
	char *end = at + bytes;
	memcpy(at, &head, RECORD_HEAD);
	at += RECORD_HEAD;
	if (key_len)
		memcpy(at, record->key, key_len);
	at += key_len;
	if (stored_endpoint) {
		memcpy(at, record->endpoint, stored_endpoint);
		block->last_endpoint = at;
		block->last_endpoint_len = (uint16_t)stored_endpoint;
		at += stored_endpoint;
	}
	memset(at, 0, (size_t)(end - at));
	block->head->block_bytes += (uint32_t)bytes;
	block->head->n_records++;
}

const struct kvp_block *op_block_finish(struct op_block *block, uint64_t elapsed_ns)
{
	block->head->elapsed_ns = elapsed_ns;
	block->head->pid = (uint32_t)getpid();
	block->head->tid = (uint32_t)syscall(SYS_gettid);
	return block->head;
}

void op_block_free(struct op_block *block)
{
	free(block->head);
	*block = (struct op_block){0};
}

bool op_block_open(struct op_block_cursor *cursor, const void *bytes, size_t size)
{
	struct kvp_block head;

	*cursor = (struct op_block_cursor){0};
	if (!bytes || size < BLOCK_HEAD)
		return false;
	memcpy(&head, bytes, BLOCK_HEAD);
	if (head.magic != KVP_BLOCK_MAGIC || head.version != KVP_BLOCK_VERSION || head.op == 0 ||
	    head.op >= KVP_OP_COUNT || head.block_bytes < BLOCK_HEAD || head.block_bytes > size ||
	    head.block_bytes > KVP_BLOCK_MAX || head.n_records > KVP_BLOCK_KEYS)
		return false;
	cursor->at = (const uint8_t *)bytes + BLOCK_HEAD;
	cursor->end = (const uint8_t *)bytes + head.block_bytes;
	cursor->left = head.n_records;
	return true;
}

int op_block_next(struct op_block_cursor *cursor, struct op_record *out)
{
	size_t room = (size_t)(cursor->end - cursor->at);
	struct kvp_record head;

	if (cursor->left == 0)
		return room == 0 ? 0 : -1;
	if (room < RECORD_HEAD)
		return -1;
	memcpy(&head, cursor->at, RECORD_HEAD);
	size_t bytes = padded(RECORD_HEAD + head.key_len + head.endpoint_len);
	bool same = head.flags & KVP_RECORD_SAME_ENDPOINT;
	if (head.record_bytes != bytes || bytes > room || head.key_len > KVP_KEY_MAX ||
	    head.replica > KVP_REPLICA_DISK || (same && (head.endpoint_len != 0 || !cursor->endpoint)))
		return -1;
	*out = (struct op_record){
	        .key = (const char *)cursor->at + RECORD_HEAD,
	        .key_len = head.key_len,
	        .success = head.flags & KVP_RECORD_SUCCESS,
	        .has_size = head.flags & KVP_RECORD_SIZE,
	        .size = head.size,
	        .rc = head.rc,
	        .replica = (enum kvp_replica_type)head.replica,
	};
	if (head.endpoint_len) {
		cursor->endpoint = out->key + head.key_len;
		cursor->endpoint_len = head.endpoint_len;
	}
	if (head.endpoint_len || same) {
		out->endpoint = cursor->endpoint;
		out->endpoint_len = cursor->endpoint_len;
	}
	cursor->at += bytes;
	cursor->left--;
	return 1;
}
