/* SPDX-License-Identifier: Apache-2.0 */
/* What put, lookup and remove answer, with a clock of the test's own. */
#include "tests/unit/meta_fixture.h"

static void a_put_becomes_readable_at_its_end(void **state)
{
	(void)state;
	struct fixture f = fixture_with(test_config());
	assert_int_equal(mount_segment(&f, 1, 64 * MIB), KV_OK);
	assert_int_equal(exist(&f, "k"), 0);
	assert_int_equal(get(&f, "k").code, KV_OBJECT_NOT_FOUND);
	struct started placed = start(&f, "k", MIB);
	assert_int_equal(placed.code, KV_OK);
	assert_int_equal(placed.n, 1);
	assert_int_equal(placed.segment[0], 1);
	assert_int_equal(exist(&f, "k"), 0);
	assert_int_equal(get(&f, "k").code, KV_REPLICA_IS_NOT_READY);
	assert_int_equal(end(&f, "k"), KV_OK);
	assert_int_equal(exist(&f, "k"), 1);
	struct started found = get(&f, "k");
	assert_int_equal(found.code, KV_OK);
	assert_int_equal(found.offset[0], placed.offset[0]);
	assert_int_equal(stats(&f).used, MIB);
	fixture_end(&f);
}

static void the_first_writer_wins(void **state)
{
	(void)state;
	struct fixture f = fixture_with(test_config());
	mount_segment(&f, 1, 64 * MIB);
	assert_int_equal(start(&f, "k", MIB).code, KV_OK);
	assert_int_equal(start(&f, "k", MIB).code, KV_OBJECT_ALREADY_EXISTS);
	f.client.lo = 2;
	assert_int_equal(start(&f, "k", 5).code, KV_OBJECT_ALREADY_EXISTS);
	f.client.lo = 1;
	assert_int_equal(end(&f, "k"), KV_OK);
	assert_int_equal(start(&f, "k", MIB).code, KV_OBJECT_ALREADY_EXISTS);
	f.now += 100 * SECOND; /* a complete object is never taken over */
	assert_int_equal(start(&f, "k", MIB).code, KV_OBJECT_ALREADY_EXISTS);
	assert_int_equal(stats(&f).objects, 1);
	assert_int_equal(stats(&f).used, MIB);
	fixture_end(&f);
}

static void a_key_twice_in_one_batch_is_put_once(void **state)
{
	(void)state;
	struct fixture f = fixture_with(test_config());
	mount_segment(&f, 1, 64 * MIB);
	struct meta_placement placement = {.replica_num = 1};
	struct meta_put_call call;
	struct meta_reply reply;
	struct kvm_key_replicas out[3];
	struct meta_caller who = caller(&f);
	assert_int_equal(meta_put_open(&call, f.meta, &who, &placement, &f.arena), KV_OK);
	meta_reply_init(&reply, &f.arena);
	meta_put_start(&call, kv_str("a"), MIB, &reply, &out[0]);
	meta_put_start(&call, kv_str("b"), MIB, &reply, &out[1]);
	meta_put_start(&call, kv_str("a"), MIB, &reply, &out[2]);
	meta_put_close(&call);
	assert_int_equal(out[0].code, KV_OK);
	assert_int_equal(out[1].code, KV_OK);
	assert_int_equal(out[2].code, KV_OBJECT_ALREADY_EXISTS);
	assert_int_equal(reply.n_segments, 1); /* each segment once */
	assert_int_equal(stats(&f).used, 2 * MIB);
	fixture_end(&f);
}

static void keys_and_sizes_are_checked(void **state)
{
	(void)state;
	struct fixture f = fixture_with(test_config());
	mount_segment(&f, 1, 64 * MIB);
	char key[KVW_MAX_KEY + 2];
	memset(key, 'k', sizeof(key) - 1);
	key[sizeof(key) - 1] = '\0';
	assert_int_equal(start(&f, key, MIB).code, KV_INVALID_PARAMS);
	assert_int_equal(exist(&f, key), KV_INVALID_PARAMS);
	assert_int_equal(get(&f, key).code, KV_INVALID_PARAMS);
	assert_int_equal(end(&f, key), KV_INVALID_PARAMS);
	assert_int_equal(revoke(&f, key), KV_INVALID_PARAMS);
	assert_int_equal(drop(&f, key, true), KV_INVALID_PARAMS);
	key[KVW_MAX_KEY] = '\0';
	assert_int_equal(put(&f, key, MIB), KV_OK);
	assert_int_equal(exist(&f, key), 1);
	assert_int_equal(start(&f, "", MIB).code, KV_INVALID_PARAMS);
	assert_int_equal(exist(&f, ""), KV_INVALID_PARAMS);
	assert_int_equal(start(&f, "k", 0).code, KV_INVALID_PARAMS);
	assert_int_equal(meta_check_key((struct kv_str){"a\0b", 3}), KV_INVALID_PARAMS);
	fixture_end(&f);
}

