/* SPDX-License-Identifier: Apache-2.0 */
#include "store/base/net.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "kvstore_status.h"
#include "store/base/clock.h"
#include "store/base/fd.h"
#include "store/base/log.h"
#include "store/base/parse.h"
#include "store/base/resolve.h"

#define LISTEN_BACKLOG 1024
#define IOV_AT_ONCE    256

static int parse_port(uint16_t *port, const char *text)
{
	uint64_t value;
	if (*text < '0' || *text > '9' || kv_parse_u64(&value, text) || value > UINT16_MAX)
		return KV_INVALID_PARAMS;
	*port = (uint16_t)value;
	return KV_OK;
}

int kv_hostport_parse(struct kv_hostport *out, const char *text)
{
	const char *host = text, *port = NULL;
	size_t len;
	if (*text == '[') {
		const char *bracket = strchr(text, ']');
		if (!bracket || (bracket[1] != '\0' && bracket[1] != ':'))
			return KV_INVALID_PARAMS;
		host = text + 1;
		len = (size_t)(bracket - host);
		if (bracket[1] == ':')
			port = bracket + 2;
	} else {
		const char *colon = strchr(text, ':');
		/* A second colon: a bare IPv6 address, all of it host. */
		bool bare_v6 = colon && strchr(colon + 1, ':');
		len = colon && !bare_v6 ? (size_t)(colon - text) : strlen(text);
		if (colon && !bare_v6)
			port = colon + 1;
	}
	if (len == 0 || len >= sizeof(out->host))
		return KV_INVALID_PARAMS;
	for (size_t i = 0; i < len; i++) {
		if ((unsigned char)host[i] <= ' ' || host[i] == 0x7f || host[i] == '[' || host[i] == ']')
			return KV_INVALID_PARAMS;
	}
	struct kv_hostport result = {.port = 0};
	if (port && parse_port(&result.port, port))
		return KV_INVALID_PARAMS;
	memcpy(result.host, host, len);
	*out = result;
	return KV_OK;
}

void kv_hostport_format(char out[KV_ENDPOINT_MAX], const struct kv_hostport *hp)
{
	bool v6 = strchr(hp->host, ':');
	snprintf(out, KV_ENDPOINT_MAX, "%s%s%s:%u", v6 ? "[" : "", hp->host, v6 ? "]" : "", (unsigned)hp->port);
}

void kv_close_abruptly(int fd)
{
	struct linger at_once = {.l_onoff = 1, .l_linger = 0};
	setsockopt(fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once));
	/* shutdown as well: a forked child may hold the descriptor too. */
	shutdown(fd, SHUT_RDWR);
	close(fd);
}

static int listen_on(const struct addrinfo *address, uint16_t *bound)
{
	int fd = kv_keep_off_stdio(socket(address->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
	if (fd < 0)
		return -1;
	int on = 1, off = 0;
	setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
	if (address->ai_family == AF_INET6)
		setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off));
	struct sockaddr_storage name;
	socklen_t len = sizeof(name);
	if (bind(fd, address->ai_addr, address->ai_addrlen) || listen(fd, LISTEN_BACKLOG) ||
	    getsockname(fd, (struct sockaddr *)&name, &len)) {
		int error = errno;
		close(fd);
		errno = error;
		return -1;
	}
	*bound = ntohs(name.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&name)->sin6_port
	                                          : ((struct sockaddr_in *)&name)->sin_port);
	return fd;
}

static int listen_on_first(const char *host, uint16_t port, uint16_t *bound)
{
	struct addrinfo *list;
	if (kv_resolve(host, port, AI_PASSIVE, &list))
		return -1;
	int fd = -1;
	for (const struct addrinfo *address = list; address && fd < 0; address = address->ai_next)
		fd = listen_on(address, bound);
	int error = errno;
	freeaddrinfo(list);
	errno = error;
	return fd;
}

int kv_listen(const char *host, uint16_t port, uint16_t *bound)
{
	if (*host)
		return listen_on_first(host, port, bound);
	/* Both families by one socket, where there is IPv6. */
	int fd = listen_on_first("::", port, bound);
	if (fd < 0 && errno != EADDRINUSE && errno != EACCES)
		fd = listen_on_first("0.0.0.0", port, bound);
	return fd;
}

/* Until the socket is ready for events. KV_OK, KV_RPC_TIMEOUT or KV_RPC_FAIL. */
static int wait_for(int fd, short events, uint64_t deadline_ns)
{
	for (;;) {
		struct pollfd poller = {.fd = fd, .events = events};
		int ready = poll(&poller, 1, kv_ms_until(deadline_ns));
		if (ready > 0)
			return KV_OK; /* errors show at the next call on the socket */
		if (ready == 0 && kv_now_ns() >= deadline_ns)
			return KV_RPC_TIMEOUT;
		if (ready < 0 && errno != EINTR)
			return KV_RPC_FAIL;
	}
}

