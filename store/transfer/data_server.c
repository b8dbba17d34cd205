/* SPDX-License-Identifier: Apache-2.0 */
#include "store/transfer/data_server.h"

#include <arpa/inet.h>
#include <errno.h>
#include <limits.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "kvstore_status.h"
#include "store/base/clock.h"
#include "store/base/fd.h"
#include "store/base/log.h"
#include "store/base/net.h"
#include "store/base/op_id.h"
#include "store/transfer/data_conn.h"

#define STACK_BYTES      ((size_t)512 << 10)
#define ACCEPT_CHECK_MS  10000
#define ACCEPT_PAUSE_MS  100
#define KEEPALIVE_IDLE_S 60
#define IDLE_NS          KV_NS_PER_S /* a peer that has sent nothing for so long hardly sends right now */

/* One accepted connection and its thread. */
struct served {
	struct served *next;
	struct data_server *server;
	pthread_t thread;
	int fd;
	_Atomic uint64_t idle_since_ns;
	bool leaving; /* its place is another's */
	bool ended;   /* the thread is about to return: join it */
};

struct data_server {
	struct segments *segments;
	int listen_fd, stop_fd;
	pthread_t acceptor;
	pthread_mutex_t lock; /* of what follows */
	struct served *connections;
	uint32_t count; /* of those that are not leaving */
	bool stopping;
};

/* --- connections --------------------------------------------------------------------------------------- */

static void *serve(void *arg)
{
	struct served *self = arg;
	struct data_server *server = self->server;

	data_conn_serve(self->fd, server->segments, &self->idle_since_ns);
	pthread_mutex_lock(&server->lock);
	shutdown(self->fd, SHUT_RDWR);
	close(self->fd);
	self->fd = -1;
	self->ended = true;
	pthread_mutex_unlock(&server->lock);
	return NULL;
}

/* Take the connections whose threads ended (or all) off the list. */
static struct served *take_off(struct data_server *server, bool all)
{
	struct served *taken = NULL;
	pthread_mutex_lock(&server->lock);
	for (struct served **link = &server->connections; *link;) {
		struct served *conn = *link;
		if (!all && !conn->ended) {
			link = &conn->next;
			continue;
		}
		*link = conn->next;
		conn->next = taken;
		taken = conn;
		server->count -= !conn->leaving;
	}
	pthread_mutex_unlock(&server->lock);
	return taken;
}

static void join_all(struct served *list)
{
	while (list) {
		struct served *conn = list;
		list = conn->next;
		pthread_join(conn->thread, NULL);
		free(conn);
	}
}

static bool start_thread(struct served *conn)
{
	pthread_attr_t attr;
	if (pthread_attr_init(&attr))
		return false;
	pthread_attr_setstacksize(&attr, STACK_BYTES);
	int error = pthread_create(&conn->thread, &attr, serve, conn);
	pthread_attr_destroy(&attr);
	return error == 0;
}

static void set_options(int fd)
{
	int on = 1, idle = KEEPALIVE_IDLE_S;
	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
	setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on));
	setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof(idle));
}

/* Ends the connection that has been idle longest. False: none has been long enough to be unused. */
static bool make_place_locked(struct data_server *server)
{
	struct served *longest = NULL;
	uint64_t since = kv_now_ns() - IDLE_NS;
	for (struct served *conn = server->connections; conn; conn = conn->next) {
		uint64_t idle_since = atomic_load(&conn->idle_since_ns);
		if (conn->leaving || conn->fd < 0 || idle_since == 0 || idle_since >= since)
			continue;
		since = idle_since;
		longest = conn;
	}
	if (!longest)
		return false;
	longest->leaving = true;
	server->count--;
	shutdown(longest->fd, SHUT_RDWR);
	return true;
}

/* Called with the lock held: the thread finds its list entry complete. */
static bool adopt_locked(struct data_server *server, int fd)
{
	if (server->count >= DATA_SERVER_CONNECTIONS && !make_place_locked(server))
		return false;
	struct served *conn = calloc(1, sizeof(*conn));
	if (!conn)
		return false;
	conn->server = server;
	conn->fd = fd;
	atomic_store(&conn->idle_since_ns, kv_now_ns());
	if (!start_thread(conn)) {
		free(conn);
		return false;
	}
	conn->next = server->connections;
	server->connections = conn;
	server->count++;
	return true;
}

