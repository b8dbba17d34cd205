/* SPDX-License-Identifier: Apache-2.0 */
/* The transfer layer: registered buffers, segments, and TCP against owners that behave and owners that do not. */
#include "kv_cmocka.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "kvstore_status.h"
#include "store/base/clock.h"
#include "store/base/mem.h"
#include "store/client/local_buffer.h"
#include "store/transfer/buffers.h"
#include "store/transfer/segments.h"
#include "store/transfer/transfer.h"
#include "store/wire/wire.h"

#define SIZE     ((size_t)1 << 20)
#define LIMIT_NS (20 * KV_NS_PER_S)
#define SHORT_NS (300 * KV_NS_PER_MS)

/* --- registered buffers --------------------------------------------------------------------------------------- */

static void buffers_are_disjoint(void **state)
{
	(void)state;
	struct buffers buffers;
	char *base = (char *)0x100000;
	size_t size;
	buffers_init(&buffers);
	assert_int_equal(buffers_add(&buffers, base, 100, NULL), 0);
	assert_int_equal(buffers_add(&buffers, base + 200, 100, NULL), 0);
	assert_int_equal(buffers_add(&buffers, base + 100, 100, NULL), 0);
	assert_int_equal(buffers_add(&buffers, base + 299, 1, NULL), KV_INVALID_PARAMS);
	assert_int_equal(buffers_add(&buffers, base - 1, 2, NULL), KV_INVALID_PARAMS);
	assert_int_equal(buffers_add(&buffers, base - 1, 1000, NULL), KV_INVALID_PARAMS);
	assert_int_equal(buffers_add(&buffers, NULL, 1, NULL), KV_INVALID_PARAMS);
	assert_int_equal(buffers_add(&buffers, base, 0, NULL), KV_INVALID_PARAMS);
	assert_int_equal(buffers_add(&buffers, base + 5000, SIZE_MAX, NULL), KV_INVALID_PARAMS);
	assert_true(buffers_cover(&buffers, base, 100));
	assert_true(buffers_cover(&buffers, base + 50, 50));
	assert_true(buffers_cover(&buffers, base + 299, 1));
	assert_false(buffers_cover(&buffers, base + 50, 51)); /* goes on in another one */
	assert_false(buffers_cover(&buffers, base + 300, 1));
	assert_false(buffers_cover(&buffers, base - 1, 1));
	assert_false(buffers_cover(&buffers, base + 50, SIZE_MAX));
	assert_int_equal(buffers_remove(&buffers, base + 50, &size), KV_INVALID_PARAMS);
	assert_int_equal(buffers_remove(&buffers, base + 100, &size), 0);
	assert_int_equal(size, 100);
	assert_false(buffers_cover(&buffers, base + 150, 1));
	assert_true(buffers_cover(&buffers, base + 250, 1));
	buffers_destroy(&buffers);
}

/* Against a plain array of owned bytes. */
static void buffers_match_a_model(void **state)
{
	(void)state;
	enum { BYTES = 512 };
	uint8_t owner[BYTES] = {0}; /* start + 1 of the owning buffer, by 256 */
	uint16_t start_of[BYTES] = {0}, size_of[BYTES] = {0};
	struct rng rng = {4711};
	struct buffers buffers;
	uintptr_t base = 0x10000;
	buffers_init(&buffers);
	for (int round = 0; round < 20000; round++) {
		size_t start = rng_below(&rng, BYTES), size = 1 + rng_below(&rng, 40), got = 0;
		bool taken = start + size > BYTES;
		for (size_t i = start; i < start + size && i < BYTES; i++)
			taken |= owner[i];
		if (rng_below(&rng, 2) && start + size <= BYTES) {
			assert_int_equal(buffers_add(&buffers, (void *)(base + start), size, NULL),
			                 taken ? KV_INVALID_PARAMS : KV_OK);
			for (size_t i = start; !taken && i < start + size; i++)
				owner[i] = 1, start_of[i] = (uint16_t)start, size_of[i] = (uint16_t)size;
		} else if (rng_below(&rng, 2)) {
			bool is_start = owner[start] && start_of[start] == start;
			assert_int_equal(buffers_remove(&buffers, (void *)(base + start), &got),
			                 is_start ? KV_OK : KV_INVALID_PARAMS);
			for (size_t i = start; is_start && i < start + size_of[start]; i++)
				owner[i] = 0;
		} else {
			bool covered = owner[start] && start + size <= (size_t)start_of[start] + size_of[start];
			assert_int_equal(buffers_cover(&buffers, (void *)(base + start), size), covered);
		}
	}
	buffers_destroy(&buffers);
}

