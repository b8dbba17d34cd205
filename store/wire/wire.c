/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Encoders and decoders, made from messages.def. Per struct there are four things: the least number of bytes
 * it takes (what a list count is checked against before anything is allocated for it), its encoded size, the
 * encoder and the decoder.
 */
#include "store/wire/wire.h"

#include <endian.h>
#include <string.h>
#include <xxhash.h>

#include "kvstore_status.h"

/* --- header -------------------------------------------------------------------------------------- */

#define HEADER_CHECKED (KVW_HEADER_SIZE - 4) /* bytes that the check covers */

static uint8_t *put_u16(uint8_t *at, uint16_t value)
{
	value = htole16(value);
	memcpy(at, &value, sizeof(value));
	return at + sizeof(value);
}

static uint8_t *put_u32(uint8_t *at, uint32_t value)
{
	value = htole32(value);
	memcpy(at, &value, sizeof(value));
	return at + sizeof(value);
}

static uint8_t *put_u64(uint8_t *at, uint64_t value)
{
	value = htole64(value);
	memcpy(at, &value, sizeof(value));
	return at + sizeof(value);
}

static uint16_t get_u16(const uint8_t *at)
{
	uint16_t value;
	memcpy(&value, at, sizeof(value));
	return le16toh(value);
}

static uint32_t get_u32(const uint8_t *at)
{
	uint32_t value;
	memcpy(&value, at, sizeof(value));
	return le32toh(value);
}

static uint64_t get_u64(const uint8_t *at)
{
	uint64_t value;
	memcpy(&value, at, sizeof(value));
	return le64toh(value);
}

void kvw_header_encode(uint8_t out[KVW_HEADER_SIZE], const struct kvw_header *header)
{
	uint8_t *at = out;
	at = put_u32(at, KVW_MAGIC);
	at = put_u16(at, header->version);
	at = put_u16(at, header->type);
	at = put_u32(at, header->flags);
	at = put_u32(at, header->payload);
	at = put_u64(at, header->request);
	at = put_u64(at, header->op_id);
	at = put_u32(at, 0);
	put_u32(at, XXH32(out, HEADER_CHECKED, KVW_MAGIC));
}

static bool known_type(uint16_t type)
{
	switch (type) {
#define KV_MESSAGE(NAME, number, request, response) case number:
#include "store/wire/messages.def"
		return true;
	default:
		return false;
	}
}

int kvw_header_decode(struct kvw_header *out, const uint8_t in[KVW_HEADER_SIZE], const char **why)
{
	struct kvw_header header = {
	        .version = get_u16(in + 4),
	        .type = get_u16(in + 6),
	        .flags = get_u32(in + 8),
	        .payload = get_u32(in + 12),
	        .request = get_u64(in + 16),
	        .op_id = get_u64(in + 24),
	};
	*why = NULL;
	if (get_u32(in) != KVW_MAGIC)
		*why = "bad magic";
	else if (header.version != KVW_VERSION)
		*why = "unknown version"; /* before the check, whose rule belongs to the version */
	else if (get_u32(in + HEADER_CHECKED) != XXH32(in, HEADER_CHECKED, KVW_MAGIC))
		*why = "bad checksum";
	else if (header.flags & ~(uint32_t)KVW_RESPONSE)
		*why = "unknown flags";
	else if (get_u32(in + 32) != 0)
		*why = "reserved field in use";
	else if (header.payload > KVW_MAX_PAYLOAD)
		*why = "payload too long";
	else if (!known_type(header.type))
		*why = "unknown type";
	if (*why)
		return KV_INVALID_PARAMS;
	*out = header;
	return KV_OK;
}

/* --- least sizes ---------------------------------------------------------------------------------- */
/* clang-format off */
#define KV_STRUCT(name) enum { LEAST_##name = 0
#define KV_END(name) };
#define KV_U8(f)  + 1
#define KV_U32(f) + 4
#define KV_U64(f) + 8
#define KV_I32(f) + 4
#define KV_I64(f) + 8
#define KV_ID(f)  + 16
#define KV_STR(f, max) + 4
#define KV_LIST(type, f, max) + 4
#include "store/wire/messages.def"

/* --- encoded size ----------------------------------------------------------------------------------- */
/* false: a limit of messages.def is exceeded, *why says which. *size cannot wrap: the counts are limited. */
#define KV_STRUCT(name) \
	static bool size_##name(const struct kvm_##name *m, uint64_t *size, const char **why) { \
		(void)m, (void)why; *size += LEAST_##name;
