/* SPDX-License-Identifier: Apache-2.0 */
/* The master on the wire: good peers are answered, bad ones are closed and harm nobody. */
#include "tests/unit/wire_peer.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/socket.h>

#include "store/base/log.h"
#include "store/base/op_id.h"
#include "store/base/thread.h"
#include "store/master/connection.h"
#include "store/master/master_private.h"

struct fixture {
	struct master *master;
	struct master_server *server;
	uint16_t port;
	struct kv_arena arena;
	struct kv_id client;
	int good; /* a connection that has to go on working */
};

static struct fixture fixture_with(const struct master_server_limits *limits)
{
	struct fixture f = {.client = kv_id_new()};
	struct master_config config;
	struct master_server_limits defaults;
	master_config_default(&config);
	master_server_limits_default(&defaults);
	kv_log_set_level(KV_LOG_ERROR);
	f.master = master_create(&config);
	assert_non_null(f.master);
	f.server = master_server_start_limited(f.master, "127.0.0.1", 0, 2, limits ? limits : &defaults);
	assert_non_null(f.server);
	f.port = master_server_port(f.server);
	f.good = peer_connect(f.port);
	return f;
}

static void expect_good_goes_on(struct fixture *f)
{
	struct kvm_client_req ping = {.client = f->client};
	struct kvm_ping_resp *answer = peer_ask(f->good, &f->arena, KVW_PING, 5, &ping);
	assert_int_equal(answer->status, KV_OK);
}

static void fixture_end(struct fixture *f)
{
	expect_good_goes_on(f);
	master_server_stop(f->server);
	assert_true(peer_is_closed(f->good));
	close(f->good);
	master_destroy(f->master);
	kv_arena_free(&f->arena);
	kv_log_set_level(KV_LOG_WARNING);
}

static void mount(struct fixture *f, uint64_t segments)
{
	struct kvm_segment list[KVW_MAX_REPLICAS];
	for (uint64_t i = 0; i < segments; i++)
		list[i] = (struct kvm_segment){
		        .id = kv_id_new(), .endpoint = kv_str("192.0.2.7:14024"), .base = 65536, .size = 1 << 20};
	struct kvm_mount_req request = {.client = f->client, .segments = list, .n_segments = (uint32_t)segments};
	struct kvm_count_resp *answer = peer_ask(f->good, &f->arena, KVW_MOUNT_SEGMENT, 1, &request);
	assert_int_equal(answer->status, KV_OK);
	assert_int_equal(answer->count, segments);
}

/* One complete object on every segment. */
static void put(struct fixture *f, const char *name, uint32_t replicas)
{
	struct kvm_put_key put_key = {.key = kv_str(name), .size = 4096};
	struct kvm_put_start_req start = {
	        .client = f->client, .replica_num = replicas, .keys = &put_key, .n_keys = 1};
	struct kvm_replicas_resp *placed = peer_ask(f->good, &f->arena, KVW_PUT_START, 2, &start);
	assert_int_equal(placed->keys[0].code, KV_OK);
	assert_int_equal(placed->keys[0].n_replicas, replicas);
	struct kvm_key key = {kv_str(name)};
	struct kvm_keys_req request = {.client = f->client, .keys = &key, .n_keys = 1};
	struct kvm_results_resp *ended = peer_ask(f->good, &f->arena, KVW_PUT_END, 2, &request);
	assert_int_equal(ended->results[0].code, KV_OK);
}

/* The same key n times. */
static struct kvm_keys_req repeated(struct fixture *f, const char *name, uint32_t n)
{
	struct kvm_key *keys = kv_arena_alloc(&f->arena, n * sizeof(*keys));
	for (uint32_t i = 0; i < n; i++)
		keys[i].key = kv_str(name);
	return (struct kvm_keys_req){.client = f->client, .keys = keys, .n_keys = n};
}

/* --- good peers --------------------------------------------------------------------------------------- */

