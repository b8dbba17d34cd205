/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The master's state. Every change is one of these operations, and each gets the time and the caller as
 * arguments: the same operations in the same order give the same state, so that they can be logged and
 * replayed.
 *
 * Locks: a key's shard (1024 of them, by the key's hash), then a segment's. No operation holds two shards.
 * Thread-safe, except meta_destroy.
 *
 * The life of an object: meta_put_start makes it with its space reserved, "in flight"; meta_put_end makes it
 * complete and readable, meta_put_revoke drops it. A put in flight for longer than the discard timeout may be
 * taken over by another; its space is not used again before the release timeout, because its writer may still
 * be writing. An object whose segments are all gone does not exist.
 */
#ifndef KV_META_H
#define KV_META_H

#include <stdbool.h>
#include <stdint.h>

#include "store/base/arena.h"
#include "store/base/bytes.h"
#include "store/wire/wire.h"

struct meta;
struct segment;
struct segment_set;

/* Times in ns. */
struct meta_config {
	uint64_t lease_ttl_ns;
	uint64_t soft_pin_ttl_ns; /* of a put that asks for a pin without saying how long */
	uint64_t max_soft_pin_ttl_ns;
	bool evict_soft_pinned; /* when nothing else is left */
	double eviction_ratio;
	double eviction_high_watermark;
	uint64_t discard_ns;
	uint64_t release_ns;
	uint64_t client_ttl_ns;
};

struct meta *meta_create(const struct meta_config *config);
void meta_destroy(struct meta *meta);

/* Who asks, in which public call, and when. */
struct meta_caller {
	struct kv_id client;
	uint64_t op_id;
	uint64_t now_ns;
};

/* KV_OK, or KV_INVALID_PARAMS: not 1 to KVW_MAX_KEY bytes, or with a NUL. */
int meta_check_key(struct kv_str key);

/* The segments that the answers of one call name; each once. */
struct meta_reply {
	struct kv_arena *arena;
	struct kvm_segment *segments;
	uint32_t n_segments, room;
	uint32_t *slots; /* hash table of indices into segments + 1 */
	uint32_t n_slots;
	const struct segment **known; /* parallel to segments; only compared */
};
void meta_reply_init(struct meta_reply *reply, struct kv_arena *arena);

/* --- put --- */

enum { META_SOFT_PIN_PRESERVE, META_SOFT_PIN_ENABLE, META_SOFT_PIN_DISABLE };

/* How the objects of a call are to be placed. Preferred segments are tried first, in their order, then with
 * same_node those of the asking client, then others from a random start, at most 100. Replicas lie on distinct
 * segments; one is enough for success. */
struct meta_placement {
	uint32_t replica_num; /* 1..KVW_MAX_REPLICAS */
	bool hard_pin;        /* never evicted */
	bool same_node;
	uint8_t soft_pin_action;
	uint64_t soft_pin_ttl_ns; /* 0: the default; needs ENABLE */
	const struct kvm_key *preferred;
	uint32_t n_preferred;
};

/* One call's view of the pool, made once for all of its keys. */
struct meta_put_call {
	struct meta *meta;
	struct meta_caller caller;
	uint32_t replica_num;
	bool hard_pin;
	uint64_t soft_pin_ns;
	struct segment_set *set;
	uint32_t n_segments;    /* in the set */
	struct segment **first; /* to be tried first */
	uint32_t n_first;
};
/* KV_OK; KV_INVALID_PARAMS: a bad placement; KV_INTERNAL_ERROR: no memory. Only after KV_OK it must be closed. */
int meta_put_open(struct meta_put_call *call, struct meta *meta, const struct meta_caller *caller,
                  const struct meta_placement *placement, struct kv_arena *arena);
void meta_put_close(struct meta_put_call *call);
/* Reserve space for one object; *out gets its replicas and its code: KV_OK, KV_INVALID_PARAMS (key or size 0),
 * KV_OBJECT_ALREADY_EXISTS, KV_NO_AVAILABLE_HANDLE, KV_INTERNAL_ERROR. */