/* --- the local buffer ------------------------------------------------------------------------------------------ */

static void local_buffer_pieces(void **state)
{
	(void)state;
	struct local_buffer buffer;
	assert_int_equal(local_buffer_init(&buffer, 4096), 0);
	char *a = local_buffer_take(&buffer, 1000), *b = local_buffer_take(&buffer, 1),
	     *c = local_buffer_take(&buffer, 2048);
	assert_non_null(a);
	assert_non_null(b);
	assert_non_null(c);
	assert_true(b >= a + 1000);
	assert_true(c >= b + 1);
	assert_null(local_buffer_take(&buffer, 1024));
	local_buffer_give(&buffer, a);
	assert_ptr_equal(local_buffer_take(&buffer, 1000), a);
	local_buffer_give(&buffer, a);
	local_buffer_give(&buffer, b);
	local_buffer_give(&buffer, c);
	assert_null(local_buffer_take(&buffer, 4097));
	assert_null(local_buffer_take(&buffer, 0));
	a = local_buffer_take(&buffer, 4096);
	assert_non_null(a);
	assert_null(local_buffer_take(&buffer, 1));
	local_buffer_give(&buffer, a);
	local_buffer_destroy(&buffer);
	assert_int_equal(local_buffer_init(&buffer, 0), 0);
	assert_null(local_buffer_take(&buffer, 1));
	local_buffer_destroy(&buffer);
}

/* --- segments ------------------------------------------------------------------------------------------------------
 */

static void *remove_segment(void *arg)
{
	segments_remove(arg, (struct kv_id){1, 2});
	return NULL;
}

static void a_pinned_segment_is_waited_for(void **state)
{
	(void)state;
	struct segments segments;
	struct kv_id id = {1, 2};
	char memory[100];
	pthread_t thread;
	segments_init(&segments);
	assert_int_equal(segments_add(&segments, id, memory, sizeof(memory)), 0);
	assert_int_equal(segments_add(&segments, id, memory, sizeof(memory)), KV_SEGMENT_ALREADY_EXISTS);
	struct local_segment *pinned = segments_pin(&segments, id);
	assert_non_null(pinned);
	assert_ptr_equal(segment_range(pinned, 0, 100), memory);
	assert_ptr_equal(segment_range(pinned, 100, 0), memory + 100);
	assert_null(segment_range(pinned, 0, 101));
	assert_null(segment_range(pinned, 101, 0));
	assert_null(segment_range(pinned, 50, UINT64_MAX));
	assert_null(segment_range(pinned, UINT64_MAX, 2));
	assert_int_equal(pthread_create(&thread, NULL, remove_segment, &segments), 0);
	/* the remover is under way as soon as no one can pin any more */
	struct local_segment *more;
	while ((more = segments_pin(&segments, id)))
		segments_unpin(&segments, more);
	assert_true(segments_has(&segments, id));
	segments_unpin(&segments, pinned);
	pthread_join(thread, NULL);
	assert_false(segments_has(&segments, id));
	segments_remove(&segments, id);
	segments_destroy(&segments);
}

/* --- an honest owner
 * ------------------------------------------------------------------------------------------------ */

struct owner {
	struct transfer *transfer;
	struct kv_mem mem;
	char endpoint[32];
	struct transfer_target target;
};

