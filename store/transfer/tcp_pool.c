/* SPDX-License-Identifier: Apache-2.0 */
#include "store/transfer/tcp_pool.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "kvstore_status.h"
#include "store/base/clock.h"
#include "store/base/log.h"
#include "store/base/net.h"

void tcp_pool_init(struct tcp_pool *pool, uint64_t connect_ns)
{
	*pool = (struct tcp_pool){.connect_ns = connect_ns};
	pthread_mutex_init(&pool->lock, NULL);
}

void tcp_pool_destroy(struct tcp_pool *pool)
{
	while (pool->idle) {
		struct tcp_conn *conn = pool->idle;
		pool->idle = conn->next;
		tcp_conn_close(conn);
	}
	pthread_mutex_destroy(&pool->lock);
}

void tcp_conn_close(struct tcp_conn *conn)
{
	/* shutdown as well: a forked child may hold the descriptor too, and the peer must see the end now. */
	shutdown(conn->fd, SHUT_RDWR);
	close(conn->fd);
	free(conn);
}

bool tcp_is_quiet(int fd)
{
	char byte;
	return recv(fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) < 0 && (errno == EAGAIN || errno == EWOULDBLOCK);
}

static struct tcp_conn *take_idle(struct tcp_pool *pool, struct kv_str endpoint)
{
	struct tcp_conn *conn = NULL;
	pthread_mutex_lock(&pool->lock);
	for (struct tcp_conn **link = &pool->idle; *link; link = &(*link)->next) {
		if ((*link)->endpoint_len != endpoint.len ||
		    memcmp((*link)->endpoint, endpoint.ptr, endpoint.len) != 0)
			continue;
		conn = *link;
		*link = conn->next;
		pool->n_idle--;
		break;
	}
	pthread_mutex_unlock(&pool->lock);
	return conn;
}

static int parse_endpoint(struct kv_hostport *out, struct kv_str endpoint)
{
	char text[KV_ENDPOINT_MAX];
	if (endpoint.len >= sizeof(text) || memchr(endpoint.ptr, '\0', endpoint.len))
		return KV_INVALID_PARAMS;
	memcpy(text, endpoint.ptr, endpoint.len);
	text[endpoint.len] = '\0';
	return kv_hostport_parse(out, text) || out->port == 0 ? KV_INVALID_PARAMS : KV_OK;
}

/* The one end of every connect. result: the socket or a negative status. */
static int connect_is_over(struct tcp_conn *conn, int result)
{
	int status = result < 0 ? result : KV_OK;
	conn->is_connecting = false;
	conn->fd = result < 0 ? -1 : result;
	perf_result(&conn->connect_perf, 0, 0, status);
	PERF_END(TCP_CONNECT, &conn->connect_perf);
	if (status)
		kv_warn("cannot connect to %.*s: %s", (int)conn->endpoint_len, conn->endpoint,
		        status == KV_RPC_TIMEOUT      ? "timed out"
		        : status == KV_INVALID_PARAMS ? "bad address"
		                                      : "refused");
	return status;
}

static int begin_connect(struct tcp_conn *conn, struct kv_str endpoint)
{
	struct kv_hostport to;
	int status = parse_endpoint(&to, endpoint);
	if (status == KV_OK)
		status = kv_connect_begin(&conn->connecting, &to, conn->connect_until_ns);
	if (status)
		return connect_is_over(conn, status);
	conn->fd = conn->connecting.fd;
	return KV_OK;
}

static struct tcp_conn *new_conn(const struct tcp_pool *pool, struct kv_str endpoint, uint64_t op_id,
                                 uint64_t deadline_ns)
{
	struct tcp_conn *conn = malloc(sizeof(*conn) + endpoint.len);
	if (!conn)
		return NULL;
	uint64_t limit = kv_now_ns() + pool->connect_ns;
	*conn = (struct tcp_conn){.fd = -1,
	                          .is_connecting = true,
	                          .connect_until_ns = limit < deadline_ns ? limit : deadline_ns,
	                          .connect_perf = PERF_BEGIN(TCP_CONNECT, op_id, 0, 0),
	                          .endpoint_len = endpoint.len};
	memcpy(conn->endpoint, endpoint.ptr, endpoint.len);
	if (begin_connect(conn, endpoint) == KV_OK)
		return conn;
	free(conn);
	return NULL;
}

int tcp_conn_step(struct tcp_conn *conn)
{
	int result;
	if (!conn->is_connecting)
		return KV_OK;
	if (kv_connect_step(&conn->connecting, &result))
		return connect_is_over(conn, result);
	conn->fd = conn->connecting.fd;
	if (kv_now_ns() < conn->connect_until_ns)
		return TCP_CONN_PENDING;
	kv_connect_give_up(&conn->connecting);
	return connect_is_over(conn, KV_RPC_TIMEOUT);
}

void tcp_conn_abort(struct tcp_conn *conn)
{
	if (conn->is_connecting) {
		kv_connect_give_up(&conn->connecting);
		connect_is_over(conn, KV_RPC_TIMEOUT);
	} else if (conn->fd >= 0) {
		kv_close_abruptly(conn->fd);
	}
	free(conn);
}

struct tcp_conn *tcp_pool_take(struct tcp_pool *pool, struct kv_str endpoint, uint64_t op_id, uint64_t deadline_ns)
{
	struct tcp_conn *conn;
	while ((conn = take_idle(pool, endpoint)) && !tcp_is_quiet(conn->fd))
		tcp_conn_close(conn);
	return conn ? conn : new_conn(pool, endpoint, op_id, deadline_ns);
}

void tcp_pool_give(struct tcp_pool *pool, struct tcp_conn *conn)
{
	pthread_mutex_lock(&pool->lock);
	bool room = pool->n_idle < TCP_POOL_IDLE_MAX;
	if (room) {
		conn->next = pool->idle;
		pool->idle = conn;
		pool->n_idle++;
	}
	pthread_mutex_unlock(&pool->lock);
	if (!room)
		tcp_conn_close(conn);
}
