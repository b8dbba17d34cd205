/* SPDX-License-Identifier: Apache-2.0 */
/* Clients and segments that come and go, eviction, and the index under it all. */
#include "tests/unit/meta_fixture.h"

#include "store/meta/index.h"
#include "store/meta/object.h"

static int unmount(struct fixture *f, uint64_t id, uint64_t *lost)
{
	struct meta_caller who = caller(f);
	return meta_unmount(f->meta, &who, (struct kv_id){9, id}, lost);
}

/* --- segments and clients --------------------------------------------------------------------------- */

static void mounting_is_checked(void **state)
{
	(void)state;
	struct fixture f = fixture_with(test_config());
	uint32_t mounted;
	struct meta_caller who = caller(&f), nobody = {.now_ns = f.now};
	assert_int_equal(mount_segment(&f, 1, 8 * MIB), KV_OK);
	assert_int_equal(mount_segment(&f, 1, 8 * MIB), KV_OK); /* the same again: a retry */
	assert_int_equal(stats(&f).segments, 1);
	assert_int_equal(stats(&f).capacity, 8 * MIB);
	assert_int_equal(mount_segment(&f, 1, 16 * MIB), KV_SEGMENT_ALREADY_EXISTS);
	f.client.lo = 2;
	assert_int_equal(mount_segment(&f, 1, 8 * MIB), KV_SEGMENT_ALREADY_EXISTS);

	struct kvm_segment good = {.id = {9, 5}, .endpoint = kv_str("h:1"), .base = 4096, .size = MIB}, bad = good;
	bad.size = 0;
	assert_int_equal(meta_mount(f.meta, &who, &bad, 1, &mounted), KV_INVALID_PARAMS);
	bad = good;
	bad.endpoint.len = 0;
	assert_int_equal(meta_mount(f.meta, &who, &bad, 1, &mounted), KV_INVALID_PARAMS);
	bad = good;
	bad.id = (struct kv_id){0, 0};
	assert_int_equal(meta_mount(f.meta, &who, &bad, 1, &mounted), KV_INVALID_PARAMS);
	bad = good;
	bad.size = (1ull << 47) + 1; /* that of many such would not add up */
	assert_int_equal(meta_mount(f.meta, &who, &bad, 1, &mounted), KV_INVALID_PARAMS);
	bad = good;
	bad.base = UINT64_MAX - MIB + 2;
	assert_int_equal(meta_mount(f.meta, &who, &bad, 1, &mounted), KV_INVALID_PARAMS);
	assert_int_equal(meta_mount(f.meta, &nobody, &good, 1, &mounted), KV_INVALID_PARAMS);
	struct kvm_segment both[] = {bad, good};
	assert_int_equal(meta_mount(f.meta, &who, both, 2, &mounted), KV_INVALID_PARAMS);
	assert_int_equal(mounted, 1);
	fixture_end(&f);
}

/* A batch lookup, in the middle of which a segment goes and another takes its place, in memory as well. */
static void a_reply_does_not_mistake_one_segment_for_another(void **state)
{
	(void)state;
	struct fixture f = fixture_with(test_config());
	struct meta_reply reply;
	struct kvm_key_replicas out;
	uint64_t lost;
	meta_reply_init(&reply, &f.arena);
	for (uint64_t id = 1; id <= 40; id++) { /* the list of the reply grows meanwhile */
		char key[16];
		struct meta_put_call call;
		struct meta_reply started;
		struct meta_caller who = caller(&f);
		struct meta_placement placement = {.replica_num = 1};
		snprintf(key, sizeof(key), "key%d", (int)id);
		assert_int_equal(mount_segment(&f, id, MIB), KV_OK);
		assert_int_equal(meta_put_open(&call, f.meta, &who, &placement, &f.arena), KV_OK);
		meta_reply_init(&started, &f.arena);
		meta_put_start(&call, kv_str(key), 4096, &started, &out);
		meta_put_close(&call);
		assert_int_equal(end(&f, key), KV_OK);
		meta_get(f.meta, &who, kv_str(key), &reply, &out);
		assert_int_equal(keep(&out, &reply).segment[0], id);
		assert_int_equal(unmount(&f, id, &lost), KV_OK);
	}
	assert_int_equal(reply.n_segments, 40);
	fixture_end(&f);
}

