/* SPDX-License-Identifier: Apache-2.0 */
#include "store/client/master_conn.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "kvstore_status.h"
#include "store/base/clock.h"
#include "store/base/log.h"
#include "store/base/net.h"
#include "store/base/parse.h"
#include "store/master/master.h"
#include "store/wire/wire.h"

#define IDLE_MAX           64
#define DEFAULT_PORT       50051
#define RPC_TIMEOUT_MS     10000
#define CONNECT_TIMEOUT_MS 3000
#define LONGEST_TIMEOUT_MS 600000

struct master_conn {
	struct master *embedded; /* NULL: remote */
	struct kv_hostport address;
	uint64_t rpc_ns, connect_ns;
	uint64_t next_request; /* atomic */
	pthread_mutex_t lock;
	int idle[IDLE_MAX]; /* sockets with no call in flight */
	int n_idle;
};

static int open_embedded(struct master_conn *conn)
{
	struct master_config config;
	master_config_default(&config);
	conn->embedded = master_create(&config);
	return conn->embedded ? KV_OK : KV_INTERNAL_ERROR;
}

static int open_remote(struct master_conn *conn, const char *address)
{
	if (kv_hostport_parse(&conn->address, address))
		return KV_INVALID_PARAMS;
	if (conn->address.port == 0)
		conn->address.port = DEFAULT_PORT;
	return KV_OK;
}

int master_conn_open(struct master_conn **out, const char *address)
{
	*out = NULL;
	struct master_conn *conn = calloc(1, sizeof(*conn));
	if (!conn)
		return KV_INTERNAL_ERROR;
	int status = strcmp(address, "embedded") == 0 ? open_embedded(conn) : open_remote(conn, address);
	if (status) {
		free(conn);
		return status;
	}
	conn->rpc_ns = kv_env_u64("MC_RPC_TIMEOUT_MS", RPC_TIMEOUT_MS, 1, LONGEST_TIMEOUT_MS) * KV_NS_PER_MS;
	conn->connect_ns =
	        kv_env_u64("MC_RPC_CONNECT_TIMEOUT_MS", CONNECT_TIMEOUT_MS, 1, LONGEST_TIMEOUT_MS) * KV_NS_PER_MS;
	pthread_mutex_init(&conn->lock, NULL);
	*out = conn;
	return KV_OK;
}

static void close_socket(int fd)
{
	/* shutdown as well: a forked child may hold the descriptor too. */
	shutdown(fd, SHUT_RDWR);
	close(fd);
}

void master_conn_close(struct master_conn *conn)
{
	if (!conn)
		return;
	if (conn->embedded)
		master_destroy(conn->embedded);
	while (conn->n_idle > 0)
		close_socket(conn->idle[--conn->n_idle]);
	pthread_mutex_destroy(&conn->lock);
	free(conn);
}

/* --- the sockets --------------------------------------------------------------------------------------- */

/* Nothing to read on an idle socket: neither the peer's end nor bytes that no one asked for. */
static bool is_usable(int fd)
{
	char byte;
	return recv(fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) < 0 && (errno == EAGAIN || errno == EWOULDBLOCK);
}

static int pop_idle(struct master_conn *conn)
{
	pthread_mutex_lock(&conn->lock);
	int fd = conn->n_idle > 0 ? conn->idle[--conn->n_idle] : -1;
	pthread_mutex_unlock(&conn->lock);
	return fd;
}

static void push_idle(struct master_conn *conn, int fd)
{
	pthread_mutex_lock(&conn->lock);
	bool room = conn->n_idle < IDLE_MAX;
	if (room)
		conn->idle[conn->n_idle++] = fd;
	pthread_mutex_unlock(&conn->lock);
	if (!room)
		close_socket(fd);
}

/* A connected socket or a negative status. */
static int take_socket(struct master_conn *conn, uint64_t deadline_ns)
{
	int fd;
	while ((fd = pop_idle(conn)) >= 0) {
		if (is_usable(fd))
			return fd;
		close_socket(fd);
	}
	uint64_t limit = kv_now_ns() + conn->connect_ns;
	return kv_connect(&conn->address, limit < deadline_ns ? limit : deadline_ns);
}

/* --- one call ------------------------------------------------------------------------------------------ */

static int receive_response(int fd, const struct kvw_header *asked, void **response, struct kv_arena *arena,
                            uint64_t deadline_ns, const char **why)
{
	uint8_t bytes[KVW_HEADER_SIZE];
	struct kvw_header header;

	int status = kv_recv_all(fd, bytes, sizeof(bytes), deadline_ns);
	if (status)
		return status;
	if (kvw_header_decode(&header, bytes, why))
		return KV_RPC_FAIL;
	if (header.type != asked->type || header.request != asked->request || header.flags != KVW_RESPONSE) {
		*why = "a response to another request";
		return KV_RPC_FAIL;
	}
	uint8_t *payload = kv_arena_alloc(arena, header.payload);
	if (!payload)
		return KV_INTERNAL_ERROR;
	status = kv_recv_all(fd, payload, header.payload, deadline_ns);
	if (status)
		return status;
	return kvw_payload_decode(arena, &header, payload, response, why) ? KV_RPC_FAIL : KV_OK;
}

static int call_remote(struct master_conn *conn, uint64_t deadline_ns, uint16_t type, uint64_t op_id,
                       const void *request, void **response, struct kv_arena *arena)
{
	struct kvw_header header = {.version = KVW_VERSION,
	                            .type = type,
	                            .request = __atomic_fetch_add(&conn->next_request, 1, __ATOMIC_RELAXED),
	                            .op_id = op_id};
	const char *why = NULL;
	uint8_t *frame;
	size_t size;

	int status = kvw_frame_encode(arena, &header, request, &frame, &size, &why);
	if (status) {
		kv_warn("%s: %s", kvw_type_name(type), why ? why : "cannot be encoded");
		return status;
	}
	int fd = take_socket(conn, deadline_ns);
	if (fd < 0)
		return fd;
	struct iovec piece = {frame, size};
	status = kv_send_all(fd, &piece, 1, deadline_ns);
	if (status == KV_OK)
		status = receive_response(fd, &header, response, arena, deadline_ns, &why);
	if (status == KV_OK) {
		push_idle(conn, fd);
		return KV_OK;
	}
	/* What is still on its way belongs to this request: the socket is of no more use. With a reset, so that a
	 * master that was stopped and goes on does not serve what no one waits for: it would mount the segment of a
	 * setup that has failed, or start puts that no one ends. */
	kv_close_abruptly(fd);
	if (why)
		kv_warn("%s: bad response from the master: %s", kvw_type_name(type), why);
	return status;
}

int master_conn_call_within(struct master_conn *conn, uint64_t limit_ns, uint16_t type, uint64_t op_id,
                            const void *request, void **response, struct kv_arena *arena)
{
	if (conn->embedded)
		return master_call(conn->embedded, type, op_id, request, response, arena);
	uint64_t limit = limit_ns < conn->rpc_ns ? limit_ns : conn->rpc_ns;
	return call_remote(conn, kv_now_ns() + limit, type, op_id, request, response, arena);
}

int master_conn_call(struct master_conn *conn, uint16_t type, uint64_t op_id, const void *request, void **response,
                     struct kv_arena *arena)
{
	return master_conn_call_within(conn, UINT64_MAX, type, op_id, request, response, arena);
}
