/* SPDX-License-Identifier: Apache-2.0 */
/* Clients and segments coming and going. */
#include "store/meta/meta_private.h"

#include <inttypes.h>

#include "probes/perf_points.h"
#include "store/base/log.h"

bool meta_ping(struct meta *meta, const struct meta_caller *caller)
{
	return !pool_ping(&meta->pool, caller->client, caller->now_ns);
}

int meta_mount(struct meta *meta, const struct meta_caller *caller, const struct kvm_segment *segments,
               uint32_t count, uint32_t *mounted)
{
	*mounted = 0;
	int status = pool_join(&meta->pool, caller->client, caller->now_ns);
	if (status)
		return status;
	for (uint32_t i = 0; i < count; i++) {
		int one = pool_mount(&meta->pool, caller->client, &segments[i]);
		if (one == KV_OK)
			*mounted += 1;
		else if (status == KV_OK)
			status = one;
	}
	return status;
}

/* After segments died: let go of every replica on them. Returns how many objects are gone. */
static uint64_t drop_dead_objects(struct meta *meta)
{
	uint64_t lost = 0;
	for (size_t i = 0; i < META_SHARDS; i++) {
		struct shard *shard = &meta->shards[i];
		pthread_mutex_lock(&shard->lock);
		for (size_t slot = 0; slot < shard->index.capacity;) {
			struct object *object = shard->index.slots[slot].object;
			if (object && object_drop_dead(object) == 0) {
				shard_drop(meta, shard, slot);
				lost++;
			} else {
				slot++;
			}
		}
		pthread_mutex_unlock(&shard->lock);
	}
	return lost;
}

int meta_unmount(struct meta *meta, const struct meta_caller *caller, struct kv_id segment, uint64_t *lost)
{
	*lost = 0;
	int status = pool_unmount(&meta->pool, caller->client, segment);
	if (status == KV_OK)
		*lost = drop_dead_objects(meta);
	return status;
}

/* One client that is dead and had segments. */
static void meta_unmount_client(struct meta *meta, uint64_t op_id, const struct pool_loss *loss)
{
	PERF_SCOPE(MASTER_BG_CLIENT_UNMOUNT, perf, op_id, 0, loss->bytes);
	uint64_t lost = drop_dead_objects(meta);
	kv_warn("client %016" PRIx64 "%016" PRIx64 " is dead: %" PRIu32 " segments of %" PRIu64 " bytes and %" PRIu64
	        " objects are gone",
	        loss->client.hi, loss->client.lo, loss->segments, loss->bytes, lost);
	perf_set(&perf, loss->bytes, lost, 0, KV_OK);
}

uint32_t meta_monitor_clients(struct meta *meta, uint64_t op_id, uint64_t now_ns)
{
	PERF_SCOPE(MASTER_BG_CLIENT_MONITOR, perf, op_id, 0, 0);
	struct pool_loss loss;
	uint32_t dead = 0;
	while (pool_forget_dead(&meta->pool, now_ns, meta->config.client_ttl_ns, &loss)) {
		dead++;
		/* A client without segments takes nothing with it; also one that left in good order ends here. */
		if (loss.segments > 0)
			meta_unmount_client(meta, op_id, &loss);
	}
	perf_set(&perf, 0, 0, 0, KV_OK);
	return dead;
}
