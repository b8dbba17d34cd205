/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The master: metadata of the pool, never its data. One implementation, run as kvmaster (master_server_start) or
 * inside a worker (master_addr "embedded": master_call directly, no socket).
 */
#ifndef KV_MASTER_H
#define KV_MASTER_H

#include <stdbool.h>
#include <stdint.h>

#include "store/base/arena.h"
#include "store/wire/wire.h"

struct master;
struct master_server;

/* Defaults as in docs/operator.md; master_config_default fills them. Times in ms. */
struct master_config {
	uint64_t kv_lease_ttl_ms;       /* 10000 */
	uint64_t soft_pin_ttl_ms;       /* 30 min */
	uint64_t max_soft_pin_ttl_ms;   /* 24 h */
	bool allow_evict_soft_pinned;   /* true */
	double eviction_ratio;          /* 0.05 */
	double eviction_high_watermark; /* 0.90 */
	uint64_t put_start_discard_ms;  /* 30 s */
	uint64_t put_start_release_ms;  /* 600 s */
	uint64_t client_ttl_ms;         /* 10 s */
};
void master_config_default(struct master_config *config);

/* Starts the background threads (eviction, client monitor, discarding). NULL without memory or threads. */
struct master *master_create(const struct master_config *config);
/* Stops them and frees everything. No call may be in flight. */
void master_destroy(struct master *master);

/* Serve one request. `request` and `*response` are the structs of messages.def for `type`; the response lives in
 * the arena. Returns 0 when there is a response, else a negative status (unknown type, no memory).
 * Fires the type's MASTER_RPC_ key exactly once. Thread-safe. */
int master_call(struct master *master, uint16_t type, uint64_t op_id, const void *request, void **response,
                struct kv_arena *arena);

/* Serve the wire on host:port (0: any) with `threads` threads (0: one per processor). NULL with errno set. */
struct master_server *master_server_start(struct master *master, const char *host, uint16_t port, int threads);
uint16_t master_server_port(const struct master_server *server);
/* Closes every connection and joins the threads. */
void master_server_stop(struct master_server *server);

#endif