static struct owner open_owner(void)
{
	struct owner owner;
	uint16_t port = 0;
	struct kv_id id = {7, 8};
	assert_int_equal(transfer_create(&owner.transfer, "127.0.0.1", &port, 0, 0), 0);
	assert_int_equal(kv_mem_map(&owner.mem, SIZE, -1, "test"), 0);
	assert_int_equal(transfer_add_segment(owner.transfer, id, &owner.mem), 0);
	snprintf(owner.endpoint, sizeof(owner.endpoint), "127.0.0.1:%u", (unsigned)port);
	owner.target = (struct transfer_target){.segment = id,
	                                        .base = (uint64_t)(uintptr_t)owner.mem.base,
	                                        .size = SIZE,
	                                        .transports = transfer_transports(owner.transfer)};
	return owner;
}

static void close_owner(struct owner *owner)
{
	transfer_destroy(owner->transfer);
	kv_mem_unmap(&owner->mem);
}

static struct transfer *open_client(void)
{
	struct transfer *client;
	assert_int_equal(transfer_create(&client, NULL, NULL, 0, 0), 0);
	return client;
}

static void run(struct transfer *client, struct transfer_request *requests, size_t count, uint64_t limit_ns)
{
	struct kv_arena arena = {0};
	struct transfer_batch *batch;
	uint64_t deadline = kv_now_ns() + limit_ns;
	assert_int_equal(transfer_submit(client, requests, count, 1, deadline, &arena, &batch), 0);
	transfer_wait(client, batch, deadline);
	kv_arena_free(&arena);
}

/* Requests of both directions, whole, cut up, outside and of a segment that is not there, in one batch. */
static void a_mixed_batch(void **state)
{
	(void)state;
	struct owner owner = open_owner();
	struct transfer *client = open_client();
	owner.target.endpoint = kv_str(owner.endpoint);
	struct transfer_target stale = owner.target;
	stale.segment.lo++;
	uint8_t *segment = owner.mem.base, out[1000], in[1000];
	for (size_t i = 0; i < sizeof(out); i++) {
		out[i] = (uint8_t)(i * 7);
		segment[5000 + i] = (uint8_t)(i * 13);
	}
	struct kv_buf whole_out = {out, 1000}, whole_in = {in, 1000};
	struct kv_buf cut_in[] = {{in, 1}, {in + 1, 0}, {in + 1, 998}, {in + 999, 1}};
	struct transfer_request requests[] = {
	        {.direction = TRANSFER_WRITE, .target = &owner.target, .offset = 100, .local = {&whole_out, 1}},
	        {.direction = TRANSFER_READ, .target = &owner.target, .offset = 5000, .local = {cut_in, 4}},
	        {.direction = TRANSFER_READ, .target = &owner.target, .offset = SIZE - 999, .local = {&whole_in, 1}},
	        {.direction = TRANSFER_READ, .target = &stale, .offset = 0, .local = {&whole_out, 1}},
	        {.direction = TRANSFER_WRITE,
	         .target = &owner.target,
	         .offset = SIZE - 1000,
	         .local = {&whole_out, 1}},
	};
	uint8_t copy[1000];
	memcpy(copy, out, sizeof(out));
	run(client, requests, 5, LIMIT_NS);
	assert_int_equal(requests[0].status, KV_OK);
	assert_int_equal(requests[0].via, KV_VIA_TCP);
	assert_int_equal(requests[1].status, KV_OK);
	assert_int_equal(requests[2].status, KV_INVALID_PARAMS);
	assert_int_equal(requests[3].status, KV_TRANSFER_FAIL);
	assert_int_equal(requests[4].status, KV_OK);
	assert_memory_equal(segment + 100, out, 1000);
	assert_memory_equal(segment + SIZE - 1000, out, 1000);
	assert_memory_equal(out, copy, 1000);
	for (size_t i = 0; i < 1000; i++)
		assert_int_equal(in[i], (uint8_t)(i * 13));
	/* the owner itself needs no socket */
	requests[1].status = 1;
	memset(in, 0, sizeof(in));
	run(owner.transfer, requests + 1, 1, LIMIT_NS);
	assert_int_equal(requests[1].status, KV_OK);
	assert_int_equal(requests[1].via, KV_VIA_MEMCPY);
	assert_int_equal(in[10], 130);
	/* a segment that is taken away is gone for peers too */
	transfer_remove_segment(owner.transfer, owner.target.segment);
	run(client, requests, 1, LIMIT_NS);
	assert_int_equal(requests[0].status, KV_TRANSFER_FAIL);
	transfer_destroy(client);
	close_owner(&owner);
}

