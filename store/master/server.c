/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The master on the wire: one thread accepts, workers serve. A connection belongs to one worker for its life,
 * so nothing about it is locked. What arrives is gathered until a frame is whole; then it is served and
 * answered before the next one is looked at, so a peer that does not read its answers stops being served
 * (and is closed when it does not read for as long as it may be in the middle of a frame).
 */
#include <errno.h>
#include <inttypes.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "kvstore_status.h"
#include "store/base/clock.h"
#include "store/base/log.h"
#include "store/base/net.h"
#include "store/base/thread.h"
#include "store/master/connection.h"
#include "store/master/master_private.h"

#define MAX_THREADS    256
#define EVENTS_AT_ONCE 64
#define CHECK_MS       250               /* how often the time limits of connections are looked at */
#define ACCEPT_REST_MS 100               /* when there are no descriptors or no memory left */
#define ARENA_KEPT     ((size_t)8 << 20) /* bytes a worker keeps between requests */

struct worker {
	struct master_server *server;
	pthread_t thread;
	int epoll;
	int wake; /* eventfd: new connections, or the end */
	pthread_mutex_t lock;
	struct connection *arrived; /* accepted, not taken yet */
	struct connection *connections;
	struct kv_arena arena;
};

struct master_server {
	struct master *master;
	struct master_server_limits limits;
	int listener;
	uint16_t port;
	int stop_event;
	atomic_bool stopping;
	pthread_t acceptor;
	bool has_acceptor;
	atomic_uint n_connections;
	_Atomic uint64_t rejected;
	struct connection_budget budget;
	int n_workers; /* whose thread runs */
	struct worker workers[];
};

void master_server_limits_default(struct master_server_limits *limits)
{
	*limits = (struct master_server_limits){
	        .connections = 16384,
	        .frame_ms = 30000,
	        .buffered_bytes = (uint64_t)1 << 30,
	        .thread_arena = (uint64_t)512 << 20,
	};
}

static void wake(int event)
{
	uint64_t one = 1;
	ssize_t written;
	do {
		written = write(event, &one, sizeof(one));
	} while (written < 0 && errno == EINTR);
}

/* --- one connection -------------------------------------------------------------------------------- */

static void close_connection(struct worker *worker, struct connection *connection, const char *reason)
{
	struct master_server *server = worker->server;
	if (reason) {
		atomic_fetch_add(&server->rejected, 1);
		kv_warn("closing %s: %s", connection->peer, reason);
	}
	if (connection->after)
		connection->after->before = connection->before;
	if (connection->before)
		connection->before->after = connection->after;
	else
		worker->connections = connection->after;
	connection_destroy(connection);
	atomic_fetch_sub(&server->n_connections, 1);
}

/* Decode and serve one request: the answer's frame, in the worker's arena. NULL and *why: close. */
static uint8_t *serve_frame(struct worker *worker, const struct kvw_header *header, const uint8_t *payload,
                            size_t *size, const char **why)
{
	void *request, *response;
	struct kv_arena *arena = &worker->arena;
	struct kvw_header answer = {
	        .type = header->type, .flags = KVW_RESPONSE, .request = header->request, .op_id = header->op_id};
	if (header->flags & KVW_RESPONSE) {
		*why = "an answer where a request belongs";
		return NULL;
	}
	int status = kvw_payload_decode(arena, header, payload, &request, why);
	if (status == KV_INVALID_PARAMS)
		return NULL;
	if (status == KV_OK) {
		status = master_call(worker->server->master, header->type, header->op_id, request, &response, arena);
		if (status == KV_INVALID_PARAMS) {
			*why = "not a request for a master";
			return NULL;
		}
	}
	uint8_t *frame;
	if (status == KV_OK)
		status = kvw_frame_encode(arena, &answer, response, &frame, size, why);
	if (status == KV_OK)
		return frame;
	/* Too large an answer, or no memory: that is said in an answer of its own, for which memory is kept. */
	kv_warn("%s from a peer: %s", kvw_type_name(header->type), *why ? *why : "no memory");
	if (status == KV_INVALID_PARAMS)
		status = KV_BUFFER_OVERFLOW;
	kv_arena_reset(arena, ARENA_KEPT);
	response = master_failure_response(status, arena);
	if (!response || kvw_frame_encode(arena, &answer, response, &frame, size, why)) {
		*why = "no memory for an answer";
		return NULL;
	}
	return frame;
}

/* Serve the whole frames at hand, until one's answer cannot be sent at once. NULL, or the reason to close. */
static const char *serve_arrived(struct worker *worker, struct connection *connection)
{
	const char *why = NULL;
	struct kvw_header header;
	const uint8_t *payload;
	while (!connection_has_output(connection) && connection_next_frame(connection, &header, &payload, &why)) {
		size_t size;
		uint8_t *frame = serve_frame(worker, &header, payload, &size, &why);
		if (frame)
			why = connection_send(connection, frame, size);
		connection_frame_done(connection);
		kv_arena_reset(&worker->arena, ARENA_KEPT);
		if (why)
			return why;
	}
	return why;
}

