/* SPDX-License-Identifier: Apache-2.0 */
#include "store/client/membership.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "kvstore_status.h"
#include "store/base/clock.h"
#include "store/base/log.h"
#include "store/base/op_id.h"

#define PING_INTERVAL_NS KV_NS_PER_S
#define PING_LIMIT_NS    (3 * KV_NS_PER_S)
#define LEAVE_LIMIT_NS   (3 * KV_NS_PER_S)
#define FAILURES_TO_WARN 3

struct membership {
	struct master_conn *master;
	struct kv_id client;
	struct kvm_segment *segments;
	uint32_t n_segments;
	pthread_t pinger;
	pthread_mutex_t lock;
	pthread_cond_t wake;
	bool leaving;
};

static int mount_segments(struct membership *self, uint64_t op_id, struct kv_arena *arena)
{
	struct kvm_mount_req request = {
	        .client = self->client, .segments = self->segments, .n_segments = self->n_segments};
	void *response;

	int status = master_conn_call(self->master, KVW_MOUNT_SEGMENT, op_id, &request, &response, arena);
	return status ? status : ((struct kvm_count_resp *)response)->status;
}

static int ping(struct membership *self, uint64_t op_id, bool *need_remount, struct kv_arena *arena)
{
	struct kvm_client_req request = {.client = self->client};
	void *message;

	int status = master_conn_call_within(self->master, PING_LIMIT_NS, KVW_PING, op_id, &request, &message, arena);
	if (status)
		return status;
	const struct kvm_ping_resp *response = message;
	*need_remount = response->need_remount;
	return response->status;
}

int membership_ping(struct membership *self, uint64_t op_id)
{
	struct kv_arena arena = {0};
	bool need_remount;
	int status = ping(self, op_id, &need_remount, &arena);
	kv_arena_free(&arena);
	return status;
}

/* False: it is time to leave. */
static bool sleep_until_next(struct membership *self)
{
	struct timespec until;
	clock_gettime(CLOCK_MONOTONIC, &until);
	until.tv_sec += PING_INTERVAL_NS / KV_NS_PER_S;
	pthread_mutex_lock(&self->lock);
	while (!self->leaving && pthread_cond_timedwait(&self->wake, &self->lock, &until) == 0)
		;
	bool go_on = !self->leaving;
	pthread_mutex_unlock(&self->lock);
	return go_on;
}

/* One ping of the background thread, with what follows from its answer. */
static void ping_once(struct membership *self, unsigned *failures, struct kv_arena *arena)
{
	bool need_remount = false;
	uint64_t op_id = kv_op_id_new();
	int status = ping(self, op_id, &need_remount, arena);

	if (status) {
		if (++*failures == FAILURES_TO_WARN)
			kv_warn("the master does not answer pings (%d); trying on", status);
		return;
	}
	if (*failures >= FAILURES_TO_WARN)
		kv_warn("the master answers again");
	*failures = 0;
	if (!need_remount)
		return;
	status = mount_segments(self, op_id, arena);
	if (status)
		kv_warn("mounting the segments again failed (%d); trying on", status);
	else
		kv_warn("the master had forgotten this client; its segments are mounted again, empty");
}

static void *keep_alive(void *arg)
{
	struct membership *self = arg;
	struct kv_arena arena = {0};
	unsigned failures = 0;

	while (sleep_until_next(self)) {
		ping_once(self, &failures, &arena);
		kv_arena_reset(&arena, 1 << 16);
	}
	kv_arena_free(&arena);
	return NULL;
}

static void free_membership(struct membership *self)
{
	pthread_cond_destroy(&self->wake);
	pthread_mutex_destroy(&self->lock);
	free(self->segments);
	free(self);
}

static struct membership *new_membership(struct master_conn *master, struct kv_id client,
                                         const struct kvm_segment *segments, uint32_t count)
{
	struct membership *self = calloc(1, sizeof(*self));
	if (!self)
		return NULL;
	self->segments = calloc(count ? count : 1, sizeof(*segments));
	if (!self->segments) {
		free(self);
		return NULL;
	}
	if (count)
		memcpy(self->segments, segments, count * sizeof(*segments));
	self->n_segments = count;
	self->master = master;
	self->client = client;
	pthread_mutex_init(&self->lock, NULL);
	pthread_condattr_t attr;
	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(&self->wake, &attr);
	pthread_condattr_destroy(&attr);
	return self;
}

static void unmount_segments(struct membership *self, uint64_t op_id, struct kv_arena *arena)
{
	for (uint32_t i = 0; i < self->n_segments; i++) {
		struct kvm_unmount_req request = {.client = self->client, .segment = self->segments[i].id};
		void *message;
		int status = master_conn_call_within(self->master, LEAVE_LIMIT_NS, KVW_UNMOUNT_SEGMENT, op_id,
		                                     &request, &message, arena);
		if (status == KV_OK)
			status = ((struct kvm_count_resp *)message)->status;
		if (status) {
			kv_warn("the segment could not be unmounted (%d); the master will notice by itself", status);
			return;
		}
	}
}

int membership_join(struct membership **out, struct master_conn *master, struct kv_id client,
                    const struct kvm_segment *segments, uint32_t count, uint64_t op_id)
{
	struct kv_arena arena = {0};
	struct membership *self = new_membership(master, client, segments, count);
	if (!self)
		return KV_INTERNAL_ERROR;
	int status = mount_segments(self, op_id, &arena);
	if (status == KV_OK && pthread_create(&self->pinger, NULL, keep_alive, self)) {
		unmount_segments(self, op_id, &arena);
		status = KV_INTERNAL_ERROR;
	}
	kv_arena_free(&arena);
	if (status) {
		free_membership(self);
		return status;
	}
	*out = self;
	return KV_OK;
}

void membership_leave(struct membership *self, uint64_t op_id)
{
	if (!self)
		return;
	pthread_mutex_lock(&self->lock);
	self->leaving = true;
	pthread_cond_signal(&self->wake);
	pthread_mutex_unlock(&self->lock);
	pthread_join(self->pinger, NULL);
	struct kv_arena arena = {0};
	unmount_segments(self, op_id, &arena);
	kv_arena_free(&arena);
	free_membership(self);
}
