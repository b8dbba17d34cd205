/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sockets with deadlines. Every descriptor is close-on-exec and non-blocking; "deadline" is a kv_now_ns time.
 * The exception is kv_listen of a host name, which takes as long as the resolver's own timeouts.
 * Status results: KV_OK, KV_RPC_TIMEOUT (deadline passed), KV_RPC_FAIL (closed, refused, reset).
 */
#ifndef KV_BASE_NET_H
#define KV_BASE_NET_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

#define KV_ENDPOINT_MAX 280 /* host (253), brackets, port, NUL */

struct kv_hostport {
	char host[256];
	uint16_t port; /* 0: none given */
};

/* "host", "host:port", "[v6]", "[v6]:port". 0 or KV_INVALID_PARAMS. */
int kv_hostport_parse(struct kv_hostport *out, const char *text);
/* Writes host:port, with brackets around v6. */
void kv_hostport_format(char out[KV_ENDPOINT_MAX], const struct kv_hostport *hp);
/* A listening socket on host ("" or "0.0.0.0": all) and port (0: any). fd, or -1 with errno. *bound gets the port. */
int kv_listen(const char *host, uint16_t port, uint16_t *bound);
/* Connected socket, TCP_NODELAY, keepalive. fd, or a negative status. */
int kv_connect(const struct kv_hostport *to, uint64_t deadline_ns);
/* The same without waiting: begin, then step whenever fd may be writable, until step says that it is over. */
struct addrinfo;
struct kv_connecting {
	struct addrinfo *list, *next; /* the addresses of the name, and which is tried next */
	int fd;
};
/* KV_OK: under way. Else it is over already. Until the deadline at most it waits for a name to be resolved. */
int kv_connect_begin(struct kv_connecting *connecting, const struct kv_hostport *to, uint64_t deadline_ns);
/* False: not yet; poll fd for POLLOUT. True: over, *result is the socket or a negative status. */
bool kv_connect_step(struct kv_connecting *connecting, int *result);
/* Ends what is under way. */
void kv_connect_give_up(struct kv_connecting *connecting);
/* Close with a reset: what was sent and not read yet is worth nothing any more, and the peer is to know. */
void kv_close_abruptly(int fd);
/* All of it or a negative status. */
int kv_send_all(int fd, const struct iovec *iov, size_t count, uint64_t deadline_ns);
int kv_recv_all(int fd, void *buf, size_t size, uint64_t deadline_ns);

#endif
