/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What happens when the holders of the data fail: an owner dies, hangs, or is killed in the middle; a lease ends
 * during a read; strangers speak at the data port.
 */
#include "faults.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "store/transfer/data_server.h"
#include "store/wire/wire.h"

/* --- owners -------------------------------------------------------------------------------------------------- */

/* A pool of two owners, with objects placed at one or the other by preference. */
struct owners {
	struct process master, a, b;
	kvstore_t *store;
};

static struct owners open_owners(const char *flag)
{
	set_limits();
	struct owners owners = {.master = start_master(flag, NULL, NULL)};
	owners.a = start_worker(owners.master.address, 32);
	owners.b = start_worker(owners.master.address, 32);
	owners.store = open_store(owners.master.address, 0, 0);
	return owners;
}

static int put_at(kvstore_t *store, const char *where, const char *key, size_t size)
{
	kvstore_replicate_config_t config = {.struct_size = sizeof(config), .replica_num = 1};
	config.preferred_segments = &where;
	config.preferred_segments_count = 1;
	void *memory = malloc(size);
	assert_non_null(memory);
	fill_bytes(memory, size, key);
	int result = kvstore_put_from(store, key, memory, size, &config);
	free(memory);
	return result;
}

/* Get the two objects in one call. */
static void get_both(kvstore_t *store, size_t size, int64_t lengths[2])
{
	const char *keys[] = {"at.a", "at.b"};
	uint8_t *memory = malloc(2 * size);
	assert_non_null(memory);
	void *bufs[] = {memory, memory + size};
	size_t sizes[] = {size, size};
	memset(memory, 0x5a, 2 * size);
	assert_int_equal(kvstore_batch_get_into(store, keys, bufs, sizes, 2, lengths), 0);
	for (int i = 0; i < 2; i++)
		if (lengths[i] > 0)
			assert_true(is_filled(bufs[i], (size_t)lengths[i], keys[i]));
	free(memory);
}

static void owner_dies(void **state)
{
	(void)state;
	struct owners owners = open_owners(NULL);
	int64_t lengths[2];
	assert_int_equal(put_at(owners.store, owners.a.address, "at.a", 4 * MIB), 0);
	assert_int_equal(put_at(owners.store, owners.b.address, "at.b", 4 * MIB), 0);
	get_both(owners.store, 4 * MIB, lengths);
	assert_int_equal(lengths[0], 4 * MIB);
	assert_int_equal(lengths[1], 4 * MIB);
	kill_process(&owners.a);
	get_both(owners.store, 4 * MIB, lengths);
	assert_int_equal(lengths[0], KV_TRANSFER_FAIL);
	assert_int_equal(lengths[1], 4 * MIB);
	/* a put at the dead owner fails, is revoked, and can be done again elsewhere */
	assert_int_equal(put_at(owners.store, owners.a.address, "again", MIB), KV_TRANSFER_FAIL);
	assert_int_equal(put_at(owners.store, owners.b.address, "again", MIB), 0);
	assert_int_equal(get_object(owners.store, "again", MIB, 3), MIB);
	close_store(owners.store);
	assert_int_equal(stop_process(&owners.b), 0);
	assert_int_equal(stop_process(&owners.master), 0);
}

static void owner_hangs(void **state)
{
	(void)state;
	struct owners owners = open_owners(NULL);
	int64_t lengths[2];
	assert_int_equal(put_at(owners.store, owners.a.address, "at.a", 16 * MIB), 0);
	assert_int_equal(put_at(owners.store, owners.b.address, "at.b", MIB), 0);
	hold_process(&owners.a);
	uint64_t begin = now_ms();
	get_both(owners.store, 16 * MIB, lengths);
	assert_int_equal(lengths[0], KV_TRANSFER_FAIL);
	assert_int_equal(lengths[1], MIB);
	assert_int_equal(put_at(owners.store, owners.a.address, "stuck", 16 * MIB), KV_TRANSFER_FAIL);
	assert_true(now_ms() - begin < PROMPT_MS);
	kill(owners.a.pid, SIGCONT);
	assert_int_equal(put_at(owners.store, owners.a.address, "stuck", 16 * MIB), 0);
	assert_int_equal(get_object(owners.store, "stuck", 16 * MIB, 16), 16 * MIB);
	get_both(owners.store, 16 * MIB, lengths);
	assert_int_equal(lengths[0], 16 * MIB);
	close_store(owners.store);
	assert_int_equal(stop_process(&owners.a), 0);
	assert_int_equal(stop_process(&owners.b), 0);
	assert_int_equal(stop_process(&owners.master), 0);
}

