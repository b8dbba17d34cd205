/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The error exits that need others to fail: the owner of the memory, then the master. A store without memory of its
 * own, a master in this process that can be stopped, and an owner process that can be killed.
 */
#include <setjmp.h>
#include <signal.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "store/master/master.h"
#include "tests/probes/once.h"

#define MIB        (1u << 20)
#define SEGMENT    (32u * MIB)
#define LOCAL      (4u * MIB)
#define SIZE       8192u
#define TIMEOUT_MS 60000

extern char **environ;

static struct {
	struct master *master;
	struct master_server *server;
	char address[64];
	pid_t owner;
	kvstore_t *store;
	char *memory;
} world;

/* --- the owner: this program again, in a process of its own ------------------------------------------------ */

static int be_owner(const char *master)
{
	kvstore_t *store = kvstore_create();
	if (!store || kvstore_setup(store, "127.0.0.1", "P2PHANDSHAKE", SEGMENT, 0, "tcp", "", master) != KV_OK)
		return 1;
	if (write(STDOUT_FILENO, "r", 1) != 1)
		return 1;
	for (;;)
		pause();
}

static void start_owner(void)
{
	int out[2];
	char ready = 0;
	char *argv[] = {"owner", world.address, NULL};
	posix_spawn_file_actions_t actions;
	assert_int_equal(pipe(out), 0);
	posix_spawn_file_actions_init(&actions);
	posix_spawn_file_actions_adddup2(&actions, out[1], STDOUT_FILENO);
	posix_spawn_file_actions_addclose(&actions, out[0]);
	assert_int_equal(posix_spawn(&world.owner, "/proc/self/exe", &actions, NULL, argv, environ), 0);
	posix_spawn_file_actions_destroy(&actions);
	close(out[1]);
	assert_int_equal(read(out[0], &ready, 1), 1); /* 0: it is dead */
	close(out[0]);
}

static void kill_owner(void)
{
	if (world.owner <= 0)
		return;
	kill(world.owner, SIGKILL);
	waitpid(world.owner, NULL, 0);
	world.owner = 0;
}

static int world_begin(void **state)
{
	struct master_config config;
	(void)state;
	master_config_default(&config);
	config.client_ttl_ms = 5000; /* longer than the calls on a dead owner take */
	config.put_start_discard_ms = 500;
	config.put_start_release_ms = 500;
	world.master = master_create(&config);
	if (!world.master)
		return -1;
	world.server = master_server_start(world.master, "127.0.0.1", 0, 2);
	if (!world.server)
		return -1;
	snprintf(world.address, sizeof(world.address), "127.0.0.1:%u", master_server_port(world.server));
	start_owner();
	world.store = kvstore_create();
	world.memory = malloc(MIB);
	if (!world.store || !world.memory)
		return -1;
	memset(world.memory, 'm', MIB);
	return 0;
}

static int world_end(void **state)
{
	(void)state;
	kill_owner();
	recorder_clear();
	kvstore_destroy(world.store);
	if (world.server)
		master_server_stop(world.server);
	master_destroy(world.master);
	free(world.memory);
	return 0;
}

/* Wait until a key has fired since the last clear. */
static bool comes(enum recorded_key key)
{
	for (int ms = 0; ms < TIMEOUT_MS; ms += 20) {
		if (recorder_count(key, NULL) > 0)
			return true;
		usleep(20000);
	}
	return false;
}

/* --- in order ------------------------------------------------------------------------------------------------ */

static void over_tcp(void **state)
{
	(void)state;
	kvstore_t *store = world.store;
	CALL(kvstore_setup(store, "127.0.0.1", "P2PHANDSHAKE", 0, LOCAL, "tcp", "", world.address), KV_OK,
	     KEY_RC_SETUP_REAL, 0, 0, 0, 0);
	CALL(kvstore_register_buffer(store, world.memory, MIB), KV_OK, KEY_RC_REGISTER_BUFFER, MIB, 0, 0, 0);
	CALL(kvstore_put(store, "k", world.memory, SIZE, NULL), KV_OK, KEY_PUT_INTERNAL_FULL, SIZE, 1, 0, 0);
	CALL(kvstore_get_into(store, "k", world.memory, SIZE), SIZE, KEY_GET_INTO_INTERNAL, SIZE, 1, 0, 0);
	assert_true(ever_fired(KEY_TCP_CONNECT));
}

