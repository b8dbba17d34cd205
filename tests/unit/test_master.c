/* SPDX-License-Identifier: Apache-2.0 */
/* The master's answers, called directly, and what its background threads do. */
#include "tests/unit/kv_cmocka.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "kvstore.h"
#include "store/base/clock.h"
#include "store/base/log.h"
#include "store/base/op_id.h"
#include "store/master/master.h"

struct fixture {
	struct master *master;
	struct kv_arena arena;
	struct kv_id client;
};

static struct fixture fixture_with(const struct master_config *config)
{
	struct fixture f = {.client = kv_id_new()};
	struct master_config defaults;
	master_config_default(&defaults);
	f.master = master_create(config ? config : &defaults);
	assert_non_null(f.master);
	kv_log_set_level(KV_LOG_ERROR);
	return f;
}

static void fixture_end(struct fixture *f)
{
	master_destroy(f->master);
	kv_arena_free(&f->arena);
	kv_log_set_level(KV_LOG_WARNING);
}

static void *call(struct fixture *f, uint16_t type, const void *request)
{
	void *response;
	assert_int_equal(master_call(f->master, type, 42, request, &response, &f->arena), KV_OK);
	return response;
}

static void mount(struct fixture *f, uint64_t size)
{
	struct kvm_segment segment = {.id = kv_id_new(),
	                              .endpoint = kv_str("192.0.2.7:14024"),
	                              .base = 65536,
	                              .size = size,
	                              .transports = 4};
	struct kvm_mount_req request = {.client = f->client, .segments = &segment, .n_segments = 1};
	struct kvm_count_resp *response = call(f, KVW_MOUNT_SEGMENT, &request);
	assert_int_equal(response->status, KV_OK);
	assert_int_equal(response->count, 1);
}

/* Requests about n keys. */
enum { N = 4 };
struct keys {
	struct kvm_put_key puts[N];
	struct kvm_key names[N];
	struct kvm_put_start_req start;
	struct kvm_keys_req request;
};

static void make_keys(struct keys *keys, const struct fixture *f)
{
	static const char *const names[N] = {"a", "b", "", "a"};
	memset(keys, 0, sizeof(*keys));
	for (int i = 0; i < N; i++) {
		keys->names[i].key = keys->puts[i].key = kv_str(names[i]);
		keys->puts[i].size = 4096;
	}
	keys->start =
	        (struct kvm_put_start_req){.client = f->client, .replica_num = 1, .keys = keys->puts, .n_keys = N};
	keys->request = (struct kvm_keys_req){.client = f->client, .keys = keys->names, .n_keys = N};
}

static void expect_results(const struct kvm_results_resp *response, int a, int b, int c, int d)
{
	assert_int_equal(response->status, KV_OK);
	assert_int_equal(response->n_results, N);
	assert_int_equal(response->results[0].code, a);
	assert_int_equal(response->results[1].code, b);
	assert_int_equal(response->results[2].code, c);
	assert_int_equal(response->results[3].code, d);
}

static void expect_codes(const struct kvm_replicas_resp *response, int a, int b, int c, int d)
{
	assert_int_equal(response->status, KV_OK);
	assert_int_equal(response->n_keys, N);
	assert_int_equal(response->keys[0].code, a);
	assert_int_equal(response->keys[1].code, b);
	assert_int_equal(response->keys[2].code, c);
	assert_int_equal(response->keys[3].code, d);
}

