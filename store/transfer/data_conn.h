/* SPDX-License-Identifier: Apache-2.0 */
/* One connection of the data server: requests in, bytes out of or into segments, until it ends. */
#ifndef KV_DATA_CONN_H
#define KV_DATA_CONN_H

#include <stdatomic.h>

#include "store/transfer/segments.h"

/* Serve requests until the peer closes, misbehaves or takes too long, or someone shuts the socket down.
 * *idle_since_ns is 0 while there is a request, else since when there has been none. */
void data_conn_serve(int fd, struct segments *segments, _Atomic uint64_t *idle_since_ns);

#endif