struct reader {
	kvstore_t *store;
	int64_t failed;
	int stop; /* atomic */
};

static void *read_on(void *arg)
{
	struct reader *reader = arg;
	uint8_t *memory = malloc(16 * MIB);
	while (!__atomic_load_n(&reader->stop, __ATOMIC_ACQUIRE) && reader->failed == 0) {
		int64_t got = kvstore_get_into(reader->store, "at.a", memory, 16 * MIB);
		if (got < 0)
			reader->failed = got;
	}
	free(memory);
	return NULL;
}

static void owner_is_killed_in_the_middle(void **state)
{
	(void)state;
	struct owners owners = open_owners(NULL);
	struct reader reader = {.store = owners.store};
	pthread_t thread;
	assert_int_equal(put_at(owners.store, owners.a.address, "at.a", 16 * MIB), 0);
	assert_int_equal(pthread_create(&thread, NULL, read_on, &reader), 0);
	sleep_ms(100);
	uint64_t begin = now_ms();
	kill_process(&owners.a);
	for (int i = 0; i < 400 && now_ms() - begin < PROMPT_MS / 4; i++)
		sleep_ms(5);
	__atomic_store_n(&reader.stop, 1, __ATOMIC_RELEASE);
	pthread_join(thread, NULL);
	assert_true(reader.failed == KV_TRANSFER_FAIL || reader.failed == KV_OBJECT_NOT_FOUND);
	close_store(owners.store);
	assert_int_equal(stop_process(&owners.b), 0);
	assert_int_equal(stop_process(&owners.master), 0);
}

static void *wake_later(void *arg)
{
	sleep_ms(400);
	kill(*(pid_t *)arg, SIGCONT);
	return NULL;
}

static void lease_ends_during_a_read(void **state)
{
	(void)state;
	struct owners owners = open_owners("--default_kv_lease_ttl=100ms");
	pthread_t thread;
	uint8_t *memory = malloc(4 * MIB);
	assert_int_equal(put_at(owners.store, owners.a.address, "at.a", 4 * MIB), 0);
	hold_process(&owners.a);
	assert_int_equal(pthread_create(&thread, NULL, wake_later, &owners.a.pid), 0);
	assert_int_equal(kvstore_get_into(owners.store, "at.a", memory, 4 * MIB), KV_LEASE_EXPIRED);
	pthread_join(thread, NULL);
	/* in time again, sooner or later: 100 ms are not much on a busy machine */
	int64_t got = 0;
	for (int i = 0; i < 100 && got != 4 * (int64_t)MIB; i++)
		got = kvstore_get_into(owners.store, "at.a", memory, 4 * MIB);
	assert_int_equal(got, 4 * MIB);
	free(memory);
	close_store(owners.store);
	assert_int_equal(stop_process(&owners.a), 0);
	assert_int_equal(stop_process(&owners.b), 0);
	assert_int_equal(stop_process(&owners.master), 0);
}

/* The check stands on the same-process path too: 1 ms is not enough for 512 MiB of copies. */
static void lease_ends_during_a_copy(void **state)
{
	(void)state;
	enum { N = 64 };
	struct process master = start_master("--default_kv_lease_ttl=1ms", NULL, NULL);
	kvstore_t *store = open_store(master.address, 16 * MIB, 0);
	const char *keys[N];
	void *bufs[N];
	size_t sizes[N];
	int64_t lengths[N];
	uint8_t *memory = malloc(8 * MIB);
	assert_non_null(memory);
	assert_int_equal(put_object(store, "copied", 8 * MIB, 1), 0);
	for (int i = 0; i < N; i++) {
		keys[i] = "copied";
		bufs[i] = memory;
		sizes[i] = 8 * MIB;
	}
	assert_int_equal(kvstore_batch_get_into(store, keys, bufs, sizes, N, lengths), 0);
	for (int i = 0; i < N; i++)
		assert_int_equal(lengths[i], KV_LEASE_EXPIRED);
	free(memory);
	close_store(store);
	assert_int_equal(stop_process(&master), 0);
}

/* --- the data server and strangers ----------------------------------------------------------------------------- */