static void objects_vanish_with_their_segment(void **state)
{
	(void)state;
	struct fixture f = fixture_with(test_config());
	uint64_t lost;
	mount_segment(&f, 1, 8 * MIB);
	put(&f, "a", MIB);
	put(&f, "b", MIB);
	start(&f, "in flight", MIB);
	f.client.lo = 2;
	assert_int_equal(unmount(&f, 1, &lost), KV_ILLEGAL_CLIENT);
	f.client.lo = 1;
	assert_int_equal(unmount(&f, 7, &lost), KV_SEGMENT_NOT_FOUND);
	assert_int_equal(unmount(&f, 1, &lost), KV_OK);
	assert_int_equal(lost, 3);
	assert_int_equal(stats(&f).objects, 0);
	assert_int_equal(stats(&f).used, 0);
	assert_int_equal(stats(&f).capacity, 0);
	assert_int_equal(exist(&f, "a"), 0);
	assert_int_equal(get(&f, "b").code, KV_OBJECT_NOT_FOUND);
	assert_int_equal(end(&f, "in flight"), KV_OBJECT_NOT_FOUND);
	assert_int_equal(unmount(&f, 1, &lost), KV_SEGMENT_NOT_FOUND);
	/* Mounted again it is empty, and the keys are free. */
	assert_int_equal(mount_segment(&f, 1, 8 * MIB), KV_OK);
	assert_int_equal(exist(&f, "a"), 0);
	assert_int_equal(put(&f, "a", 8 * MIB), KV_OK);
	fixture_end(&f);
}

static void an_object_survives_on_its_other_replica(void **state)
{
	(void)state;
	struct fixture f = fixture_with(test_config());
	uint64_t lost;
	mount_segment(&f, 1, 8 * MIB);
	mount_segment(&f, 2, 8 * MIB);
	struct meta_placement placement = {.replica_num = 2};
	assert_int_equal(start_placed(&f, "k", MIB, &placement).n, 2);
	assert_int_equal(end(&f, "k"), KV_OK);
	assert_int_equal(unmount(&f, 1, &lost), KV_OK);
	assert_int_equal(lost, 0);
	struct started found = get(&f, "k");
	assert_int_equal(found.n, 1);
	assert_int_equal(found.segment[0], 2);
	assert_int_equal(stats(&f).used, MIB);
	assert_int_equal(unmount(&f, 2, &lost), KV_OK);
	assert_int_equal(lost, 1);
	assert_int_equal(get(&f, "k").code, KV_OBJECT_NOT_FOUND);
	fixture_end(&f);
}

static void a_silent_client_is_dead(void **state)
{
	(void)state;
	struct fixture f = fixture_with(test_config());
	assert_true(ping_wants_remount(&f)); /* unknown */
	mount_segment(&f, 1, 8 * MIB);
	assert_false(ping_wants_remount(&f));
	put(&f, "k", MIB);
	struct fixture other = f;
	other.client.lo = 2;
	mount_segment(&other, 2, 8 * MIB);

	f.now += 9 * SECOND;
	assert_false(ping_wants_remount(&f));
	f.now += 10 * SECOND;
	assert_int_equal(meta_monitor_clients(f.meta, 1, f.now), 1); /* the other one */
	assert_int_equal(stats(&f).clients, 1);
	assert_int_equal(exist(&f, "k"), 1);
	f.now += 1;
	assert_int_equal(meta_monitor_clients(f.meta, 1, f.now), 1);
	assert_int_equal(meta_monitor_clients(f.meta, 1, f.now), 0);
	assert_int_equal(stats(&f).clients, 0);
	assert_int_equal(stats(&f).segments, 0);
	assert_int_equal(stats(&f).objects, 0);
	assert_int_equal(exist(&f, "k"), 0);
	assert_true(ping_wants_remount(&f));
	assert_int_equal(mount_segment(&f, 1, 8 * MIB), KV_OK);
	assert_false(ping_wants_remount(&f));
	assert_int_equal(exist(&f, "k"), 0);
	fixture_end(&f);
}

