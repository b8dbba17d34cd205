/* SPDX-License-Identifier: Apache-2.0 */
/* Windows: what of the address space peers reach, and the pins that keep it there. */
#include "tests/unit/kv_cmocka.h"

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#include "kvstore_status.h"
#include "store/base/clock.h"
#include "store/base/mem.h"
#include "store/transfer/segments.h"
#include "store/transfer/transfer.h"

#define LIMIT_NS (20 * KV_NS_PER_S)
#define WINDOW   4096u

static const struct kv_id nil;

static struct kvm_range at(const void *address, uint64_t size)
{
	return (struct kvm_range){(uint64_t)(uintptr_t)address, size};
}

static int pin_one(struct segments *segments, struct kvm_range range, struct pinned_range *out)
{
	return segments_pin_ranges(segments, nil, &range, 1, out);
}

static void edges(void **state)
{
	(void)state;
	struct segments segments;
	struct pinned_range pinned;
	char *base = (char *)0x100000; /* never touched */
	segments_init(&segments);
	assert_int_equal(segments_expose(&segments, base, 100), KV_OK);
	assert_int_equal(segments_expose(&segments, base + 100, 100), KV_OK);
	assert_int_equal(segments_expose(&segments, base + 99, 1), KV_INVALID_PARAMS);
	assert_int_equal(segments_expose(&segments, NULL, 1), KV_INVALID_PARAMS);
	assert_int_equal(segments_expose(&segments, base, 0), KV_INVALID_PARAMS);
	assert_int_equal(segments_expose(&segments, base + 1000, UINT64_MAX), KV_INVALID_PARAMS);
	const struct {
		struct kvm_range range;
		int status;
	} cases[] = {
	        {at(base, 100), KV_OK},
	        {at(base + 99, 1), KV_OK},
	        {at(base + 100, 100), KV_OK},
	        {at(base, 101), KV_INVALID_PARAMS}, /* goes on in another window */
	        {at(base - 1, 2), KV_INVALID_PARAMS},
	        {at(base + 199, 2), KV_INVALID_PARAMS},
	        {at(base + 200, 1), KV_INVALID_PARAMS},
	        {at(base + 1, UINT64_MAX), KV_INVALID_PARAMS},
	        {at(base, UINT64_MAX), KV_INVALID_PARAMS},
	        {{0, 1}, KV_INVALID_PARAMS},
	        {{UINT64_MAX, 2}, KV_INVALID_PARAMS},
	        {{UINT64_MAX - 10, UINT64_MAX}, KV_INVALID_PARAMS},
	};
	for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
		assert_int_equal(pin_one(&segments, cases[i].range, &pinned), cases[i].status);
		if (cases[i].status)
			continue;
		assert_int_equal((uint64_t)(uintptr_t)pinned.memory, cases[i].range.offset);
		segments_unpin_ranges(&segments, &pinned, 1);
	}
	assert_int_equal(segments_conceal(&segments, base + 1), KV_INVALID_PARAMS);
	assert_int_equal(segments_conceal(&segments, base + 300), KV_INVALID_PARAMS);
	assert_int_equal(segments_conceal(&segments, base), KV_OK);
	assert_int_equal(segments_conceal(&segments, base), KV_INVALID_PARAMS);
	assert_int_equal(pin_one(&segments, at(base, 1), &pinned), KV_INVALID_PARAMS);
	assert_int_equal(pin_one(&segments, at(base + 100, 1), &pinned), KV_OK);
	segments_unpin_ranges(&segments, &pinned, 1);
	segments_destroy(&segments);
}

/* One window of the last byte but one of the address space: sums do not wrap into it or out of it. */
static void the_end_of_the_address_space(void **state)
{
	(void)state;
	struct segments segments;
	struct pinned_range pinned;
	uint64_t start = UINT64_MAX - WINDOW;
	segments_init(&segments);
	assert_int_equal(segments_expose(&segments, (void *)(uintptr_t)start, WINDOW), KV_OK);
	assert_int_equal(pin_one(&segments, (struct kvm_range){start, WINDOW}, &pinned), KV_OK);
	segments_unpin_ranges(&segments, &pinned, 1);
	assert_int_equal(pin_one(&segments, (struct kvm_range){start, WINDOW + 1}, &pinned), KV_INVALID_PARAMS);
	assert_int_equal(pin_one(&segments, (struct kvm_range){start + 1, WINDOW}, &pinned), KV_INVALID_PARAMS);
	assert_int_equal(pin_one(&segments, (struct kvm_range){5, start}, &pinned), KV_INVALID_PARAMS);
	segments_destroy(&segments);
}

