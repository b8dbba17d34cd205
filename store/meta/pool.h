/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who contributes what: the clients that are alive and the segments they mounted. Space is taken from a
 * segment under the segment's own lock; which segments and clients there are is under the pool's.
 *
 * A segment that was unmounted is dead: nothing can be taken from it any more, and what refers to it keeps it
 * in memory until it lets go. A call works on a snapshot of the live segments.
 */
#ifndef KV_META_POOL_H
#define KV_META_POOL_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "store/base/bytes.h"
#include "store/meta/range_alloc.h"
#include "store/wire/wire.h"

#define POOL_MAX_CLIENTS    65536
#define POOL_CLIENT_BUCKETS 1024
/* Bytes of a segment: more than a process can map, and little enough that KVW_MAX_SEGMENTS of them add up. */
#define POOL_MAX_SEGMENT (1ull << 47)

struct pool;
struct pool_client;

struct segment {
	/* Read by every lookup; what is written often is behind the endpoint, on other cache lines. */
	atomic_bool live;
	uint8_t transports;
	uint32_t endpoint_len;
	struct kv_id id, client;
	uint64_t base, size, rkey;
	struct pool *pool;
	char endpoint[KVW_MAX_ENDPOINT];
	atomic_uint refs;
	pthread_mutex_t lock; /* of ranges; live changes under it */
	struct range_alloc ranges;
};

/* The segments that were live when it was made. Never changes; counted by its users. */
struct segment_set {
	atomic_uint refs;
	uint32_t count;
	uint64_t largest; /* bytes of the largest segment */
	struct segment *list[];
};

struct pool {
	pthread_mutex_t lock; /* of set and clients */
	struct segment_set *set;
	struct pool_client *clients[POOL_CLIENT_BUCKETS];
	uint32_t n_clients;
	/* Of the live segments. */
	_Atomic uint64_t used, capacity;
};

bool pool_init(struct pool *pool);
void pool_destroy(struct pool *pool);

/* A reference to the current set; give it back with segment_set_unref. */
struct segment_set *pool_segments(struct pool *pool);
void segment_set_unref(struct segment_set *set);

/* A sign of life. False: the pool does not know this client, it has to mount again. */
bool pool_ping(struct pool *pool, struct kv_id client, uint64_t now_ns);
/* Make the client known. KV_OK, KV_UNAVAILABLE_IN_CURRENT_STATUS (too many), KV_INTERNAL_ERROR (no memory). */
int pool_join(struct pool *pool, struct kv_id client, uint64_t now_ns);
/* Add a segment of a client that has joined. KV_OK, also if the same client has mounted the same segment before;
 * KV_INVALID_PARAMS; KV_SEGMENT_ALREADY_EXISTS (the id is another segment's); KV_CLIENT_NOT_FOUND;
 * KV_UNAVAILABLE_IN_CURRENT_STATUS (too many); KV_INTERNAL_ERROR (no memory). */
int pool_mount(struct pool *pool, struct kv_id client, const struct kvm_segment *segment);
/* KV_OK, KV_SEGMENT_NOT_FOUND, KV_ILLEGAL_CLIENT (somebody else's), KV_INTERNAL_ERROR (no memory). */
int pool_unmount(struct pool *pool, struct kv_id client, struct kv_id segment);

struct pool_loss {
	struct kv_id client;
	uint32_t segments;
	uint64_t bytes; /* of the segments */
};
/* Forget one client that was not heard of for ttl_ns, with its segments. False: there is none. */
bool pool_forget_dead(struct pool *pool, uint64_t now_ns, uint64_t ttl_ns, struct pool_loss *loss);

void segment_ref(struct segment *segment);
void segment_unref(struct segment *segment);
static inline bool segment_is_live(const struct segment *segment)
{
	return atomic_load_explicit(&((struct segment *)(uintptr_t)segment)->live, memory_order_acquire);
}
/* As range_take and range_free, with the lock and the pool's count; nothing is taken from a dead segment. */
bool segment_take(struct segment *segment, uint64_t size, uint64_t *offset, uint32_t *handle);
void segment_give_back(struct segment *segment, uint32_t handle);

#endif
