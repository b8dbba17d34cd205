/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Being part of the pool: mounts this client's segments at the master, keeps the client alive by a ping a
 * second, and mounts them again when the master has forgotten them.
 */
#ifndef KV_MEMBERSHIP_H
#define KV_MEMBERSHIP_H

#include "store/client/master_conn.h"
#include "store/wire/wire.h"

struct membership;

/* The segments' strings must live until membership_leave. 0 or the status of the mount. */
int membership_join(struct membership **out, struct master_conn *master, struct kv_id client,
                    const struct kvm_segment *segments, uint32_t count, uint64_t op_id);
/* Stops the pings and unmounts; a master that does not answer is left in a few seconds. NULL is allowed. */
void membership_leave(struct membership *membership, uint64_t op_id);
/* One ping now. 0 or a status. */
int membership_ping(struct membership *membership, uint64_t op_id);

#endif
