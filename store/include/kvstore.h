/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kvstore: put and get KV-cache blocks in memory that the hosts of a cluster pool.
 *
 * Results: 0 (or a count) on success, a negative kv_status (kvstore_status.h) on failure. Batch calls
 * return 0 when the call ran and put one result per key into results; a failed key fails alone.
 * A batch call that did not run has its code in every result as well.
 * A NULL store, key array or results array, or no memory, gives -1 (KV_INTERNAL_ERROR). Strings are not kept.
 * Keys are 1 to 4096 bytes; others give KV_INVALID_PARAMS for that key.
 * A call takes at most 262144 keys, and 64 MiB of keys where the master is another process; beyond that every
 * key gives KV_INVALID_PARAMS.
 * Limits of time: the master answers within MC_RPC_TIMEOUT_MS (10000), a connection is there within
 * MC_RPC_CONNECT_TIMEOUT_MS (3000), the transfers of a call are done within 60 s. All are read at setup.
 * Thread-safety: every function may be called from any thread at any time, except kvstore_destroy, which
 * must be the last call on its store. A store belongs to the process that set it up: in a forked child its calls
 * give KV_UNAVAILABLE_IN_CURRENT_STATUS; the child makes a store of its own.
 */
#ifndef KVSTORE_H
#define KVSTORE_H

#include <stddef.h>
#include <stdint.h>

#include "kvstore_status.h"

