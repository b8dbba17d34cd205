/* SPDX-License-Identifier: Apache-2.0 */
/* Host names and numbers to addresses of stream sockets; lists are freed by freeaddrinfo. Failures are logged. */
#ifndef KV_BASE_RESOLVE_H
#define KV_BASE_RESOLVE_H

#include <stdint.h>

struct addrinfo;

/* flags: getaddrinfo's AI_. Numbers take no time, a name as long as the resolver's own timeouts. KV_OK, or
 * KV_RPC_FAIL with errno. */
int kv_resolve(const char *host, uint16_t port, int flags, struct addrinfo **list);
/* The same, but a name at most until the deadline: KV_RPC_TIMEOUT then. Also KV_RPC_TIMEOUT, at once, while
 * KV_RESOLVING_MAX names that no one waits for any more are still being looked for. */
int kv_resolve_until(const char *host, uint16_t port, uint64_t deadline_ns, struct addrinfo **list);

#define KV_RESOLVING_MAX 64

#endif
