/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kvengine: bytes from this process's registered memory into a peer's, or back, by addresses. What prefill and decode
 * workers move KV blocks with; no store, no master. A peer is named by its session, "host:port", which it tells the
 * others by whatever way they already talk.
 *
 * Only registered memory can be reached, on both sides. Results: 0, or a negative kv_status (kvstore_status.h):
 *   KV_INVALID_PARAMS (-600)  a range that is not registered, here or at the peer, or of size 0; a session that is
 *                             none; an argument that is NULL
 *   KV_TRANSFER_FAIL (-800)   the peer is not known, not there, died or hung: after the timeout at the latest
 *   KV_INTERNAL_ERROR (-1)    no memory
 * After a failure the ranges that a write named may hold anything; nothing else was touched, and once the call has
 * returned nothing touches local memory any more.
 *
 * Thread-safety: any function from any thread at any time, except kvengine_destroy, which is the last. An engine
 * belongs to the process that made it; in a forked child its calls give KV_UNAVAILABLE_IN_CURRENT_STATUS (-1010).
 */
#ifndef KVENGINE_H
#define KVENGINE_H

#include <stddef.h>
#include <stdint.h>

#include "kvstore.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct kvengine kvengine_t;

#define KVENGINE_RANGES_MAX 262144

typedef struct kvengine_config {
	size_t struct_size; /* sizeof */
	const char *host;   /* the name that peers reach this process by; "" or NULL: 127.0.0.1 */
	uint16_t port;      /* 0: a free one in [port_min, port_max]; those 0 too: any */
	uint16_t port_min, port_max;
	const char *protocol; /* "tcp" or NULL; "rdma" without a device: tcp, with a warning */
	uint64_t timeout_ms;  /* of one transfer call; 0: MC_TRANSFER_TIMEOUT_MS, else 30000 */
} kvengine_config_t;

/* Makes an engine and listens for peers: on host if that is an address of this host, on all addresses if it is a
 * name. Whoever reaches the port can read and write registered memory; there is no authentication. 0 or a status;
 * *out is NULL then. KV_INVALID_PARAMS: a host or protocol that is none. KV_INTERNAL_ERROR: no port or no memory
 * (logged). */
KVSTORE_API int kvengine_create(kvengine_t **out, const kvengine_config_t *config);
/* Ends the transfers of peers in our memory, closes every connection, joins the threads. NULL is allowed; in a forked
 * child it does nothing. */
KVSTORE_API void kvengine_destroy(kvengine_t *engine);
/* The port that peers connect to. 0 for NULL. */
KVSTORE_API int kvengine_rpc_port(const kvengine_t *engine);

/* Make [ptr, ptr + size) reachable for peers and usable here. Overlap with another registration, NULL, size 0:
 * KV_INVALID_PARAMS. */
KVSTORE_API int kvengine_register(kvengine_t *engine, void *ptr, size_t size);
/* ptr as given to kvengine_register. New transfers in it are refused at once; returns when none is in it any more, a
 * peer's (60 s at most, if it hangs) or this engine's own. Not registered, or another thread is unregistering it:
 * KV_INVALID_PARAMS. */
KVSTORE_API int kvengine_unregister(kvengine_t *engine, void *ptr);

/* Copy count ranges: local[i] -> remote[i] at the peer (write), or the other way (read). All are in flight at once. 0
 * if all succeeded, else the first failure's code. count 0: 0. timeout_ms 0: the engine's. At most
 * KVENGINE_RANGES_MAX. Each range lies in one registration, here and there. */
KVSTORE_API int kvengine_write(kvengine_t *engine, const char *session, void *const *local, const uint64_t *remote,
                               const size_t *sizes, size_t count, uint64_t timeout_ms);
KVSTORE_API int kvengine_read(kvengine_t *engine, const char *session, void *const *local, const uint64_t *remote,
                              const size_t *sizes, size_t count, uint64_t timeout_ms);

#ifdef __cplusplus
}
#endif

#endif