static void only_the_starter_ends_a_put(void **state)
{
	(void)state;
	struct fixture f = fixture_with(test_config());
	mount_segment(&f, 1, 64 * MIB);
	assert_int_equal(end(&f, "k"), KV_OBJECT_NOT_FOUND);
	assert_int_equal(revoke(&f, "k"), KV_OBJECT_NOT_FOUND);
	start(&f, "k", MIB);
	f.client.lo = 2;
	assert_int_equal(end(&f, "k"), KV_ILLEGAL_CLIENT);
	assert_int_equal(revoke(&f, "k"), KV_ILLEGAL_CLIENT);
	f.client.lo = 1;
	assert_int_equal(end(&f, "k"), KV_OK);
	assert_int_equal(end(&f, "k"), KV_OK); /* again: nothing happens */
	assert_int_equal(revoke(&f, "k"), KV_INVALID_WRITE);
	assert_int_equal(exist(&f, "k"), 1);
	f.client.lo = 2;
	assert_int_equal(end(&f, "k"), KV_ILLEGAL_CLIENT);
	fixture_end(&f);
}

static void a_revoked_put_leaves_nothing(void **state)
{
	(void)state;
	struct fixture f = fixture_with(test_config());
	mount_segment(&f, 1, 64 * MIB);
	start(&f, "k", MIB);
	assert_int_equal(revoke(&f, "k"), KV_OK);
	assert_int_equal(stats(&f).used, 0);
	assert_int_equal(stats(&f).objects, 0);
	assert_int_equal(revoke(&f, "k"), KV_OBJECT_NOT_FOUND);
	assert_int_equal(end(&f, "k"), KV_OBJECT_NOT_FOUND);
	assert_int_equal(put(&f, "k", MIB), KV_OK);
	fixture_end(&f);
}

static void an_abandoned_put_is_taken_over(void **state)
{
	(void)state;
	struct fixture f = fixture_with(test_config());
	mount_segment(&f, 1, 3 * MIB);
	uint64_t first = start(&f, "k", MIB).offset[0];
	f.client.lo = 2;
	f.now += 30 * SECOND - 1;
	assert_int_equal(start(&f, "k", MIB).code, KV_OBJECT_ALREADY_EXISTS);
	f.now += 1;
	struct started second = start(&f, "k", MIB);
	assert_int_equal(second.code, KV_OK);
	assert_true(second.offset[0] != first);
	/* The first writer may still be writing: its space is nobody's. */
	assert_int_equal(stats(&f).discarded, 1);
	assert_int_equal(stats(&f).used, 2 * MIB);
	struct started third = start(&f, "other", MIB);
	assert_int_equal(third.code, KV_OK);
	assert_true(third.offset[0] != first && third.offset[0] != second.offset[0]);
	assert_int_equal(start(&f, "more", MIB).code, KV_NO_AVAILABLE_HANDLE);
	/* Its end is refused, the second one's is not. */
	f.client.lo = 1;
	assert_int_equal(end(&f, "k"), KV_ILLEGAL_CLIENT);
	assert_int_equal(revoke(&f, "k"), KV_ILLEGAL_CLIENT);
	f.client.lo = 2;
	assert_int_equal(end(&f, "k"), KV_OK);
	assert_int_equal(get(&f, "k").offset[0], second.offset[0]);
	/* The space comes back 600 s after the first start; the complete object stays. */
	f.now = 1000 * SECOND + 600 * SECOND - 1;
	assert_int_equal(meta_discard_expired(f.meta, 1, f.now), 0);
	f.now += 1;
	assert_int_equal(meta_discard_expired(f.meta, 1, f.now), 1);
	assert_int_equal(stats(&f).discarded, 0);
	assert_int_equal(stats(&f).used, 2 * MIB);
	struct started fourth = start(&f, "more", MIB);
	assert_int_equal(fourth.code, KV_OK);
	assert_int_equal(fourth.offset[0], first);
	assert_int_equal(exist(&f, "k"), 1);
	fixture_end(&f);
}

