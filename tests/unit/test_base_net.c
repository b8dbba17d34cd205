/* SPDX-License-Identifier: Apache-2.0 */
/* Host names and ports, and sockets that keep their deadlines. */
#include "tests/unit/kv_cmocka.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "kvstore_status.h"
#include "store/base/clock.h"
#include "store/base/log.h"
#include "store/base/net.h"
#include "store/base/thread.h"

static uint64_t in_ms(uint64_t ms)
{
	return kv_now_ns() + ms * KV_NS_PER_MS;
}

static void endpoints_parse(void **state)
{
	(void)state;
	static const struct {
		const char *text, *host;
		uint16_t port;
		const char *formatted;
	} good[] = {{"host", "host", 0, "host:0"},
	            {"host:50051", "host", 50051, "host:50051"},
	            {"192.0.2.7:14024", "192.0.2.7", 14024, "192.0.2.7:14024"},
	            {"[::1]", "::1", 0, "[::1]:0"},
	            {"[2001:db8::7]:80", "2001:db8::7", 80, "[2001:db8::7]:80"},
	            {"::1", "::1", 0, "[::1]:0"},
	            {"host:0", "host", 0, "host:0"}};
	struct kv_hostport out;
	char text[KV_ENDPOINT_MAX];
	for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++) {
		assert_int_equal(kv_hostport_parse(&out, good[i].text), KV_OK);
		assert_string_equal(out.host, good[i].host);
		assert_int_equal(out.port, good[i].port);
		kv_hostport_format(text, &out);
		assert_string_equal(text, good[i].formatted);
	}
	char long_name[400];
	memset(long_name, 'a', sizeof(long_name) - 1);
	long_name[sizeof(long_name) - 1] = '\0';
	const char *const bad[] = {"",       ":1",     "host:", "host:x",  "host:65536", "host:-1",  "[::1",
	                           "[::1]x", "[::1]:", "[]:1",  "ho st:1", "host: 1",    "host:1 x", long_name};
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
		assert_int_equal(kv_hostport_parse(&out, bad[i]), KV_INVALID_PARAMS);
}

/* A connected pair over loopback. */
static void connect_pair(const char *host, int out[2])
{
	struct kv_hostport to = {.port = 0};
	int listener = kv_listen(host, 0, &to.port);
	assert_true(listener >= 0);
	assert_true(to.port > 0);
	strcpy(to.host, host);
	out[0] = kv_connect(&to, in_ms(10000));
	assert_true(out[0] >= 0);
	assert_true(fcntl(out[0], F_GETFL) & O_NONBLOCK);
	assert_true(fcntl(out[0], F_GETFD) & FD_CLOEXEC);
	uint64_t deadline = in_ms(10000);
	do {
		out[1] = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
	} while (out[1] < 0 && kv_now_ns() < deadline);
	assert_true(out[1] >= 0);
	close(listener);
}

struct sender {
	int fd, status;
	const char *bytes;
	size_t size;
};

static void *run_sender(void *arg)
{
	struct sender *sender = arg;
	/* Many uneven pieces, more than go into one call. */
	enum { PIECES = 1000 };
	struct iovec *iov = calloc(PIECES, sizeof(*iov));
	size_t at = 0;
	for (size_t i = 0; i < PIECES; i++) {
		size_t len = i + 1 < PIECES ? (i * 7919) % 8000 : sender->size - at;
		iov[i] = (struct iovec){(void *)(uintptr_t)(sender->bytes + at), len};
		at += len;
	}
	sender->status = kv_send_all(sender->fd, iov, PIECES, in_ms(60000));
	free(iov);
	return NULL;
}

