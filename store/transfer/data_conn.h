/* SPDX-License-Identifier: Apache-2.0 */
/* One connection of the data server: requests in, bytes out of or into segments, until it ends. */
#ifndef KV_DATA_CONN_H
#define KV_DATA_CONN_H

#include "store/transfer/segments.h"

/* Serve requests until the peer closes, misbehaves or takes too long, or someone shuts the socket down. */
void data_conn_serve(int fd, struct segments *segments);

#endif
