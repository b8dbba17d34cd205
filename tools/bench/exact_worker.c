/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench exactness: a worker that makes every kind of public call, failures included, from several threads,
 * and says what every key must show for them.
 *
 *   exact_worker MASTER SEGMENT_MIB CALLS
 *
 * Waits for a line on stdin, then sets up and makes at least CALLS calls. With SEGMENT_MIB 0 (all data is at another
 * process) it then says "end the owner", waits for a line again and sees what its calls come to without one. It
 * closes, and prints one JSON object: {"calls": N, "KEY": [calls, failed_calls, keys, failed_keys, bytes], ...}. The
 * counts come from exact_model.c, which sees arguments and results only. A result that the worker did not expect ends
 * it with status 1: it knows what is in the pool, since its keys are its own and its objects are pinned.
 */
#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "exact_model.h"
#include "kvstore.h"

enum {
	THREADS = 4,
	MAX_BATCH = 16,
	MAX_OBJECT = 4096,
	MIN_OBJECT = 64,
	MAX_FRAGMENTS = 4,
	KEY_BYTES = 64,
	LONG_KEY = 5000,             /* longer than a key may be */
	LOCAL_BUFFER = 16 << 20,     /* room for every thread's copies */
	LARGER_THAN_ANY = 512 << 20, /* than the local buffer and than the pool */
};

struct actor {
	kvstore_t *store;
	pthread_t thread;
	struct model model;
	unsigned number, serial;
	uint64_t random, calls_wanted;
	uint8_t *buffer; /* registered; MAX_BATCH objects */
	uint8_t *huge;   /* registered, never touched: LARGER_THAN_ANY bytes of address space */
	char names[MAX_BATCH][KEY_BYTES];
	char long_key[LONG_KEY + 1];
	kvstore_replicate_config_t pinned;
};

__attribute__((noreturn, format(printf, 1, 2))) static void die(const char *format, ...)
{
	va_list args;
	va_start(args, format);
	fprintf(stderr, "exact_worker: ");
	vfprintf(stderr, format, args);
	fprintf(stderr, "\n");
	va_end(args);
	exit(1);
}

static void expect(bool right, const char *what, int64_t result)
{
	if (!right)
		die("%s: unexpected result %lld", what, (long long)result);
}

static uint64_t draw(struct actor *actor, uint64_t below)
{
	actor->random ^= actor->random << 13;
	actor->random ^= actor->random >> 7;
	actor->random ^= actor->random << 17;
	return actor->random % below;
}

/* --- a batch of this actor's own keys ------------------------------------------------------------------ */

struct batch {
	size_t count;
	bool removed;
	const char *keys[MAX_BATCH];
	bool usable[MAX_BATCH]; /* the client takes the key */
	size_t sizes[MAX_BATCH];
	void *buffers[MAX_BATCH];
	void *fragments[MAX_BATCH][MAX_FRAGMENTS];
	size_t lengths[MAX_BATCH][MAX_FRAGMENTS];
	void *const *bufs[MAX_BATCH];
	const size_t *size_lists[MAX_BATCH];
	size_t nbufs[MAX_BATCH];
	struct outcome outcomes[MAX_BATCH];
	int results[MAX_BATCH];
	int64_t sizes_read[MAX_BATCH];
};

/* Cut `size` bytes at `memory` into one to four pieces. */
static void cut(struct actor *actor, struct batch *batch, size_t i, size_t size)
{
	size_t pieces = 1 + draw(actor, MAX_FRAGMENTS), at = 0;
	for (size_t j = 0; j < pieces; j++) {
		size_t length = j + 1 == pieces ? size - at : size / pieces;
		batch->fragments[i][j] = (uint8_t *)batch->buffers[i] + at;
		batch->lengths[i][j] = length;
		at += length;
	}
	batch->bufs[i] = batch->fragments[i];
	batch->size_lists[i] = batch->lengths[i];
	batch->nbufs[i] = pieces;
}

