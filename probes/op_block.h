/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Packs one call's per-key records into a block (probe_abi.h) and walks a block that came from
 * elsewhere. The builder grows one buffer and keeps it: a thread that logs does not allocate per call.
 */
#ifndef KVPROBE_OP_BLOCK_H
#define KVPROBE_OP_BLOCK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "probes/probe_abi.h"

/* Owned by one thread. Zero-initialised is empty; op_block_free releases the buffer. */
struct op_block {
	struct kvp_block *head;
	size_t capacity;
	const char *last_endpoint; /* inside the buffer */
	uint16_t last_endpoint_len;
};

/* One key's outcome, as the RealClient layer knows it. Pointers are only read during op_block_add. */
struct op_record {
	const char *key;
	size_t key_len; /* cut at KVP_KEY_MAX */
	bool success;
	bool has_size;
	uint64_t size;
	int32_t rc;
	enum kvp_replica_type replica;
	const char *endpoint;
	size_t endpoint_len;
};

/* Start a block for one call. False: no memory (the call then logs nothing and counts as lost). */
bool op_block_begin(struct op_block *block, enum kvp_op op, uint64_t op_id, uint64_t n_keys, uint64_t total_bytes);
/* Append one key. A key beyond KVP_BLOCK_KEYS or KVP_BLOCK_MAX is counted in lost_keys, not stored. */
void op_block_add(struct op_block *block, const struct op_record *record);
/* Set the elapsed time, pid and tid; returns the finished block, valid until the next begin or free. */
const struct kvp_block *op_block_finish(struct op_block *block, uint64_t elapsed_ns);
void op_block_free(struct op_block *block);

/* Walking a block from another process: every length is distrusted. */
struct op_block_cursor {
	const uint8_t *at, *end;
	uint32_t left; /* records */
	const char *endpoint;
	uint16_t endpoint_len;
};
/* Check the header against the bytes at hand. False: not a block of this version, or cut short. */
bool op_block_open(struct op_block_cursor *cursor, const void *bytes, size_t size);
/* Next record into *out (pointers into the block). 1: a record, 0: the end, -1: malformed. */
int op_block_next(struct op_block_cursor *cursor, struct op_record *out);

#endif
