/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KV_REPLICA_LISTS_H
#define KV_REPLICA_LISTS_H

#include "store/client/client_service.h"

/* The looked-up replicas of a call as one block of memory of its own, for kvstore_replica_lists_free. NULL without
 * memory. */
kvstore_replica_lists_t *replica_lists_make(const struct client_object *objects, size_t count);

#endif