/* New keys; now and then one that no store takes. */
static void new_batch(struct actor *actor, struct batch *batch)
{
	batch->count = 1 + draw(actor, MAX_BATCH);
	batch->removed = false;
	for (size_t i = 0; i < batch->count; i++) {
		snprintf(actor->names[i], KEY_BYTES, "w%d.t%u.req_%u", getpid(), actor->number, actor->serial++);
		batch->keys[i] = actor->names[i];
		batch->usable[i] = true;
		if (draw(actor, 32) == 0) {
			batch->keys[i] = draw(actor, 2) ? "" : actor->long_key;
			batch->usable[i] = false;
		}
		batch->sizes[i] = MIN_OBJECT + draw(actor, MAX_OBJECT - MIN_OBJECT + 1);
		batch->buffers[i] = actor->buffer + i * MAX_OBJECT;
		cut(actor, batch, i, batch->sizes[i]);
	}
}

static void note_outcome(struct batch *batch, size_t i, uint64_t size, int64_t result, bool duplicate)
{
	batch->outcomes[i] = (struct outcome){
	        .key_len = strlen(batch->keys[i]), .size = size, .result = result, .duplicate = duplicate};
}

/* right: what a key that the client takes is to get. */
static void put_batch(struct actor *actor, struct batch *batch, bool multi, bool duplicate, int right)
{
	int status = multi ? kvstore_batch_put_from_multi_buffers(actor->store, batch->keys, batch->bufs,
	                                                          batch->size_lists, batch->nbufs, batch->count,
	                                                          &actor->pinned, batch->results)
	                   : kvstore_batch_put_from(actor->store, batch->keys, batch->buffers, batch->sizes,
	                                            batch->count, &actor->pinned, batch->results);
	expect(status == 0, "batch put", status);
	for (size_t i = 0; i < batch->count; i++) {
		expect(batch->results[i] == (batch->usable[i] ? right : KV_INVALID_PARAMS), "batch put, a key",
		       batch->results[i]);
		note_outcome(batch, i, batch->sizes[i], batch->results[i], duplicate);
	}
	if (multi)
		model_batch_put_multi(&actor->model, batch->outcomes, batch->count, true);
	else
		model_batch_put_from(&actor->model, batch->outcomes, batch->count);
}

/* A view of the batch for reading: key `missing` replaced by one that is not there, buffer `small` too small
 * (either may be beyond the batch: then nothing is changed). */
static void spoil(struct actor *actor, const struct batch *from, struct batch *to, size_t missing, size_t small)
{
	*to = *from;
	for (size_t i = 0; i < to->count; i++) {
		if (i == small)
			to->sizes[i] /= 2;
		cut(actor, to, i, to->sizes[i]);
	}
	if (missing < to->count && to->usable[missing])
		to->keys[missing] = "none.at.all";
}

static int64_t expected_read(const struct batch *whole, const struct batch *view, size_t i)
{
	if (!whole->usable[i])
		return KV_INVALID_PARAMS;
	if (whole->removed || view->keys[i] != whole->keys[i])
		return KV_OBJECT_NOT_FOUND;
	return view->sizes[i] < whole->sizes[i] ? KV_INVALID_PARAMS : (int64_t)whole->sizes[i];
}

static void get_batch(struct actor *actor, const struct batch *whole, bool multi)
{
	struct batch view;
	spoil(actor, whole, &view, draw(actor, 2 * whole->count), draw(actor, 2 * whole->count));
	int status = multi ? kvstore_batch_get_into_multi_buffers(actor->store, view.keys, view.bufs, view.size_lists,
	                                                          view.nbufs, view.count, view.sizes_read)
	                   : kvstore_batch_get_into(actor->store, view.keys, view.buffers, view.sizes, view.count,
	                                            view.sizes_read);
	expect(status == 0, "batch get", status);
	for (size_t i = 0; i < view.count; i++) {
		expect(view.sizes_read[i] == expected_read(whole, &view, i), "batch get, a key", view.sizes_read[i]);
		note_outcome(&view, i, view.sizes[i], view.sizes_read[i], false);
	}
	if (multi)
		model_batch_get_multi(&actor->model, view.outcomes, view.count, true);
	else
		model_batch_get_into(&actor->model, view.outcomes, view.count);
}