static void dead_owner(void **state)
{
	(void)state;
	kvstore_t *store = world.store;
	const char *key = "k", *lost = "lost.batch";
	void *buffer = world.memory;
	void *const *fragments = &buffer;
	const size_t size = SIZE, one = 1;
	const size_t *sizes = &size;
	int status = 0;
	int64_t length = 0;
	void *copy;
	kill_owner();
	CALL(kvstore_get_into(store, key, world.memory, SIZE), KV_TRANSFER_FAIL, KEY_GET_INTO_INTERNAL, 0, 1, 1,
	     KV_TRANSFER_FAIL);
	CALL(kvstore_get_buffer(store, key, &copy), KV_TRANSFER_FAIL, KEY_GET_BUFFER_INTERNAL_FULL, 0, 1, 1,
	     KV_TRANSFER_FAIL);
	CALL(kvstore_batch_get_into(store, &key, &buffer, &size, 1, &length), 0, KEY_GET_BATCH_INTO_INTERNAL, 0, 1, 1,
	     KV_TRANSFER_FAIL);
	CALL(kvstore_batch_get_into_multi_buffers(store, &key, &fragments, &sizes, &one, 1, &length), 0,
	     KEY_RC_BATCH_GET_INTO_MULTI, 0, 1, 1, KV_TRANSFER_FAIL);
	CALL(kvstore_put(store, "lost", world.memory, SIZE, NULL), KV_TRANSFER_FAIL, KEY_PUT_INTERNAL_FULL, 0, 1, 1,
	     KV_TRANSFER_FAIL);
	assert_int_equal(recorder_count(KEY_PUT_SINGLE_PUT_REVOKE, NULL), 1);
	CALL(kvstore_put_from(store, "lost", world.memory, SIZE, NULL), KV_TRANSFER_FAIL, KEY_RC_PUT_FROM, 0, 1, 1,
	     KV_TRANSFER_FAIL);
	CALL(kvstore_batch_put_from(store, &lost, &buffer, &size, 1, NULL, &status), 0, KEY_RC_BATCH_PUT_FROM, 0, 1,
	     1, KV_TRANSFER_FAIL);
	CALL(kvstore_batch_put_from_multi_buffers(store, &lost, &fragments, &sizes, &one, 1, NULL, &status), 0,
	     KEY_RC_BATCH_PUT_MULTI, 0, 1, 1, KV_TRANSFER_FAIL);
	assert_int_equal(recorder_count(KEY_PUT_BATCH_PUT_REVOKE, NULL), 1);
}

static void dead_owner_is_unmounted(void **state)
{
	(void)state;
	recorder_clear();
	assert_true(comes(KEY_MASTER_BG_CLIENT_UNMOUNT));
	remember_firings();
	CALL(kvstore_put_from(world.store, "nowhere", world.memory, SIZE, NULL), KV_NO_AVAILABLE_HANDLE,
	     KEY_RC_PUT_FROM, 0, 1, 1, KV_NO_AVAILABLE_HANDLE);
}

static void dead_master(void **state)
{
	(void)state;
	master_server_stop(world.server);
	world.server = NULL;
	every_call_fails(world.store, KV_RPC_FAIL);
	recorder_clear();
	int rc = kvstore_close(world.store);
	expect_call("kvstore_close", (struct outcome){KEY_RC_TEARDOWN_ALL, 0, 0, 0, rc});
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(over_tcp),
	        cmocka_unit_test(dead_owner),
	        cmocka_unit_test(dead_owner_is_unmounted),
	        cmocka_unit_test(dead_master),
	};
	if (argc == 2)
		return be_owner(argv[1]);
	return cmocka_run_group_tests(tests, world_begin, world_end);
}
