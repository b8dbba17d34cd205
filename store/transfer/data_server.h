/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Serves peers' reads and writes of the local segments over TCP: straight from and into their memory. One
 * thread per connection; a peer that stalls, lies or sends garbage loses its connection and harms no other.
 * Peers keep connections for their next call: where there are DATA_SERVER_CONNECTIONS, a new one takes the place of
 * the one that has been idle longest, and is refused only if none has been for a second.
 */
#ifndef KV_DATA_SERVER_H
#define KV_DATA_SERVER_H

#include <stdint.h>

#include "store/transfer/segments.h"

#define DATA_SERVER_CONNECTIONS 1024u
#define DATA_SERVER_TRIES       20

struct data_server;

/* Listens on host:*port; *port 0: a random port in [port_min, port_max], at most DATA_SERVER_TRIES of them.
 * A host that is a name, or an address that this host does not have: all addresses. *port gets the port.
 * 0 or KV_INTERNAL_ERROR (logged). */
int data_server_start(struct data_server **out, struct segments *segments, const char *host, uint16_t *port,
                      uint16_t port_min, uint16_t port_max);
/* Closes every connection and joins the threads. NULL is allowed. */
void data_server_stop(struct data_server *server);

#endif
