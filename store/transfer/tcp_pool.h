/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Connections to peers' data servers. One is taken for one job and given back when the job ended with
 * nothing left on the wire; any other is closed. Thread-safe.
 */
#ifndef KV_TCP_POOL_H
#define KV_TCP_POOL_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "probes/perf_points.h"
#include "store/base/bytes.h"
#include "store/base/net.h"

#define TCP_POOL_IDLE_MAX 256

struct tcp_conn {
	struct tcp_conn *next;
	int fd;
	bool is_connecting; /* then the rest of these says how far it is */
	struct kv_connecting connecting;
	uint64_t connect_until_ns;
	struct perf_scope connect_perf;
	uint32_t endpoint_len;
	char endpoint[];
};

struct tcp_pool {
	pthread_mutex_t lock;
	struct tcp_conn *idle; /* the one used last comes first */
	uint32_t n_idle;
	uint64_t connect_ns; /* limit of one connect */
};

void tcp_pool_init(struct tcp_pool *pool, uint64_t connect_ns);
void tcp_pool_destroy(struct tcp_pool *pool);
/* An idle connection to the endpoint or a new one, which may still be connecting: nothing here waits for it, so that
 * no peer that is gone holds up the others. NULL: the peer cannot be reached (logged). */
struct tcp_conn *tcp_pool_take(struct tcp_pool *pool, struct kv_str endpoint, uint64_t op_id, uint64_t deadline_ns);
void tcp_pool_give(struct tcp_pool *pool, struct tcp_conn *conn);
/* KV_OK: connected. TCP_CONN_PENDING: poll fd for POLLOUT, until connect_until_ns at most. Negative: cannot be
 * reached (logged). */
#define TCP_CONN_PENDING 1
int tcp_conn_step(struct tcp_conn *conn);
void tcp_conn_close(struct tcp_conn *conn);
/* Close with a reset, so that the peer stops moving what it has of an unfinished transfer. */
void tcp_conn_abort(struct tcp_conn *conn);
/* False: the peer closed it, or sent what no one asked for. */
bool tcp_is_quiet(int fd);

#endif