#ifdef __cplusplus
extern "C" {
#endif

#define KVSTORE_API __attribute__((visibility("default")))

typedef struct kvstore kvstore_t;

/* How an object is placed. struct_size first, so that the struct can grow: set it to sizeof. A NULL config
 * means the defaults: one replica anywhere. */
typedef struct kvstore_replicate_config {
	size_t struct_size;
	size_t replica_num;              /* 1; fewer are accepted if the pool has not as many segments */
	int with_soft_pin;               /* non-zero: evicted only after everything else */
	int with_hard_pin;               /* non-zero: never evicted */
	const char **preferred_segments; /* host:port names, tried first */
	size_t preferred_segments_count;
	int prefer_alloc_in_same_node; /* multi_buffers only; elsewhere KV_INVALID_PARAMS */
	int soft_pin_action;           /* 0 PRESERVE, 1 ENABLE, 2 DISABLE; with_soft_pin implies ENABLE */
	uint64_t soft_pin_ttl_ms;      /* 0: the master's default; needs ENABLE, else KV_INVALID_PARAMS */
} kvstore_replicate_config_t;

enum kvstore_replica_type { KVSTORE_REPLICA_MEMORY = 1, KVSTORE_REPLICA_LOCAL_DISK = 2, KVSTORE_REPLICA_DISK = 3 };
enum kvstore_replica_status {
	KVSTORE_REPLICA_UNDEFINED = 0,
	KVSTORE_REPLICA_INITIALIZED,
	KVSTORE_REPLICA_PROCESSING,
	KVSTORE_REPLICA_COMPLETE,
	KVSTORE_REPLICA_REMOVED,
	KVSTORE_REPLICA_FAILED,
};

typedef struct kvstore_replica_desc {
	int type;             /* enum kvstore_replica_type */
	int status;           /* enum kvstore_replica_status */
	uint64_t size;        /* bytes of the object */
	uint64_t address;     /* in the owner's address space; memory replicas */
	const char *endpoint; /* host:port of the owner, or the file's path */
} kvstore_replica_desc_t;

/* The replicas of the keys of one kvstore_batch_get_replica_desc; made there, freed by
 * kvstore_replica_lists_free. list[i] has count[i] entries; status[i] is 0 or the key's code. */
typedef struct kvstore_replica_lists {
	size_t n_keys;
	const int *status;
	const size_t *count;
	const kvstore_replica_desc_t *const *list;
} kvstore_replica_lists_t;

/* A store that is not set up yet; NULL when memory is short. */
KVSTORE_API kvstore_t *kvstore_create(void);
/* Close and free. NULL is allowed. */
KVSTORE_API void kvstore_destroy(kvstore_t *store);

/* Join the pool.
 *   local_hostname      host or host:port under which other workers reach this one; without a port one in
 *                       12300..14300 is taken (MC_STORE_CLIENT_MIN_PORT, _MAX_PORT)
 *   metadata_server     "P2PHANDSHAKE", or an http:// or etcd:// URL, accepted and not needed
 *   global_segment_size bytes contributed to the pool, 0 or >= 1024
 *   local_buffer_size   bytes for put() and get() copies, 0 or >= 1024, at most 1 TiB
 *   protocol            "tcp"; "rdma" falls back to tcp with a warning where there is no device
 *   device_name         RDMA devices, "" for any
 *   master_server_addr  "host:port" (port 50051 if there is none), or "embedded": the master runs inside this
 *                       store, whose pool is its own then
 * Returns 0; KV_INVALID_PARAMS; KV_RPC_FAIL or KV_RPC_TIMEOUT if the master does not answer;
 * KV_INTERNAL_ERROR without memory or a free port. A store that is set up already: KV_INVALID_PARAMS. */
KVSTORE_API int kvstore_setup(kvstore_t *store, const char *local_hostname, const char *metadata_server,
                              uint64_t global_segment_size, uint64_t local_buffer_size, const char *protocol,
                              const char *device_name, const char *master_server_addr);
/* Leave the pool: unmount the segment, free the memory. A second close returns 0. Calls in flight end first. */
KVSTORE_API int kvstore_close(kvstore_t *store);
/* 0 well, 1 not set up or closed, 2 the master does not answer. */
KVSTORE_API int kvstore_health_check(kvstore_t *store);
/* "host:port" into buf. -1 if it does not fit with its NUL or the store is not set up. */
KVSTORE_API int kvstore_get_hostname(kvstore_t *store, char *buf, size_t len);

/* Make [ptr, ptr + size) usable for transfers. 0; KV_INVALID_PARAMS: NULL, size 0, overlap with a
 * registered buffer. */
KVSTORE_API int kvstore_register_buffer(kvstore_t *store, void *ptr, size_t size);
/* ptr is the start given to kvstore_register_buffer. KV_INVALID_PARAMS: unknown. */
KVSTORE_API int kvstore_unregister_buffer(kvstore_t *store, void *ptr);

/* Copy value into the pool by way of the local buffer. A key that exists already is a success that writes
 * nothing. KV_INVALID_PARAMS: size 0, no local buffer, local buffer full; KV_NO_AVAILABLE_HANDLE: pool full;
 * KV_TRANSFER_FAIL; KV_RPC_FAIL, KV_RPC_TIMEOUT. */
KVSTORE_API int kvstore_put(kvstore_t *store, const char *key, const void *value, size_t size,
                            const kvstore_replicate_config_t *config);
/* Zero copy from a registered buffer. Size 0: a warning, 0, nothing stored. */
KVSTORE_API int kvstore_put_from(kvstore_t *store, const char *key, void *buffer, size_t size,
                                 const kvstore_replicate_config_t *config);
KVSTORE_API int kvstore_batch_put_from(kvstore_t *store, const char *const *keys, void *const *buffers,
                                       const size_t *sizes, size_t count, const kvstore_replicate_config_t *config,
                                       int *results);
/* Object i is the concatenation of nbufs[i] fragments bufs[i][j] of sizes[i][j] bytes. NULL bufs, sizes or
 * nbufs: KV_INVALID_PARAMS for every key. */
KVSTORE_API int kvstore_batch_put_from_multi_buffers(kvstore_t *store, const char *const *keys,
                                                     void *const *const *bufs, const size_t *const *sizes,
                                                     const size_t *nbufs, size_t count,
                                                     const kvstore_replicate_config_t *config, int *results);

/* Bytes read (> 0), or KV_OBJECT_NOT_FOUND, KV_REPLICA_IS_NOT_READY, KV_INVALID_PARAMS (buffer smaller than
 * the object), KV_LEASE_EXPIRED, KV_TRANSFER_FAIL, KV_RPC_FAIL, KV_RPC_TIMEOUT. */
KVSTORE_API int64_t kvstore_get_into(kvstore_t *store, const char *key, void *buffer, size_t size);
KVSTORE_API int kvstore_batch_get_into(kvstore_t *store, const char *const *keys, void *const *buffers,
                                       const size_t *sizes, size_t count, int64_t *results);
KVSTORE_API int kvstore_batch_get_into_multi_buffers(kvstore_t *store, const char *const *keys,
                                                     void *const *const *bufs, const size_t *const *sizes,
                                                     const size_t *nbufs, size_t count, int64_t *results);
/* The whole object in memory of its own: *out is to be freed with free(). Bytes, or as kvstore_get_into. */
KVSTORE_API int64_t kvstore_get_buffer(kvstore_t *store, const char *key, void **out);

/* 1, 0; 0 with a warning on stderr when the master does not answer (callers take any other number for yes). */
KVSTORE_API int kvstore_is_exist(kvstore_t *store, const char *key);
/* results: 1, 0 or a negative code per key. A key that exists gets a read lease. */
KVSTORE_API int kvstore_batch_is_exist(kvstore_t *store, const char *const *keys, size_t count, int *results);
KVSTORE_API int64_t kvstore_get_size(kvstore_t *store, const char *key);
/* 0; KV_OBJECT_NOT_FOUND; KV_OBJECT_HAS_LEASE unless force; KV_REPLICA_IS_NOT_READY for a put in flight. */
KVSTORE_API int kvstore_remove(kvstore_t *store, const char *key, int force);
/* Number removed; leased objects stay unless force, puts in flight stay. */
KVSTORE_API int64_t kvstore_remove_all(kvstore_t *store, int force);
/* *out is NULL on failure (negative return), else to be freed with kvstore_replica_lists_free. */
KVSTORE_API int kvstore_batch_get_replica_desc(kvstore_t *store, const char *const *keys, size_t count,
                                               kvstore_replica_lists_t **out);
KVSTORE_API void kvstore_replica_lists_free(kvstore_replica_lists_t *lists);

/* A few words for a status code; never NULL. */
KVSTORE_API const char *kvstore_strerror(int status);
/* "0.1.0" */
KVSTORE_API const char *kvstore_version(void);

#ifdef __cplusplus
}
#endif
#endif