static void a_client_that_takes_over_its_own_put_knows_which_is_which(void **state)
{
	(void)state;
	struct fixture f = fixture_with(test_config());
	mount_segment(&f, 1, 8 * MIB);
	f.op_id = 100;
	start(&f, "k", MIB);
	f.now += 31 * SECOND;
	f.op_id = 200;
	assert_int_equal(start(&f, "k", MIB).code, KV_OK);
	f.op_id = 100;
	assert_int_equal(end(&f, "k"), KV_INVALID_WRITE);
	assert_int_equal(revoke(&f, "k"), KV_INVALID_WRITE);
	assert_int_equal(get(&f, "k").code, KV_REPLICA_IS_NOT_READY);
	f.op_id = 200;
	assert_int_equal(end(&f, "k"), KV_OK);
	assert_int_equal(exist(&f, "k"), 1);
	fixture_end(&f);
}

/* A call that heard nothing of its start revokes the key: what another call of the same client writes stays. */
static void a_call_revokes_only_its_own_put(void **state)
{
	(void)state;
	struct fixture f = fixture_with(test_config());
	mount_segment(&f, 1, 8 * MIB);
	f.op_id = 100;
	start(&f, "k", MIB);
	f.op_id = 200;
	assert_int_equal(start(&f, "k", MIB).code, KV_OBJECT_ALREADY_EXISTS);
	assert_int_equal(revoke(&f, "k"), KV_INVALID_WRITE);
	assert_int_equal(end(&f, "k"), KV_INVALID_WRITE);
	f.op_id = 100;
	assert_int_equal(end(&f, "k"), KV_OK);
	assert_int_equal(exist(&f, "k"), 1);
	f.op_id = 200;
	assert_int_equal(revoke(&f, "k"), KV_INVALID_WRITE);
	fixture_end(&f);
}

static void a_put_without_space_does_not_lose_the_one_in_flight(void **state)
{
	(void)state;
	struct fixture f = fixture_with(test_config());
	mount_segment(&f, 1, MIB);
	start(&f, "k", MIB);
	f.now += 31 * SECOND;
	f.client.lo = 2;
	assert_int_equal(start(&f, "k", MIB).code, KV_NO_AVAILABLE_HANDLE);
	f.client.lo = 1;
	assert_int_equal(end(&f, "k"), KV_OK);
	fixture_end(&f);
}

static void puts_nobody_completes_are_released(void **state)
{
	(void)state;
	struct fixture f = fixture_with(test_config());
	mount_segment(&f, 1, 8 * MIB);
	char key[16];
	for (int i = 0; i < 5; i++) {
		snprintf(key, sizeof(key), "k%d", i);
		start(&f, key, MIB);
	}
	assert_int_equal(end(&f, "k2"), KV_OK);
	f.now += 599 * SECOND;
	start(&f, "young", MIB);
	assert_int_equal(meta_discard_expired(f.meta, 1, f.now), 0);
	f.now += SECOND;
	assert_int_equal(meta_discard_expired(f.meta, 1, f.now), 4);
	assert_int_equal(stats(&f).used, 2 * MIB);
	assert_int_equal(stats(&f).objects, 2);
	assert_int_equal(end(&f, "k1"), KV_OBJECT_NOT_FOUND);
	assert_int_equal(exist(&f, "k2"), 1);
	assert_int_equal(end(&f, "young"), KV_OK);
	fixture_end(&f);
}

static void lookups_protect_from_removal(void **state)
{
	(void)state;
	struct fixture f = fixture_with(test_config());
	mount_segment(&f, 1, 8 * MIB);
	put(&f, "k", MIB);
	assert_int_equal(drop(&f, "k", false), KV_OK); /* a plain put leaves no lease */
	assert_int_equal(drop(&f, "k", false), KV_OBJECT_NOT_FOUND);

	put(&f, "k", MIB);
	assert_int_equal(exist(&f, "k"), 1);
	assert_int_equal(drop(&f, "k", false), KV_OBJECT_HAS_LEASE);
	f.now += 9 * SECOND;
	assert_int_equal(get(&f, "k").code, KV_OK); /* refreshed */
	f.now += 10 * SECOND - 1;
	assert_int_equal(drop(&f, "k", false), KV_OBJECT_HAS_LEASE);
	f.now += 1;
	assert_int_equal(drop(&f, "k", false), KV_OK);

	put(&f, "k", MIB);
	get(&f, "k");
	assert_int_equal(drop(&f, "k", true), KV_OK);
	assert_int_equal(stats(&f).used, 0);
	start(&f, "k", MIB);
	assert_int_equal(drop(&f, "k", false), KV_REPLICA_IS_NOT_READY);
	assert_int_equal(drop(&f, "k", true), KV_REPLICA_IS_NOT_READY);
	fixture_end(&f);
}

