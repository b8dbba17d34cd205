/* SPDX-License-Identifier: Apache-2.0 */
/* Inside of store/master. */
#ifndef KV_MASTER_PRIVATE_H
#define KV_MASTER_PRIVATE_H

#include <pthread.h>

#include "store/master/master.h"
#include "store/meta/meta.h"

struct master {
	struct meta *meta;
	struct kv_id id; /* of this run */
	pthread_mutex_t lock;
	pthread_cond_t stop;
	bool stopping, has_evictor, has_monitor;
	pthread_t evictor, monitor;
};

/* What a server allows; master_server_start takes the defaults. */
struct master_server_limits {
	uint32_t connections;    /* more are closed at once */
	uint64_t frame_ms;       /* a connection in the middle of a frame for longer is closed */
	uint64_t buffered_bytes; /* of all connections together */
	uint64_t thread_arena;   /* bytes of one request and its answer, decoded */
};
void master_server_limits_default(struct master_server_limits *limits);
struct master_server *master_server_start_limited(struct master *master, const char *host, uint16_t port, int threads,
                                                  const struct master_server_limits *limits);
/* Connections that were refused or closed for a reason since the start. */
uint64_t master_server_rejected(const struct master_server *server);

/* An answer of any type that says nothing but this status, for a request that could not be served. NULL without
 * memory. */
void *master_failure_response(int status, struct kv_arena *arena);

#endif