static void exist_batch(struct actor *actor, const struct batch *whole)
{
	struct batch view;
	/* The first key is always asked for: it has a lease from here on. */
	spoil(actor, whole, &view, 1 + draw(actor, 2 * whole->count), MAX_BATCH);
	int status = kvstore_batch_is_exist(actor->store, view.keys, view.count, view.results);
	expect(status == 0, "batch is_exist", status);
	for (size_t i = 0; i < view.count; i++) {
		int right = !view.usable[i] ? KV_INVALID_PARAMS : view.keys[i] == whole->keys[i];
		expect(view.results[i] == right, "batch is_exist, a key", view.results[i]);
		note_outcome(&view, i, 0, view.results[i], false);
	}
	model_batch_is_exist(&actor->model, view.outcomes, view.count);
}

static void describe_batch(struct actor *actor, const struct batch *whole)
{
	struct batch view;
	kvstore_replica_lists_t *lists = NULL;
	spoil(actor, whole, &view, draw(actor, 2 * whole->count), MAX_BATCH);
	int status = kvstore_batch_get_replica_desc(actor->store, view.keys, view.count, &lists);
	expect(status == 0 && lists && lists->n_keys == view.count, "batch_get_replica_desc", status);
	for (size_t i = 0; i < view.count; i++) {
		int64_t right = expected_read(whole, &view, i);
		expect(lists->status[i] == (right < 0 ? right : 0), "batch_get_replica_desc, a key",
		       lists->status[i]);
		note_outcome(&view, i, whole->sizes[i], lists->status[i], false);
	}
	kvstore_replica_lists_free(lists);
	model_replica_desc(&actor->model, view.outcomes, view.count);
}

static void remove_key(struct actor *actor, const char *key, bool force, int right)
{
	int status = kvstore_remove(actor->store, key, force);
	expect(status == right, "remove", status);
	struct outcome one = {.key_len = strlen(key), .result = status};
	model_remove(&actor->model, &one);
}

static void remove_batch(struct actor *actor, const struct batch *batch)
{
	for (size_t i = 0; i < batch->count; i++)
		remove_key(actor, batch->keys[i], true, batch->usable[i] ? 0 : KV_INVALID_PARAMS);
}

/* NULL lists fail every key of the call. */
static void put_and_get_without_lists(struct actor *actor, struct batch *batch)
{
	int status = kvstore_batch_put_from_multi_buffers(actor->store, batch->keys, NULL, NULL, NULL, batch->count,
	                                                  &actor->pinned, batch->results);
	expect(status == 0, "put without lists", status);
	for (size_t i = 0; i < batch->count; i++) {
		expect(batch->results[i] == KV_INVALID_PARAMS, "put without lists, a key", batch->results[i]);
		note_outcome(batch, i, 0, batch->results[i], false);
	}
	model_batch_put_multi(&actor->model, batch->outcomes, batch->count, false);
	status = kvstore_batch_get_into_multi_buffers(actor->store, batch->keys, NULL, NULL, NULL, batch->count,
	                                              batch->sizes_read);
	expect(status == 0, "get without lists", status);
	for (size_t i = 0; i < batch->count; i++) {
		expect(batch->sizes_read[i] == KV_INVALID_PARAMS, "get without lists, a key", batch->sizes_read[i]);
		note_outcome(batch, i, 0, batch->sizes_read[i], false);
	}
	model_batch_get_multi(&actor->model, batch->outcomes, batch->count, false);
}

static void batch_episode(struct actor *actor, bool multi)
{
	struct batch batch;
	new_batch(actor, &batch);
	put_batch(actor, &batch, multi, false, 0);
	if (draw(actor, 2))
		put_batch(actor, &batch, multi, true, 0);
	exist_batch(actor, &batch);
	get_batch(actor, &batch, multi);
	describe_batch(actor, &batch);
	if (batch.usable[0])
		remove_key(actor, batch.keys[0], false, KV_OBJECT_HAS_LEASE);
	if (draw(actor, 8) == 0)
		put_and_get_without_lists(actor, &batch);
	remove_batch(actor, &batch);
	batch.removed = true;
	if (draw(actor, 4) == 0)
		get_batch(actor, &batch, multi);
}

/* --- single objects --------------------------------------------------------------------------------------- */

