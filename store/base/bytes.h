/* SPDX-License-Identifier: Apache-2.0 */
/* Plain value types that every layer of the store passes around. */
#ifndef KV_BASE_BYTES_H
#define KV_BASE_BYTES_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* A string with a length, not terminated, not owned. */
struct kv_str {
	const char *ptr;
	uint32_t len;
};

/* One fragment of a caller's buffer. */
struct kv_buf {
	void *ptr;
	size_t len;
};

/* The fragments that make up one object, in order. */
struct kv_bufs {
	const struct kv_buf *frag;
	size_t count;
};

/* 128-bit identity of a client or a segment. */
struct kv_id {
	uint64_t hi, lo;
};

static inline struct kv_str kv_str(const char *text)
{
	return (struct kv_str){text, (uint32_t)strlen(text)};
}

static inline int kv_id_equal(struct kv_id a, struct kv_id b)
{
	return a.hi == b.hi && a.lo == b.lo;
}

static inline size_t kv_bufs_size(struct kv_bufs bufs)
{
	size_t total = 0;
	for (size_t i = 0; i < bufs.count; i++)
		total += bufs.frag[i].len;
	return total;
}

#endif