static void nowhere_to_go(void **state)
{
	(void)state;
	struct transfer *client = open_client();
	static const char *const endpoints[] = {"", "127.0.0.1", "127.0.0.1:1", "no colon", "[::1", "a\nb:1"};
	uint8_t byte;
	struct kv_buf buf = {&byte, 1};
	for (size_t i = 0; i < sizeof(endpoints) / sizeof(*endpoints); i++) {
		struct transfer_target target = {
		        .endpoint = kv_str(endpoints[i]), .size = 10, .transports = KV_VIA_TCP};
		struct transfer_request request = {.target = &target, .local = {&buf, 1}};
		run(client, &request, 1, LIMIT_NS);
		assert_int_equal(request.status, KV_TRANSFER_FAIL);
	}
	struct transfer_target target = {.endpoint = kv_str("127.0.0.1:1"), .size = 10, .transports = KV_VIA_RDMA};
	struct transfer_request request = {.target = &target, .local = {&buf, 1}};
	run(client, &request, 1, LIMIT_NS);
	assert_int_equal(request.status, KV_TRANSFER_FAIL);
	transfer_destroy(client);
}

/* --- owners that misbehave
 * ---------------------------------------------------------------------------------------------- */

struct fake {
	int listen_fd;
	char endpoint[32];
	pthread_t thread;
	void (*script)(int fd, const struct kvw_header *request);
	int accepted;
};

static void send_all(int fd, const void *bytes, size_t size)
{
	const char *at = bytes;
	while (size) {
		ssize_t sent = send(fd, at, size, MSG_NOSIGNAL);
		if (sent <= 0)
			return;
		at += sent;
		size -= (size_t)sent;
	}
}

static void send_reply(int fd, const struct kvw_header *request, int status, uint64_t bytes, int64_t number_off)
{
	struct kv_arena arena = {0};
	struct kvm_data_resp reply = {.status = status, .bytes = bytes};
	struct kvw_header header = *request;
	const char *why;
	uint8_t *frame;
	size_t size;
	header.flags = KVW_RESPONSE;
	header.request += (uint64_t)number_off;
	assert_int_equal(kvw_frame_encode(&arena, &header, &reply, &frame, &size, &why), 0);
	send_all(fd, frame, size);
	kv_arena_free(&arena);
}

static void send_data(int fd, size_t size)
{
	char data[1000];
	memset(data, 0x77, sizeof(data));
	assert_true(size <= sizeof(data));
	send_all(fd, data, size);
}

static void say_nothing(int fd, const struct kvw_header *request)
{
	(void)fd, (void)request;
}

static void hang(int fd, const struct kvw_header *request)
{
	(void)request;
	char byte;
	while (recv(fd, &byte, 1, 0) > 0) /* until the client gives up */
		;
}

static void talk_http(int fd, const struct kvw_header *request)
{
	static const char text[] = "HTTP/1.1 400 Bad Request\r\nServer: none of yours, sorry\r\n\r\n";
	(void)request;
	send_all(fd, text, sizeof(text) - 1);
}

static void answer_another(int fd, const struct kvw_header *request)
{
	send_reply(fd, request, KV_OK, 1000, 1);
	send_data(fd, 1000);
}

static void answer_too_little(int fd, const struct kvw_header *request)
{
	send_reply(fd, request, KV_OK, 999, 0);
	send_data(fd, 999);
}

static void echo_the_request(int fd, const struct kvw_header *request)
{
	uint8_t bytes[KVW_HEADER_SIZE];
	kvw_header_encode(bytes, request);
	send_all(fd, bytes, sizeof(bytes));
}

