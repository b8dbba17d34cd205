/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The way to the master: over sockets, or straight into a master that runs inside this process. A request is
 * sent at most once: a put_start that were repeated would look like a duplicate put. Thread-safe.
 */
#ifndef KV_MASTER_CONN_H
#define KV_MASTER_CONN_H

#include <stdint.h>

#include "store/base/arena.h"

struct master_conn;

/* "embedded" or host:port (port 50051 if there is none). Does not connect yet.
 * 0; KV_INVALID_PARAMS: not an address; KV_INTERNAL_ERROR without memory. */
int master_conn_open(struct master_conn **out, const char *address);
void master_conn_close(struct master_conn *conn);
/* One request of messages.def; *response is the type's response struct, in the arena. 0; KV_RPC_FAIL (refused,
 * reset, garbage); KV_RPC_TIMEOUT; KV_INVALID_PARAMS (beyond a limit of messages.def); KV_INTERNAL_ERROR. */
int master_conn_call(struct master_conn *conn, uint16_t type, uint64_t op_id, const void *request, void **response,
                     struct kv_arena *arena);
/* The same with a time limit of its own, if that is shorter. */
int master_conn_call_within(struct master_conn *conn, uint64_t limit_ns, uint16_t type, uint64_t op_id,
                            const void *request, void **response, struct kv_arena *arena);

#endif
