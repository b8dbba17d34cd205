/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * What the worker, the kernel side (bpf/) and the tools share: the op numbers and the layout of the
 * block that the op_log probe carries. Plain integers only; includable from BPF programs.
 *
 * Probes of provider kvstore, all arguments 64-bit, in the calling convention's registers:
 *   K         elapsed_ns, bytes, n_keys, n_failed, rc (signed), op_id
 *   K__start  op_id, n_keys, bytes_offered
 *   op_log    block, block_bytes, op_id, elapsed_ns, op, n_keys
 */
#ifndef KVPROBE_PROBE_ABI_H
#define KVPROBE_PROBE_ABI_H

#ifndef __bpf__
#include <stdint.h>
#endif

enum kvp_op {
	KVP_OP_PUT = 1,          /* batch_put_from_multi_buffers */
	KVP_OP_IS_EXIST = 2,     /* batch_is_exist */
	KVP_OP_GET = 3,          /* batch_get_into_multi_buffers */
	KVP_OP_REGISTER = 4,     /* register_buffer */
	KVP_OP_REPLICA_DESC = 5, /* batch_get_replica_desc */
	KVP_OP_COUNT = 6,
};

enum kvp_replica_type {
	KVP_REPLICA_NONE = 0,
	KVP_REPLICA_MEMORY = 1,
	KVP_REPLICA_LOCAL_DISK = 2,
	KVP_REPLICA_DISK = 3,
};

#define KVP_BLOCK_MAGIC   0x424c5650u /* "PVLB" */
#define KVP_BLOCK_VERSION 1
#define KVP_BLOCK_MAX     (16u << 20) /* bytes of one block; a larger call loses keys, counted in it */
#define KVP_BLOCK_KEYS    65536u
#define KVP_KEY_MAX       4096u

/* A block: this header, then n_records records, each 8-byte aligned. Little-endian, no padding. */
struct kvp_block {
	uint32_t magic;
	uint16_t version;
	uint16_t op;          /* enum kvp_op */
	uint32_t block_bytes; /* header and records */
	uint32_t n_records;
	uint64_t op_id;
	uint64_t elapsed_ns;
	uint64_t n_keys;      /* of the call */
	uint64_t total_bytes; /* for the ops whose summary has it */
	uint64_t lost_keys;   /* keys that did not fit */
	uint32_t pid;         /* as the worker sees itself */
	uint32_t tid;
};

enum kvp_record_flags {
	KVP_RECORD_SUCCESS = 1,
	KVP_RECORD_SIZE = 2,          /* size is to be printed */
	KVP_RECORD_SAME_ENDPOINT = 4, /* the endpoint of the record before; endpoint_len is 0 */
};

/* One key: this header, the key's bytes, the endpoint's bytes, zeros up to a multiple of 8. */
struct kvp_record {
	uint64_t size;
	int32_t rc;            /* negative code, or 0 */
	uint16_t key_len;      /* may exceed KVP_KEY_MAX never */
	uint16_t endpoint_len; /* host:port, or the file's path */
	uint8_t replica;       /* enum kvp_replica_type */
	uint8_t flags;         /* enum kvp_record_flags */
	uint16_t record_bytes; /* the whole of it, padding included */
	uint32_t reserved;
};

#endif