/* Segments and windows have names of their own, even over the same memory. */
static void segments_are_no_windows(void **state)
{
	(void)state;
	struct segments segments;
	struct pinned_range pinned;
	struct kv_id id = {1, 2};
	char memory[100];
	struct kvm_range counted = {10, 20}, absolute = at(memory, 100);
	segments_init(&segments);
	assert_int_equal(segments_add(&segments, nil, memory, 100), KV_INVALID_PARAMS);
	assert_int_equal(segments_add(&segments, id, memory, 100), KV_OK);
	assert_false(segments_has(&segments, nil));
	assert_null(segments_pin(&segments, nil));
	assert_int_equal(pin_one(&segments, absolute, &pinned), KV_INVALID_PARAMS);
	assert_int_equal(segments_pin_ranges(&segments, id, &absolute, 1, &pinned), KV_INVALID_PARAMS);
	assert_int_equal(segments_pin_ranges(&segments, id, &counted, 1, &pinned), KV_OK);
	assert_ptr_equal(pinned.memory, memory + 10);
	segments_unpin_ranges(&segments, &pinned, 1);
	assert_int_equal(segments_pin_ranges(&segments, (struct kv_id){1, 3}, &counted, 1, &pinned),
	                 KV_SEGMENT_NOT_FOUND);
	assert_int_equal(segments_expose(&segments, memory, 100), KV_OK);
	assert_int_equal(pin_one(&segments, counted, &pinned), KV_INVALID_PARAMS);
	assert_int_equal(pin_one(&segments, absolute, &pinned), KV_OK);
	segments_unpin_ranges(&segments, &pinned, 1);
	segments_remove(&segments, id);
	assert_int_equal(pin_one(&segments, absolute, &pinned), KV_OK);
	segments_unpin_ranges(&segments, &pinned, 1);
	segments_destroy(&segments);
}

/* As many as there may be, found by any address; a request over many of them pins each, or none at all. */
static void as_many_as_may_be(void **state)
{
	(void)state;
	enum { ASKED = 2000 };
	struct segments segments;
	struct kvm_range ranges[ASKED];
	struct pinned_range pinned[ASKED];
	struct rng rng = {42};
	char *base = (char *)0x10000000; /* never touched */
	segments_init(&segments);
	for (size_t i = 0; i < BUFFERS_MAX; i++)
		assert_int_equal(segments_expose(&segments, base + i * WINDOW, WINDOW - 1), KV_OK);
	assert_int_equal(segments_expose(&segments, base + BUFFERS_MAX * (size_t)WINDOW, 1), KV_INVALID_PARAMS);
	for (size_t i = 0; i < ASKED; i++) {
		uint64_t inside = rng_below(&rng, WINDOW - 1);
		ranges[i] = at(base + rng_below(&rng, BUFFERS_MAX) * WINDOW + inside,
		               1 + rng_below(&rng, WINDOW - 1 - inside));
	}
	assert_int_equal(segments_pin_ranges(&segments, nil, ranges, ASKED, pinned), KV_OK);
	for (size_t i = 0; i < ASKED; i++)
		assert_int_equal((uint64_t)(uintptr_t)pinned[i].memory, ranges[i].offset);
	segments_unpin_ranges(&segments, pinned, ASKED);
	ranges[ASKED - 1] = at(base + WINDOW - 1, 1); /* the gap behind the first */
	assert_int_equal(segments_pin_ranges(&segments, nil, ranges, ASKED, pinned), KV_INVALID_PARAMS);
	/* no pin is left: this would wait for ever */
	for (size_t i = 0; i < BUFFERS_MAX; i++)
		assert_int_equal(segments_conceal(&segments, base + i * WINDOW), KV_OK);
	segments_destroy(&segments);
}