static int connect_to(const char *address)
{
	struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(strrchr(address, ':') + 1))};
	struct timeval limit = {.tv_sec = 10};
	inet_pton(AF_INET, "127.0.0.1", &to.sin_addr);
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	assert_true(fd >= 0);
	assert_int_equal(connect(fd, (struct sockaddr *)&to, sizeof(to)), 0);
	assert_int_equal(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit)), 0);
	return fd;
}

/* The peer ended the connection: no answer, no hanging. */
static void assert_closed(int fd)
{
	char byte;
	ssize_t got = recv(fd, &byte, 1, 0);
	assert_true(got == 0 || (got < 0 && errno == ECONNRESET));
	close(fd);
}

static void send_bytes(int fd, const void *bytes, size_t size)
{
	assert_int_equal(send(fd, bytes, size, MSG_NOSIGNAL), size);
}

static void send_request(int fd, uint16_t type, const struct kvm_data_req *request)
{
	struct kv_arena arena = {0};
	struct kvw_header header = {.version = KVW_VERSION, .type = type, .request = 9, .op_id = 1};
	const char *why;
	uint8_t *frame;
	size_t size;
	assert_int_equal(kvw_frame_encode(&arena, &header, request, &frame, &size, &why), 0);
	send_bytes(fd, frame, size);
	kv_arena_free(&arena);
}

/* The status of the answer; a READ's bytes stay in the socket. */
static int receive_status(int fd)
{
	struct kv_arena arena = {0};
	uint8_t bytes[KVW_HEADER_SIZE + 64];
	struct kvw_header header;
	const char *why;
	void *message;
	assert_int_equal(recv(fd, bytes, KVW_HEADER_SIZE, MSG_WAITALL), KVW_HEADER_SIZE);
	assert_int_equal(kvw_header_decode(&header, bytes, &why), 0);
	assert_int_equal(header.request, 9);
	assert_int_equal(header.flags, KVW_RESPONSE);
	assert_true(header.payload <= 64);
	assert_int_equal(recv(fd, bytes, header.payload, MSG_WAITALL), header.payload);
	assert_int_equal(kvw_payload_decode(&arena, &header, bytes, &message, &why), 0);
	int status = ((struct kvm_data_resp *)message)->status;
	kv_arena_free(&arena);
	return status;
}

/* As many connections as a data server takes, all idle: the next peer gets the place of one of them. */
static void idle_connections_keep_nobody_out(void **state)
{
	enum { STRANGERS = DATA_SERVER_CONNECTIONS + 50 };
	(void)state;
	static int fds[STRANGERS];
	struct rlimit files;
	assert_int_equal(getrlimit(RLIMIT_NOFILE, &files), 0);
	if (files.rlim_max < 2 * STRANGERS) {
		print_message("SKIP: %d descriptors are needed\n", 2 * STRANGERS);
		skip();
	}
	files.rlim_cur = 2 * STRANGERS; /* the worker inherits it */
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &files), 0);
	struct process master = start_master(NULL, NULL, NULL);
	struct process worker = start_worker(master.address, 16);
	for (int i = 0; i < STRANGERS; i++)
		fds[i] = connect_to(worker.address);
	sleep_ms(1100); /* idle for long enough */
	kvstore_t *stores[4];
	for (int i = 0; i < 4; i++) {
		stores[i] = open_store(master.address, 0, 0);
		assert_int_equal(put_object(stores[i], "k", 100000, 2), 0);
		assert_int_equal(get_object(stores[i], "k", 100000, 2), 100000);
	}
	/* and those that are in use stay */
	for (int i = 0; i < 4; i++)
		assert_int_equal(get_object(stores[i], "k", 100000, 2), 100000);
	for (int i = 0; i < 4; i++)
		close_store(stores[i]);
	for (int i = 0; i < STRANGERS; i++)
		close(fds[i]);
	assert_int_equal(stop_process(&worker), 0);
	assert_int_equal(stop_process(&master), 0);
}