static void a_batch_has_one_result_per_key(void **state)
{
	(void)state;
	struct fixture f = fixture_with(NULL);
	struct keys keys;
	make_keys(&keys, &f);
	mount(&f, 1 << 20);
	expect_results(call(&f, KVW_BATCH_EXIST_KEY, &keys.request), 0, 0, KV_INVALID_PARAMS, 0);
	expect_codes(call(&f, KVW_BATCH_PUT_START, &keys.start), KV_OK, KV_OK, KV_INVALID_PARAMS,
	             KV_OBJECT_ALREADY_EXISTS);
	expect_codes(call(&f, KVW_BATCH_GET_REPLICA, &keys.request), KV_REPLICA_IS_NOT_READY, KV_REPLICA_IS_NOT_READY,
	             KV_INVALID_PARAMS, KV_REPLICA_IS_NOT_READY);
	expect_results(call(&f, KVW_BATCH_PUT_END, &keys.request), KV_OK, KV_OK, KV_INVALID_PARAMS, KV_OK);
	expect_results(call(&f, KVW_BATCH_EXIST_KEY, &keys.request), 1, 1, KV_INVALID_PARAMS, 1);
	expect_results(call(&f, KVW_BATCH_PUT_REVOKE, &keys.request), KV_INVALID_WRITE, KV_INVALID_WRITE,
	               KV_INVALID_PARAMS, KV_INVALID_WRITE);

	struct kvm_replicas_resp *found = call(&f, KVW_BATCH_GET_REPLICA, &keys.request);
	expect_codes(found, KV_OK, KV_OK, KV_INVALID_PARAMS, KV_OK);
	assert_int_equal(found->lease_ms, 10000);
	assert_int_equal(found->n_segments, 1);
	assert_int_equal(found->segments[0].base, 65536);
	assert_int_equal(found->segments[0].transports, 4);
	assert_memory_equal(found->segments[0].endpoint.ptr, "192.0.2.7:14024", found->segments[0].endpoint.len);
	const struct kvm_replica *replica = &found->keys[0].replicas[0];
	assert_int_equal(replica->size, 4096);
	assert_int_equal(replica->type, KVSTORE_REPLICA_MEMORY);
	assert_int_equal(replica->status, KVSTORE_REPLICA_COMPLETE);
	assert_int_equal(replica->offset, found->keys[3].replicas[0].offset);
	assert_true(replica->offset != found->keys[1].replicas[0].offset);
	fixture_end(&f);
}

static void a_single_request_has_exactly_one_key(void **state)
{
	(void)state;
	struct fixture f = fixture_with(NULL);
	struct keys keys;
	make_keys(&keys, &f);
	mount(&f, 1 << 20);
	static const uint16_t lists[] = {KVW_PUT_END, KVW_PUT_REVOKE, KVW_EXIST_KEY};
	for (size_t i = 0; i < 3; i++) {
		struct kvm_results_resp *response = call(&f, lists[i], &keys.request);
		assert_int_equal(response->status, KV_INVALID_PARAMS);
		assert_int_equal(response->n_results, 0);
	}
	assert_int_equal(((struct kvm_replicas_resp *)call(&f, KVW_GET_REPLICA_LIST, &keys.request))->status,
	                 KV_INVALID_PARAMS);
	assert_int_equal(((struct kvm_replicas_resp *)call(&f, KVW_PUT_START, &keys.start))->status,
	                 KV_INVALID_PARAMS);
	keys.start.n_keys = keys.request.n_keys = 1;
	assert_int_equal(((struct kvm_replicas_resp *)call(&f, KVW_PUT_START, &keys.start))->keys[0].code, KV_OK);
	assert_int_equal(((struct kvm_results_resp *)call(&f, KVW_PUT_REVOKE, &keys.request))->results[0].code,
	                 KV_OK);
	assert_int_equal(((struct kvm_replicas_resp *)call(&f, KVW_PUT_START, &keys.start))->keys[0].code, KV_OK);
	assert_int_equal(((struct kvm_results_resp *)call(&f, KVW_PUT_END, &keys.request))->results[0].code, KV_OK);
	assert_int_equal(((struct kvm_results_resp *)call(&f, KVW_EXIST_KEY, &keys.request))->results[0].code, 1);
	assert_int_equal(((struct kvm_replicas_resp *)call(&f, KVW_GET_REPLICA_LIST, &keys.request))->keys[0].code,
	                 KV_OK);
	/* No keys at all are a batch as well. */
	keys.request.n_keys = keys.start.n_keys = 0;
	assert_int_equal(((struct kvm_results_resp *)call(&f, KVW_BATCH_EXIST_KEY, &keys.request))->status, KV_OK);
	assert_int_equal(((struct kvm_replicas_resp *)call(&f, KVW_BATCH_PUT_START, &keys.start))->status, KV_OK);
	fixture_end(&f);
}

