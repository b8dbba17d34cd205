/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What happens when the master is dead, hangs, restarts or does not answer, when setup is given what it cannot use,
 * when a process forks and when many threads call. Codes, limits, and what still works.
 */
#include "faults.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

/* Every call answers with the code, and is_exist with "absent". */
static void assert_all_fail(kvstore_t *store, int code)
{
	const char *keys[] = {"x", "y"};
	uint8_t memory[64] = {0};
	void *bufs[] = {memory, memory + 32}, *copy;
	size_t sizes[] = {32, 32};
	int codes[2];
	int64_t lengths[2];
	kvstore_replica_lists_t *lists;
	assert_int_equal(kvstore_batch_put_from(store, keys, bufs, sizes, 2, NULL, codes), 0);
	assert_int_equal(codes[0], code);
	assert_int_equal(codes[1], code);
	assert_int_equal(put_object(store, "x", 32, 2), code);
	assert_int_equal(get_object(store, "x", 32, 2), code);
	assert_int_equal(kvstore_batch_get_into(store, keys, bufs, sizes, 2, lengths), 0);
	assert_int_equal(lengths[1], code);
	assert_int_equal(kvstore_batch_is_exist(store, keys, 2, codes), 0);
	assert_int_equal(codes[1], code);
	assert_int_equal(kvstore_is_exist(store, "x"), 0);
	assert_int_equal(kvstore_put(store, "x", memory, 10, NULL), code);
	assert_int_equal(kvstore_put_from(store, "x", memory, 10, NULL), code);
	assert_int_equal(kvstore_get_into(store, "x", memory, 10), code);
	assert_int_equal(kvstore_get_buffer(store, "x", &copy), code);
	assert_int_equal(kvstore_get_size(store, "x"), code);
	assert_int_equal(kvstore_remove(store, "x", 0), code);
	assert_int_equal(kvstore_remove_all(store, 1), code);
	assert_int_equal(kvstore_batch_get_replica_desc(store, keys, 2, &lists), code);
	assert_null(lists);
}

static void master_is_dead(void **state)
{
	(void)state;
	set_limits();
	struct process master = start_master(NULL, NULL, NULL);
	kvstore_t *store = open_store(master.address, 4 * MIB, MIB);
	assert_int_equal(put_object(store, "before", 100, 1), 0);
	kill_process(&master);
	assert_all_fail(store, KV_RPC_FAIL);
	assert_int_equal(kvstore_health_check(store), 2);
	uint64_t begin = now_ms();
	close_store(store);
	assert_true(now_ms() - begin < PROMPT_MS);
	/* and no one can join */
	store = kvstore_create();
	assert_int_equal(kvstore_setup(store, "127.0.0.1", "", MIB, 0, "tcp", "", master.address), KV_RPC_FAIL);
	assert_int_equal(kvstore_health_check(store), 1);
	kvstore_destroy(store);
}

static void master_hangs(void **state)
{
	(void)state;
	set_limits();
	struct process master = start_master(NULL, NULL, NULL);
	kvstore_t *store = open_store(master.address, 4 * MIB, MIB);
	hold_process(&master);
	uint64_t begin = now_ms();
	assert_int_equal(put_object(store, "x", 100, 1), KV_RPC_TIMEOUT);
	assert_int_equal(kvstore_is_exist(store, "x"), 0);
	assert_int_equal(kvstore_health_check(store), 2);
	assert_true(now_ms() - begin < PROMPT_MS);
	kill(master.pid, SIGCONT);
	/* answers that come late belong to no one: the next calls have sockets of their own */
	for (int i = 0; i < 50 && put_object(store, "later", 100, 1) != 0; i++)
		sleep_ms(50);
	assert_int_equal(get_object(store, "later", 100, 1), 100);
	close_store(store);
	assert_int_equal(stop_process(&master), 0);
}

/* --- a master whose answers get lost ------------------------------------------------------------------------ */

#define RELAYED 16

/* Between a store and its master: passes everything on, and while it is mute, nothing that the master says. */
struct relay {
	int listen_fd;
	struct sockaddr_in master;
	char address[32];
	int mute, stop; /* atomic */
	pthread_t thread;
	nfds_t count;
	struct pollfd sides[1 + 2 * RELAYED]; /* the listener, then pairs: the store's side, the master's */
};

