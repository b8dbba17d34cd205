/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the public operations are made of: the RPCs about keys, and the transfers between a call's buffers
 * and the replicas. A call's keys are one array of client_object; each function takes those whose status is
 * KV_OK and leaves the others alone, so that a key that failed fails alone.
 *
 * Put: client_batch_put or client_put. Get: client_batch_query or client_query, then client_batch_get or
 * client_get. Everything that a call makes lives in its arena. Thread-safe.
 */
#ifndef KV_CLIENT_SERVICE_H
#define KV_CLIENT_SERVICE_H

#include "store/base/arena.h"
#include "store/base/bytes.h"
#include "store/client/master_conn.h"
#include "store/client/real_client.h"
#include "store/transfer/transfer.h"

struct client_service {
	struct transfer *transfer;
	struct master_conn *master;
	struct kv_id client;
	struct kv_str endpoint; /* own host:port */
	uint64_t transfer_ns;   /* limit of the transfers of one call */
};

/* Where one replica of an object is. */
struct client_replica {
	const struct transfer_target *target;
	uint64_t offset, size;
	uint8_t type;   /* enum kvstore_replica_type */
	uint8_t status; /* enum kvstore_replica_status */
};

/* One key of a call. */
struct client_object {
	struct kv_str key;
	struct kv_bufs bufs; /* the caller's memory */
	uint64_t size;       /* of all fragments */
	int status;          /* KV_OK, or why the key failed */
	uint64_t bytes;      /* moved */
	const struct client_replica *replicas;
	uint32_t n_replicas;
	const struct client_replica *chosen; /* the one that is read */
};

/* One call: its keys and what they share. */
struct client_call {
	const struct client_service *service;
	uint64_t op_id;
	struct kv_arena *arena;
	struct client_object *objects;
	size_t count;
	uint64_t lease_until_ns; /* set by a query: reads that end later do not count */
};

/* The replicas of every key, by one RPC (none if no key takes part). Sets replicas or status of each. */
void client_batch_query(struct client_call *call);
/* The same for a call of one key, which has no key of its own among the probes. */
void client_query(struct client_call *call);
/* The replica to read: complete ones only, own memory first. KV_REPLICA_IS_NOT_READY if there is none. */
void client_choose(const struct client_service *service, struct client_object *object);
/* Read the chosen replicas (choosing where that was not done) into the buffers. Sets bytes or status. */
void client_batch_get(struct client_call *call);
void client_get(struct client_call *call);
/* Store every object. A key that exists is a success with bytes 0. */
void client_batch_put(struct client_call *call, const struct rc_config *config);
void client_put(struct client_call *call, const struct rc_config *config);
/* status becomes 1 or 0 or a negative code. */
void client_batch_exist(struct client_call *call);
void client_exist(struct client_call *call);
/* 0 or a status. */
int client_remove(const struct client_service *service, uint64_t op_id, struct kv_str key, bool force,
                  struct kv_arena *arena);
/* Number removed, or a negative status. */
int64_t client_remove_all(const struct client_service *service, uint64_t op_id, bool force, struct kv_arena *arena);

#endif
