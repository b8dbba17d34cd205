/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Frames and messages. A frame is a fixed header and one encoded message; data-plane frames are followed by
 * raw bytes (see messages.def). All integers little-endian. A frame that does not decode is a reason to close
 * its connection, and harms nothing else.
 */
#ifndef KV_WIRE_H
#define KV_WIRE_H

#include <stdbool.h>
#include <stdint.h>

#include "store/base/arena.h"
#include "store/base/bytes.h"

#define KVW_MAGIC       0x5753564bu /* "KVSW" */
#define KVW_VERSION     1
#define KVW_HEADER_SIZE 40
#define KVW_MAX_PAYLOAD (64u << 20)

enum kvw_type {
#define KV_MESSAGE(NAME, number, request, response) KVW_##NAME = number,
#include "store/wire/messages.def"
};

/* The messages as structs: struct kvm_put_start_req and so on. */
/* clang-format off */
#define KV_STRUCT(name) struct kvm_##name {
#define KV_END(name)   };
#define KV_U8(f)       uint8_t f;
#define KV_U32(f)      uint32_t f;
#define KV_U64(f)      uint64_t f;
#define KV_I32(f)      int32_t f;
#define KV_I64(f)      int64_t f;
#define KV_ID(f)       struct kv_id f;
#define KV_STR(f, max) struct kv_str f;
#define KV_LIST(type, f, max)                                                                                        \
	struct kvm_##type *f;                                                                                        \
	uint32_t n_##f;
#include "store/wire/messages.def"
/* clang-format on */

enum kvw_flags { KVW_RESPONSE = 1 };

/* Encoded layout, in this order: magic u32, version u16, type u16, flags u32, payload u32, request u64,
 * op_id u64, reserved u32 (0), check u32 (XXH32 of the 36 bytes before it, seed KVW_MAGIC). */
struct kvw_header {
	uint16_t version;
	uint16_t type; /* enum kvw_type */
	uint32_t flags;
	uint32_t payload; /* bytes of the encoded message */
	uint64_t request; /* chosen by the asker, echoed by the answer */
	uint64_t op_id;
};

void kvw_header_encode(uint8_t out[KVW_HEADER_SIZE], const struct kvw_header *header);
/* 0, or KV_INVALID_PARAMS with *why set to a short reason (bad magic, version, checksum, length, unknown type). */
int kvw_header_decode(struct kvw_header *out, const uint8_t in[KVW_HEADER_SIZE], const char **why);

/* Encode the request or response struct of a type (see messages.def) behind a header: the whole frame in
 * memory of the arena. 0; KV_INVALID_PARAMS (a limit of messages.def or KVW_MAX_PAYLOAD is exceeded, *why says
 * which); KV_INTERNAL_ERROR (no memory). header->version and header->payload
 * are set. */
int kvw_frame_encode(struct kv_arena *arena, struct kvw_header *header, const void *message, uint8_t **frame,
                     size_t *frame_size, const char **why);
/* Decode a payload into a struct of the arena; strings point into payload. Trailing bytes, lengths beyond the
 * payload and list counts beyond the limit are errors: KV_INVALID_PARAMS, or KV_INTERNAL_ERROR when the arena is
 * full; *why is a short static string then. */
int kvw_payload_decode(struct kv_arena *arena, const struct kvw_header *header, const uint8_t *payload,
                       void **message, const char **why);
/* The most bytes that an encoded replicas_resp of this many keys, replicas of all keys and segments can take. */
uint64_t kvw_replicas_resp_most(uint64_t keys, uint64_t replicas, uint64_t segments);
/* "BATCH_PUT_START", or "?" */
const char *kvw_type_name(uint16_t type);

#endif
