/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of the RealClient layer share: the client, the frame around each public call, its checks. */
#ifndef KV_RC_INTERNAL_H
#define KV_RC_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>

#include "probes/perf_points.h"
#include "store/base/mem.h"
#include "store/base/prefault.h"
#include "store/client/client_rpc.h"
#include "store/client/client_service.h"
#include "store/client/local_buffer.h"
#include "store/client/membership.h"
#include "store/client/real_client.h"

enum rc_state { RC_IDLE, RC_OPEN, RC_CLOSING };

struct real_client {
	atomic_int state;           /* enum rc_state */
	atomic_uint in_flight;      /* calls between rc_enter and rc_leave */
	uint32_t fork_generation;   /* when it was set up */
	pthread_mutex_t lifecycle;  /* one setup or close at a time */
	pthread_mutex_t drain_lock; /* of drained */
	pthread_cond_t drained;     /* in_flight fell to 0 while closing */

	/* Written by setup and close only, read by calls in flight. */
	struct client_service service;
	struct membership *membership;
	struct kv_mem segment;
	struct kv_prefault prefault; /* of segment */
	struct kv_id segment_id;
	struct local_buffer local;
	char endpoint[KV_ENDPOINT_MAX];
};

/* One public call: the memory it uses, and whether the client can serve it. */
struct rc_call {
	struct real_client *rc;
	struct kv_arena *arena;
	int status; /* KV_OK: entered; else what the call returns */
	bool counted;
};

/* Counts the processes that fork made on the way here. */
extern uint32_t rc_fork_generation;

/* status: KV_OK; KV_INVALID_PARAMS: NULL or not set up; KV_UNAVAILABLE_IN_CURRENT_STATUS: set up before a fork. */
struct rc_call rc_enter(struct real_client *rc);
void rc_leave(struct rc_call *call);
/* Declares `call`, which ends with the block. To be declared before the call's PERF_SCOPE. */
#define RC_CALL(call, rc) struct rc_call call __attribute__((cleanup(rc_leave))) = rc_enter(rc)

/* KV_OK: NULL or tcp, or rdma, which is tcp with a warning. KV_INVALID_PARAMS: any other. */
int rc_check_protocol(const char *protocol);

/* What rc_last_bytes says next. */
void rc_set_last_bytes(uint64_t bytes);

/* KV_OK or KV_INVALID_PARAMS, or the status that the binding gave the key. */
int rc_key_status(const struct rc_key *key);
/* KV_OK or KV_INVALID_PARAMS. multi: the call honours same_node. */
int rc_config_status(const struct rc_config *config, bool multi);

/* The objects of a call, each with KV_OK or why it is unusable; NULL without memory. Sizes are taken from bufs
 * where it is not NULL. */
struct client_object *rc_make_objects(struct kv_arena *arena, const struct rc_key *keys, const struct kv_bufs *bufs,
                                      size_t count);
/* One-fragment buffers as fragment lists; NULL without memory. */
struct kv_bufs *rc_single_fragments(struct kv_arena *arena, const struct kv_buf *bufs, size_t count);
struct client_call rc_client_call(const struct rc_call *call, uint64_t op_id, struct client_object *objects,
                                  size_t count);
uint64_t rc_total_size(const struct kv_bufs *bufs, size_t count);

#endif
