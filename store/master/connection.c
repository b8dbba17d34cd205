/* SPDX-License-Identifier: Apache-2.0 */
#include "store/master/connection.h"

#include <errno.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "store/base/clock.h"

#define FIRST_ROOM   ((size_t)16 << 10)
#define KEPT_ROOM    ((size_t)4 << 20)   /* of an idle connection; more is given back */
#define LEAST_KEPT   ((size_t)32 << 10)  /* the same when half of the budget is in use */
#define RECEIVE_MOST ((size_t)512 << 10) /* at once, for fairness between connections */

void connection_peer_name(char out[KV_ENDPOINT_MAX], const struct sockaddr_storage *address)
{
	char port[16];
	struct kv_hostport peer = {.port = 0};
	if (getnameinfo((const struct sockaddr *)address, sizeof(*address), peer.host, sizeof(peer.host), port,
	                sizeof(port), NI_NUMERICHOST | NI_NUMERICSERV) == 0)
		peer.port = (uint16_t)strtoul(port, NULL, 10);
	else
		strcpy(peer.host, "?");
	kv_hostport_format(out, &peer);
}

struct connection *connection_create(int fd, const char *peer, struct connection_budget *budget)
{
	struct connection *connection = calloc(1, sizeof(*connection));
	if (!connection)
		return NULL;
	connection->fd = fd;
	connection->budget = budget;
	snprintf(connection->peer, sizeof(connection->peer), "%s", peer);
	return connection;
}

static bool take_budget(struct connection *connection, size_t bytes)
{
	struct connection_budget *budget = connection->budget;
	if (atomic_fetch_add(&budget->used, bytes) + bytes <= budget->limit)
		return true;
	atomic_fetch_sub(&budget->used, bytes);
	return false;
}

static void free_input(struct connection *connection)
{
	free(connection->in);
	atomic_fetch_sub(&connection->budget->used, connection->room);
	connection->in = NULL;
	connection->start = connection->end = connection->room = 0;
}

static void free_output(struct connection *connection)
{
	if (!connection->out)
		return;
	free(connection->out);
	atomic_fetch_sub(&connection->budget->used, connection->out_size);
	connection->out = NULL;
	connection->sent = connection->out_size = 0;
}

void connection_destroy(struct connection *connection)
{
	free_input(connection);
	free_output(connection);
	close(connection->fd);
	free(connection);
}

/* --- in ------------------------------------------------------------------------------------------- */

/* Room behind end: by moving what is there to the front, then by doubling. */
static const char *make_room(struct connection *connection)
{
	/* One whole frame is at most this long, and a whole one is served before more is received. */
	const size_t most = KVW_HEADER_SIZE + KVW_MAX_PAYLOAD + RECEIVE_MOST;
	if (connection->end < connection->room)
		return NULL;
	if (connection->start > 0) {
		memmove(connection->in, connection->in + connection->start, connection->end - connection->start);
		connection->end -= connection->start;
		connection->start = 0;
		if (connection->end <= connection->room / 2 || connection->room == most)
			return NULL;
	}
	size_t room = connection->room ? connection->room * 2 : FIRST_ROOM;
	if (room > most)
		room = most;
	if (room <= connection->room)
		return "more bytes than a frame may have";
	if (!take_budget(connection, room - connection->room))
		return "too many bytes buffered by all connections";
	uint8_t *in = realloc(connection->in, room);
	if (!in) {
		atomic_fetch_sub(&connection->budget->used, room - connection->room);
		return "no memory for a frame";
	}
	connection->in = in;
	connection->room = room;
	return NULL;
}

const char *connection_receive(struct connection *connection)
{
	size_t total = 0;
	while (total < RECEIVE_MOST) {
		const char *why = make_room(connection);
		if (why)
			return why;
		size_t room = connection->room - connection->end;
		if (room > RECEIVE_MOST - total)
			room = RECEIVE_MOST - total;
		ssize_t got = recv(connection->fd, connection->in + connection->end, room, 0);
		if (got > 0) {
			connection->end += (size_t)got;
			total += (size_t)got;
			if ((size_t)got < room)
				break;
		} else if (got == 0 || errno == ECONNRESET || errno == EPIPE) {
			connection->ended = true;
			break;
		} else if (errno == EAGAIN || errno == EWOULDBLOCK) {
			break;
		} else if (errno != EINTR) {
			return "receive error";
		}
	}
	if (connection->end > connection->start && connection->frame_since_ns == 0)
		connection->frame_since_ns = kv_now_ns();
	return NULL;
}