void meta_put_start(struct meta_put_call *call, struct kv_str key, uint64_t size, struct meta_reply *reply,
                    struct kvm_key_replicas *out);
/* KV_OK, also if it was complete already; KV_OBJECT_NOT_FOUND; KV_ILLEGAL_CLIENT; KV_INVALID_WRITE: the put in
 * flight is that of another call (op id) of the same client. */
int meta_put_end(struct meta *meta, const struct meta_caller *caller, struct kv_str key);
/* KV_OK; KV_OBJECT_NOT_FOUND; KV_ILLEGAL_CLIENT; KV_INVALID_WRITE: complete already, or as meta_put_end. */
int meta_put_revoke(struct meta *meta, const struct meta_caller *caller, struct kv_str key);

/* --- lookup --- */

/* 1 and a read lease, 0, or KV_INVALID_PARAMS. An object in flight does not exist yet. */
int meta_exist(struct meta *meta, const struct meta_caller *caller, struct kv_str key);
/* The replicas, and a read lease. *out's code: KV_OK, KV_OBJECT_NOT_FOUND, KV_REPLICA_IS_NOT_READY (in flight),
 * KV_INVALID_PARAMS, KV_INTERNAL_ERROR. */
void meta_get(struct meta *meta, const struct meta_caller *caller, struct kv_str key, struct meta_reply *reply,
              struct kvm_key_replicas *out);
uint64_t meta_lease_ms(const struct meta *meta);

/* --- remove --- */

/* KV_OK; KV_OBJECT_NOT_FOUND; KV_REPLICA_IS_NOT_READY: in flight, even with force; KV_OBJECT_HAS_LEASE, unless
 * force, which frees the space at once: a reader notices only by its own checks. */
int meta_remove(struct meta *meta, const struct meta_caller *caller, struct kv_str key, bool force);
/* How many were removed. Leased objects stay unless force; objects in flight stay. */
uint64_t meta_remove_all(struct meta *meta, const struct meta_caller *caller, bool force);

/* --- clients and segments --- */

/* True: this client is not known (any more), it has to mount its segments again. */
bool meta_ping(struct meta *meta, const struct meta_caller *caller);
/* Make the client known and mount the segments, as far as they go; *mounted counts them. KV_OK or the first
 * failure, as pool_mount. No segments: a client that contributes nothing. */
int meta_mount(struct meta *meta, const struct meta_caller *caller, const struct kvm_segment *segments,
               uint32_t count, uint32_t *mounted);
/* KV_OK, KV_SEGMENT_NOT_FOUND, KV_ILLEGAL_CLIENT, KV_INTERNAL_ERROR. *lost: objects that are gone with it. */
int meta_unmount(struct meta *meta, const struct meta_caller *caller, struct kv_id segment, uint64_t *lost);

/* --- background work; each fires its key --- */

/* Cheap: is the pool above the watermark, or did an allocation fail since the last run? */
bool meta_evict_due(const struct meta *meta);
/* One run: frees the objects whose lease expired first. Bytes freed. */
uint64_t meta_evict(struct meta *meta, uint64_t op_id, uint64_t now_ns);
/* Release the space of puts that were abandoned longer ago than the release timeout; how many. */
uint64_t meta_discard_expired(struct meta *meta, uint64_t op_id, uint64_t now_ns);
/* Unmount the segments of clients that stopped pinging; how many clients. */
uint32_t meta_monitor_clients(struct meta *meta, uint64_t op_id, uint64_t now_ns);

struct meta_stats {
	uint64_t objects; /* in flight ones included */
	uint64_t used, capacity;
	uint32_t segments, clients;
	uint64_t discarded; /* taken-over puts whose space is not released yet */
};
void meta_get_stats(struct meta *meta, struct meta_stats *stats);

#endif
