/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One connection of the master's server: bytes in, whole frames out of them, answers back. Functions that
 * return a text return NULL when all is well, else the reason to close the connection.
 */
#ifndef KV_MASTER_CONNECTION_H
#define KV_MASTER_CONNECTION_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "store/base/net.h"
#include "store/wire/wire.h"

struct sockaddr_storage;

/* Bytes buffered by all connections of a server. */
struct connection_budget {
	_Atomic uint64_t used;
	uint64_t limit;
};

struct connection {
	struct connection *before, *after; /* list of its worker */
	int fd;
	bool ended;       /* the peer sends no more */
	uint32_t watched; /* epoll events */
	struct connection_budget *budget;
	/* Received and not served yet: in[start .. end). Grows with what arrives, not with what a header says. */
	uint8_t *in;
	size_t start, end, room;
	bool has_header; /* of the frame at start, checked */
	struct kvw_header header;
	uint64_t frame_since_ns; /* since when a frame is incomplete; 0: none is */
	/* The answer that could not be sent at once: out[sent .. out_size). */
	uint8_t *out;
	size_t sent, out_size;
	uint64_t output_since_ns; /* since the peer took the last byte */
	char peer[KV_ENDPOINT_MAX];
};

/* "host:port" of a socket address. */
void connection_peer_name(char out[KV_ENDPOINT_MAX], const struct sockaddr_storage *address);
/* Owns fd if it returns one; NULL without memory. */
struct connection *connection_create(int fd, const char *peer, struct connection_budget *budget);
void connection_destroy(struct connection *connection);

/* Take in what has arrived, up to a limit; sets ended. */
const char *connection_receive(struct connection *connection);
/* True: a frame is whole; header and payload are valid until connection_frame_done. False: not yet, or *why. */
bool connection_next_frame(struct connection *connection, struct kvw_header *header, const uint8_t **payload,
                           const char **why);
void connection_frame_done(struct connection *connection);
bool connection_is_mid_frame(const struct connection *connection);

/* Send, keeping a copy of what does not go at once; only while there is no output. */
const char *connection_send(struct connection *connection, const uint8_t *bytes, size_t size);
const char *connection_flush(struct connection *connection);
static inline bool connection_has_output(const struct connection *connection)
{
	return connection->out != NULL;
}

/* Has it been in the middle of a frame, or not read its answer, for longer than the limit? */
const char *connection_overdue(const struct connection *connection, uint64_t now_ns, uint64_t limit_ns);

#endif