/* A socket with its connect begun, or -1. */
static int begin_with(const struct addrinfo *address)
{
	int fd = kv_keep_off_stdio(socket(address->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
	if (fd < 0) {
		kv_warn("no socket: %s", strerror(errno));
		return -1;
	}
	int on = 1;
	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
	setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on));
	/* An interrupted connect goes on by itself, like one in progress. */
	if (connect(fd, address->ai_addr, address->ai_addrlen) == 0 || errno == EINPROGRESS || errno == EINTR)
		return fd;
	close(fd);
	return -1;
}

/* Begin with the next address that takes it; false: there is none, and nothing is left to give up. */
static bool try_next(struct kv_connecting *connecting)
{
	connecting->fd = -1;
	while (connecting->fd < 0 && connecting->next) {
		connecting->fd = begin_with(connecting->next);
		connecting->next = connecting->next->ai_next;
	}
	if (connecting->fd < 0)
		freeaddrinfo(connecting->list);
	return connecting->fd >= 0;
}

int kv_connect_begin(struct kv_connecting *connecting, const struct kv_hostport *to, uint64_t deadline_ns)
{
	int status = kv_resolve_until(to->host, to->port, deadline_ns, &connecting->list);
	if (status)
		return status;
	connecting->next = connecting->list;
	return try_next(connecting) ? KV_OK : KV_RPC_FAIL;
}

bool kv_connect_step(struct kv_connecting *connecting, int *result)
{
	for (;;) {
		struct pollfd poller = {.fd = connecting->fd, .events = POLLOUT};
		if (poll(&poller, 1, 0) <= 0)
			return false;
		int error = 0;
		socklen_t len = sizeof(error);
		if (getsockopt(connecting->fd, SOL_SOCKET, SO_ERROR, &error, &len) == 0 && !error) {
			freeaddrinfo(connecting->list);
			*result = connecting->fd;
			return true;
		}
		close(connecting->fd);
		if (!try_next(connecting)) {
			*result = KV_RPC_FAIL;
			return true;
		}
	}
}

void kv_connect_give_up(struct kv_connecting *connecting)
{
	close(connecting->fd);
	freeaddrinfo(connecting->list);
}

int kv_connect(const struct kv_hostport *to, uint64_t deadline_ns)
{
	struct kv_connecting connecting;
	int result = kv_connect_begin(&connecting, to, deadline_ns);
	if (result)
		return result;
	while (!kv_connect_step(&connecting, &result)) {
		int status = wait_for(connecting.fd, POLLOUT, deadline_ns);
		if (status) {
			kv_connect_give_up(&connecting);
			return status;
		}
	}
	return result;
}

static bool would_block(int error)
{
	return error == EAGAIN || error == EWOULDBLOCK;
}

/* Leave out the first sent bytes of iov[0..count); returns how many whole entries they were. */
static size_t advance(struct iovec *iov, size_t count, size_t sent)
{
	size_t i = 0;
	while (i < count && sent >= iov[i].iov_len)
		sent -= iov[i++].iov_len;
	if (i < count) {
		iov[i].iov_base = (char *)iov[i].iov_base + sent;
		iov[i].iov_len -= sent;
	}
	return i;
}

static int send_some(int fd, struct iovec *iov, size_t count, uint64_t deadline_ns)
{
	while (count > 0) {
		struct msghdr message = {.msg_iov = iov, .msg_iovlen = count};
		ssize_t sent = sendmsg(fd, &message, MSG_NOSIGNAL);
		if (sent >= 0) {
			size_t done = advance(iov, count, (size_t)sent);
			iov += done;
			count -= done;
			if (count > 0 && kv_now_ns() >= deadline_ns)
				return KV_RPC_TIMEOUT;
		} else if (would_block(errno)) {
			int status = wait_for(fd, POLLOUT, deadline_ns);
			if (status)
				return status;
		} else if (errno != EINTR) {
			return KV_RPC_FAIL;
		}
	}
	return KV_OK;
}

int kv_send_all(int fd, const struct iovec *iov, size_t count, uint64_t deadline_ns)
{
	/* Copied in pieces, because a partial send changes the vector. */
	struct iovec piece[IOV_AT_ONCE];
	while (count > 0) {
		size_t n = count < IOV_AT_ONCE ? count : IOV_AT_ONCE;
		memcpy(piece, iov, n * sizeof(*iov));
		int status = send_some(fd, piece, n, deadline_ns);
		if (status)
			return status;
		iov += n;
		count -= n;
	}
	return KV_OK;
}

int kv_recv_all(int fd, void *buf, size_t size, uint64_t deadline_ns)
{
	char *at = buf;
	while (size > 0) {
		ssize_t got = recv(fd, at, size, 0);
		if (got > 0) {
			at += got;
			size -= (size_t)got;
			if (size > 0 && kv_now_ns() >= deadline_ns)
				return KV_RPC_TIMEOUT;
		} else if (got == 0) {
			return KV_RPC_FAIL;
		} else if (would_block(errno)) {
			int status = wait_for(fd, POLLIN, deadline_ns);
			if (status)
				return status;
		} else if (errno != EINTR) {
			return KV_RPC_FAIL;
		}
	}
	return KV_OK;
}