static void everything_arrives_in_order(void **state)
{
	(void)state;
	int fds[2];
	connect_pair("127.0.0.1", fds);
	size_t size = 8 << 20;
	char *sent = malloc(size), *got = malloc(size);
	struct rng rng = {3};
	for (size_t i = 0; i < size; i++)
		sent[i] = (char)rng_next(&rng);
	struct sender sender = {.fd = fds[0], .bytes = sent, .size = size};
	pthread_t thread;
	assert_int_equal(kv_thread_start(&thread, run_sender, &sender, "test"), 0);
	assert_int_equal(kv_recv_all(fds[1], got, size, in_ms(60000)), KV_OK);
	pthread_join(thread, NULL);
	assert_int_equal(sender.status, KV_OK);
	assert_memory_equal(sent, got, size);
	free(sent);
	free(got);
	close(fds[0]);
	close(fds[1]);
}

static void deadlines_end_waits(void **state)
{
	(void)state;
	int fds[2];
	connect_pair("127.0.0.1", fds);
	char byte;
	uint64_t deadline = in_ms(50);
	assert_int_equal(kv_recv_all(fds[0], &byte, 1, deadline), KV_RPC_TIMEOUT);
	assert_true(kv_now_ns() >= deadline);
	/* The peer reads nothing: at some point no more goes. */
	size_t size = 64 << 20;
	char *zeros = calloc(1, size);
	struct iovec iov = {zeros, size};
	assert_int_equal(kv_send_all(fds[0], &iov, 1, in_ms(50)), KV_RPC_TIMEOUT);
	free(zeros);
	close(fds[0]);
	close(fds[1]);
}

static void a_closed_peer_is_a_failure(void **state)
{
	(void)state;
	int fds[2];
	connect_pair("127.0.0.1", fds);
	close(fds[1]);
	char bytes[4096] = {0};
	assert_int_equal(kv_recv_all(fds[0], bytes, 1, in_ms(10000)), KV_RPC_FAIL);
	/* The first bytes may still go; no signal is raised by the later ones. */
	int status = KV_OK;
	for (int i = 0; i < 1000 && status == KV_OK; i++) {
		struct iovec iov = {bytes, sizeof(bytes)};
		status = kv_send_all(fds[0], &iov, 1, in_ms(10000));
	}
	assert_int_equal(status, KV_RPC_FAIL);
	close(fds[0]);
}

static void a_refused_connection_is_a_failure(void **state)
{
	(void)state;
	struct kv_hostport to = {.host = "127.0.0.1"};
	int listener = kv_listen("127.0.0.1", 0, &to.port);
	close(listener);
	assert_int_equal(kv_connect(&to, in_ms(10000)), KV_RPC_FAIL);
	kv_log_set_level(KV_LOG_ERROR);
	struct kv_hostport nowhere = {.host = "no such host", .port = 1};
	assert_int_equal(kv_connect(&nowhere, in_ms(10000)), KV_RPC_FAIL);
	kv_log_set_level(KV_LOG_WARNING);
}

static void a_port_in_use_is_an_error(void **state)
{
	(void)state;
	uint16_t port, other;
	int first = kv_listen("127.0.0.1", 0, &port);
	assert_true(first >= 0);
	errno = 0;
	assert_int_equal(kv_listen("127.0.0.1", port, &other), -1);
	assert_int_equal(errno, EADDRINUSE);
	close(first);
	int again = kv_listen("127.0.0.1", port, &other);
	assert_true(again >= 0);
	assert_int_equal(other, port);
	close(again);
}

static void ipv6_works_where_there_is_any(void **state)
{
	(void)state;
	uint16_t port;
	int listener = kv_listen("::1", 0, &port);
	if (listener < 0) {
		print_message("SKIP: no IPv6 on loopback\n");
		skip();
	}
	close(listener);
	int fds[2];
	connect_pair("::1", fds);
	close(fds[0]);
	close(fds[1]);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(endpoints_parse),
	        cmocka_unit_test(everything_arrives_in_order),
	        cmocka_unit_test(deadlines_end_waits),
	        cmocka_unit_test(a_closed_peer_is_a_failure),
	        cmocka_unit_test(a_refused_connection_is_a_failure),
	        cmocka_unit_test(a_port_in_use_is_an_error),
	        cmocka_unit_test(ipv6_works_where_there_is_any),
	};
	return cmocka_run_group_tests_name("base-net", tests, NULL, NULL);
}