static void a_bad_placement_fails_every_key(void **state)
{
	(void)state;
	struct fixture f = fixture_with(NULL);
	struct keys keys;
	make_keys(&keys, &f);
	mount(&f, 1 << 20);
	const int bad = KV_INVALID_PARAMS;
	keys.start.replica_num = 0;
	expect_codes(call(&f, KVW_BATCH_PUT_START, &keys.start), bad, bad, bad, bad);
	keys.start.replica_num = 65;
	expect_codes(call(&f, KVW_BATCH_PUT_START, &keys.start), bad, bad, bad, bad);
	keys.start.replica_num = 1;
	keys.start.soft_pin_ttl_ms = UINT64_MAX;
	keys.start.soft_pin_action = 1;
	expect_codes(call(&f, KVW_BATCH_PUT_START, &keys.start), bad, bad, bad, bad);
	fixture_end(&f);
}

static void removal_counts(void **state)
{
	(void)state;
	struct fixture f = fixture_with(NULL);
	struct keys keys;
	make_keys(&keys, &f);
	mount(&f, 1 << 20);
	call(&f, KVW_BATCH_PUT_START, &keys.start);
	call(&f, KVW_BATCH_PUT_END, &keys.request);
	struct kvm_remove_req request = {.client = f.client, .key = kv_str("a")};
	struct kvm_count_resp *response = call(&f, KVW_REMOVE, &request);
	assert_int_equal(response->status, KV_OK);
	assert_int_equal(response->count, 1);
	response = call(&f, KVW_REMOVE, &request);
	assert_int_equal(response->status, KV_OBJECT_NOT_FOUND);
	assert_int_equal(response->count, 0);
	response = call(&f, KVW_REMOVE_ALL, &request); /* a key in it: not what was meant */
	assert_int_equal(response->status, KV_INVALID_PARAMS);
	call(&f, KVW_BATCH_EXIST_KEY, &keys.request);
	request.key.len = 0;
	response = call(&f, KVW_REMOVE_ALL, &request);
	assert_int_equal(response->status, KV_OK);
	assert_int_equal(response->count, 0);
	request.force = 1;
	response = call(&f, KVW_REMOVE_ALL, &request);
	assert_int_equal(response->count, 1);
	fixture_end(&f);
}

static void only_requests_of_a_master_are_served(void **state)
{
	(void)state;
	struct fixture f = fixture_with(NULL);
	struct kvm_data_req request = {.n_ranges = 0};
	void *response = &request;
	assert_int_equal(master_call(f.master, KVW_DATA_READ, 1, &request, &response, &f.arena), KV_INVALID_PARAMS);
	assert_null(response);
	assert_int_equal(master_call(f.master, 999, 1, &request, &response, &f.arena), KV_INVALID_PARAMS);
	fixture_end(&f);
}

static void no_memory_is_an_error_not_a_crash(void **state)
{
	(void)state;
	struct fixture f = fixture_with(NULL);
	struct keys keys;
	make_keys(&keys, &f);
	mount(&f, 1 << 20);
	/* Whatever the limit: an answer, or a clean failure. */
	bool failed = false, answered = false;
	for (size_t limit = 1; limit < 20000; limit += 97) {
		struct kv_arena arena = {.limit = limit};
		void *response;
		int status = master_call(f.master, KVW_BATCH_PUT_START, 1, &keys.start, &response, &arena);
		assert_true(status == KV_OK || status == KV_INTERNAL_ERROR);
		failed |= status != KV_OK;
		answered |= status == KV_OK;
		kv_arena_free(&arena);
		call(&f, KVW_BATCH_PUT_REVOKE, &keys.request);
	}
	assert_true(failed && answered);
	fixture_end(&f);
}

/* --- background ------------------------------------------------------------------------------------- */

static bool needs_remount(struct fixture *f)
{
	struct kvm_client_req request = {.client = f->client};
	struct kvm_ping_resp *response = call(f, KVW_PING, &request);
	assert_int_equal(response->status, KV_OK);
	assert_true(response->master.hi || response->master.lo);
	return response->need_remount;
}

static void a_client_that_stops_pinging_is_forgotten(void **state)
{
	(void)state;
	struct master_config config;
	master_config_default(&config);
	config.client_ttl_ms = 1;
	struct fixture f = fixture_with(&config);
	struct keys keys;
	make_keys(&keys, &f);
	assert_true(needs_remount(&f));
	mount(&f, 1 << 20);
	call(&f, KVW_BATCH_PUT_START, &keys.start);
	call(&f, KVW_BATCH_PUT_END, &keys.request);
	uint64_t deadline = kv_now_ns() + 60 * KV_NS_PER_S;
	struct kvm_results_resp *there;
	do {
		usleep(20000);
		there = call(&f, KVW_BATCH_EXIST_KEY, &keys.request);
	} while (there->results[0].code == 1 && kv_now_ns() < deadline);
	assert_int_equal(there->results[0].code, 0);
	assert_true(needs_remount(&f));
	fixture_end(&f);
}