static void watch(struct worker *worker, struct connection *connection)
{
	uint32_t wanted = connection_has_output(connection) ? EPOLLOUT : EPOLLIN;
	if (connection->watched == wanted)
		return;
	struct epoll_event event = {.events = wanted, .data.ptr = connection};
	epoll_ctl(worker->epoll, EPOLL_CTL_MOD, connection->fd, &event);
	connection->watched = wanted;
}

static void on_ready(struct worker *worker, struct connection *connection, uint32_t events)
{
	const char *why = NULL;
	/* Reset by a peer that gave up: what it asked for is not served, since it takes that as failed. */
	if (events & (EPOLLERR | EPOLLHUP)) {
		close_connection(worker, connection, NULL);
		return;
	}
	if (connection_has_output(connection))
		why = connection_flush(connection);
	else
		why = connection_receive(connection);
	if (!why)
		why = serve_arrived(worker, connection);
	/* A peer that sends no more may still be reading its answer. */
	bool over = connection->ended && !connection_has_output(connection);
	if (!why && over && connection_is_mid_frame(connection))
		why = "end in the middle of a frame";
	if (why || over)
		close_connection(worker, connection, why);
	else
		watch(worker, connection);
}

/* --- workers ---------------------------------------------------------------------------------------- */

static void take_arrived(struct worker *worker)
{
	uint64_t count;
	while (read(worker->wake, &count, sizeof(count)) < 0 && errno == EINTR)
		;
	pthread_mutex_lock(&worker->lock);
	struct connection *arrived = worker->arrived;
	worker->arrived = NULL;
	pthread_mutex_unlock(&worker->lock);
	while (arrived) {
		struct connection *connection = arrived;
		arrived = connection->after;
		connection->before = NULL;
		connection->after = worker->connections;
		if (worker->connections)
			worker->connections->before = connection;
		worker->connections = connection;
		struct epoll_event event = {.events = EPOLLIN, .data.ptr = connection};
		connection->watched = EPOLLIN;
		if (epoll_ctl(worker->epoll, EPOLL_CTL_ADD, connection->fd, &event))
			close_connection(worker, connection, "cannot be watched");
	}
}

static void check_limits(struct worker *worker)
{
	uint64_t now = kv_now_ns(), limit = worker->server->limits.frame_ms * KV_NS_PER_MS;
	struct connection *after;
	for (struct connection *connection = worker->connections; connection; connection = after) {
		after = connection->after;
		const char *why = connection_overdue(connection, now, limit);
		if (why)
			close_connection(worker, connection, why);
	}
}

static void *run_worker(void *arg)
{
	struct worker *worker = arg;
	struct epoll_event events[EVENTS_AT_ONCE];
	uint64_t next_check = kv_now_ns() + CHECK_MS * KV_NS_PER_MS;
	while (!atomic_load(&worker->server->stopping)) {
		int n = epoll_wait(worker->epoll, events, EVENTS_AT_ONCE, kv_ms_until(next_check));
		for (int i = 0; i < n; i++) {
			/* Only its own event can close a connection, so none of the later ones is stale. */
			if (events[i].data.ptr)
				on_ready(worker, events[i].data.ptr, events[i].events);
			else
				take_arrived(worker);
		}
		if (kv_now_ns() >= next_check) {
			check_limits(worker);
			next_check = kv_now_ns() + CHECK_MS * KV_NS_PER_MS;
		}
	}
	while (worker->connections)
		close_connection(worker, worker->connections, NULL);
	return NULL;
}

/* --- accepting -------------------------------------------------------------------------------------- */

static void admit(struct master_server *server, int fd, const struct sockaddr_storage *address, uint32_t turn)
{
	struct worker *worker = &server->workers[turn % (uint32_t)server->n_workers];
	struct connection *connection = NULL;
	char peer[KV_ENDPOINT_MAX];
	connection_peer_name(peer, address);
	if (atomic_load(&server->n_connections) < server->limits.connections)
		connection = connection_create(fd, peer, &server->budget);
	if (!connection) {
		uint64_t rejected = atomic_fetch_add(&server->rejected, 1) + 1;
		kv_warn("refusing %s: %u connections, or no memory (%" PRIu64 " refused or closed so far)", peer,
		        atomic_load(&server->n_connections), rejected);
		close(fd);
		return;
	}
	int on = 1;
	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
	setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on));
	atomic_fetch_add(&server->n_connections, 1);
	pthread_mutex_lock(&worker->lock);
	connection->after = worker->arrived;
	worker->arrived = connection;
	pthread_mutex_unlock(&worker->lock);
	wake(worker->wake);
}