static void a_client_may_contribute_nothing(void **state)
{
	(void)state;
	struct fixture f = fixture_with(test_config());
	uint32_t mounted = 7;
	struct meta_caller who = caller(&f);
	assert_int_equal(meta_mount(f.meta, &who, NULL, 0, &mounted), KV_OK);
	assert_int_equal(mounted, 0);
	assert_false(ping_wants_remount(&f));
	/* After its last unmount it is still known: a ping on the way out does not ask for a remount. */
	uint64_t lost;
	mount_segment(&f, 1, MIB);
	assert_int_equal(unmount(&f, 1, &lost), KV_OK);
	assert_false(ping_wants_remount(&f));
	fixture_end(&f);
}

static void many_clients_and_segments(void **state)
{
	(void)state;
	struct fixture f = fixture_with(test_config());
	enum { N = 300 };
	for (uint64_t i = 1; i <= N; i++) {
		f.client.lo = i;
		assert_int_equal(mount_segment(&f, i, MIB), KV_OK);
	}
	assert_int_equal(stats(&f).clients, N);
	assert_int_equal(stats(&f).capacity, N * MIB);
	/* One object per MiB on every segment: at most 100 segments are tried for one. */
	char key[16];
	int stored = 0;
	for (int i = 0; i < 2 * N; i++) {
		snprintf(key, sizeof(key), "k%d", i);
		stored += put(&f, key, MIB) == KV_OK;
	}
	assert_true(stored > N * 8 / 10);
	f.now += 11 * SECOND;
	assert_int_equal(meta_monitor_clients(f.meta, 1, f.now), N);
	assert_int_equal(stats(&f).objects, 0);
	assert_int_equal(stats(&f).capacity, 0);
	assert_int_equal(stats(&f).used, 0);
	fixture_end(&f);
}

/* --- eviction --------------------------------------------------------------------------------------- */

/* n objects of 1 MiB named prefix0.. */
static void fill(struct fixture *f, const char *prefix, int n, const struct meta_placement *placement)
{
	char key[32];
	for (int i = 0; i < n; i++) {
		snprintf(key, sizeof(key), "%s%d", prefix, i);
		assert_int_equal(start_placed(f, key, MIB, placement).code, KV_OK);
		assert_int_equal(end(f, key), KV_OK);
	}
}

/* How many of them are there; grants leases. */
static int count(struct fixture *f, const char *prefix, int n)
{
	char key[32];
	int there = 0;
	for (int i = 0; i < n; i++) {
		snprintf(key, sizeof(key), "%s%d", prefix, i);
		there += exist(f, key);
	}
	return there;
}

static const struct meta_placement plain = {.replica_num = 1};
static const struct meta_placement hard = {.replica_num = 1, .hard_pin = true};
static const struct meta_placement soft = {.replica_num = 1, .soft_pin_action = META_SOFT_PIN_ENABLE};

static void eviction_takes_what_was_not_read_for_longest(void **state)
{
	(void)state;
	struct fixture f = fixture_with(test_config());
	mount_segment(&f, 1, 100 * MIB);
	fill(&f, "old", 45, &plain);
	fill(&f, "read", 5, &plain);
	assert_false(meta_evict_due(f.meta));
	f.now += 1000 * SECOND;
	assert_int_equal(count(&f, "read", 5), 5); /* old, but read lately */
	fill(&f, "new", 45, &plain);
	assert_true(meta_evict_due(f.meta)); /* 95 % */
	f.now += 20 * SECOND;
	/* used - high + ratio = 10 % of the pool, and no more than one object above it */
	uint64_t freed = meta_evict(f.meta, 1, f.now);
	assert_in_range(freed, 10 * MIB, 11 * MIB);
	assert_int_equal(stats(&f).used, 95 * MIB - freed);
	assert_false(meta_evict_due(f.meta));
	assert_int_equal(count(&f, "old", 45), 45 - (int)(freed / MIB));
	assert_int_equal(count(&f, "read", 5), 5);
	assert_int_equal(count(&f, "new", 45), 45);
	fixture_end(&f);
}