static void put_copy(struct actor *actor, const char *key, size_t size, int right, bool fits_local_buffer,
                     bool duplicate)
{
	int status =
	        kvstore_put(actor->store, key, size > MAX_OBJECT ? actor->huge : actor->buffer, size, &actor->pinned);
	expect(status == right, "put", status);
	struct outcome one = {.key_len = strlen(key), .size = size, .result = status, .duplicate = duplicate};
	model_put(&actor->model, &one, fits_local_buffer);
}

static void put_one_from(struct actor *actor, const char *key, size_t size, int right, bool same_node)
{
	kvstore_replicate_config_t config = actor->pinned;
	config.prefer_alloc_in_same_node = same_node;
	int status =
	        kvstore_put_from(actor->store, key, size > MAX_OBJECT ? actor->huge : actor->buffer, size, &config);
	expect(status == right, "put_from", status);
	struct outcome one = {.key_len = strlen(key), .size = size, .result = status};
	model_put_from(&actor->model, &one, !same_node);
}

static void read_one(struct actor *actor, const char *key, size_t size, int64_t right)
{
	int64_t got = kvstore_get_into(actor->store, key, actor->buffer, size);
	expect(got == right, "get_into", got);
	struct outcome one = {.key_len = strlen(key), .size = size, .result = got};
	model_get_into(&actor->model, &one);
}

static void read_copy(struct actor *actor, const char *key, int64_t right)
{
	void *copy = NULL;
	int64_t got = kvstore_get_buffer(actor->store, key, &copy);
	expect(got == right, "get_buffer", got);
	free(copy);
	struct outcome one = {.key_len = strlen(key), .result = got};
	model_get_buffer(&actor->model, &one);
}

static void ask_one(struct actor *actor, const char *key, int exists, int64_t size)
{
	struct outcome one = {.key_len = strlen(key), .result = kvstore_is_exist(actor->store, key)};
	expect(one.result == exists, "is_exist", one.result);
	model_is_exist(&actor->model, &one);
	one.result = kvstore_get_size(actor->store, key);
	expect(one.result == size, "get_size", one.result);
	model_get_size(&actor->model, &one);
}

static void single_episode(struct actor *actor)
{
	char key[KEY_BYTES];
	snprintf(key, sizeof(key), "w%d.t%u.one_%u", getpid(), actor->number, actor->serial++);
	size_t size = MIN_OBJECT + draw(actor, MAX_OBJECT - MIN_OBJECT + 1);

	put_copy(actor, key, size, 0, true, false);
	remove_key(actor, key, false, 0); /* a put alone gives no lease */
	put_copy(actor, key, size, 0, true, false);
	put_copy(actor, key, size, 0, true, true);
	ask_one(actor, key, 1, (int64_t)size);
	ask_one(actor, "none.at.all", 0, KV_OBJECT_NOT_FOUND);
	read_one(actor, key, MAX_OBJECT, (int64_t)size);
	read_one(actor, key, size - 1, KV_INVALID_PARAMS);
	read_one(actor, "none.at.all", MAX_OBJECT, KV_OBJECT_NOT_FOUND);
	read_copy(actor, key, (int64_t)size);
	read_copy(actor, "none.at.all", KV_OBJECT_NOT_FOUND);
	remove_key(actor, key, false, KV_OBJECT_HAS_LEASE);
	remove_key(actor, key, true, 0);
	remove_key(actor, key, true, KV_OBJECT_NOT_FOUND);
	put_one_from(actor, key, size, 0, false);
	remove_key(actor, key, false, 0);
	if (draw(actor, 4))
		return;
	put_one_from(actor, key, 0, 0, false); /* a warning: nothing is stored */
	put_one_from(actor, key, size, KV_INVALID_PARAMS, true);
	put_one_from(actor, key, LARGER_THAN_ANY, KV_NO_AVAILABLE_HANDLE, false);
	put_copy(actor, key, 0, KV_INVALID_PARAMS, false, false);
	put_copy(actor, key, LARGER_THAN_ANY, KV_INVALID_PARAMS, false, false);
	put_copy(actor, "", size, KV_INVALID_PARAMS, false, false);
	put_one_from(actor, actor->long_key, size, KV_INVALID_PARAMS, false);
	read_one(actor, "", MAX_OBJECT, KV_INVALID_PARAMS);
	read_copy(actor, actor->long_key, KV_INVALID_PARAMS);
	remove_key(actor, "", true, KV_INVALID_PARAMS);
}