static void requests_may_be_pipelined(void **state)
{
	(void)state;
	struct fixture f = fixture_with(NULL);
	enum { REQUESTS = 200 };
	mount(&f, 1);
	put(&f, "k", 1);
	struct kvm_key keys[] = {{kv_str("k")}, {kv_str("missing")}};
	struct kvm_keys_req request = {.client = f.client, .keys = keys, .n_keys = 2};
	int fd = peer_connect(f.port);
	for (uint64_t i = 0; i < REQUESTS; i++)
		peer_send(fd, &f.arena, KVW_BATCH_EXIST_KEY, i, &request);
	for (uint64_t i = 0; i < REQUESTS; i++) {
		struct kvm_results_resp *answer = peer_receive(fd, &f.arena, KVW_BATCH_EXIST_KEY, i);
		assert_int_equal(answer->results[0].code, 1);
		assert_int_equal(answer->results[1].code, 0);
	}
	close(fd);
	fixture_end(&f);
}

static void a_frame_may_come_byte_by_byte(void **state)
{
	(void)state;
	struct fixture f = fixture_with(NULL);
	struct kvm_client_req ping = {.client = f.client};
	size_t size;
	uint8_t *frame = peer_frame(&f.arena, KVW_PING, 9, &ping, &size);
	int fd = peer_connect(f.port);
	for (size_t i = 0; i < size; i++)
		assert_int_equal(peer_send_bytes(fd, frame + i, 1), KV_OK);
	struct kvm_ping_resp *answer = peer_receive(fd, &f.arena, KVW_PING, 9);
	assert_int_equal(answer->need_remount, 1);
	close(fd);
	fixture_end(&f);
}

static void tens_of_thousands_of_keys_are_one_request(void **state)
{
	(void)state;
	struct fixture f = fixture_with(NULL);
	enum { KEYS = 50000 };
	mount(&f, 1);
	put(&f, "k", 1);
	struct kvm_keys_req request = repeated(&f, "k", KEYS);
	request.keys[KEYS - 1].key = kv_str("missing");
	struct kvm_results_resp *answer = peer_ask(f.good, &f.arena, KVW_BATCH_EXIST_KEY, 7, &request);
	assert_int_equal(answer->n_results, KEYS);
	for (int i = 0; i < KEYS - 1; i++)
		assert_int_equal(answer->results[i].code, 1);
	assert_int_equal(answer->results[KEYS - 1].code, 0);
	fixture_end(&f);
}

static void an_answer_beyond_the_limit_is_a_status(void **state)
{
	(void)state;
	struct fixture f = fixture_with(NULL);
	mount(&f, 16);
	put(&f, "k", 16);
	struct kvm_keys_req request = repeated(&f, "k", KVW_MAX_KEYS);
	struct kvm_replicas_resp *answer = peer_ask(f.good, &f.arena, KVW_BATCH_GET_REPLICA, 7, &request);
	assert_int_equal(answer->status, KV_BUFFER_OVERFLOW);
	assert_int_equal(answer->n_keys, 0);
	fixture_end(&f);
}

static void the_answer_comes_though_the_peer_sends_no_more(void **state)
{
	(void)state;
	struct fixture f = fixture_with(NULL);
	mount(&f, 1);
	put(&f, "k", 1);
	struct kvm_keys_req request = repeated(&f, "k", 200000); /* more than a socket's buffer holds */
	int fd = peer_connect(f.port);
	peer_send(fd, &f.arena, KVW_BATCH_GET_REPLICA, 7, &request);
	shutdown(fd, SHUT_WR);
	struct kvm_replicas_resp *answer = peer_receive(fd, &f.arena, KVW_BATCH_GET_REPLICA, 7);
	assert_int_equal(answer->n_keys, 200000);
	assert_true(peer_is_closed(fd));
	close(fd);
	fixture_end(&f);
}

/* --- bad peers ---------------------------------------------------------------------------------------- */

/* These bytes close their connection and nothing else. */
static void expect_closed(struct fixture *f, const void *bytes, size_t size)
{
	uint64_t before = master_server_rejected(f->server);
	int fd = peer_connect(f->port);
	peer_send_bytes(fd, bytes, size);
	assert_true(peer_is_closed(fd));
	close(fd);
	assert_int_equal(master_server_rejected(f->server), before + 1);
	expect_good_goes_on(f);
}