static void eviction_spares_leases_pins_and_puts_in_flight(void **state)
{
	(void)state;
	struct fixture f = fixture_with(test_config());
	mount_segment(&f, 1, 100 * MIB);
	fill(&f, "hard", 30, &hard);
	fill(&f, "leased", 30, &plain);
	char key[32];
	for (int i = 0; i < 30; i++) {
		snprintf(key, sizeof(key), "flying%d", i);
		assert_int_equal(start(&f, key, MIB).code, KV_OK);
	}
	fill(&f, "free", 8, &plain);
	f.now += 5 * SECOND;
	assert_int_equal(count(&f, "leased", 30), 30);
	f.now += 9 * SECOND;
	assert_true(meta_evict_due(f.meta));
	assert_int_equal(meta_evict(f.meta, 1, f.now), 8 * MIB); /* 13 % are wanted, 8 % can be had */
	assert_int_equal(meta_evict(f.meta, 1, f.now), 0);
	assert_int_equal(count(&f, "hard", 30), 30);
	assert_int_equal(count(&f, "leased", 30), 30);
	assert_int_equal(count(&f, "free", 8), 0);
	for (int i = 0; i < 30; i++) {
		snprintf(key, sizeof(key), "flying%d", i);
		assert_int_equal(end(&f, key), KV_OK);
	}
	fixture_end(&f);
}

static void soft_pins_go_last(void **state)
{
	(void)state;
	struct fixture f = fixture_with(test_config());
	mount_segment(&f, 1, 100 * MIB);
	fill(&f, "soft", 90, &soft);
	f.now += 100 * SECOND;
	fill(&f, "plain", 7, &plain);
	f.now += 100 * SECOND;
	/* 97 %: the target is 12 %, the least a run is content with 7 %, and that much is not pinned. */
	uint64_t freed = meta_evict(f.meta, 1, f.now);
	assert_int_equal(freed, 7 * MIB);
	assert_int_equal(stats(&f).objects, 90);
	/* Nothing but pinned ones: the least is taken from them. */
	fill(&f, "more", 6, &hard);
	freed = meta_evict(f.meta, 1, f.now);
	assert_in_range(freed, 6 * MIB, 7 * MIB);
	assert_int_equal(count(&f, "more", 6), 6);
	/* A pin ends, whether it was read or not. */
	f.now += 1900 * SECOND;
	fill(&f, "again", 6, &hard);
	freed = meta_evict(f.meta, 1, f.now);
	assert_in_range(freed, 11 * MIB, 12 * MIB); /* the whole target */
	fixture_end(&f);
}

static void soft_pins_can_be_kept_for_good(void **state)
{
	(void)state;
	struct meta_config config = test_config();
	config.evict_soft_pinned = false;
	struct fixture f = fixture_with(config);
	mount_segment(&f, 1, 100 * MIB);
	fill(&f, "soft", 95, &soft);
	f.now += 100 * SECOND;
	assert_int_equal(meta_evict(f.meta, 1, f.now), 0);
	assert_int_equal(count(&f, "soft", 95), 95);
	fixture_end(&f);
}

static void a_failed_allocation_calls_for_eviction(void **state)
{
	(void)state;
	struct fixture f = fixture_with(test_config());
	mount_segment(&f, 1, 100 * MIB);
	fill(&f, "k", 80, &plain);
	assert_false(meta_evict_due(f.meta));
	f.now += SECOND;
	assert_int_equal(start(&f, "big", 30 * MIB).code, KV_NO_AVAILABLE_HANDLE);
	assert_true(meta_evict_due(f.meta));
	assert_in_range(meta_evict(f.meta, 1, f.now), 5 * MIB, 6 * MIB);
	assert_false(meta_evict_due(f.meta)); /* until the next failure */
	fixture_end(&f);
}

