/* SPDX-License-Identifier: Apache-2.0 */
/* A meta with a clock of the test's own, and short ways to call it. */
#ifndef KV_TESTS_META_FIXTURE_H
#define KV_TESTS_META_FIXTURE_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kvstore_status.h"
#include "store/base/clock.h"
#include "store/base/log.h"
#include "store/meta/meta.h"
#include "tests/unit/kv_cmocka.h"

#define SECOND KV_NS_PER_S
#define MIB    (1ull << 20)

struct fixture {
	struct meta *meta;
	struct kv_arena arena;
	uint64_t now;
	struct kv_id client; /* who asks */
	uint64_t op_id;
};

static inline struct meta_config test_config(void)
{
	return (struct meta_config){.lease_ttl_ns = 10 * SECOND,
	                            .soft_pin_ttl_ns = 1800 * SECOND,
	                            .max_soft_pin_ttl_ns = 24 * 3600 * SECOND,
	                            .evict_soft_pinned = true,
	                            .eviction_ratio = 0.05,
	                            .eviction_high_watermark = 0.90,
	                            .discard_ns = 30 * SECOND,
	                            .release_ns = 600 * SECOND,
	                            .client_ttl_ns = 10 * SECOND};
}

static inline struct fixture fixture_with(struct meta_config config)
{
	struct fixture f = {.meta = meta_create(&config), .now = 1000 * SECOND, .client = {1, 1}, .op_id = 1};
	assert_non_null(f.meta);
	kv_log_set_level(KV_LOG_ERROR);
	return f;
}

static inline void fixture_end(struct fixture *f)
{
	meta_destroy(f->meta);
	kv_arena_free(&f->arena);
	kv_log_set_level(KV_LOG_WARNING);
}

static inline struct meta_caller caller(const struct fixture *f)
{
	return (struct meta_caller){.client = f->client, .op_id = f->op_id, .now_ns = f->now};
}

/* Segment `id` of the asking client, under the name host<id>:1. */
static inline int mount_segment(struct fixture *f, uint64_t id, uint64_t size)
{
	char name[32];
	uint32_t mounted;
	struct meta_caller who = caller(f);
	snprintf(name, sizeof(name), "host%d:1", (int)id);
	struct kvm_segment segment = {.id = {9, id}, .endpoint = kv_str(name), .base = 4096, .size = size};
	return meta_mount(f->meta, &who, &segment, 1, &mounted);
}

/* The segment's number of a replica in the last reply. */
struct started {
	int code;
	uint32_t n;
	uint64_t segment[KVW_MAX_REPLICAS], offset[KVW_MAX_REPLICAS];
};

static inline struct started keep(const struct kvm_key_replicas *from, const struct meta_reply *reply)
{
	struct started out = {.code = from->code, .n = from->n_replicas};
	for (uint32_t i = 0; i < from->n_replicas; i++) {
		out.segment[i] = reply->segments[from->replicas[i].segment].id.lo;
		out.offset[i] = from->replicas[i].offset;
	}
	return out;
}

static inline struct started start_placed(struct fixture *f, const char *key, uint64_t size,
                                          const struct meta_placement *placement)
{
	struct meta_put_call call;
	struct meta_reply reply;
	struct kvm_key_replicas out;
	struct meta_caller who = caller(f);
	kv_arena_reset(&f->arena, 1 << 20);
	int status = meta_put_open(&call, f->meta, &who, placement, &f->arena);
	if (status)
		return (struct started){.code = status};
	meta_reply_init(&reply, &f->arena);
	meta_put_start(&call, kv_str(key), size, &reply, &out);
	meta_put_close(&call);
	return keep(&out, &reply);
}

static inline struct started start(struct fixture *f, const char *key, uint64_t size)
{
	struct meta_placement placement = {.replica_num = 1};
	return start_placed(f, key, size, &placement);
}

static inline int end(struct fixture *f, const char *key)
{
	struct meta_caller who = caller(f);
	return meta_put_end(f->meta, &who, kv_str(key));
}

static inline int revoke(struct fixture *f, const char *key)
{
	struct meta_caller who = caller(f);
	return meta_put_revoke(f->meta, &who, kv_str(key));
}

static inline int put(struct fixture *f, const char *key, uint64_t size)
{
	int code = start(f, key, size).code;
	return code ? code : end(f, key);
}

static inline int exist(struct fixture *f, const char *key)
{
	struct meta_caller who = caller(f);
	return meta_exist(f->meta, &who, kv_str(key));
}

static inline struct started get(struct fixture *f, const char *key)
{
	struct meta_reply reply;
	struct kvm_key_replicas out;
	struct meta_caller who = caller(f);
	kv_arena_reset(&f->arena, 1 << 20);
	meta_reply_init(&reply, &f->arena);
	meta_get(f->meta, &who, kv_str(key), &reply, &out);
	return keep(&out, &reply);
}

static inline int drop(struct fixture *f, const char *key, bool force)
{
	struct meta_caller who = caller(f);
	return meta_remove(f->meta, &who, kv_str(key), force);
}

static inline uint64_t drop_all(struct fixture *f, bool force)
{
	struct meta_caller who = caller(f);
	return meta_remove_all(f->meta, &who, force);
}

static inline bool ping_wants_remount(struct fixture *f)
{
	struct meta_caller who = caller(f);
	return meta_ping(f->meta, &who);
}

static inline struct meta_stats stats(struct fixture *f)
{
	struct meta_stats out;
	meta_get_stats(f->meta, &out);
	return out;
}

#endif