static void malformed_frames_close_their_connection(void **state)
{
	(void)state;
	struct fixture f = fixture_with(NULL);
	struct kvm_client_req ping = {.client = f.client};
	size_t size;
	uint8_t *good = peer_frame(&f.arena, KVW_PING, 1, &ping, &size);
	uint8_t *bad = kv_arena_alloc(&f.arena, 2 * size);
	struct kvw_header header = {.version = KVW_VERSION, .type = KVW_PING, .payload = 16, .request = 1};
	struct kvw_header wrong;

	expect_closed(&f, "GET / HTTP/1.1\r\nHost: master\r\n\r\n........", 40);
	memcpy(bad, good, size);
	bad[0] ^= 1;
	expect_closed(&f, bad, size); /* magic */
	wrong = header;
	wrong.version = 2;
	kvw_header_encode(bad, &wrong);
	expect_closed(&f, bad, size); /* version */
	wrong = header;
	wrong.payload = KVW_MAX_PAYLOAD + 1;
	kvw_header_encode(bad, &wrong);
	expect_closed(&f, bad, KVW_HEADER_SIZE); /* length */
	wrong.payload = UINT32_MAX;
	kvw_header_encode(bad, &wrong);
	expect_closed(&f, bad, KVW_HEADER_SIZE);
	memcpy(bad, good, size);
	bad[20] ^= 0x10;
	expect_closed(&f, bad, size); /* checksum */
	wrong = header;
	wrong.type = 500;
	kvw_header_encode(bad, &wrong);
	expect_closed(&f, bad, size); /* unknown type */
	wrong = header;
	wrong.type = KVW_DATA_READ;
	wrong.payload = 20;
	kvw_header_encode(bad, &wrong);
	memset(bad + KVW_HEADER_SIZE, 0, 20);
	expect_closed(&f, bad, KVW_HEADER_SIZE + 20); /* known, but not for a master */
	wrong = header;
	wrong.payload = 17;
	kvw_header_encode(bad, &wrong);
	expect_closed(&f, bad, KVW_HEADER_SIZE + 17); /* bytes behind the message */
	wrong = header;
	wrong.flags = KVW_RESPONSE;
	wrong.payload = 21;
	kvw_header_encode(bad, &wrong);
	expect_closed(&f, bad, KVW_HEADER_SIZE + 21); /* an answer */
	memcpy(bad, good, size);
	memset(bad + size, 0xee, size);
	/* garbage after a good frame: that is answered first */
	int fd = peer_connect(f.port);
	peer_send_bytes(fd, bad, 2 * size);
	assert_non_null(peer_receive(fd, &f.arena, KVW_PING, 1));
	assert_true(peer_is_closed(fd));
	close(fd);
	fixture_end(&f);
}

static void half_a_frame_then_the_end_harms_nobody(void **state)
{
	(void)state;
	struct fixture f = fixture_with(NULL);
	struct kvm_client_req ping = {.client = f.client};
	size_t size;
	uint8_t *frame = peer_frame(&f.arena, KVW_PING, 1, &ping, &size);
	for (size_t cut = 0; cut < size; cut += 5) {
		int fd = peer_connect(f.port);
		assert_int_equal(peer_send_bytes(fd, frame, cut), KV_OK);
		shutdown(fd, SHUT_WR);
		assert_true(peer_is_closed(fd));
		close(fd);
	}
	expect_good_goes_on(&f);
	fixture_end(&f);
}

static void a_peer_that_stays_in_a_frame_is_closed(void **state)
{
	(void)state;
	struct master_server_limits limits;
	master_server_limits_default(&limits);
	limits.frame_ms = 50;
	struct fixture f = fixture_with(&limits);
	struct kvw_header header = {.version = KVW_VERSION, .type = KVW_PING, .payload = KVW_MAX_PAYLOAD};
	uint8_t bytes[KVW_HEADER_SIZE];
	kvw_header_encode(bytes, &header);
	expect_closed(&f, bytes, sizeof(bytes)); /* waits for 64 MiB that never come */
	expect_closed(&f, bytes, 7);
	/* Silence between frames is allowed. */
	usleep(400000);
	expect_good_goes_on(&f);
	fixture_end(&f);
}

