/* SPDX-License-Identifier: Apache-2.0 */
/* Host names whose look-up takes for ever: no call waits for them beyond its time. getaddrinfo is this file's. */
#include "tests/unit/kv_cmocka.h"

#include <dlfcn.h>
#include <netdb.h>
#include <pthread.h>
#include <string.h>
#include <unistd.h>

#include "kvengine.h"
#include "store/base/clock.h"
#include "store/base/resolve.h"

#define SHORT_NS (50 * KV_NS_PER_MS)
#define LIMIT_S  60

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static bool answering;
static unsigned n_hanging;

static int hang(void)
{
	pthread_mutex_lock(&lock);
	n_hanging++;
	while (!answering)
		pthread_cond_wait(&changed, &lock);
	n_hanging--;
	pthread_cond_broadcast(&changed);
	pthread_mutex_unlock(&lock);
	return EAI_AGAIN;
}

int getaddrinfo(const char *host, const char *service, const struct addrinfo *hints, struct addrinfo **list)
{
	if (strcmp(host, "hangs") == 0)
		return hints->ai_flags & AI_NUMERICHOST ? EAI_NONAME : hang();
	int (*real)(const char *, const char *, const struct addrinfo *, struct addrinfo **) =
	        (int (*)(const char *, const char *, const struct addrinfo *, struct addrinfo **))dlsym(
	                RTLD_NEXT, "getaddrinfo");
	return real(host, service, hints, list);
}

/* The look-ups answer from now on, or not; returns when none of the old ones hangs any more. */
static void answer(bool on)
{
	pthread_mutex_lock(&lock);
	answering = on;
	pthread_cond_broadcast(&changed);
	while (on && n_hanging)
		pthread_cond_wait(&changed, &lock);
	pthread_mutex_unlock(&lock);
}

static int resolve(const char *host, uint64_t limit_ns)
{
	struct addrinfo *list;
	int status = kv_resolve_until(host, 80, kv_now_ns() + limit_ns, &list);
	if (status == KV_OK)
		freeaddrinfo(list);
	return status;
}

static void names_that_hang(void **state)
{
	(void)state;
	answer(false);
	assert_int_equal(resolve("127.0.0.1", SHORT_NS), KV_OK);
	assert_int_equal(resolve("::1", 0), KV_OK); /* numbers need no time at all */
	assert_int_equal(resolve("localhost", LIMIT_S * KV_NS_PER_S), KV_OK);
	for (int i = 0; i < KV_RESOLVING_MAX; i++)
		assert_int_equal(resolve("hangs", KV_NS_PER_MS), KV_RPC_TIMEOUT);
	/* no more threads for those: this would wait for an hour */
	assert_int_equal(resolve("hangs", 3600 * KV_NS_PER_S), KV_RPC_TIMEOUT);
	assert_int_equal(resolve("127.0.0.1", SHORT_NS), KV_OK);
	answer(true);
	/* the threads are gone or about to be */
	uint64_t give_up = kv_now_ns() + LIMIT_S * KV_NS_PER_S;
	int status;
	while ((status = resolve("hangs", LIMIT_S * KV_NS_PER_S)) == KV_RPC_TIMEOUT && kv_now_ns() < give_up)
		usleep(1000);
	assert_int_equal(status, KV_RPC_FAIL);
}

/* An engine's call to a host that is not found in time. */
static void a_peer_whose_name_hangs(void **state)
{
	(void)state;
	kvengine_config_t config = {.struct_size = sizeof(config)};
	kvengine_t *engine;
	char memory[16] = "";
	void *local = memory;
	uint64_t remote = 4096;
	size_t size = sizeof(memory);
	answer(false);
	assert_int_equal(kvengine_create(&engine, &config), 0);
	assert_int_equal(kvengine_register(engine, memory, sizeof(memory)), 0);
	assert_int_equal(kvengine_write(engine, "hangs:1", &local, &remote, &size, 1, 100), KV_TRANSFER_FAIL);
	assert_int_equal(kvengine_read(engine, "hangs:1", &local, &remote, &size, 1, 100), KV_TRANSFER_FAIL);
	kvengine_destroy(engine); /* while the look-ups still hang */
	answer(true);
}

int main(void)
{
	alarm(5 * LIMIT_S); /* instead of for ever */
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(names_that_hang),
	        cmocka_unit_test(a_peer_whose_name_hangs),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