bool connection_next_frame(struct connection *connection, struct kvw_header *header, const uint8_t **payload,
                           const char **why)
{
	size_t have = connection->end - connection->start;
	if (!connection->has_header) {
		if (have < KVW_HEADER_SIZE)
			return false;
		if (kvw_header_decode(&connection->header, connection->in + connection->start, why))
			return false;
		connection->has_header = true;
	}
	if (have - KVW_HEADER_SIZE < connection->header.payload)
		return false;
	*header = connection->header;
	*payload = connection->in + connection->start + KVW_HEADER_SIZE;
	return true;
}

static bool keeps_room(const struct connection *connection)
{
	bool scarce = atomic_load(&connection->budget->used) > connection->budget->limit / 2;
	return connection->room <= (scarce ? LEAST_KEPT : KEPT_ROOM);
}

void connection_frame_done(struct connection *connection)
{
	connection->start += KVW_HEADER_SIZE + (size_t)connection->header.payload;
	connection->has_header = false;
	connection->frame_since_ns = 0;
	if (connection->start < connection->end)
		connection->frame_since_ns = kv_now_ns();
	else if (keeps_room(connection))
		connection->start = connection->end = 0;
	else
		free_input(connection);
}

bool connection_is_mid_frame(const struct connection *connection)
{
	return connection->end > connection->start;
}

/* --- out ------------------------------------------------------------------------------------------ */

/* Bytes sent, 0 when the peer has no room; *why set on an error. */
static size_t send_some(struct connection *connection, const uint8_t *bytes, size_t size, const char **why)
{
	size_t sent = 0;
	while (sent < size) {
		ssize_t n = send(connection->fd, bytes + sent, size - sent, MSG_NOSIGNAL);
		if (n > 0) {
			sent += (size_t)n;
		} else if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
			break;
		} else if (n < 0 && errno != EINTR) {
			*why = "send error";
			break;
		}
	}
	return sent;
}

const char *connection_send(struct connection *connection, const uint8_t *bytes, size_t size)
{
	const char *why = NULL;
	size_t sent = send_some(connection, bytes, size, &why);
	if (why || sent == size)
		return why;
	if (!take_budget(connection, size - sent))
		return "too many bytes buffered by all connections";
	connection->out_size = size - sent;
	connection->out = malloc(connection->out_size);
	if (!connection->out) {
		atomic_fetch_sub(&connection->budget->used, connection->out_size);
		connection->out_size = 0;
		return "no memory for an answer";
	}
	memcpy(connection->out, bytes + sent, connection->out_size);
	connection->sent = 0;
	connection->output_since_ns = kv_now_ns();
	return NULL;
}

const char *connection_flush(struct connection *connection)
{
	const char *why = NULL;
	size_t sent = send_some(connection, connection->out + connection->sent,
	                        connection->out_size - connection->sent, &why);
	if (why)
		return why;
	connection->sent += sent;
	if (sent > 0)
		connection->output_since_ns = kv_now_ns();
	if (connection->sent == connection->out_size) {
		free_output(connection);
		/* While the answer waited, nothing was read: the time of an unfinished frame begins now. */
		if (connection->frame_since_ns)
			connection->frame_since_ns = connection->output_since_ns;
	}
	return NULL;
}

const char *connection_overdue(const struct connection *connection, uint64_t now_ns, uint64_t limit_ns)
{
	if (connection_has_output(connection)) {
		bool late = now_ns > connection->output_since_ns && now_ns - connection->output_since_ns > limit_ns;
		return late ? "does not read its answer" : NULL;
	}
	bool late = connection->frame_since_ns && now_ns > connection->frame_since_ns &&
	            now_ns - connection->frame_since_ns > limit_ns;
	return late ? "in the middle of a frame for too long" : NULL;
}
