/* SPDX-License-Identifier: Apache-2.0 */
/* Random messages of every type, and whether two are the same; made from messages.def like the codec itself. */
#ifndef KV_TESTS_WIRE_SAMPLES_H
#define KV_TESTS_WIRE_SAMPLES_H

#include <string.h>

#include "store/wire/wire.h"
#include "tests/unit/kv_cmocka.h"

struct sampler {
	struct rng rng;
	struct kv_arena *arena;
	uint32_t most; /* elements of a list, bytes of a string */
};

static inline uint64_t sample_number(struct sampler *s)
{
	static const uint64_t edges[] = {0, 1, UINT64_MAX, UINT32_MAX, 1ull << 63, 255};
	uint64_t kind = rng_below(&s->rng, 8);
	return kind < 6 ? edges[kind] : rng_next(&s->rng);
}

static inline struct kv_str sample_str(struct sampler *s, uint32_t max)
{
	uint32_t len = (uint32_t)rng_below(&s->rng, (max < s->most ? max : s->most) + 1);
	char *text = kv_arena_alloc(s->arena, len);
	for (uint32_t i = 0; i < len; i++)
		text[i] = (char)rng_next(&s->rng);
	return (struct kv_str){text, len};
}

static inline bool same_str(struct kv_str a, struct kv_str b)
{
	return a.len == b.len && (a.len == 0 || memcmp(a.ptr, b.ptr, a.len) == 0);
}

/* clang-format off */
#define KV_STRUCT(name) \
	__attribute__((unused)) static void sample_##name(struct sampler *s, struct kvm_##name *m) { \
		memset(m, 0, sizeof(*m));
#define KV_END(name) }
#define KV_U8(f)  m->f = (uint8_t)sample_number(s);
#define KV_U32(f) m->f = (uint32_t)sample_number(s);
#define KV_U64(f) m->f = sample_number(s);
#define KV_I32(f) m->f = (int32_t)sample_number(s);
#define KV_I64(f) m->f = (int64_t)sample_number(s);
#define KV_ID(f)  m->f = (struct kv_id){sample_number(s), sample_number(s)};
#define KV_STR(f, max) m->f = sample_str(s, (max));
#define KV_LIST(type, f, max) \
	m->n_##f = (uint32_t)rng_below(&s->rng, s->most + 1); \
	m->f = kv_arena_alloc(s->arena, m->n_##f * sizeof(*m->f)); \
	for (uint32_t i = 0; i < m->n_##f; i++) sample_##type(s, &m->f[i]);
#include "store/wire/messages.def"

#define KV_STRUCT(name) \
	__attribute__((unused)) static bool same_##name(const struct kvm_##name *a, const struct kvm_##name *b) { \
		bool same = true;
#define KV_END(name) return same; }
#define KV_U8(f)  same = same && a->f == b->f;
#define KV_U32(f) same = same && a->f == b->f;
#define KV_U64(f) same = same && a->f == b->f;
#define KV_I32(f) same = same && a->f == b->f;
#define KV_I64(f) same = same && a->f == b->f;
#define KV_ID(f)  same = same && kv_id_equal(a->f, b->f);
#define KV_STR(f, max) same = same && same_str(a->f, b->f);
#define KV_LIST(type, f, max) \
	same = same && a->n_##f == b->n_##f; \
	for (uint32_t i = 0; same && i < a->n_##f; i++) same = same_##type(&a->f[i], &b->f[i]);
#include "store/wire/messages.def"

#define KV_STRUCT(name) \
	__attribute__((unused)) static void any_sample_##name(struct sampler *s, void *m) { sample_##name(s, m); } \
	__attribute__((unused)) static bool any_same_##name(const void *a, const void *b) { return same_##name(a, b); }
#include "store/wire/messages.def"

/* Every message there is: type, flags and the functions of its struct. */
static const struct wire_sample {
	const char *name;
	uint16_t type;
	uint32_t flags;
	size_t bytes;
	void (*fill)(struct sampler *s, void *m);
	bool (*same)(const void *a, const void *b);
} wire_samples[] = {
#define KV_MESSAGE(NAME, number, request, response) \
	{#NAME, number, 0, sizeof(struct kvm_##request), any_sample_##request, any_same_##request}, \
	{#NAME, number, KVW_RESPONSE, sizeof(struct kvm_##response), any_sample_##response, any_same_##response},
#include "store/wire/messages.def"
};
/* clang-format on */
#define N_WIRE_SAMPLES (sizeof(wire_samples) / sizeof(wire_samples[0]))

#endif