/* --- the index ------------------------------------------------------------------------------------- */

static void the_index_agrees_with_a_model(void **state)
{
	(void)state;
	enum { KEYS = 3000, STEPS = 200000 };
	struct index index = {.slots = NULL};
	struct object *objects[KEYS] = {NULL};
	struct rng rng = {5};
	char key[16];
	size_t there = 0;
	for (int step = 0; step < STEPS; step++) {
		/* It grows to everything, then shrinks to nothing. */
		unsigned filling = step < STEPS / 2 ? 70 : 20;
		size_t k = rng_below(&rng, KEYS);
		snprintf(key, sizeof(key), "key%zu", k);
		/* Few different home slots: long probes. */
		uint64_t hash = index_hash(kv_str(key)) & 0xff;
		size_t slot = index_find(&index, hash, kv_str(key));
		assert_int_equal(slot != INDEX_NONE, objects[k] != NULL);
		if (objects[k]) {
			assert_ptr_equal(index.slots[slot].object, objects[k]);
			if (rng_below(&rng, 100) >= filling) {
				index_remove(&index, slot);
				object_destroy(objects[k]);
				objects[k] = NULL;
				there--;
			}
		} else if (rng_below(&rng, 100) < filling) {
			objects[k] = object_create(kv_str(key), NULL, 0);
			assert_true(index_add(&index, hash, objects[k]));
			there++;
		}
		assert_int_equal(index.count, there);
		assert_true(index.count * 4 <= index.capacity * 3);
	}
	for (size_t k = 0; k < KEYS; k++) {
		snprintf(key, sizeof(key), "key%zu", k);
		if (objects[k]) {
			index_remove(&index, index_find(&index, index_hash(kv_str(key)) & 0xff, kv_str(key)));
			object_destroy(objects[k]);
		}
	}
	assert_int_equal(index.count, 0);
	index_destroy(&index);
}

static void very_many_keys(void **state)
{
	(void)state;
	struct fixture f = fixture_with(test_config());
	enum { N = 200000 };
	mount_segment(&f, 1, (uint64_t)N * 64);
	char key[32];
	for (int i = 0; i < N; i++) {
		snprintf(key, sizeof(key), "layer.%d.req_%d", i % 32, i);
		assert_int_equal(put(&f, key, 64), KV_OK);
	}
	assert_int_equal(stats(&f).objects, N);
	for (int i = 0; i < N; i++) {
		snprintf(key, sizeof(key), "layer.%d.req_%d", i % 32, i);
		assert_int_equal(exist(&f, key), 1);
	}
	assert_int_equal(exist(&f, "layer.0.req_1"), 0);
	assert_int_equal(drop_all(&f, true), N);
	assert_int_equal(stats(&f).used, 0);
	fixture_end(&f);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(mounting_is_checked),
	        cmocka_unit_test(a_reply_does_not_mistake_one_segment_for_another),
	        cmocka_unit_test(objects_vanish_with_their_segment),
	        cmocka_unit_test(an_object_survives_on_its_other_replica),
	        cmocka_unit_test(a_silent_client_is_dead),
	        cmocka_unit_test(a_client_may_contribute_nothing),
	        cmocka_unit_test(many_clients_and_segments),
	        cmocka_unit_test(eviction_takes_what_was_not_read_for_longest),
	        cmocka_unit_test(eviction_spares_leases_pins_and_puts_in_flight),
	        cmocka_unit_test(soft_pins_go_last),
	        cmocka_unit_test(soft_pins_can_be_kept_for_good),
	        cmocka_unit_test(a_failed_allocation_calls_for_eviction),
	        cmocka_unit_test(the_index_agrees_with_a_model),
	        cmocka_unit_test(very_many_keys),
	};
	return cmocka_run_group_tests_name("meta-pool", tests, NULL, NULL);
}