struct concealer {
	struct segments *segments;
	void *base;
	int status;
	atomic_bool done;
};

static void *conceal(void *arg)
{
	struct concealer *self = arg;
	self->status = segments_conceal(self->segments, self->base);
	atomic_store(&self->done, true);
	return NULL;
}

static void a_pinned_window_is_waited_for(void **state)
{
	(void)state;
	struct segments segments;
	struct pinned_range pinned[2], more;
	char memory[100];
	struct kvm_range twice[2] = {at(memory, 10), at(memory + 50, 50)};
	pthread_t thread;
	segments_init(&segments);
	assert_int_equal(segments_expose(&segments, memory, 100), KV_OK);
	assert_int_equal(segments_pin_ranges(&segments, nil, twice, 2, pinned), KV_OK);
	struct concealer concealer = {.segments = &segments, .base = memory};
	assert_int_equal(pthread_create(&thread, NULL, conceal, &concealer), 0);
	/* the other thread is under way as soon as no one can pin any more */
	while (pin_one(&segments, twice[0], &more) == KV_OK)
		segments_unpin_ranges(&segments, &more, 1);
	assert_false(atomic_load(&concealer.done));
	assert_int_equal(segments_conceal(&segments, memory), KV_INVALID_PARAMS); /* the other thread is at it */
	assert_int_equal(segments_expose(&segments, memory + 99, 1), KV_INVALID_PARAMS);
	segments_unpin_ranges(&segments, pinned, 2);
	pthread_join(thread, NULL);
	assert_int_equal(concealer.status, KV_OK);
	assert_int_equal(segments_expose(&segments, memory + 99, 1), KV_OK);
	segments_destroy(&segments);
}

/* Threads pin and write; others take the windows away and make them anew. What has been concealed belongs to who did
 * that: a write that comes later than segments_conceal is seen. */
enum { OWNERS = 2, PINNERS = 4, WINDOWS_EACH = 8, ROUNDS = 1500 };

struct stress {
	struct segments segments;
	uint32_t memory[OWNERS][WINDOWS_EACH]; /* a window each */
	atomic_uint owners_left;
	atomic_uint pinned;
};

struct stress_owner {
	struct stress *stress;
	uint32_t *memory;
	uint64_t seed;
};

static void *own(void *arg)
{
	struct stress_owner *self = arg;
	struct rng rng = {self->seed};
	for (int i = 0; i < WINDOWS_EACH; i++)
		MUST(segments_expose(&self->stress->segments, &self->memory[i], sizeof(uint32_t)) == KV_OK);
	for (int round = 0; round < ROUNDS; round++) {
		uint32_t *window = &self->memory[rng_below(&rng, WINDOWS_EACH)];
		MUST(segments_conceal(&self->stress->segments, window) == KV_OK);
		*window = 0xdead;
		sched_yield();
		MUST(*window == 0xdead);
		MUST(segments_expose(&self->stress->segments, window, sizeof(uint32_t)) == KV_OK);
	}
	atomic_fetch_sub(&self->stress->owners_left, 1);
	return NULL;
}

static void *pin_and_write(void *arg)
{
	struct stress_owner *self = arg;
	struct stress *stress = self->stress;
	struct rng rng = {self->seed};
	while (atomic_load(&stress->owners_left)) {
		struct kvm_range ranges[3];
		struct pinned_range pinned[3];
		for (int i = 0; i < 3; i++)
			ranges[i] = at(&stress->memory[rng_below(&rng, OWNERS)][rng_below(&rng, WINDOWS_EACH)],
			               sizeof(uint32_t));
		if (segments_pin_ranges(&stress->segments, nil, ranges, 3, pinned) != KV_OK)
			continue;
		/* writers of one window are not kept apart from one another */
		for (int i = 0; i < 3; i++)
			__atomic_store_n((uint32_t *)pinned[i].memory, (uint32_t)rng_next(&rng), __ATOMIC_RELAXED);
		atomic_fetch_add(&stress->pinned, 1);
		segments_unpin_ranges(&stress->segments, pinned, 3);
	}
	return NULL;
}

