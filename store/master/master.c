/* SPDX-License-Identifier: Apache-2.0 */
/* The master's life: configuration and background threads. What it answers is in rpc.c. */
#include <stdlib.h>

#include "store/base/clock.h"
#include "store/base/log.h"
#include "store/base/op_id.h"
#include "store/base/thread.h"
#include "store/master/master_private.h"

#define EVICT_CHECK_NS   (10 * KV_NS_PER_MS)
#define MONITOR_CHECK_NS (1 * KV_NS_PER_S)
/* After a run the evictor rests this many times as long, so that a pool full of leased objects does not take
 * a processor. */
#define EVICT_REST 4

void master_config_default(struct master_config *config)
{
	*config = (struct master_config){
	        .kv_lease_ttl_ms = 10000,
	        .soft_pin_ttl_ms = 30 * 60 * 1000,
	        .max_soft_pin_ttl_ms = 24 * 3600 * 1000,
	        .allow_evict_soft_pinned = true,
	        .eviction_ratio = 0.05,
	        .eviction_high_watermark = 0.90,
	        .put_start_discard_ms = 30 * 1000,
	        .put_start_release_ms = 600 * 1000,
	        .client_ttl_ms = 10 * 1000,
	};
}

static uint64_t ns_of(uint64_t ms)
{
	/* Beyond a century it does not matter any more. */
	const uint64_t most = 100ull * 365 * 24 * 3600 * 1000;
	return (ms < most ? ms : most) * KV_NS_PER_MS;
}

static struct meta_config meta_config_of(const struct master_config *config)
{
	return (struct meta_config){
	        .lease_ttl_ns = ns_of(config->kv_lease_ttl_ms),
	        .soft_pin_ttl_ns = ns_of(config->soft_pin_ttl_ms),
	        .max_soft_pin_ttl_ns = ns_of(config->max_soft_pin_ttl_ms),
	        .evict_soft_pinned = config->allow_evict_soft_pinned,
	        .eviction_ratio = config->eviction_ratio,
	        .eviction_high_watermark = config->eviction_high_watermark,
	        .discard_ns = ns_of(config->put_start_discard_ms),
	        .release_ns = ns_of(config->put_start_release_ms),
	        .client_ttl_ns = ns_of(config->client_ttl_ms),
	};
}

/* False: the master is stopping. */
static bool rest_until(struct master *master, uint64_t until_ns)
{
	struct timespec until = {.tv_sec = (time_t)(until_ns / KV_NS_PER_S),
	                         .tv_nsec = (long)(until_ns % KV_NS_PER_S)};
	pthread_mutex_lock(&master->lock);
	while (!master->stopping && pthread_cond_timedwait(&master->stop, &master->lock, &until) == 0)
		;
	bool go_on = !master->stopping;
	pthread_mutex_unlock(&master->lock);
	return go_on;
}

static void *run_evictor(void *arg)
{
	struct master *master = arg;
	uint64_t next = kv_now_ns() + EVICT_CHECK_NS;
	while (rest_until(master, next)) {
		uint64_t before = kv_now_ns(), after = before;
		if (meta_evict_due(master->meta)) {
			uint64_t freed = meta_evict(master->meta, kv_op_id_new(), before);
			after = kv_now_ns();
			kv_trace("eviction freed %llu bytes", (unsigned long long)freed);
		}
		uint64_t rest = (after - before) * EVICT_REST;
		next = after + (rest > EVICT_CHECK_NS ? rest : EVICT_CHECK_NS);
	}
	return NULL;
}

static void *run_monitor(void *arg)
{
	struct master *master = arg;
	while (rest_until(master, kv_now_ns() + MONITOR_CHECK_NS)) {
		uint64_t now = kv_now_ns();
		meta_monitor_clients(master->meta, kv_op_id_new(), now);
		uint64_t released = meta_discard_expired(master->meta, kv_op_id_new(), now);
		if (released)
			kv_warn("released the space of %llu puts that were never completed",
			        (unsigned long long)released);
	}
	return NULL;
}

static bool start_threads(struct master *master)
{
	int error = kv_thread_start(&master->evictor, run_evictor, master, "kv-evict");
	if (!error) {
		master->has_evictor = true;
		error = kv_thread_start(&master->monitor, run_monitor, master, "kv-monitor");
		master->has_monitor = error == 0;
	}
	if (error)
		kv_error("master: cannot start a thread (error %d)", error);
	return error == 0;
}

struct master *master_create(const struct master_config *config)
{
	struct master *master = calloc(1, sizeof(*master));
	if (!master)
		return NULL;
	pthread_condattr_t monotonic;
	pthread_condattr_init(&monotonic);
	pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
	pthread_mutex_init(&master->lock, NULL);
	pthread_cond_init(&master->stop, &monotonic);
	pthread_condattr_destroy(&monotonic);

	struct meta_config meta_config = meta_config_of(config);
	master->id = kv_id_new();
	master->meta = meta_create(&meta_config);
	if (!master->meta || !start_threads(master)) {
		master_destroy(master);
		return NULL;
	}
	return master;
}

void master_destroy(struct master *master)
{
	if (!master)
		return;
	pthread_mutex_lock(&master->lock);
	master->stopping = true;
	pthread_cond_broadcast(&master->stop);
	pthread_mutex_unlock(&master->lock);
	if (master->has_evictor)
		pthread_join(master->evictor, NULL);
	if (master->has_monitor)
		pthread_join(master->monitor, NULL);
	meta_destroy(master->meta);
	pthread_cond_destroy(&master->stop);
	pthread_mutex_destroy(&master->lock);
	free(master);
}
