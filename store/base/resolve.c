/* SPDX-License-Identifier: Apache-2.0 */
#include "store/base/resolve.h"

#include <errno.h>
#include <netdb.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>

#include "kvstore_status.h"
#include "store/base/clock.h"
#include "store/base/log.h"
#include "store/base/thread.h"

#define SERVICE_SIZE 8

/* A look-up that a thread of its own makes, because getaddrinfo has no deadline. Whoever is second to leave it, the
 * thread or the one who waits, frees it. */
struct lookup {
	pthread_mutex_t lock;
	pthread_cond_t changed;
	bool done, abandoned;
	int error, system_error;
	struct addrinfo *list;
	char service[SERVICE_SIZE];
	char host[];
};

static atomic_uint n_abandoned; /* threads that no one waits for */

static int look_up(const char *host, const char *service, int flags, struct addrinfo **list)
{
	struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = flags | AI_NUMERICSERV};
	*list = NULL;
	return getaddrinfo(host, service, &hints, list);
}

static int failed(const char *host, int error, int system_error)
{
	kv_warn("cannot resolve %s: %s", host, error == EAI_SYSTEM ? strerror(system_error) : gai_strerror(error));
	errno = error == EAI_SYSTEM ? system_error : EADDRNOTAVAIL;
	return KV_RPC_FAIL;
}

int kv_resolve(const char *host, uint16_t port, int flags, struct addrinfo **list)
{
	char service[SERVICE_SIZE];
	snprintf(service, sizeof(service), "%u", (unsigned)port);
	int error = look_up(host, service, flags, list);
	return error ? failed(host, error, errno) : KV_OK;
}

static void free_lookup(struct lookup *lookup)
{
	if (lookup->list)
		freeaddrinfo(lookup->list);
	pthread_cond_destroy(&lookup->changed);
	pthread_mutex_destroy(&lookup->lock);
	free(lookup);
}

static void *run_lookup(void *arg)
{
	struct lookup *lookup = arg;
	struct addrinfo *list;
	int error = look_up(lookup->host, lookup->service, 0, &list);
	int system_error = errno;

	pthread_mutex_lock(&lookup->lock);
	lookup->list = list;
	lookup->error = error;
	lookup->system_error = system_error;
	lookup->done = true;
	bool abandoned = lookup->abandoned;
	pthread_cond_signal(&lookup->changed);
	pthread_mutex_unlock(&lookup->lock);
	if (abandoned) {
		free_lookup(lookup);
		atomic_fetch_sub(&n_abandoned, 1);
	}
	return NULL;
}

static struct lookup *new_lookup(const char *host, uint16_t port)
{
	size_t size = strlen(host) + 1;
	pthread_condattr_t attr;
	struct lookup *lookup = calloc(1, sizeof(*lookup) + size);
	if (!lookup)
		return NULL;
	memcpy(lookup->host, host, size);
	snprintf(lookup->service, sizeof(lookup->service), "%u", (unsigned)port);
	pthread_mutex_init(&lookup->lock, NULL);
	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(&lookup->changed, &attr);
	pthread_condattr_destroy(&attr);
	return lookup;
}

/* True: the thread has its answer, and left the look-up to the caller. */
static bool wait_for_answer(struct lookup *lookup, pthread_t thread, uint64_t deadline_ns)
{
	struct timespec until = {(time_t)(deadline_ns / KV_NS_PER_S), (long)(deadline_ns % KV_NS_PER_S)};
	int error = 0;
	pthread_mutex_lock(&lookup->lock);
	while (!lookup->done && error != ETIMEDOUT)
		error = pthread_cond_timedwait(&lookup->changed, &lookup->lock, &until);
	bool done = lookup->done;
	lookup->abandoned = !done;
	if (!done) {
		atomic_fetch_add(&n_abandoned, 1);
		pthread_detach(thread);
	}
	pthread_mutex_unlock(&lookup->lock);
	if (done)
		pthread_join(thread, NULL);
	return done;
}

static int resolve_name(const char *host, uint16_t port, uint64_t deadline_ns, struct addrinfo **list)
{
	pthread_t thread;
	int status = KV_OK;
	struct lookup *lookup = new_lookup(host, port);
	if (!lookup || kv_thread_start(&thread, run_lookup, lookup, "kv-resolve")) {
		kv_warn("cannot resolve %s: no memory or no thread", host);
		if (lookup)
			free_lookup(lookup);
		return KV_RPC_FAIL;
	}
	if (!wait_for_answer(lookup, thread, deadline_ns)) {
		kv_warn("cannot resolve %s: no answer in time", host);
		return KV_RPC_TIMEOUT;
	}
	if (lookup->error)
		status = failed(host, lookup->error, lookup->system_error);
	*list = lookup->list;
	lookup->list = NULL;
	free_lookup(lookup);
	return status;
}

int kv_resolve_until(const char *host, uint16_t port, uint64_t deadline_ns, struct addrinfo **list)
{
	char service[SERVICE_SIZE];
	snprintf(service, sizeof(service), "%u", (unsigned)port);
	if (look_up(host, service, AI_NUMERICHOST, list) == 0)
		return KV_OK;
	if (atomic_load(&n_abandoned) >= KV_RESOLVING_MAX) {
		kv_warn("cannot resolve %s: %u earlier names have no answer yet", host, KV_RESOLVING_MAX);
		return KV_RPC_TIMEOUT;
	}
	return resolve_name(host, port, deadline_ns, list);
}