static void die_in_the_middle(int fd, const struct kvw_header *request)
{
	send_reply(fd, request, KV_OK, 1000, 0);
	send_data(fd, 500);
}

static void hang_in_the_middle(int fd, const struct kvw_header *request)
{
	send_reply(fd, request, KV_OK, 1000, 0);
	send_data(fd, 500);
	hang(fd, request);
}

static void refuse(int fd, const struct kvw_header *request)
{
	send_reply(fd, request, KV_INVALID_PARAMS, 0, 0);
}

static void behave_and_babble(int fd, const struct kvw_header *request)
{
	send_reply(fd, request, KV_OK, 1000, 0);
	send_data(fd, 1000);
	send_data(fd, 100);
	hang(fd, request);
}

static void *play(void *arg)
{
	struct fake *fake = arg;
	for (;;) {
		uint8_t bytes[KVW_HEADER_SIZE], payload[256];
		struct kvw_header header;
		const char *why;
		int fd = accept(fake->listen_fd, NULL, NULL);
		if (fd < 0)
			return NULL;
		fake->accepted++;
		if (recv(fd, bytes, sizeof(bytes), MSG_WAITALL) == sizeof(bytes) &&
		    kvw_header_decode(&header, bytes, &why) == 0 && header.payload <= sizeof(payload) &&
		    recv(fd, payload, header.payload, MSG_WAITALL) == (ssize_t)header.payload)
			fake->script(fd, &header);
		close(fd);
	}
}

static void open_fake(struct fake *fake, void (*script)(int, const struct kvw_header *))
{
	struct sockaddr_in name = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t len = sizeof(name);
	*fake = (struct fake){.script = script, .listen_fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
	assert_int_equal(bind(fake->listen_fd, (struct sockaddr *)&name, sizeof(name)), 0);
	assert_int_equal(listen(fake->listen_fd, 8), 0);
	assert_int_equal(getsockname(fake->listen_fd, (struct sockaddr *)&name, &len), 0);
	snprintf(fake->endpoint, sizeof(fake->endpoint), "127.0.0.1:%u", (unsigned)ntohs(name.sin_port));
	assert_int_equal(pthread_create(&fake->thread, NULL, play, fake), 0);
}

static void close_fake(struct fake *fake)
{
	shutdown(fake->listen_fd, SHUT_RDWR);
	pthread_join(fake->thread, NULL);
	close(fake->listen_fd);
}

/* One read of 1000 bytes from the fake owner; returns its status. */
static int read_from(struct transfer *client, const struct fake *fake, uint64_t limit_ns)
{
	struct transfer_target target = {
	        .segment = {1, 1}, .endpoint = kv_str(fake->endpoint), .size = SIZE, .transports = KV_VIA_TCP};
	uint8_t memory[1000];
	struct kv_buf buf = {memory, sizeof(memory)};
	struct transfer_request request = {.direction = TRANSFER_READ, .target = &target, .local = {&buf, 1}};
	run(client, &request, 1, limit_ns);
	/* From here on no one touches the memory: an owner that goes on sending would be seen by the sanitizers as a
	 * write into a frame that is gone. */
	return request.status;
}

static void misbehaving_owners(void **state)
{
	(void)state;
	static const struct {
		void (*script)(int, const struct kvw_header *);
		uint64_t limit_ns;
		int status;
	} cases[] = {
	        {say_nothing, LIMIT_NS, KV_TRANSFER_FAIL},       {hang, SHORT_NS, KV_TRANSFER_FAIL},
	        {talk_http, LIMIT_NS, KV_TRANSFER_FAIL},         {answer_another, LIMIT_NS, KV_TRANSFER_FAIL},
	        {answer_too_little, LIMIT_NS, KV_TRANSFER_FAIL}, {echo_the_request, LIMIT_NS, KV_TRANSFER_FAIL},
	        {die_in_the_middle, LIMIT_NS, KV_TRANSFER_FAIL}, {hang_in_the_middle, SHORT_NS, KV_TRANSFER_FAIL},
	        {refuse, LIMIT_NS, KV_INVALID_PARAMS},
	};
	for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
		struct transfer *client = open_client();
		struct fake fake;
		open_fake(&fake, cases[i].script);
		uint64_t begin = kv_now_ns();
		assert_int_equal(read_from(client, &fake, cases[i].limit_ns), cases[i].status);
		assert_true(kv_now_ns() - begin < LIMIT_NS);
		transfer_destroy(client);
		close_fake(&fake);
	}
}