static void accept_one(struct data_server *server)
{
	int fd = kv_keep_off_stdio(accept4(server->listen_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK));
	if (fd < 0) {
		if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
			kv_warn("data server: accept: %s", strerror(errno));
			poll(&(struct pollfd){.fd = server->stop_fd, .events = POLLIN}, 1, ACCEPT_PAUSE_MS);
		}
		return;
	}
	set_options(fd);
	pthread_mutex_lock(&server->lock);
	bool stopping = server->stopping;
	bool adopted = !stopping && adopt_locked(server, fd);
	pthread_mutex_unlock(&server->lock);
	if (!adopted) {
		if (!stopping)
			kv_warn("data server: a connection is refused: %u busy connections, or no memory",
			        DATA_SERVER_CONNECTIONS);
		close(fd);
	}
}

static void *accept_connections(void *arg)
{
	struct data_server *server = arg;
	struct pollfd events[2] = {{.fd = server->listen_fd, .events = POLLIN},
	                           {.fd = server->stop_fd, .events = POLLIN}};
	for (;;) {
		int ready = poll(events, 2, ACCEPT_CHECK_MS);
		if (ready > 0 && events[1].revents)
			return NULL;
		join_all(take_off(server, false));
		if (ready > 0 && events[0].revents)
			accept_one(server);
	}
}

/* --- start and stop -------------------------------------------------------------------------------------- */

/* The address to bind: a literal one or localhost; a name may resolve to what peers do not use. */
static const char *bind_host(const char *host)
{
	unsigned char address[sizeof(struct in6_addr)];
	if (strcmp(host, "localhost") == 0 || inet_pton(AF_INET, host, address) == 1 ||
	    inet_pton(AF_INET6, host, address) == 1)
		return host;
	return "";
}

static int listen_at(const char *host, uint16_t port, uint16_t *bound)
{
	int fd = kv_listen(host, port, bound);
	if (fd < 0 && *host && errno == EADDRNOTAVAIL) {
		kv_info("data server: %s is not an address of this host; listening on all", host);
		fd = kv_listen("", port, bound);
	}
	return fd;
}

static int listen_somewhere(const char *host, uint16_t *port, uint16_t port_min, uint16_t port_max)
{
	host = bind_host(host);
	if (*port)
		return listen_at(host, *port, port);
	if (port_min == 0 || port_max < port_min)
		return listen_at(host, 0, port);
	for (int i = 0; i < DATA_SERVER_TRIES; i++) {
		uint16_t candidate = (uint16_t)(port_min + kv_op_id_new() % (uint64_t)(port_max - port_min + 1));
		int fd = listen_at(host, candidate, port);
		if (fd >= 0 || errno != EADDRINUSE)
			return fd;
	}
	return -1;
}

int data_server_start(struct data_server **out, struct segments *segments, const char *host, uint16_t *port,
                      uint16_t port_min, uint16_t port_max)
{
	struct data_server *server = calloc(1, sizeof(*server));
	if (!server)
		return KV_INTERNAL_ERROR;
	server->segments = segments;
	pthread_mutex_init(&server->lock, NULL);
	server->listen_fd = listen_somewhere(host, port, port_min, port_max);
	if (server->listen_fd < 0)
		kv_error("data server: cannot listen on %s port %u: %s", host, (unsigned)*port, strerror(errno));
	server->stop_fd = kv_keep_off_stdio(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
	if (server->listen_fd >= 0 && server->stop_fd >= 0 &&
	    pthread_create(&server->acceptor, NULL, accept_connections, server) == 0) {
		*out = server;
		return KV_OK;
	}
	if (server->listen_fd >= 0)
		close(server->listen_fd);
	if (server->stop_fd >= 0)
		close(server->stop_fd);
	pthread_mutex_destroy(&server->lock);
	free(server);
	return KV_INTERNAL_ERROR;
}

void data_server_stop(struct data_server *server)
{
	if (!server)
		return;
	pthread_mutex_lock(&server->lock);
	server->stopping = true;
	for (struct served *conn = server->connections; conn; conn = conn->next)
		if (conn->fd >= 0)
			shutdown(conn->fd, SHUT_RDWR);
	pthread_mutex_unlock(&server->lock);
	eventfd_write(server->stop_fd, 1);
	pthread_join(server->acceptor, NULL);
	join_all(take_off(server, true));
	close(server->listen_fd);
	close(server->stop_fd);
	pthread_mutex_destroy(&server->lock);
	free(server);
}
