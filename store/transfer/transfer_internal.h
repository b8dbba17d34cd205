/* SPDX-License-Identifier: Apache-2.0 */
/* What the transports see of the transfer layer. */
#ifndef KV_TRANSFER_INTERNAL_H
#define KV_TRANSFER_INTERNAL_H

#include "store/transfer/segments.h"
#include "store/transfer/transfer.h"

extern const struct transport_ops kv_transport_memcpy;
extern const struct transport_ops kv_transport_tcp;

/* The segments that this process contributes. */
struct segments *transfer_segments(struct transfer *owner);

#endif