static void a_peer_that_does_not_read_is_closed(void **state)
{
	(void)state;
	struct master_server_limits limits;
	master_server_limits_default(&limits);
	limits.frame_ms = 1500; /* the request itself must have arrived by then */
	struct fixture f = fixture_with(&limits);
	mount(&f, 1);
	put(&f, "k", 1);
	struct kvm_keys_req request = repeated(&f, "k", 250000);
	size_t size;
	uint8_t *frame = peer_frame(&f.arena, KVW_BATCH_GET_REPLICA, 1, &request, &size);
	int fd = peer_connect(f.port);
	assert_int_equal(peer_send_bytes(fd, frame, size), KV_OK);
	peer_send_bytes(fd, frame, size / 2); /* and it wants more */
	uint64_t deadline = soon();
	while (master_server_rejected(f.server) == 0 && kv_now_ns() < deadline) {
		expect_good_goes_on(&f);
		usleep(10000);
	}
	assert_int_equal(master_server_rejected(f.server), 1);
	close(fd);
	fixture_end(&f);
}

static void connections_are_bounded(void **state)
{
	(void)state;
	struct master_server_limits limits;
	master_server_limits_default(&limits);
	limits.connections = 3;
	struct fixture f = fixture_with(&limits);
	struct kvm_client_req ping = {.client = f.client};
	expect_good_goes_on(&f);
	int a = peer_connect(f.port), b = peer_connect(f.port);
	peer_ask(a, &f.arena, KVW_PING, 1, &ping);
	peer_ask(b, &f.arena, KVW_PING, 1, &ping);
	int c = peer_connect(f.port);
	assert_true(peer_is_closed(c));
	close(c);
	assert_int_equal(master_server_rejected(f.server), 1);
	/* When one leaves there is room for another. */
	size_t size;
	uint8_t *frame = peer_frame(&f.arena, KVW_PING, 2, &ping, &size);
	close(a);
	uint64_t deadline = soon();
	bool admitted = false;
	while (!admitted && kv_now_ns() < deadline) {
		a = peer_connect(f.port);
		peer_send_bytes(a, frame, size); /* fails if it was refused already */
		char byte;
		admitted = kv_recv_all(a, &byte, 1, soon()) == KV_OK;
		close(a);
	}
	assert_true(admitted);
	close(b);
	fixture_end(&f);
}

static void buffered_bytes_are_bounded(void **state)
{
	(void)state;
	struct master_server_limits limits;
	master_server_limits_default(&limits);
	limits.buffered_bytes = 2 << 20;
	struct fixture f = fixture_with(&limits);
	struct kvw_header header = {.version = KVW_VERSION, .type = KVW_BATCH_EXIST_KEY, .payload = KVW_MAX_PAYLOAD};
	size_t size = 8 << 20;
	uint8_t *bytes = kv_arena_calloc(&f.arena, 1, size);
	kvw_header_encode(bytes, &header);
	expect_closed(&f, bytes, size);
	fixture_end(&f);
}

/* --- many at once --------------------------------------------------------------------------------------- */

struct asker {
	uint16_t port;
	int rounds;
	struct kv_id client;
};

static void *ask(void *arg)
{
	struct asker *asker = arg;
	struct kv_arena arena = {.limit = 0};
	struct kvm_client_req ping = {.client = asker->client};
	for (int i = 0; i < asker->rounds; i++) {
		struct kv_hostport to = {.host = "127.0.0.1", .port = asker->port};
		int fd = kv_connect(&to, soon());
		MUST(fd >= 0);
		size_t size;
		struct kvw_header header = {.type = KVW_PING, .request = (uint64_t)i};
		uint8_t *frame, answer[KVW_HEADER_SIZE + 21];
		const char *why;
		MUST(kvw_frame_encode(&arena, &header, &ping, &frame, &size, &why) == KV_OK);
		for (int j = 0; j < 5; j++) {
			MUST(peer_send_bytes(fd, frame, size) == KV_OK);
			MUST(kv_recv_all(fd, answer, sizeof(answer), soon()) == KV_OK);
			MUST(kvw_header_decode(&header, answer, &why) == KV_OK && header.request == (uint64_t)i);
		}
		close(fd);
		kv_arena_reset(&arena, 1 << 20);
	}
	kv_arena_free(&arena);
	return NULL;
}

