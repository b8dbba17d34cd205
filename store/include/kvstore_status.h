/* SPDX-License-Identifier: Apache-2.0 */
/* The store's status codes: what every call returns when it does not return a count. */
#ifndef KVSTORE_STATUS_H
#define KVSTORE_STATUS_H

#define KV_STATUS_LIST(X)                                                                                            \
	X(KV_OK, 0, "ok")                                                                                            \
	X(KV_INTERNAL_ERROR, -1, "internal error")                                                                   \
	X(KV_BUFFER_OVERFLOW, -10, "buffer too small")                                                               \
	X(KV_SHARD_INDEX_OUT_OF_RANGE, -100, "shard index out of range")                                             \
	X(KV_SEGMENT_NOT_FOUND, -101, "segment not found")                                                           \
	X(KV_SEGMENT_ALREADY_EXISTS, -102, "segment already exists")                                                 \
	X(KV_CLIENT_NOT_FOUND, -103, "client not found")                                                             \
	X(KV_NO_AVAILABLE_HANDLE, -200, "no space left in the pool")                                                 \
	X(KV_INVALID_VERSION, -300, "invalid version")                                                               \
	X(KV_INVALID_KEY, -400, "invalid key")                                                                       \
	X(KV_WRITE_FAIL, -500, "write failed")                                                                       \
	X(KV_INVALID_PARAMS, -600, "invalid parameters")                                                             \
	X(KV_ILLEGAL_CLIENT, -601, "not the client that started the put")                                            \
	X(KV_INVALID_WRITE, -700, "invalid write")                                                                   \
	X(KV_INVALID_READ, -701, "invalid read")                                                                     \
	X(KV_INVALID_REPLICA, -702, "invalid replica")                                                               \
	X(KV_REPLICA_IS_NOT_READY, -703, "replica is not ready")                                                     \
	X(KV_OBJECT_NOT_FOUND, -704, "object not found")                                                             \
	X(KV_OBJECT_ALREADY_EXISTS, -705, "object already exists")                                                   \
	X(KV_OBJECT_HAS_LEASE, -706, "object has a lease")                                                           \
	X(KV_LEASE_EXPIRED, -707, "lease expired during the read")                                                   \
	X(KV_OBJECT_HAS_REPLICATION_TASK, -708, "object has a replication task")                                     \
	X(KV_OBJECT_NO_REPLICATION_TASK, -709, "object has no replication task")                                     \
	X(KV_REPLICA_NOT_FOUND, -710, "replica not found")                                                           \
	X(KV_REPLICA_ALREADY_EXISTS, -711, "replica already exists")                                                 \
	X(KV_REPLICA_IS_GONE, -712, "replica is gone")                                                               \
	X(KV_REPLICA_NOT_IN_LOCAL_MEMORY, -713, "replica is not in local memory")                                    \
	X(KV_OBJECT_REPLICA_BUSY, -714, "replica is busy")                                                           \
	X(KV_TRANSFER_FAIL, -800, "transfer failed")                                                                 \
	X(KV_CHECKSUM_MISMATCH, -801, "checksum mismatch")                                                           \
	X(KV_RPC_FAIL, -900, "RPC failed")                                                                           \
	X(KV_RPC_TIMEOUT, -901, "RPC timed out")                                                                     \
	X(KV_UNAVAILABLE_IN_CURRENT_STATUS, -1010, "unavailable in the current status")                              \
	X(KV_UNAVAILABLE_IN_CURRENT_MODE, -1011, "unavailable in the current mode")                                  \
	X(KV_NOT_SUPPORTED, -1012, "not supported")

enum kv_status {
#define X(name, code, text) name = code,
	KV_STATUS_LIST(X)
#undef X
};

#endif
