/* SPDX-License-Identifier: Apache-2.0 */
#include "store/transfer/data_conn.h"

#include <errno.h>
#include <netdb.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

#include "kvstore_status.h"
#include "store/base/clock.h"
#include "store/base/log.h"
#include "store/base/net.h"
#include "store/transfer/sg.h"
#include "store/wire/wire.h"

#define IDLE_CHECK_MS 60000
#define FRAME_NS      (30 * KV_NS_PER_S) /* for a header and its message */
#define DATA_NS       (60 * KV_NS_PER_S) /* for the bytes of one frame: by then the asker has given up */
#define REQUEST_MAX   ((uint32_t)KVW_MAX_KEYS * 16 + 64)
#define ARENA_LIMIT   ((size_t)32 << 20)
#define ARENA_KEEP    ((size_t)256 << 10)
#define DISCARD_CHUNK ((size_t)1 << 20)

/* What one request needs while it is served. */
struct data_conn {
	int fd;
	_Atomic uint64_t *idle_since_ns;
	struct segments *segments;
	struct kv_arena arena;
	struct kvw_header header;
	const struct kvm_data_req *request;
	struct pinned_range *ranges; /* of the request */
};

static void complain(const struct data_conn *conn, const char *why)
{
	struct sockaddr_storage peer;
	socklen_t len = sizeof(peer);
	char host[64] = "?", port[8] = "?";

	if (getpeername(conn->fd, (struct sockaddr *)&peer, &len) == 0)
		getnameinfo((struct sockaddr *)&peer, len, host, sizeof(host), port, sizeof(port),
		            NI_NUMERICHOST | NI_NUMERICSERV);
	kv_warn("data server: connection from %s port %s closed: %s", host, port, why);
}

/* Until a request begins. False: the connection is over. */
static bool wait_for_request(const struct data_conn *conn)
{
	atomic_store(conn->idle_since_ns, kv_now_ns());
	for (;;) {
		struct pollfd waiter = {.fd = conn->fd, .events = POLLIN};
		int ready = poll(&waiter, 1, IDLE_CHECK_MS);
		if (ready < 0 && errno != EINTR)
			return false;
		if (ready > 0)
			break;
	}
	atomic_store(conn->idle_since_ns, 0);
	/* A peer that closes between requests is no news. */
	char byte;
	return recv(conn->fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) > 0;
}

/* NULL, or why the request cannot be served. */
static const char *receive_request(struct data_conn *conn)
{
	uint8_t bytes[KVW_HEADER_SIZE];
	uint64_t deadline = kv_now_ns() + FRAME_NS;
	const char *why = NULL;
	void *message = NULL;

	if (kv_recv_all(conn->fd, bytes, sizeof(bytes), deadline))
		return "half a header";
	if (kvw_header_decode(&conn->header, bytes, &why))
		return why;
	if ((conn->header.type != KVW_DATA_READ && conn->header.type != KVW_DATA_WRITE) || conn->header.flags != 0)
		return "not a data request";
	if (conn->header.payload > REQUEST_MAX)
		return "request too long";
	uint8_t *payload = kv_arena_alloc(&conn->arena, conn->header.payload);
	if (!payload)
		return "no memory";
	if (kv_recv_all(conn->fd, payload, conn->header.payload, deadline))
		return "half a request";
	if (kvw_payload_decode(&conn->arena, &conn->header, payload, &message, &why))
		return why;
	conn->request = message;
	return NULL;
}

static bool read_request(struct data_conn *conn)
{
	const char *why = receive_request(conn);
	if (why)
		complain(conn, why);
	return !why;
}

/* Bytes of all ranges; false: more than any segment can hold. */
static bool total_of(const struct kvm_data_req *request, uint64_t *total)
{
	*total = 0;
	for (uint32_t i = 0; i < request->n_ranges; i++)
		if (__builtin_add_overflow(*total, request->ranges[i].size, total))
			return false;
	return true;
}

/* The reply's frame, first piece of *sg, which gets room for `extra` more. */
static bool start_reply(struct data_conn *conn, struct sg *sg, size_t extra, int status, uint64_t bytes)
{
	struct kvm_data_resp reply = {.status = status, .bytes = bytes};
	struct kvw_header header = {.version = KVW_VERSION,
	                            .type = conn->header.type,
	                            .flags = KVW_RESPONSE,
	                            .request = conn->header.request,
	                            .op_id = conn->header.op_id};
	const char *why;
	uint8_t *frame;
	size_t size;

	*sg = (struct sg){.iov = kv_arena_alloc(&conn->arena, (extra + 1) * sizeof(struct iovec))};
	if (!sg->iov || kvw_frame_encode(&conn->arena, &header, &reply, &frame, &size, &why))
		return false;
	sg_push(sg, frame, size);
	return true;
}