static void a_full_pool_makes_room_by_itself(void **state)
{
	(void)state;
	struct master_config config;
	master_config_default(&config);
	config.kv_lease_ttl_ms = 1;
	struct fixture f = fixture_with(&config);
	mount(&f, 100 * 4096);
	/* Ten times as much as fits; a put that finds no room is tried again by its caller. */
	uint64_t deadline = kv_now_ns() + 60 * KV_NS_PER_S;
	int stored = 0, refused = 0;
	while (stored < 1000 && kv_now_ns() < deadline) {
		char name[16];
		snprintf(name, sizeof(name), "k%d", stored);
		struct kvm_put_key put = {.key = kv_str(name), .size = 4096};
		struct kvm_put_start_req start = {.client = f.client, .replica_num = 1, .keys = &put, .n_keys = 1};
		struct kvm_key key = {kv_str(name)};
		struct kvm_keys_req end = {.client = f.client, .keys = &key, .n_keys = 1};
		struct kvm_replicas_resp *placed = call(&f, KVW_PUT_START, &start);
		if (placed->keys[0].code == KV_OK) {
			struct kvm_results_resp *ended = call(&f, KVW_PUT_END, &end);
			assert_int_equal(ended->results[0].code, KV_OK);
			stored++;
		} else {
			assert_int_equal(placed->keys[0].code, KV_NO_AVAILABLE_HANDLE);
			refused++;
			usleep(1000);
		}
		kv_arena_reset(&f.arena, 1 << 20);
	}
	assert_int_equal(stored, 1000);
	assert_true(refused > 0);
	fixture_end(&f);
}

/* What could not be answered must not be reserved either. */
static void a_put_whose_answer_would_be_too_long_reserves_nothing(void **state)
{
	(void)state;
	struct fixture f = fixture_with(NULL);
	enum { KEYS = 60000 };
	struct kvm_put_key *puts = calloc(KEYS, sizeof(*puts));
	assert_non_null(puts);
	for (int i = 0; i < KEYS; i++)
		puts[i] = (struct kvm_put_key){.key = kv_str("a"), .size = 64};
	for (int i = 0; i < KVW_MAX_REPLICAS; i++)
		mount(&f, 1 << 20);
	struct kvm_put_start_req request = {
	        .client = f.client, .replica_num = KVW_MAX_REPLICAS, .keys = puts, .n_keys = KEYS};
	struct kvm_replicas_resp *response = call(&f, KVW_BATCH_PUT_START, &request);
	assert_int_equal(response->status, KV_BUFFER_OVERFLOW);
	assert_int_equal(response->n_keys, 0);
	request.n_keys = 1;
	response = call(&f, KVW_BATCH_PUT_START, &request);
	assert_int_equal(response->status, KV_OK);
	assert_int_equal(response->keys[0].code, KV_OK);
	assert_int_equal(response->keys[0].n_replicas, KVW_MAX_REPLICAS);
	free(puts);
	fixture_end(&f);
}

static void masters_come_and_go(void **state)
{
	(void)state;
	for (int i = 0; i < 10; i++) {
		struct fixture f = fixture_with(NULL);
		fixture_end(&f);
	}
	master_destroy(NULL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(a_batch_has_one_result_per_key),
	        cmocka_unit_test(a_single_request_has_exactly_one_key),
	        cmocka_unit_test(a_bad_placement_fails_every_key),
	        cmocka_unit_test(removal_counts),
	        cmocka_unit_test(only_requests_of_a_master_are_served),
	        cmocka_unit_test(no_memory_is_an_error_not_a_crash),
	        cmocka_unit_test(a_client_that_stops_pinging_is_forgotten),
	        cmocka_unit_test(a_full_pool_makes_room_by_itself),
	        cmocka_unit_test(a_put_whose_answer_would_be_too_long_reserves_nothing),
	        cmocka_unit_test(masters_come_and_go),
	};
	return cmocka_run_group_tests_name("master", tests, NULL, NULL);
}