/* A connection with something left on it is not used again. */
static void a_babbling_connection_is_dropped(void **state)
{
	(void)state;
	struct transfer *client = open_client();
	struct fake fake;
	open_fake(&fake, behave_and_babble);
	assert_int_equal(read_from(client, &fake, LIMIT_NS), KV_OK);
	/* what was babbled has to arrive before the next use, or it is that use's garbage */
	usleep(100000);
	assert_int_equal(read_from(client, &fake, LIMIT_NS), KV_OK);
	transfer_destroy(client);
	close_fake(&fake);
	assert_int_equal(fake.accepted, 2);
}

/* One owner that hangs does not hold up another one. */
static void a_slow_owner_holds_up_no_other(void **state)
{
	(void)state;
	struct owner owner = open_owner();
	struct transfer *client = open_client();
	struct fake fake;
	open_fake(&fake, hang_in_the_middle);
	owner.target.endpoint = kv_str(owner.endpoint);
	struct transfer_target slow = {
	        .segment = {1, 1}, .endpoint = kv_str(fake.endpoint), .size = SIZE, .transports = KV_VIA_TCP};
	uint8_t a[1000], b[1000];
	struct kv_buf buf_a = {a, 1000}, buf_b = {b, 1000};
	struct transfer_request requests[] = {
	        {.direction = TRANSFER_READ, .target = &slow, .local = {&buf_a, 1}},
	        {.direction = TRANSFER_READ, .target = &owner.target, .local = {&buf_b, 1}},
	};
	run(client, requests, 2, 3 * KV_NS_PER_S);
	assert_int_equal(requests[0].status, KV_TRANSFER_FAIL);
	assert_int_equal(requests[1].status, KV_OK);
	transfer_destroy(client);
	close_fake(&fake);
	close_owner(&owner);
}

/* A listener whose queue is full: it answers no connect, like a host that is gone. */
struct black_hole {
	int listen_fd, queued[8];
	char endpoint[32];
};

static void open_black_hole(struct black_hole *hole)
{
	struct sockaddr_in name = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t len = sizeof(name);
	hole->listen_fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	assert_int_equal(bind(hole->listen_fd, (struct sockaddr *)&name, sizeof(name)), 0);
	assert_int_equal(listen(hole->listen_fd, 0), 0);
	assert_int_equal(getsockname(hole->listen_fd, (struct sockaddr *)&name, &len), 0);
	snprintf(hole->endpoint, sizeof(hole->endpoint), "127.0.0.1:%u", (unsigned)ntohs(name.sin_port));
	for (size_t i = 0; i < sizeof(hole->queued) / sizeof(*hole->queued); i++) {
		hole->queued[i] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
		assert_true(hole->queued[i] >= 0);
		if (connect(hole->queued[i], (struct sockaddr *)&name, sizeof(name)))
			assert_int_equal(errno, EINPROGRESS);
	}
}

static void close_black_hole(struct black_hole *hole)
{
	for (size_t i = 0; i < sizeof(hole->queued) / sizeof(*hole->queued); i++)
		close(hole->queued[i]);
	close(hole->listen_fd);
}

/* Owners that cannot be connected to, asked first, take none of the time of another one; with a limit of its own for
 * connects, the batch ends long before its deadline. */