/* --- buffers and refused calls -------------------------------------------------------------------------- */

static void register_memory(struct actor *actor, void *memory, size_t size, int right)
{
	int status = kvstore_register_buffer(actor->store, memory, size);
	expect(status == right, "register_buffer", status);
	model_register(&actor->model, size, status);
}

static void unregister_memory(struct actor *actor, void *memory, int right)
{
	int status = kvstore_unregister_buffer(actor->store, memory);
	expect(status == right, "unregister_buffer", status);
	model_unregister(&actor->model, status);
}

static void buffer_episode(struct actor *actor)
{
	static __thread uint8_t scratch[4096];
	register_memory(actor, scratch, sizeof(scratch), 0);
	register_memory(actor, scratch + 8, 64, KV_INVALID_PARAMS);
	unregister_memory(actor, scratch + 8, KV_INVALID_PARAMS);
	unregister_memory(actor, scratch, 0);
	unregister_memory(actor, scratch, KV_INVALID_PARAMS);
	register_memory(actor, scratch, 0, KV_INVALID_PARAMS);
}

static void refused_episode(struct actor *actor)
{
	int results[3];
	int64_t sizes[3];
	expect(kvstore_batch_is_exist(actor->store, NULL, 3, results) == -1, "NULL keys", 0);
	model_null_keys(&actor->model, KEY_RC_BATCH_IS_EXIST, 3);
	expect(kvstore_batch_get_into(actor->store, NULL, NULL, NULL, 3, sizes) == -1, "NULL keys", 0);
	model_null_keys(&actor->model, KEY_GET_BATCH_INTO_INTERNAL, 3);
	expect(kvstore_remove(NULL, "key", 0) == -1, "NULL store", 0);
	model_null_store(&actor->model);
}

static void *act(void *arg)
{
	struct actor *actor = arg;
	register_memory(actor, actor->buffer, MAX_BATCH * MAX_OBJECT, 0);
	while (actor->model.public_calls < actor->calls_wanted) {
		switch (draw(actor, 16)) {
		case 0:
			buffer_episode(actor);
			break;
		case 1:
			refused_episode(actor);
			break;
		case 2:
		case 3:
		case 4:
		case 5:
			single_episode(actor);
			break;
		case 6:
		case 7:
		case 8:
			batch_episode(actor, false);
			break;
		default:
			batch_episode(actor, true);
		}
	}
	/* Something is left for remove_all. */
	char key[KEY_BYTES];
	snprintf(key, sizeof(key), "w%d.t%u.left", getpid(), actor->number);
	put_copy(actor, key, MIN_OBJECT, 0, true, false);
	return NULL;
}

/* The memory's owner has died, and the master does not know it yet: keys are allocated, their bytes do not arrive. */
static void orphaned_episode(struct actor *actor)
{
	struct batch batch;
	char key[KEY_BYTES];
	for (int multi = 0; multi < 2; multi++) {
		new_batch(actor, &batch);
		put_batch(actor, &batch, multi, false, KV_TRANSFER_FAIL);
		batch.removed = true;
		get_batch(actor, &batch, multi);
	}
	put_copy(actor, "orphan", MIN_OBJECT, KV_TRANSFER_FAIL, true, false);
	put_one_from(actor, "orphan", MIN_OBJECT, KV_TRANSFER_FAIL, false);
	snprintf(key, sizeof(key), "w%d.t%u.left", getpid(), actor->number);
	read_one(actor, key, MAX_OBJECT, KV_TRANSFER_FAIL);
	read_copy(actor, key, KV_TRANSFER_FAIL);
}

/* --- the whole -------------------------------------------------------------------------------------------- */

static void *address_space(size_t bytes)
{
	void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (memory == MAP_FAILED)
		die("no address space: %s", strerror(errno));
	return memory;
}