static void accept_relayed(struct relay *relay)
{
	int asker = accept(relay->listen_fd, NULL, NULL), master = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (asker < 0 || master < 0 || relay->count + 2 > 1 + 2 * RELAYED ||
	    connect(master, (struct sockaddr *)&relay->master, sizeof(relay->master))) {
		close(asker);
		close(master);
		return;
	}
	relay->sides[relay->count++] = (struct pollfd){.fd = asker, .events = POLLIN};
	relay->sides[relay->count++] = (struct pollfd){.fd = master, .events = POLLIN};
}

static void pass_on(struct relay *relay, nfds_t from)
{
	bool is_master = from % 2 == 0;
	nfds_t to = is_master ? from - 1 : from + 1;
	char bytes[65536];
	ssize_t size = recv(relay->sides[from].fd, bytes, sizeof(bytes), 0);
	bool drop = is_master && __atomic_load_n(&relay->mute, __ATOMIC_ACQUIRE);
	if (size > 0 && (drop || send(relay->sides[to].fd, bytes, (size_t)size, MSG_NOSIGNAL) == size))
		return;
	close(relay->sides[from].fd);
	close(relay->sides[to].fd);
	relay->sides[from].fd = relay->sides[to].fd = -1; /* poll leaves these out */
}

static void *run_relay(void *arg)
{
	struct relay *relay = arg;
	while (!__atomic_load_n(&relay->stop, __ATOMIC_ACQUIRE)) {
		if (poll(relay->sides, relay->count, 50) <= 0)
			continue;
		for (nfds_t i = 1; i < relay->count; i++)
			if (relay->sides[i].fd >= 0 && relay->sides[i].revents)
				pass_on(relay, i);
		if (relay->sides[0].revents)
			accept_relayed(relay);
	}
	for (nfds_t i = 1; i < relay->count; i++)
		if (relay->sides[i].fd >= 0)
			close(relay->sides[i].fd);
	return NULL;
}