static void *run_acceptor(void *arg)
{
	struct master_server *server = arg;
	uint32_t turn = 0;
	while (!atomic_load(&server->stopping)) {
		struct pollfd fds[] = {{.fd = server->listener, .events = POLLIN},
		                       {.fd = server->stop_event, .events = POLLIN}};
		if (poll(fds, 2, -1) < 0 || !(fds[0].revents & POLLIN))
			continue;
		struct sockaddr_storage address = {.ss_family = AF_UNSPEC};
		socklen_t length = sizeof(address);
		int fd =
		        accept4(server->listener, (struct sockaddr *)&address, &length, SOCK_NONBLOCK | SOCK_CLOEXEC);
		if (fd >= 0) {
			admit(server, fd, &address, turn++);
		} else if (errno != EAGAIN && errno != EINTR && errno != ECONNABORTED) {
			kv_error("cannot accept connections: %s; trying again", strerrordesc_np(errno));
			poll(&fds[1], 1, ACCEPT_REST_MS);
		}
	}
	return NULL;
}

/* --- life -------------------------------------------------------------------------------------------- */

/* 0 or an errno value. The worker counts as one only if its thread runs. */
static int start_worker(struct master_server *server)
{
	struct worker *worker = &server->workers[server->n_workers];
	*worker = (struct worker){.server = server, .arena.limit = server->limits.thread_arena};
	worker->epoll = epoll_create1(EPOLL_CLOEXEC);
	worker->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	struct epoll_event event = {.events = EPOLLIN, .data.ptr = NULL};
	int error = 0;
	if (worker->epoll < 0 || worker->wake < 0 || epoll_ctl(worker->epoll, EPOLL_CTL_ADD, worker->wake, &event))
		error = errno;
	pthread_mutex_init(&worker->lock, NULL);
	if (!error)
		error = kv_thread_start(&worker->thread, run_worker, worker, "kv-rpc");
	if (!error) {
		server->n_workers++;
		return 0;
	}
	if (worker->epoll >= 0)
		close(worker->epoll);
	if (worker->wake >= 0)
		close(worker->wake);
	pthread_mutex_destroy(&worker->lock);
	return error;
}

static int start(struct master_server *server, const char *host, uint16_t port, int threads)
{
	int error = 0;
	server->stop_event = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (server->stop_event < 0)
		return errno;
	server->listener = kv_listen(host, port, &server->port);
	if (server->listener < 0)
		return errno;
	for (int i = 0; i < threads && !error; i++)
		error = start_worker(server);
	if (!error)
		error = kv_thread_start(&server->acceptor, run_acceptor, server, "kv-accept");
	server->has_acceptor = error == 0;
	return error;
}

struct master_server *master_server_start_limited(struct master *master, const char *host, uint16_t port, int threads,
                                                  const struct master_server_limits *limits)
{
	if (threads <= 0)
		threads = (int)sysconf(_SC_NPROCESSORS_ONLN);
	if (threads < 1 || threads > MAX_THREADS)
		threads = threads < 1 ? 1 : MAX_THREADS;
	struct master_server *server = calloc(1, sizeof(*server) + (size_t)threads * sizeof(server->workers[0]));
	if (!server)
		return NULL;
	server->master = master;
	server->limits = *limits;
	server->budget.limit = limits->buffered_bytes;
	server->listener = -1;
	int error = start(server, host, port, threads);
	if (error) {
		master_server_stop(server);
		errno = error;
		return NULL;
	}
	return server;
}

struct master_server *master_server_start(struct master *master, const char *host, uint16_t port, int threads)
{
	struct master_server_limits limits;
	master_server_limits_default(&limits);
	return master_server_start_limited(master, host, port, threads, &limits);
}

uint16_t master_server_port(const struct master_server *server)
{
	return server->port;
}

uint64_t master_server_rejected(const struct master_server *server)
{
	return atomic_load(&((struct master_server *)(uintptr_t)server)->rejected);
}

static void stop_worker(struct worker *worker)
{
	wake(worker->wake);
	pthread_join(worker->thread, NULL);
	while (worker->arrived) {
		struct connection *connection = worker->arrived;
		worker->arrived = connection->after;
		connection_destroy(connection);
	}
	close(worker->epoll);
	close(worker->wake);
	pthread_mutex_destroy(&worker->lock);
	kv_arena_free(&worker->arena);
}

void master_server_stop(struct master_server *server)
{
	if (!server)
		return;
	atomic_store(&server->stopping, true);
	if (server->stop_event >= 0)
		wake(server->stop_event);
	if (server->has_acceptor)
		pthread_join(server->acceptor, NULL);
	for (int i = 0; i < server->n_workers; i++)
		stop_worker(&server->workers[i]);
	if (server->listener >= 0)
		close(server->listener);
	if (server->stop_event >= 0)
		close(server->stop_event);
	free(server);
}