static void many_peers_at_once(void **state)
{
	(void)state;
	struct fixture f = fixture_with(NULL);
	enum { PEERS = 4 };
	pthread_t threads[PEERS];
	struct asker asker = {.port = f.port, .rounds = 50, .client = f.client};
	for (int i = 0; i < PEERS; i++)
		assert_int_equal(kv_thread_start(&threads[i], ask, &asker, "peer"), 0);
	for (int i = 0; i < PEERS; i++)
		pthread_join(threads[i], NULL);
	assert_int_equal(master_server_rejected(f.server), 0);
	fixture_end(&f);
}

/* --- one connection, without a server ------------------------------------------------------------- */

/* Send the bytes from the other end of the socket and take them in, as a server does: what is whole is served
 * before more is received. Ends when that many frames have come. */
static void take_frames(struct connection *connection, int peer, const uint8_t *bytes, size_t size, int frames)
{
	while (frames > 0) {
		struct kvw_header header;
		const uint8_t *payload;
		ssize_t sent = size > 0 ? send(peer, bytes, size, MSG_DONTWAIT | MSG_NOSIGNAL) : 0;
		if (sent > 0) {
			bytes += sent;
			size -= (size_t)sent;
		}
		struct pollfd poller = {.fd = connection->fd, .events = POLLIN};
		assert_int_equal(poll(&poller, 1, 60000), 1);
		const char *why = connection_receive(connection);
		while (!why && connection_next_frame(connection, &header, &payload, &why)) {
			connection_frame_done(connection);
			frames--;
		}
		if (why)
			fail_msg("%s", why);
	}
}

/* The buffer is at its largest and a frame that needs more than half of it begins behind another. */
static void the_longest_frames_may_be_pipelined(void **state)
{
	(void)state;
	static const uint32_t payloads[] = {KVW_MAX_PAYLOAD, 10 << 20, KVW_MAX_PAYLOAD, 1};
	enum { FRAMES = sizeof(payloads) / sizeof(payloads[0]) };
	int fds[2];
	size_t size = 0;
	for (int i = 0; i < FRAMES; i++)
		size += KVW_HEADER_SIZE + payloads[i];
	uint8_t *bytes = calloc(size, 1), *at = bytes;
	assert_non_null(bytes);
	for (int i = 0; i < FRAMES; i++) {
		struct kvw_header header = {.version = KVW_VERSION, .type = KVW_PING, .payload = payloads[i]};
		kvw_header_encode(at, &header);
		at += KVW_HEADER_SIZE + payloads[i];
	}
	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds), 0);
	struct connection_budget budget = {.limit = 1 << 30};
	struct connection *connection = connection_create(fds[0], "peer", &budget);
	assert_non_null(connection);
	take_frames(connection, fds[1], bytes, size, FRAMES);
	connection_destroy(connection);
	assert_int_equal(budget.used, 0);
	close(fds[1]);
	free(bytes);
}

static void a_port_in_use_is_said(void **state)
{
	(void)state;
	struct fixture f = fixture_with(NULL);
	errno = 0;
	assert_null(master_server_start(f.master, "127.0.0.1", f.port, 1));
	assert_int_equal(errno, EADDRINUSE);
	fixture_end(&f);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(requests_may_be_pipelined),
	        cmocka_unit_test(a_frame_may_come_byte_by_byte),
	        cmocka_unit_test(tens_of_thousands_of_keys_are_one_request),
	        cmocka_unit_test(an_answer_beyond_the_limit_is_a_status),
	        cmocka_unit_test(the_answer_comes_though_the_peer_sends_no_more),
	        cmocka_unit_test(malformed_frames_close_their_connection),
	        cmocka_unit_test(half_a_frame_then_the_end_harms_nobody),
	        cmocka_unit_test(a_peer_that_stays_in_a_frame_is_closed),
	        cmocka_unit_test(a_peer_that_does_not_read_is_closed),
	        cmocka_unit_test(connections_are_bounded),
	        cmocka_unit_test(buffered_bytes_are_bounded),
	        cmocka_unit_test(many_peers_at_once),
	        cmocka_unit_test(the_longest_frames_may_be_pipelined),
	        cmocka_unit_test(a_port_in_use_is_said),
	};
	return cmocka_run_group_tests_name("master-server", tests, NULL, NULL);
}