static bool send_reply(struct data_conn *conn, struct sg *sg)
{
	if (sg_send_all(conn->fd, sg, kv_now_ns() + DATA_NS) == KV_OK)
		return true;
	complain(conn, "the reply could not be sent in time");
	return false;
}

/* The pieces of memory that the request names, behind what *sg has. */
static void push_ranges(const struct data_conn *conn, struct sg *sg)
{
	for (uint32_t i = 0; i < conn->request->n_ranges; i++)
		sg_push(sg, conn->ranges[i].memory, conn->request->ranges[i].size);
}

/* The data of a write that was refused still comes; it is dropped without a copy. */
static bool discard(struct data_conn *conn, uint64_t bytes)
{
	uint64_t deadline = kv_now_ns() + FRAME_NS;
	while (bytes) {
		ssize_t got =
		        recv(conn->fd, NULL, bytes < DISCARD_CHUNK ? bytes : DISCARD_CHUNK, MSG_TRUNC | MSG_DONTWAIT);
		if (got == 0 || (got < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR))
			return false;
		if (got > 0)
			bytes -= (uint64_t)got;
		if (kv_now_ns() >= deadline)
			return false;
		if (got < 0)
			poll(&(struct pollfd){.fd = conn->fd, .events = POLLIN}, 1, kv_ms_until(deadline));
	}
	return true;
}

static bool refuse(struct data_conn *conn, int status, uint64_t total)
{
	struct sg sg;
	if (conn->header.type == KVW_DATA_WRITE && !discard(conn, total)) {
		complain(conn, "the data of a refused write did not come");
		return false;
	}
	return start_reply(conn, &sg, 0, status, 0) && send_reply(conn, &sg);
}

static bool serve_read(struct data_conn *conn, uint64_t total)
{
	struct sg sg;
	if (!start_reply(conn, &sg, conn->request->n_ranges, KV_OK, total))
		return false;
	push_ranges(conn, &sg);
	return send_reply(conn, &sg);
}

/* The asker gave up: its range may be another's by now. */
static bool is_reset(int fd)
{
	struct pollfd state = {.fd = fd};
	return poll(&state, 1, 0) == 1 && (state.revents & (POLLERR | POLLHUP));
}

/* Receive a write's data. Looks before every step whether the asker is still there: what a reset leaves in the
 * socket must not be written any more. */
static int receive_data(int fd, struct sg *data, uint64_t deadline_ns)
{
	while (data->count) {
		if (is_reset(fd) || kv_now_ns() >= deadline_ns)
			return KV_TRANSFER_FAIL;
		ssize_t got = sg_recv(fd, data);
		if (got < 0)
			return KV_TRANSFER_FAIL;
		if (got == 0)
			poll(&(struct pollfd){.fd = fd, .events = POLLIN}, 1, kv_ms_until(deadline_ns));
	}
	return KV_OK;
}

static bool serve_write(struct data_conn *conn, uint64_t total)
{
	struct sg reply, data = {.iov = kv_arena_alloc(&conn->arena, conn->request->n_ranges * sizeof(struct iovec))};
	if (!data.iov)
		return false;
	push_ranges(conn, &data);
	if (receive_data(conn->fd, &data, kv_now_ns() + DATA_NS)) {
		complain(conn, "the data of a write did not come");
		return false;
	}
	return start_reply(conn, &reply, 0, KV_OK, total) && send_reply(conn, &reply);
}

static bool serve_request(struct data_conn *conn)
{
	uint64_t total;
	if (!total_of(conn->request, &total)) {
		complain(conn, "sizes overflow");
		return false;
	}
	uint32_t count = conn->request->n_ranges;
	conn->ranges = kv_arena_alloc(&conn->arena, count * sizeof(*conn->ranges));
	if (!conn->ranges)
		return false;
	int status = segments_pin_ranges(conn->segments, conn->request->segment, conn->request->ranges, count,
	                                 conn->ranges);
	if (status)
		return refuse(conn, status, total);
	bool go_on = conn->header.type == KVW_DATA_READ ? serve_read(conn, total) : serve_write(conn, total);
	segments_unpin_ranges(conn->segments, conn->ranges, count);
	return go_on;
}

void data_conn_serve(int fd, struct segments *segments, _Atomic uint64_t *idle_since_ns)
{
	struct data_conn conn = {
	        .fd = fd, .idle_since_ns = idle_since_ns, .segments = segments, .arena = {.limit = ARENA_LIMIT}};
	while (wait_for_request(&conn) && read_request(&conn) && serve_request(&conn))
		kv_arena_reset(&conn.arena, ARENA_KEEP);
	kv_arena_free(&conn.arena);
}