static void threads_pin_and_conceal(void **state)
{
	(void)state;
	static struct stress stress;
	struct stress_owner arguments[OWNERS + PINNERS];
	pthread_t threads[OWNERS + PINNERS];
	segments_init(&stress.segments);
	atomic_store(&stress.owners_left, OWNERS);
	for (uint64_t i = 0; i < OWNERS + PINNERS; i++) {
		arguments[i] = (struct stress_owner){&stress, i < OWNERS ? stress.memory[i] : NULL, i + 1};
		assert_int_equal(pthread_create(&threads[i], NULL, i < OWNERS ? own : pin_and_write, &arguments[i]),
		                 0);
	}
	for (int i = 0; i < OWNERS + PINNERS; i++)
		pthread_join(threads[i], NULL);
	assert_true(atomic_load(&stress.pinned) > 0);
	segments_destroy(&stress.segments);
}

static int move(struct transfer *client, struct transfer_target *target, uint64_t offset, struct kv_buf local,
                enum transfer_direction direction)
{
	struct kv_arena arena = {0};
	struct transfer_batch *batch;
	struct transfer_request request = {
	        .direction = direction, .target = target, .offset = offset, .local = {&local, 1}};
	uint64_t deadline = kv_now_ns() + LIMIT_NS;
	assert_int_equal(transfer_submit(client, &request, 1, 1, deadline, &arena, &batch), 0);
	transfer_wait(client, batch, deadline);
	kv_arena_free(&arena);
	return request.status;
}

/* A store's data server has a segment and registered buffers, and exposes nothing. */
static void a_store_exposes_nothing(void **state)
{
	(void)state;
	struct transfer *store, *client;
	struct kv_mem mem;
	uint16_t port = 0;
	char endpoint[32], local[64] = "", buffer[64] = "untouched";
	assert_int_equal(transfer_create(&store, "127.0.0.1", &port, 0, 0), 0);
	assert_int_equal(transfer_create(&client, NULL, NULL, 0, 0), 0);
	assert_int_equal(kv_mem_map(&mem, WINDOW, -1, "test"), 0);
	assert_int_equal(transfer_add_segment(store, (struct kv_id){1, 1}, &mem), 0);
	assert_int_equal(transfer_register(store, buffer, sizeof(buffer)), 0);
	snprintf(endpoint, sizeof(endpoint), "127.0.0.1:%u", (unsigned)port);
	struct transfer_target target = {
	        .endpoint = kv_str(endpoint), .size = UINT64_MAX, .transports = KV_VIA_TCP | KV_VIA_MEMCPY};
	struct kv_buf bytes = {local, sizeof(local)};
	const uint64_t addresses[] = {(uint64_t)(uintptr_t)mem.base, (uint64_t)(uintptr_t)buffer, 0};
	for (size_t i = 0; i < 3; i++) {
		assert_int_equal(move(client, &target, addresses[i], bytes, TRANSFER_WRITE), KV_INVALID_PARAMS);
		assert_int_equal(move(client, &target, addresses[i], bytes, TRANSFER_READ), KV_INVALID_PARAMS);
		/* nor to itself, by whatever transport */
		assert_int_equal(move(store, &target, addresses[i], bytes, TRANSFER_READ), KV_INVALID_PARAMS);
	}
	assert_string_equal(buffer, "untouched");
	/* the segment by its own name works on */
	target = (struct transfer_target){
	        .segment = {1, 1}, .endpoint = kv_str(endpoint), .size = WINDOW, .transports = KV_VIA_TCP};
	assert_int_equal(move(client, &target, 0, bytes, TRANSFER_WRITE), KV_OK);
	transfer_destroy(client);
	transfer_destroy(store);
	kv_mem_unmap(&mem);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(edges),
	        cmocka_unit_test(the_end_of_the_address_space),
	        cmocka_unit_test(segments_are_no_windows),
	        cmocka_unit_test(as_many_as_may_be),
	        cmocka_unit_test(a_pinned_window_is_waited_for),
	        cmocka_unit_test(threads_pin_and_conceal),
	        cmocka_unit_test(a_store_exposes_nothing),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
