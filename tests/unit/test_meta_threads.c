/* SPDX-License-Identifier: Apache-2.0 */
/* Many threads at once. What is held against them: a shadow of the segments' memory, which says whose each unit is,
 * and the sums when everything is over. */
#include "tests/unit/meta_fixture.h"

#include <pthread.h>
#include <stdatomic.h>

#include "store/base/thread.h"
#include "store/meta/range_alloc.h"

enum { THREADS = 4, SEGMENTS = 3, KEYS = 300 };
#define SEGMENT_SIZE (256ull << 10)
#define UNITS        (SEGMENT_SIZE / RANGE_ALIGN)

struct world {
	struct meta *meta;
	_Atomic uint32_t shadow[SEGMENTS][UNITS];
	atomic_bool stop;
	_Atomic uint64_t puts, gets, gone;
	int steps;
	bool segments_stay;
};

struct player {
	struct world *world;
	uint32_t number;
	struct kv_arena arena;
};

/* Who owns a unit: the key, told apart by the put that wrote it. */
static void write_shadow(struct world *world, const struct meta_reply *reply, const struct kvm_replica *replica,
                         uint32_t tag)
{
	_Atomic uint32_t *units = world->shadow[reply->segments[replica->segment].id.lo - 1];
	for (uint64_t at = replica->offset; at < replica->offset + replica->size; at += RANGE_ALIGN)
		atomic_store_explicit(&units[at / RANGE_ALIGN], tag, memory_order_relaxed);
}

static bool shadow_is(struct world *world, const struct meta_reply *reply, const struct kvm_replica *replica,
                      uint32_t tag)
{
	_Atomic uint32_t *units = world->shadow[reply->segments[replica->segment].id.lo - 1];
	for (uint64_t at = replica->offset; at < replica->offset + replica->size; at += RANGE_ALIGN) {
		if (atomic_load_explicit(&units[at / RANGE_ALIGN], memory_order_relaxed) != tag)
			return false;
	}
	return true;
}

static void play_put(struct player *player, const struct meta_caller *who, uint32_t key_number, uint64_t size,
                     bool completes)
{
	struct world *world = player->world;
	struct meta_placement placement = {.replica_num = 1 + key_number % 2};
	struct meta_put_call call;
	struct meta_reply reply;
	struct kvm_key_replicas out;
	char key[16];
	snprintf(key, sizeof(key), "k%u", key_number);
	MUST(meta_put_open(&call, world->meta, who, &placement, &player->arena) == KV_OK);
	meta_reply_init(&reply, &player->arena);
	meta_put_start(&call, kv_str(key), size, &reply, &out);
	meta_put_close(&call);
	if (out.code) {
		MUST(out.code == KV_OBJECT_ALREADY_EXISTS || out.code == KV_NO_AVAILABLE_HANDLE);
		return;
	}
	for (uint32_t i = 0; i < out.n_replicas; i++)
		write_shadow(world, &reply, &out.replicas[i], key_number + 1);
	for (uint32_t i = 0; world->segments_stay && i < out.n_replicas; i++)
		MUST(shadow_is(world, &reply, &out.replicas[i], key_number + 1));
	int status = completes ? meta_put_end(world->meta, who, kv_str(key))
	                       : meta_put_revoke(world->meta, who, kv_str(key));
	/* Gone with its segment; then another may have started anew. */
	MUST(status == KV_OK ||
	     (!world->segments_stay && (status == KV_OBJECT_NOT_FOUND || status == KV_ILLEGAL_CLIENT)));
	atomic_fetch_add(&world->puts, 1);
}

static void play_get(struct player *player, const struct meta_caller *who, uint32_t key_number)
{
	struct world *world = player->world;
	struct meta_reply reply;
	struct kvm_key_replicas out;
	char key[16];
	snprintf(key, sizeof(key), "k%u", key_number);
	meta_reply_init(&reply, &player->arena);
	meta_get(world->meta, who, kv_str(key), &reply, &out);
	if (out.code) {
		MUST(out.code == KV_OBJECT_NOT_FOUND || out.code == KV_REPLICA_IS_NOT_READY);
		return;
	}
	/* The lease holds for hours: nobody else may have the space. */
	for (uint32_t i = 0; world->segments_stay && i < out.n_replicas; i++)
		MUST(shadow_is(world, &reply, &out.replicas[i], key_number + 1));
	atomic_fetch_add(&world->gets, 1);
}