#define KV_END(name) return true; }
#define KV_STR(f, max) \
	if (m->f.len > (max)) { *why = #f " too long"; return false; } \
	*size += m->f.len;
#define KV_LIST(type, f, max) \
	if (m->n_##f > (max)) { *why = "too many " #f; return false; } \
	for (uint32_t i = 0; i < m->n_##f; i++) { \
		if (!size_##type(&m->f[i], size, why)) return false; \
	}
#include "store/wire/messages.def"

/* --- encode ----------------------------------------------------------------------------------------- */
#define KV_STRUCT(name) static uint8_t *encode_##name(uint8_t *at, const struct kvm_##name *m) {
#define KV_END(name) return at; }
#define KV_U8(f)  *at++ = m->f;
#define KV_U32(f) at = put_u32(at, m->f);
#define KV_U64(f) at = put_u64(at, m->f);
#define KV_I32(f) at = put_u32(at, (uint32_t)m->f);
#define KV_I64(f) at = put_u64(at, (uint64_t)m->f);
#define KV_ID(f)  at = put_u64(put_u64(at, m->f.hi), m->f.lo);
#define KV_STR(f, max) at = put_bytes(put_u32(at, m->f.len), m->f);
#define KV_LIST(type, f, max) \
	at = put_u32(at, m->n_##f); \
	for (uint32_t i = 0; i < m->n_##f; i++) at = encode_##type(at, &m->f[i]);

static uint8_t *put_bytes(uint8_t *at, struct kv_str str)
{
	if (str.len)
		memcpy(at, str.ptr, str.len);
	return at + str.len;
}
#include "store/wire/messages.def"
/* clang-format on */

/* --- decode ----------------------------------------------------------------------------------------- */

struct reader {
	const uint8_t *at, *end;
	struct kv_arena *arena;
	const char *why;
	bool no_memory;
};

static bool refuse(struct reader *r, const char *why)
{
	r->why = why;
	return false;
}

static size_t left(const struct reader *r)
{
	return (size_t)(r->end - r->at);
}

/* The next size bytes, or NULL beyond the end. */
static const uint8_t *take(struct reader *r, size_t size)
{
	if (left(r) < size) {
		r->why = "message cut short";
		return NULL;
	}
	const uint8_t *at = r->at;
	r->at += size;
	return at;
}

static bool take_u8(struct reader *r, uint8_t *out)
{
	const uint8_t *at = take(r, 1);
	if (at)
		*out = *at;
	return at != NULL;
}

static bool take_u32(struct reader *r, uint32_t *out)
{
	const uint8_t *at = take(r, 4);
	if (at)
		*out = get_u32(at);
	return at != NULL;
}

static bool take_u64(struct reader *r, uint64_t *out)
{
	const uint8_t *at = take(r, 8);
	if (at)
		*out = get_u64(at);
	return at != NULL;
}

static bool take_i32(struct reader *r, int32_t *out)
{
	uint32_t value;
	if (!take_u32(r, &value))
		return false;
	*out = (int32_t)value;
	return true;
}

static bool take_i64(struct reader *r, int64_t *out)
{
	uint64_t value;
	if (!take_u64(r, &value))
		return false;
	*out = (int64_t)value;
	return true;
}

static bool take_id(struct reader *r, struct kv_id *out)
{
	return take_u64(r, &out->hi) && take_u64(r, &out->lo);
}

static bool take_str(struct reader *r, struct kv_str *out, uint32_t max, const char *too_long)
{
	uint32_t len;
	if (!take_u32(r, &len))
		return false;
	if (len > max)
		return refuse(r, too_long);
	out->ptr = (const char *)take(r, len);
	out->len = len;
	return out->ptr != NULL;
}

/* The count of a list and memory for its elements. What the bytes at hand cannot hold is refused before
 * anything is allocated for it. */
static bool take_list(struct reader *r, void **list, uint32_t *count, uint32_t max, size_t least, size_t element,
                      const char *too_many)
{
	if (!take_u32(r, count))
		return false;
	if (*count > max)
		return refuse(r, too_many);
	if (*count > left(r) / least)
		return refuse(r, "list longer than its message");
	*list = *count ? kv_arena_alloc(r->arena, *count * element) : NULL;
	if (*count && !*list) {
		r->no_memory = true;
		return refuse(r, "no memory for the message");
	}
	return true;
}

/* clang-format off */
#define KV_STRUCT(name) static bool decode_##name(struct reader *r, struct kvm_##name *m) {
#define KV_END(name) return true; }
#define KV_U8(f)  if (!take_u8(r, &m->f)) return false;
#define KV_U32(f) if (!take_u32(r, &m->f)) return false;
#define KV_U64(f) if (!take_u64(r, &m->f)) return false;
#define KV_I32(f) if (!take_i32(r, &m->f)) return false;
#define KV_I64(f) if (!take_i64(r, &m->f)) return false;
#define KV_ID(f)  if (!take_id(r, &m->f)) return false;
#define KV_STR(f, max) if (!take_str(r, &m->f, (max), #f " too long")) return false;
#define KV_LIST(type, f, max) { \
	void *list; \
	if (!take_list(r, &list, &m->n_##f, (max), LEAST_##type, sizeof(struct kvm_##type), "too many " #f)) \
		return false; \
	m->f = list; \
	for (uint32_t i = 0; i < m->n_##f; i++) { \
		if (!decode_##type(r, &m->f[i])) return false; \
	} }
#include "store/wire/messages.def"

/* --- by type ---------------------------------------------------------------------------------------- */
/* The generic face of a struct's functions, so that one table can hold them all. */
#define KV_STRUCT(name) \
	static bool any_size_##name(const void *m, uint64_t *size, const char **why) { return size_##name(m, size, why); } \
	static uint8_t *any_encode_##name(uint8_t *at, const void *m) { return encode_##name(at, m); } \
	static bool any_decode_##name(struct reader *r, void *m) { return decode_##name(r, m); } \
	static const struct shape shape_##name __attribute__((unused)) = { \
		sizeof(struct kvm_##name), any_size_##name, any_encode_##name, any_decode_##name};

struct shape {
	size_t bytes;
	bool (*size)(const void *m, uint64_t *size, const char **why);
	uint8_t *(*encode)(uint8_t *at, const void *m);
	bool (*decode)(struct reader *r, void *m);
};
#include "store/wire/messages.def"
/* clang-format on */

static const struct shape *shape_of(uint16_t type, uint32_t flags)
{
	switch (type) {
#define KV_MESSAGE(NAME, number, request, response)                                                                  \
	case number:                                                                                                 \
		return flags & KVW_RESPONSE ? &shape_##response : &shape_##request;
#include "store/wire/messages.def"
	default:
		return NULL;
	}
}

const char *kvw_type_name(uint16_t type)
{
	switch (type) {
#define KV_MESSAGE(NAME, number, request, response)                                                                  \
	case number:                                                                                                 \
		return #NAME;
#include "store/wire/messages.def"
	default:
		return "?";
	}
}

uint64_t kvw_replicas_resp_most(uint64_t keys, uint64_t replicas, uint64_t segments)
{
	return LEAST_replicas_resp + keys * LEAST_key_replicas + replicas * LEAST_replica +
	       segments * (LEAST_segment + KVW_MAX_ENDPOINT);
}

int kvw_frame_encode(struct kv_arena *arena, struct kvw_header *header, const void *message, uint8_t **frame,
                     size_t *frame_size, const char **why)
{
	const struct shape *shape = shape_of(header->type, header->flags);
	uint64_t payload = 0;
	if (!shape) {
		*why = "unknown type";
		return KV_INVALID_PARAMS;
	}
	if (!shape->size(message, &payload, why))
		return KV_INVALID_PARAMS;
	if (payload > KVW_MAX_PAYLOAD) {
		*why = "payload too long";
		return KV_INVALID_PARAMS;
	}
	*frame = kv_arena_alloc(arena, KVW_HEADER_SIZE + payload);
	if (!*frame) {
		*why = "no memory for the frame";
		return KV_INTERNAL_ERROR;
	}
	*frame_size = KVW_HEADER_SIZE + payload;
	header->version = KVW_VERSION;
	header->payload = (uint32_t)payload;
	kvw_header_encode(*frame, header);
	shape->encode(*frame + KVW_HEADER_SIZE, message);
	*why = NULL;
	return KV_OK;
}

int kvw_payload_decode(struct kv_arena *arena, const struct kvw_header *header, const uint8_t *payload,
                       void **message, const char **why)
{
	const struct shape *shape = shape_of(header->type, header->flags);
	*message = NULL;
	*why = NULL;
	if (!shape) {
		*why = "unknown type";
		return KV_INVALID_PARAMS;
	}
	struct reader reader = {.at = payload, .end = payload + header->payload, .arena = arena};
	void *decoded = kv_arena_alloc(arena, shape->bytes);
	if (!decoded) {
		*why = "no memory for the message";
		return KV_INTERNAL_ERROR;
	}
	bool good = shape->decode(&reader, decoded);
	if (good && reader.at != reader.end)
		good = refuse(&reader, "bytes behind the message");
	if (!good) {
		*why = reader.why;
		return reader.no_memory ? KV_INTERNAL_ERROR : KV_INVALID_PARAMS;
	}
	*message = decoded;
	return KV_OK;
}