static void open_relay(struct relay *relay, const char *master)
{
	struct sockaddr_in name = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t len = sizeof(name);
	*relay = (struct relay){.master = name, .listen_fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
	relay->master.sin_port = htons((uint16_t)atoi(strrchr(master, ':') + 1));
	assert_int_equal(bind(relay->listen_fd, (struct sockaddr *)&name, sizeof(name)), 0);
	assert_int_equal(listen(relay->listen_fd, 8), 0);
	assert_int_equal(getsockname(relay->listen_fd, (struct sockaddr *)&name, &len), 0);
	snprintf(relay->address, sizeof(relay->address), "127.0.0.1:%u", (unsigned)ntohs(name.sin_port));
	relay->sides[relay->count++] = (struct pollfd){.fd = relay->listen_fd, .events = POLLIN};
	assert_int_equal(pthread_create(&relay->thread, NULL, run_relay, relay), 0);
}

static void close_relay(struct relay *relay)
{
	__atomic_store_n(&relay->stop, 1, __ATOMIC_RELEASE);
	pthread_join(relay->thread, NULL);
	close(relay->listen_fd);
}

/* A put that the master began and whose answer was lost is taken back: until it was, the puts of others would find
 * the key begun, count as done, and store nothing. */
static void a_start_without_an_answer_is_taken_back(void **state)
{
	(void)state;
	set_limits();
	struct process master = start_master(NULL, NULL, NULL);
	struct relay relay;
	open_relay(&relay, master.address);
	kvstore_t *deaf = open_store(relay.address, 4 * MIB, MIB), *other = open_store(master.address, 4 * MIB, MIB);
	__atomic_store_n(&relay.mute, 1, __ATOMIC_RELEASE);
	assert_int_equal(put_object(deaf, "batch", 1000, 2), KV_RPC_TIMEOUT);
	assert_int_equal(kvstore_put(deaf, "single", "value", 5, NULL), KV_RPC_TIMEOUT);
	assert_int_equal(put_object(other, "batch", 1000, 2), 0);
	assert_int_equal(put_object(other, "single", 1000, 2), 0);
	assert_int_equal(get_object(other, "batch", 1000, 2), 1000);
	assert_int_equal(get_object(other, "single", 1000, 2), 1000);
	__atomic_store_n(&relay.mute, 0, __ATOMIC_RELEASE);
	close_store(other);
	close_store(deaf);
	close_relay(&relay);
	assert_int_equal(stop_process(&master), 0);
}

/* A master that was stopped and goes on finds what others asked for meanwhile and gave up: it must not do it. A
 * segment that it mounts for a setup that has failed would draw puts that nobody takes. */
static void what_was_given_up_is_not_done_later(void **state)
{
	enum { PUTS = 40 };
	(void)state;
	set_limits();
	struct process master = start_master(NULL, NULL, NULL);
	kvstore_t *store = open_store(master.address, 16 * MIB, MIB);
	kvstore_t *refused = kvstore_create();
	assert_int_equal(put_object(store, "kept", 100, 1), 0);
	hold_process(&master);
	assert_int_equal(kvstore_setup(refused, "127.0.0.1", "", 16 * MIB, 0, "tcp", "", master.address),
	                 KV_RPC_TIMEOUT);
	assert_int_equal(put_object(store, "given up", 100, 1), KV_RPC_TIMEOUT);
	assert_int_equal(kvstore_remove(store, "kept", 1), KV_RPC_TIMEOUT);
	kill(master.pid, SIGCONT);
	for (int i = 0; i < 200 && kvstore_health_check(store) != 0; i++)
		sleep_ms(50);
	sleep_ms(200);
	for (int i = 0; i < PUTS; i++) {
		char key[16];
		snprintf(key, sizeof(key), "new%d", i);
		assert_int_equal(put_object(store, key, 100, 1), 0);
	}
	assert_int_equal(get_object(store, "kept", 100, 1), 100);
	assert_int_equal(kvstore_get_size(store, "given up"), KV_OBJECT_NOT_FOUND);
	kvstore_destroy(refused);
	close_store(store);
	assert_int_equal(stop_process(&master), 0);
}

static void master_restarts(void **state)
{
	(void)state;
	struct process master = start_master(NULL, NULL, NULL);
	struct process worker = start_worker(master.address, 16);
	kvstore_t *store = open_store(master.address, 16 * MIB, MIB);
	char address[300];
	snprintf(address, sizeof(address), "%s", master.address);
	assert_int_equal(put_object(store, "before", 100, 1), 0);
	kill_process(&master);
	assert_int_equal(put_object(store, "between", 100, 1), KV_RPC_FAIL);
	master = start_master_at(address);
	/* the pings find out and the segments come back, empty; pooled sockets of the old master are no hindrance */
	uint64_t limit = now_ms() + PROMPT_MS;
	int result;
	while ((result = put_object(store, "after", 100, 1)) != 0 && now_ms() < limit)
		sleep_ms(50);
	assert_int_equal(result, 0);
	assert_int_equal(get_object(store, "after", 100, 1), 100);
	assert_int_equal(get_object(store, "before", 100, 1), KV_OBJECT_NOT_FOUND);
	assert_int_equal(kvstore_health_check(store), 0);
	close_store(store);
	assert_int_equal(stop_process(&worker), 0);
	assert_int_equal(stop_process(&master), 0);
}

static void setup_errors(void **state)
{
	(void)state;
	kvstore_t *store = kvstore_create();
	uint8_t byte = 0;
	const char *key = "k";
	void *bufs[] = {&byte};
	size_t size = 1;
	int code = 1;
	int64_t length = 1;
	char name[300];
	/* nothing works before setup */
	assert_int_equal(kvstore_batch_put_from(store, &key, bufs, &size, 1, NULL, &code), 0);
	assert_int_equal(code, -600);
	assert_int_equal(put_object(store, "k", 10, 1), -600);
	assert_int_equal(get_object(store, "k", 10, 1), -600);
	assert_int_equal(kvstore_batch_get_into(store, &key, bufs, &size, 1, &length), 0);
	assert_int_equal(length, -600);
	assert_int_equal(kvstore_put(store, "k", "v", 1, NULL), -600);
	assert_int_equal(kvstore_put_from(store, "k", &byte, 1, NULL), -600);
	assert_int_equal(kvstore_get_into(store, "k", &byte, 1), -600);
	assert_int_equal(kvstore_is_exist(store, "k"), -600);
	assert_int_equal(kvstore_batch_is_exist(store, &key, 1, &code), 0);
	assert_int_equal(code, -600);
	assert_int_equal(kvstore_get_size(store, "k"), -600);
	assert_int_equal(kvstore_remove(store, "k", 0), -600);
	assert_int_equal(kvstore_remove_all(store, 0), -600);
	assert_int_equal(kvstore_register_buffer(store, &byte, 1), -600);
	assert_int_equal(kvstore_unregister_buffer(store, &byte), -600);
	assert_int_equal(kvstore_get_hostname(store, name, sizeof(name)), -1);
	assert_int_equal(kvstore_health_check(store), 1);
	assert_int_equal(kvstore_close(store), 0);
	/* what setup refuses */
	assert_int_equal(kvstore_setup(store, NULL, "", MIB, 0, "tcp", "", "embedded"), -600);
	assert_int_equal(kvstore_setup(store, "", "", MIB, 0, "tcp", "", "embedded"), -600);
	assert_int_equal(kvstore_setup(store, "a b", "", MIB, 0, "tcp", "", "embedded"), -600);
	assert_int_equal(kvstore_setup(store, "127.0.0.1", "", 1023, 0, "tcp", "", "embedded"), -600);
	assert_int_equal(kvstore_setup(store, "127.0.0.1", "", MIB, 1, "tcp", "", "embedded"), -600);
	assert_int_equal(kvstore_setup(store, "127.0.0.1", "", MIB, ((uint64_t)1 << 40) + 1, "tcp", "", "embedded"),
	                 -600);
	assert_int_equal(kvstore_setup(store, "127.0.0.1", "", MIB, 0, "ascend", "", "embedded"), -600);
	assert_int_equal(kvstore_setup(store, "127.0.0.1", "", MIB, 0, "tcp", "", ""), -600);
	assert_int_equal(kvstore_setup(store, "127.0.0.1", "", MIB, 0, "tcp", "", "host:port"), -600);
	/* and what it takes */
	assert_int_equal(kvstore_setup(store, "127.0.0.1", "http://meta", MIB, 0, "rdma", "", "embedded"), 0);
	assert_int_equal(kvstore_setup(store, "127.0.0.1", "", MIB, 0, "tcp", "", "embedded"), -600);
	assert_int_equal(kvstore_put(store, "k", "v", 1, NULL), -600); /* no local buffer */
	assert_int_equal(put_object(store, "k", 10, 1), 0);
	assert_int_equal(kvstore_get_hostname(store, name, sizeof(name)), 0);
	/* a port that is taken is not tried again elsewhere */
	kvstore_t *other = kvstore_create();
	assert_int_equal(kvstore_setup(other, name, "", MIB, 0, "tcp", "", "embedded"), -1);
	assert_int_equal(kvstore_close(store), 0);
	assert_int_equal(kvstore_close(store), 0);
	assert_int_equal(put_object(store, "k", 10, 1), -600);
	/* free again, and a store can be set up again */
	assert_int_equal(kvstore_setup(other, name, "", MIB, 0, "tcp", "", "embedded"), 0);
	assert_int_equal(kvstore_setup(store, "127.0.0.1", NULL, 0, MIB, NULL, NULL, "embedded"), 0);
	assert_int_equal(put_object(store, "k", 10, 1), KV_NO_AVAILABLE_HANDLE); /* a pool without segments */
	kvstore_destroy(store);
	close_store(other);
	kvstore_destroy(NULL);
	assert_int_equal(kvstore_close(NULL), -1);
	assert_int_equal(kvstore_health_check(NULL), -1);
}

static void ports_of_the_range(void **state)
{
	(void)state;
	char name[300];
	setenv("MC_STORE_CLIENT_MIN_PORT", "23456", 1);
	setenv("MC_STORE_CLIENT_MAX_PORT", "23556", 1);
	kvstore_t *store = open_store("embedded", MIB, 0);
	unsetenv("MC_STORE_CLIENT_MIN_PORT");
	unsetenv("MC_STORE_CLIENT_MAX_PORT");
	assert_int_equal(kvstore_get_hostname(store, name, sizeof(name)), 0);
	int port = atoi(strrchr(name, ':') + 1);
	assert_in_range(port, 23456, 23556);
	close_store(store);
}

/* --- fork ---------------------------------------------------------------------------------------------------- */

static void forked_child_fails_cleanly(void **state)
{
	(void)state;
	struct process master = start_master(NULL, NULL, NULL);
	struct process worker = start_worker(master.address, 16);
	kvstore_t *store = open_store(master.address, 4 * MIB, 0);
	assert_int_equal(put_object(store, "k", 1000, 2), 0);
	pid_t child = fork();
	assert_true(child >= 0);
	if (child == 0) {
		uint8_t memory[1000];
		alarm(CHILD_LIMIT_S);
		int wrong = kvstore_get_into(store, "k", memory, sizeof(memory)) != KV_UNAVAILABLE_IN_CURRENT_STATUS;
		wrong |= kvstore_remove_all(store, 1) != KV_UNAVAILABLE_IN_CURRENT_STATUS;
		wrong |= kvstore_close(store) != KV_UNAVAILABLE_IN_CURRENT_STATUS;
		kvstore_destroy(store);
		/* but it can have a store of its own */
		if (CHILD_MAY_START_THREADS) {
			kvstore_t *own = kvstore_create();
			wrong |= kvstore_setup(own, "127.0.0.1", "", 2 * MIB, 0, "tcp", "", master.address) != 0;
			wrong |= kvstore_get_into(own, "k", memory, sizeof(memory)) != 1000;
			kvstore_destroy(own);
		}
		_exit(wrong);
	}
	int status = -1;
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_int_equal(status, 0);
	/* the parent's store has not noticed */
	assert_int_equal(get_object(store, "k", 1000, 3), 1000);
	assert_int_equal(put_object(store, "k2", 1000, 3), 0);
	close_store(store);
	assert_int_equal(stop_process(&worker), 0);
	assert_int_equal(stop_process(&master), 0);
}

/* --- many threads ------------------------------------------------------------------------------------------------
 */

struct hammer {
	kvstore_t *store;
	int number;
	int wrong;
};

static void *hammer(void *arg)
{
	struct hammer *self = arg;
	uint8_t value[3000], back[3000];
	char key[32];
	for (int i = 0; i < 100; i++) {
		snprintf(key, sizeof(key), "t.%d.%d", self->number, i);
		fill_bytes(value, sizeof(value), key);
		self->wrong += kvstore_put(self->store, key, value, sizeof(value), NULL) != 0;
		self->wrong += kvstore_get_into(self->store, key, back, sizeof(back)) != sizeof(back);
		self->wrong += !is_filled(back, sizeof(back), key);
		self->wrong += kvstore_is_exist(self->store, key) != 1;
		/* everyone writes and reads this one */
		int put = kvstore_put(self->store, "shared", value, 1000, NULL);
		self->wrong += put != 0;
		int64_t got = kvstore_get_into(self->store, "shared", back, sizeof(back));
		self->wrong += got != 1000 && got != KV_REPLICA_IS_NOT_READY;
		self->wrong += kvstore_remove(self->store, key, 1) != 0;
	}
	return NULL;
}

static void many_threads(void **state)
{
	(void)state;
	enum { N = 8 };
	struct process master = start_master(NULL, NULL, NULL);
	struct process worker = start_worker(master.address, 16);
	kvstore_t *store = open_store(master.address, 4 * MIB, MIB);
	struct hammer hammers[N];
	pthread_t threads[N];
	for (int i = 0; i < N; i++) {
		hammers[i] = (struct hammer){.store = store, .number = i};
		assert_int_equal(pthread_create(&threads[i], NULL, hammer, &hammers[i]), 0);
	}
	for (int i = 0; i < N; i++) {
		pthread_join(threads[i], NULL);
		assert_int_equal(hammers[i].wrong, 0);
	}
	close_store(store);
	assert_int_equal(stop_process(&worker), 0);
	assert_int_equal(stop_process(&master), 0);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
	        FAULT(master_is_dead),
	        FAULT(master_hangs),
	        FAULT(a_start_without_an_answer_is_taken_back),
	        FAULT(what_was_given_up_is_not_done_later),
	        FAULT(master_restarts),
	        FAULT(setup_errors),
	        FAULT(ports_of_the_range),
	        FAULT(forked_child_fails_cleanly),
	        FAULT(many_threads),
	};
	return TEST_MAIN(tests);
}