static void *play(void *arg)
{
	struct player *player = arg;
	struct world *world = player->world;
	struct rng rng = {player->number};
	for (int step = 0; step < world->steps; step++) {
		struct meta_caller who = {
		        .client = {7, player->number}, .op_id = (uint64_t)step, .now_ns = kv_now_ns()};
		uint32_t key_number = (uint32_t)rng_below(&rng, KEYS);
		char key[16];
		snprintf(key, sizeof(key), "k%u", key_number);
		switch (rng_below(&rng, 8)) {
		case 0:
		case 1:
		case 2:
			play_put(player, &who, key_number, 1 + rng_below(&rng, 8192), true);
			break;
		case 3:
			play_put(player, &who, key_number, 1 + rng_below(&rng, 8192), false);
			break;
		case 4:
			if (step % 16 == 0) /* seldom, or everything would be leased */
				play_get(player, &who, key_number);
			break;
		case 5:
			if (step % 64 == 0) {
				int there = meta_exist(world->meta, &who, kv_str(key));
				MUST(there == 0 || there == 1);
			}
			break;
		default: {
			int status = meta_remove(world->meta, &who, kv_str(key), !world->segments_stay);
			MUST(status == KV_OK || status == KV_OBJECT_NOT_FOUND || status == KV_OBJECT_HAS_LEASE ||
			     status == KV_REPLICA_IS_NOT_READY);
			atomic_fetch_add(&world->gone, status == KV_OK);
		}
		}
		kv_arena_reset(&player->arena, 1 << 20);
	}
	kv_arena_free(&player->arena);
	return NULL;
}

static int mount(struct world *world, uint64_t id)
{
	char name[32];
	uint32_t mounted;
	struct meta_caller who = {.client = {8, id}, .now_ns = kv_now_ns()};
	snprintf(name, sizeof(name), "host%d:1", (int)id);
	struct kvm_segment segment = {.id = {9, id}, .endpoint = kv_str(name), .base = 4096, .size = SEGMENT_SIZE};
	return meta_mount(world->meta, &who, &segment, 1, &mounted);
}

/* What the master's own threads do, as fast as it goes. */
static void *keep_house(void *arg)
{
	struct world *world = arg;
	struct rng rng = {99};
	while (!atomic_load(&world->stop)) {
		uint64_t now = kv_now_ns();
		meta_evict(world->meta, 1, now);
		meta_discard_expired(world->meta, 1, now);
		if (!world->segments_stay) {
			uint64_t id = 1 + rng_below(&rng, SEGMENTS), lost;
			struct meta_caller who = {.client = {8, id}, .now_ns = now};
			MUST(meta_unmount(world->meta, &who, (struct kv_id){9, id}, &lost) == KV_OK);
			MUST(mount(world, id) == KV_OK);
		}
		meta_monitor_clients(world->meta, 1, now);
		struct meta_stats stats;
		meta_get_stats(world->meta, &stats);
		MUST(stats.used <= SEGMENTS * SEGMENT_SIZE);
	}
	return NULL;
}

static void run(bool segments_stay, int steps)
{
	struct world *world = calloc(1, sizeof(*world));
	struct meta_config config = test_config();
	config.lease_ttl_ns = 3600 * SECOND;
	config.client_ttl_ns = 3600 * SECOND;
	world->meta = meta_create(&config);
	world->segments_stay = segments_stay;
	world->steps = steps;
	for (uint64_t id = 1; id <= SEGMENTS; id++)
		assert_int_equal(mount(world, id), KV_OK);
	pthread_t threads[THREADS], house;
	struct player players[THREADS];
	for (uint32_t i = 0; i < THREADS; i++) {
		players[i] = (struct player){.world = world, .number = i + 1};
		assert_int_equal(kv_thread_start(&threads[i], play, &players[i], "player"), 0);
	}
	assert_int_equal(kv_thread_start(&house, keep_house, world, "house"), 0);
	for (int i = 0; i < THREADS; i++)
		pthread_join(threads[i], NULL);
	atomic_store(&world->stop, true);
	pthread_join(house, NULL);

	assert_true(atomic_load(&world->puts) > 0);
	assert_true(atomic_load(&world->gone) > 0);
	struct meta_caller who = {.now_ns = kv_now_ns()};
	struct meta_stats stats;
	meta_remove_all(world->meta, &who, true);
	meta_get_stats(world->meta, &stats);
	assert_int_equal(stats.objects, 0);
	assert_int_equal(stats.used, 0);
	assert_int_equal(stats.capacity, SEGMENTS * SEGMENT_SIZE);
	meta_destroy(world->meta);
	free(world);
}

static void nobodys_space_is_given_away(void **state)
{
	(void)state;
	run(true, 20000);
}

static void segments_come_and_go_meanwhile(void **state)
{
	(void)state;
	run(false, 20000);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(nobodys_space_is_given_away),
	        cmocka_unit_test(segments_come_and_go_meanwhile),
	};
	return cmocka_run_group_tests_name("meta-threads", tests, NULL, NULL);
}