static void remove_all_spares_leases_and_puts_in_flight(void **state)
{
	(void)state;
	struct fixture f = fixture_with(test_config());
	mount_segment(&f, 1, 8 * MIB);
	enum { N = 5000 };
	char key[32];
	for (int i = 0; i < N; i++) {
		snprintf(key, sizeof(key), "layer.%d.req_%d", i % 32, i);
		assert_int_equal(put(&f, key, 64), KV_OK);
	}
	start(&f, "in flight", MIB);
	for (int i = 0; i < 100; i++) {
		snprintf(key, sizeof(key), "layer.%d.req_%d", i % 32, i);
		assert_int_equal(exist(&f, key), 1);
	}
	assert_int_equal(drop_all(&f, false), N - 100);
	assert_int_equal(drop_all(&f, false), 0);
	assert_int_equal(stats(&f).objects, 101);
	assert_int_equal(drop_all(&f, true), 100);
	assert_int_equal(stats(&f).objects, 1);
	assert_int_equal(end(&f, "in flight"), KV_OK);
	assert_int_equal(drop_all(&f, true), 1);
	assert_int_equal(stats(&f).used, 0);
	fixture_end(&f);
}

/* --- placement ----------------------------------------------------------------------------------- */

static void replicas_lie_on_distinct_segments(void **state)
{
	(void)state;
	struct fixture f = fixture_with(test_config());
	for (uint64_t id = 1; id <= 4; id++)
		mount_segment(&f, id, 8 * MIB);
	struct meta_placement placement = {.replica_num = 3};
	struct started placed = start_placed(&f, "k", MIB, &placement);
	assert_int_equal(placed.n, 3);
	assert_true(placed.segment[0] != placed.segment[1] && placed.segment[1] != placed.segment[2] &&
	            placed.segment[0] != placed.segment[2]);
	assert_int_equal(stats(&f).used, 3 * MIB);
	placement.replica_num = 7; /* as many as there are */
	assert_int_equal(start_placed(&f, "l", MIB, &placement).n, 4);
	placement.replica_num = 0;
	assert_int_equal(start_placed(&f, "m", MIB, &placement).code, KV_INVALID_PARAMS);
	placement.replica_num = KVW_MAX_REPLICAS + 1;
	assert_int_equal(start_placed(&f, "m", MIB, &placement).code, KV_INVALID_PARAMS);
	fixture_end(&f);
}

static void objects_spread_over_the_segments(void **state)
{
	(void)state;
	struct fixture f = fixture_with(test_config());
	int count[9] = {0};
	for (uint64_t id = 1; id <= 8; id++)
		mount_segment(&f, id, 8 * MIB);
	char key[16];
	for (int i = 0; i < 800; i++) {
		snprintf(key, sizeof(key), "k%d", i);
		count[start(&f, key, 64).segment[0]]++;
	}
	for (int id = 1; id <= 8; id++)
		assert_in_range(count[id], 50, 150);
	fixture_end(&f);
}

