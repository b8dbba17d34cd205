/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The public operations. kvstore.c (the C API) and the Python extension are thin layers over these: both make
 * one op id per public call (kv_op_id_new) and pass it in. Keys have lengths here, so that a key that no C
 * string can hold still fails alone and is logged as it was given.
 *
 * Results as in kvstore.h. Thread-safe, except rc_destroy.
 */
#ifndef KV_REAL_CLIENT_H
#define KV_REAL_CLIENT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kvstore.h"
#include "store/base/bytes.h"

#define KVRC_API __attribute__((visibility("default")))

struct real_client;

/* A key as the caller gave it. status non-zero: the binding found it unusable; it is not looked up, its result
 * is that status, and it is logged with these bytes. */
struct rc_key {
	const char *ptr;
	size_t len;
	int status;
};

struct rc_setup {
	const char *local_hostname;
	const char *metadata_server;
	uint64_t global_segment_size;
	uint64_t local_buffer_size;
	const char *protocol;
	const char *device_name;
	const char *master_server_addr;
};

/* As kvstore_replicate_config, with owned-by-caller strings; rc_config_default for the defaults. */
struct rc_config {
	uint32_t replica_num;
	bool hard_pin;
	int soft_pin_action; /* 0 PRESERVE, 1 ENABLE, 2 DISABLE */
	bool has_soft_pin_ttl;
	uint64_t soft_pin_ttl_ms;
	bool same_node;
	const struct kv_str *preferred;
	size_t n_preferred;
};

KVRC_API void rc_config_default(struct rc_config *config);

KVRC_API struct real_client *rc_create(void);
KVRC_API void rc_destroy(struct real_client *rc);
KVRC_API int rc_setup(struct real_client *rc, uint64_t op_id, const struct rc_setup *setup);
KVRC_API int rc_close(struct real_client *rc, uint64_t op_id);
KVRC_API bool rc_is_set_up(struct real_client *rc);
/* Bytes that the calling thread's last put (rc_put, rc_put_from, rc_batch_put_from, rc_batch_put_multi) moved for
 * keys that succeeded: what its results alone do not say, since a put of a key that exists succeeds and moves
 * nothing. For the probes of the binding. */
KVRC_API uint64_t rc_last_bytes(void);
KVRC_API int rc_health_check(struct real_client *rc, uint64_t op_id);
KVRC_API int rc_get_hostname(struct real_client *rc, char *buf, size_t len);

KVRC_API int rc_register_buffer(struct real_client *rc, uint64_t op_id, void *ptr, size_t size);
KVRC_API int rc_unregister_buffer(struct real_client *rc, uint64_t op_id, void *ptr);

/* config NULL: defaults. */
KVRC_API int rc_put(struct real_client *rc, uint64_t op_id, struct rc_key key, const void *value, size_t size,
                    const struct rc_config *config);
KVRC_API int rc_put_from(struct real_client *rc, uint64_t op_id, struct rc_key key, void *buffer, size_t size,
                         const struct rc_config *config);
/* Return 0 when the call ran; per-key results in results[count]. bufs NULL: the caller's lists did not match:
 * KV_INVALID_PARAMS for every key, logged without sizes. */
KVRC_API int rc_batch_put_from(struct real_client *rc, uint64_t op_id, const struct rc_key *keys,
                               const struct kv_buf *bufs, size_t count, const struct rc_config *config, int *results);
KVRC_API int rc_batch_put_multi(struct real_client *rc, uint64_t op_id, const struct rc_key *keys,
                                const struct kv_bufs *bufs, size_t count, const struct rc_config *config,
                                int *results);

KVRC_API int64_t rc_get_into(struct real_client *rc, uint64_t op_id, struct rc_key key, void *buffer, size_t size);
/* Memory for the object comes from alloc(ctx, size), so that a binding can read straight into its own object.
 * alloc is called in the calling thread, and when it is called again the memory it gave before is not touched any
 * more. NULL from alloc: KV_INTERNAL_ERROR. */
KVRC_API int64_t rc_get_buffer(struct real_client *rc, uint64_t op_id, struct rc_key key,
                               void *(*alloc)(void *ctx, size_t size), void *ctx);
KVRC_API int rc_batch_get_into(struct real_client *rc, uint64_t op_id, const struct rc_key *keys,
                               const struct kv_buf *bufs, size_t count, int64_t *results);
KVRC_API int rc_batch_get_into_multi(struct real_client *rc, uint64_t op_id, const struct rc_key *keys,
                                     const struct kv_bufs *bufs, size_t count, int64_t *results);

KVRC_API int rc_is_exist(struct real_client *rc, uint64_t op_id, struct rc_key key);
KVRC_API int rc_batch_is_exist(struct real_client *rc, uint64_t op_id, const struct rc_key *keys, size_t count,
                               int *results);
KVRC_API int64_t rc_get_size(struct real_client *rc, uint64_t op_id, struct rc_key key);
KVRC_API int rc_remove(struct real_client *rc, uint64_t op_id, struct rc_key key, bool force);
KVRC_API int64_t rc_remove_all(struct real_client *rc, uint64_t op_id, bool force);
KVRC_API int rc_batch_get_replica_desc(struct real_client *rc, uint64_t op_id, const struct rc_key *keys,
                                       size_t count, kvstore_replica_lists_t **out);

#endif