static void init_actor(struct actor *actor, unsigned number, kvstore_t *store, uint64_t calls, uint8_t *huge)
{
	actor->store = store;
	actor->number = number;
	actor->random = 0x9e3779b97f4a7c15u * (number + 1); /* the same run every time */
	actor->calls_wanted = calls;
	actor->buffer = calloc(MAX_BATCH, MAX_OBJECT);
	actor->huge = huge;
	if (!actor->buffer)
		die("no memory");
	memset(actor->long_key, 'k', LONG_KEY);
	actor->pinned = (kvstore_replicate_config_t){
	        .struct_size = sizeof(actor->pinned), .replica_num = 1, .with_hard_pin = 1};
}

static void run_threads(struct actor *actors)
{
	for (unsigned i = 0; i < THREADS; i++)
		if (pthread_create(&actors[i].thread, NULL, act, &actors[i]))
			die("no thread: %s", strerror(errno));
	for (unsigned i = 0; i < THREADS; i++)
		pthread_join(actors[i].thread, NULL);
}

static void wait_for_owners_end(void)
{
	char line[16];
	printf("end the owner\n");
	fflush(stdout);
	if (!fgets(line, sizeof(line), stdin))
		die("no one ended the owner");
}

static void print_model(const struct model *model)
{
	printf("{\"calls\": %llu", (unsigned long long)model->public_calls);
	for (int key = 0; key < KEY_COUNT; key++) {
		const struct tally *tally = &model->key[key];
		printf(", \"%s\": [%llu, %llu, %llu, %llu, %llu]", model_key_name((enum perf_key)key),
		       (unsigned long long)tally->calls, (unsigned long long)tally->failed_calls,
		       (unsigned long long)tally->keys, (unsigned long long)tally->failed_keys,
		       (unsigned long long)tally->bytes);
	}
	printf("}\n");
	fflush(stdout);
}

static void run(const char *master, uint64_t segment, uint64_t calls)
{
	static struct actor actors[THREADS];
	static struct model all;
	kvstore_t *store = kvstore_create();
	uint8_t *huge = address_space(LARGER_THAN_ANY);
	if (!store)
		die("no memory");
	for (unsigned i = 0; i < THREADS; i++)
		init_actor(&actors[i], i, store, calls / THREADS + 1, huge);

	int status = kvstore_setup(store, "127.0.0.1", "P2PHANDSHAKE", segment, LOCAL_BUFFER, "tcp", "", master);
	expect(status == 0, "setup", status);
	model_setup(&all, segment, status);
	status = kvstore_setup(store, "127.0.0.1", "P2PHANDSHAKE", segment, LOCAL_BUFFER, "tcp", "", master);
	expect(status == KV_INVALID_PARAMS, "second setup", status);
	model_setup(&all, segment, status);
	register_memory(&actors[0], huge, LARGER_THAN_ANY, 0);

	run_threads(actors);
	if (segment == 0) {
		wait_for_owners_end();
		for (unsigned i = 0; i < THREADS; i++)
			orphaned_episode(&actors[i]);
	}
	for (unsigned i = 0; i < THREADS; i++)
		unregister_memory(&actors[i], actors[i].buffer, 0);

	int64_t removed = kvstore_remove_all(store, 1);
	expect(removed == THREADS, "remove_all", removed);
	model_remove_all(&all, removed);
	status = kvstore_close(store);
	expect(status == 0, "close", status);
	model_close(&all, segment, status);
	for (unsigned i = 0; i < THREADS; i++) {
		model_merge(&all, &actors[i].model);
		free(actors[i].buffer);
	}
	kvstore_destroy(store);
	munmap(huge, LARGER_THAN_ANY);
	print_model(&all);
}

int main(int argc, char **argv)
{
	char line[16], *end_mib, *end_calls;
	unsigned long mib = argc == 4 ? strtoul(argv[2], &end_mib, 10) : 0;
	unsigned long long calls = argc == 4 ? strtoull(argv[3], &end_calls, 10) : 0;
	if (argc != 4 || *end_mib || *end_calls || mib > 4096 || calls == 0) {
		fprintf(stderr, "usage: exact_worker MASTER SEGMENT_MIB CALLS\n");
		return 64;
	}
	if (!fgets(line, sizeof(line), stdin))
		return 0;
	run(argv[1], (uint64_t)mib << 20, calls);
	while (getchar() != EOF)
		; /* the collector reads this process's memory mappings: stay until it has detached */
	return 0;
}