static void preferred_segments_come_first(void **state)
{
	(void)state;
	struct fixture f = fixture_with(test_config());
	for (uint64_t id = 1; id <= 20; id++) {
		f.client.lo = id;
		mount_segment(&f, id, 4 * MIB);
	}
	struct kvm_key preferred[] = {{kv_str("host7:1")}, {kv_str("nowhere:1")}, {kv_str("host3:1")}};
	struct meta_placement placement = {.replica_num = 1, .preferred = preferred, .n_preferred = 3};
	char key[16];
	for (int i = 0; i < 4; i++) {
		snprintf(key, sizeof(key), "k%d", i);
		assert_int_equal(start_placed(&f, key, MIB, &placement).segment[0], 7);
	}
	for (int i = 4; i < 8; i++) { /* 7 is full */
		snprintf(key, sizeof(key), "k%d", i);
		assert_int_equal(start_placed(&f, key, MIB, &placement).segment[0], 3);
	}
	struct started placed = start_placed(&f, "elsewhere", MIB, &placement); /* both are */
	assert_int_equal(placed.code, KV_OK);
	assert_true(placed.segment[0] != 7 && placed.segment[0] != 3);

	/* With same_node the asking client's own. */
	f.client.lo = 11;
	placement = (struct meta_placement){.replica_num = 2, .same_node = true};
	placed = start_placed(&f, "near", MIB, &placement);
	assert_int_equal(placed.segment[0], 11);
	assert_true(placed.segment[1] != 11);
	fixture_end(&f);
}

static void a_full_pool_is_no_available_handle(void **state)
{
	(void)state;
	struct fixture f = fixture_with(test_config());
	assert_int_equal(start(&f, "k", MIB).code, KV_NO_AVAILABLE_HANDLE); /* no segment at all */
	assert_false(meta_evict_due(f.meta));
	mount_segment(&f, 1, 2 * MIB);
	assert_int_equal(start(&f, "huge", 3 * MIB).code, KV_NO_AVAILABLE_HANDLE);
	assert_int_equal(start(&f, "huge", UINT64_MAX).code, KV_NO_AVAILABLE_HANDLE);
	assert_false(meta_evict_due(f.meta)); /* no eviction would help */
	assert_int_equal(put(&f, "a", MIB), KV_OK);
	assert_int_equal(start(&f, "b", 2 * MIB).code, KV_NO_AVAILABLE_HANDLE);
	assert_true(meta_evict_due(f.meta));
	assert_int_equal(put(&f, "c", MIB), KV_OK);
	fixture_end(&f);
}

static void soft_pins_are_checked(void **state)
{
	(void)state;
	struct fixture f = fixture_with(test_config());
	mount_segment(&f, 1, 8 * MIB);
	struct meta_placement placement = {.replica_num = 1, .soft_pin_ttl_ns = SECOND};
	assert_int_equal(start_placed(&f, "k", 64, &placement).code, KV_INVALID_PARAMS);
	placement.soft_pin_action = META_SOFT_PIN_DISABLE;
	assert_int_equal(start_placed(&f, "k", 64, &placement).code, KV_INVALID_PARAMS);
	placement.soft_pin_action = 3;
	assert_int_equal(start_placed(&f, "k", 64, &placement).code, KV_INVALID_PARAMS);
	placement.soft_pin_action = META_SOFT_PIN_ENABLE;
	placement.soft_pin_ttl_ns = 24 * 3600 * SECOND + 1;
	assert_int_equal(start_placed(&f, "k", 64, &placement).code, KV_INVALID_PARAMS);
	placement.soft_pin_ttl_ns = 24 * 3600 * SECOND;
	assert_int_equal(start_placed(&f, "k", 64, &placement).code, KV_OK);
	fixture_end(&f);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(a_put_becomes_readable_at_its_end),
	        cmocka_unit_test(the_first_writer_wins),
	        cmocka_unit_test(a_key_twice_in_one_batch_is_put_once),
	        cmocka_unit_test(keys_and_sizes_are_checked),
	        cmocka_unit_test(only_the_starter_ends_a_put),
	        cmocka_unit_test(a_revoked_put_leaves_nothing),
	        cmocka_unit_test(an_abandoned_put_is_taken_over),
	        cmocka_unit_test(a_client_that_takes_over_its_own_put_knows_which_is_which),
	        cmocka_unit_test(a_call_revokes_only_its_own_put),
	        cmocka_unit_test(a_put_without_space_does_not_lose_the_one_in_flight),
	        cmocka_unit_test(puts_nobody_completes_are_released),
	        cmocka_unit_test(lookups_protect_from_removal),
	        cmocka_unit_test(remove_all_spares_leases_and_puts_in_flight),
	        cmocka_unit_test(replicas_lie_on_distinct_segments),
	        cmocka_unit_test(objects_spread_over_the_segments),
	        cmocka_unit_test(preferred_segments_come_first),
	        cmocka_unit_test(a_full_pool_is_no_available_handle),
	        cmocka_unit_test(soft_pins_are_checked),
	};
	return cmocka_run_group_tests_name("meta", tests, NULL, NULL);
}