static void an_owner_that_is_gone_holds_up_no_other(void **state)
{
	(void)state;
	struct black_hole holes[2];
	struct transfer_target gone[2];
	struct owner owner = open_owner();
	owner.target.endpoint = kv_str(owner.endpoint);
	uint8_t memory[3][1000];
	struct kv_buf bufs[3];
	struct transfer_request requests[3];
	for (size_t i = 0; i < 3; i++)
		bufs[i] = (struct kv_buf){memory[i], sizeof(memory[i])};
	for (size_t i = 0; i < 2; i++) {
		open_black_hole(&holes[i]);
		gone[i] = (struct transfer_target){.segment = {1, i},
		                                   .endpoint = kv_str(holes[i].endpoint),
		                                   .size = SIZE,
		                                   .transports = KV_VIA_TCP};
	}
	for (int round = 0; round < 2; round++) {
		/* first the batch's deadline ends the connects, then their own limit does */
		setenv("MC_RPC_CONNECT_TIMEOUT_MS", round ? "300" : "600000", 1);
		struct transfer *client = open_client();
		unsetenv("MC_RPC_CONNECT_TIMEOUT_MS");
		for (size_t i = 0; i < 3; i++)
			requests[i] = (struct transfer_request){.direction = TRANSFER_READ,
			                                        .target = i < 2 ? &gone[i] : &owner.target,
			                                        .local = {&bufs[i], 1}};
		uint64_t begin = kv_now_ns();
		run(client, requests, 3, round ? LIMIT_NS : 3 * KV_NS_PER_S);
		assert_true(kv_now_ns() - begin < LIMIT_NS);
		assert_int_equal(requests[0].status, KV_TRANSFER_FAIL);
		assert_int_equal(requests[1].status, KV_TRANSFER_FAIL);
		assert_int_equal(requests[2].status, KV_OK);
		transfer_destroy(client);
	}
	close_black_hole(&holes[0]);
	close_black_hole(&holes[1]);
	close_owner(&owner);
}

/* Every split of a batch into frames arrives where it should. */
static void many_requests(void **state)
{
	(void)state;
	enum { N = 1500, PIECE = 64 };
	struct owner owner = open_owner();
	struct transfer *client = open_client();
	owner.target.endpoint = kv_str(owner.endpoint);
	struct transfer_request *requests = calloc(N, sizeof(*requests));
	struct kv_buf *bufs = calloc(N, sizeof(*bufs));
	uint8_t *memory = malloc(N * PIECE);
	assert_non_null(requests);
	assert_non_null(bufs);
	assert_non_null(memory);
	for (size_t i = 0; i < N; i++) {
		bufs[i] = (struct kv_buf){memory + i * PIECE, PIECE};
		memset(bufs[i].ptr, (int)(i % 251), PIECE);
		requests[i] = (struct transfer_request){.direction = TRANSFER_WRITE,
		                                        .target = &owner.target,
		                                        .offset = (N - 1 - i) * PIECE,
		                                        .local = {&bufs[i], 1}};
	}
	run(client, requests, N, LIMIT_NS);
	memset(memory, 0xff, N * PIECE);
	for (size_t i = 0; i < N; i++) {
		assert_int_equal(requests[i].status, KV_OK);
		requests[i].direction = TRANSFER_READ;
	}
	run(client, requests, N, LIMIT_NS);
	for (size_t i = 0; i < N; i++) {
		assert_int_equal(requests[i].status, KV_OK);
		assert_int_equal(memory[i * PIECE], i % 251);
		assert_int_equal(((uint8_t *)owner.mem.base)[(N - 1 - i) * PIECE + PIECE - 1], i % 251);
	}
	free(requests);
	free(bufs);
	free(memory);
	transfer_destroy(client);
	close_owner(&owner);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(buffers_are_disjoint),
	        cmocka_unit_test(buffers_match_a_model),
	        cmocka_unit_test(local_buffer_pieces),
	        cmocka_unit_test(a_pinned_segment_is_waited_for),
	        cmocka_unit_test(a_mixed_batch),
	        cmocka_unit_test(nowhere_to_go),
	        cmocka_unit_test(misbehaving_owners),
	        cmocka_unit_test(a_babbling_connection_is_dropped),
	        cmocka_unit_test(a_slow_owner_holds_up_no_other),
	        cmocka_unit_test(an_owner_that_is_gone_holds_up_no_other),
	        cmocka_unit_test(many_requests),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