static void strangers_at_the_data_port(void **state)
{
	(void)state;
	struct process master = start_master(NULL, NULL, NULL);
	struct process worker = start_worker(master.address, 16);
	kvstore_t *store = open_store(master.address, 0, 0);
	assert_int_equal(put_object(store, "k", 100000, 2), 0);

	int fd = connect_to(worker.address);
	send_bytes(fd, "GET / HTTP/1.1\r\nHost: here, with enough bytes for a header\r\n\r\n", 62);
	assert_closed(fd);

	/* a request of the master's: not for a data server */
	uint8_t bytes[KVW_HEADER_SIZE];
	struct kvw_header header = {.version = KVW_VERSION, .type = KVW_PING, .payload = 16, .request = 9};
	kvw_header_encode(bytes, &header);
	fd = connect_to(worker.address);
	send_bytes(fd, bytes, sizeof(bytes));
	assert_closed(fd);
	/* a response, where requests are expected */
	header = (struct kvw_header){
	        .version = KVW_VERSION, .type = KVW_DATA_READ, .flags = KVW_RESPONSE, .payload = 16};
	kvw_header_encode(bytes, &header);
	fd = connect_to(worker.address);
	send_bytes(fd, bytes, sizeof(bytes));
	assert_closed(fd);
	/* longer than any request */
	header = (struct kvw_header){.version = KVW_VERSION, .type = KVW_DATA_READ, .payload = KVW_MAX_PAYLOAD};
	kvw_header_encode(bytes, &header);
	fd = connect_to(worker.address);
	send_bytes(fd, bytes, sizeof(bytes));
	assert_closed(fd);
	/* half a header, then the end */
	fd = connect_to(worker.address);
	send_bytes(fd, bytes, 20);
	shutdown(fd, SHUT_WR);
	assert_closed(fd);
	/* a message that does not decode */
	header.payload = 16;
	kvw_header_encode(bytes, &header);
	fd = connect_to(worker.address);
	send_bytes(fd, bytes, sizeof(bytes));
	send_bytes(fd, "0123456789abcdef", 16);
	assert_closed(fd);
	/* sizes that overflow */
	struct kvm_range huge[2] = {{0, UINT64_MAX}, {0, 5}};
	struct kvm_data_req request = {.ranges = huge, .n_ranges = 2};
	fd = connect_to(worker.address);
	send_request(fd, KVW_DATA_READ, &request);
	assert_closed(fd);

	/* a segment that is not there: an answer, and the connection is as good as before */
	struct kvm_range range = {0, 16};
	request = (struct kvm_data_req){.segment = {1, 2}, .ranges = &range, .n_ranges = 1};
	fd = connect_to(worker.address);
	send_request(fd, KVW_DATA_READ, &request);
	assert_int_equal(receive_status(fd), KV_SEGMENT_NOT_FOUND);
	send_request(fd, KVW_DATA_WRITE, &request);
	send_bytes(fd, "these bytes go by", 16);
	assert_int_equal(receive_status(fd), KV_SEGMENT_NOT_FOUND);
	send_request(fd, KVW_DATA_READ, &request);
	assert_int_equal(receive_status(fd), KV_SEGMENT_NOT_FOUND);
	close(fd);

	/* no one else has noticed */
	assert_int_equal(get_object(store, "k", 100000, 5), 100000);
	close_store(store);
	assert_int_equal(stop_process(&worker), 0);
	assert_int_equal(stop_process(&master), 0);
}

static void *read_until_closed(void *arg)
{
	struct reader *reader = arg;
	uint8_t memory[1000];
	do {
		reader->failed = kvstore_get_into(reader->store, "k", memory, sizeof(memory));
	} while (reader->failed == 1000);
	return NULL;
}

/* A close waits for the calls in flight; those that come later are refused. */
static void close_under_load(void **state)
{
	(void)state;
	enum { N = 4 };
	kvstore_t *store = open_store("embedded", 4 * MIB, MIB);
	struct reader readers[N];
	pthread_t threads[N];
	assert_int_equal(put_object(store, "k", 1000, 1), 0);
	for (int i = 0; i < N; i++) {
		readers[i] = (struct reader){.store = store};
		assert_int_equal(pthread_create(&threads[i], NULL, read_until_closed, &readers[i]), 0);
	}
	sleep_ms(50);
	assert_int_equal(kvstore_close(store), 0);
	for (int i = 0; i < N; i++) {
		pthread_join(threads[i], NULL);
		assert_int_equal(readers[i].failed, KV_INVALID_PARAMS);
	}
	kvstore_destroy(store);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
	        FAULT(owner_dies),
	        FAULT(owner_hangs),
	        FAULT(owner_is_killed_in_the_middle),
	        FAULT(lease_ends_during_a_read),
	        FAULT(lease_ends_during_a_copy),
	        FAULT(strangers_at_the_data_port),
	        FAULT(idle_connections_keep_nobody_out),
	        FAULT(close_under_load),
	};
	return TEST_MAIN(tests);
}
