/* SPDX-License-Identifier: Apache-2.0 */
#include "exact_model.h"

#include "kvstore_status.h"

enum {
	KEY_LIMIT = 4096,
	SPACE_UNIT = 64, /* the master allocates in multiples of this */
};

const char *model_key_name(enum perf_key key)
{
#define PERF_POINT(NAME, LAYER, LEVEL, site, meaning) [KEY_##NAME] = #NAME,
	static const char *const names[KEY_COUNT] = {
#include "perf_points.def"
	};
#undef PERF_POINT
	return names[key];
}

void model_merge(struct model *into, const struct model *from)
{
	into->public_calls += from->public_calls;
	for (int key = 0; key < KEY_COUNT; key++) {
		into->key[key].calls += from->key[key].calls;
		into->key[key].failed_calls += from->key[key].failed_calls;
		into->key[key].keys += from->key[key].keys;
		into->key[key].failed_keys += from->key[key].failed_keys;
		into->key[key].bytes += from->key[key].bytes;
	}
}

/* --- what a call shows ----------------------------------------------------------------------------------- */

/* One firing: the sums of a call's keys. */
struct shown {
	uint64_t keys, failed, bytes;
	bool failed_call;
};

static void fire(struct model *model, enum perf_key key, struct shown shown)
{
	struct tally *tally = &model->key[key];
	tally->calls++;
	tally->failed_calls += shown.failed_call;
	tally->keys += shown.keys;
	tally->failed_keys += shown.failed;
	tally->bytes += shown.bytes;
}

static struct shown one_key(bool failed, uint64_t bytes)
{
	return (struct shown){.keys = 1, .failed = failed, .bytes = failed ? 0 : bytes, .failed_call = failed};
}

static struct shown no_keys(int status, uint64_t bytes)
{
	return (struct shown){.bytes = status < 0 ? 0 : bytes, .failed_call = status < 0};
}

static void add(struct shown *shown, bool failed, uint64_t bytes)
{
	shown->keys++;
	shown->failed += failed;
	shown->failed_call |= failed;
	shown->bytes += failed ? 0 : bytes;
}

static bool usable(const struct outcome *key)
{
	return key->key_len >= 1 && key->key_len <= KEY_LIMIT;
}

/* --- put --------------------------------------------------------------------------------------------------- */

/* How a put ends: the client's keys and the master's. */
struct put_keys {
	enum perf_key end, master_end, revoke, master_revoke;
};

/* What the layers below a put see, told from the results: the keys offered to the master (those that the client
 * takes), those it allocated (a duplicate and a key without room are not), and those written. */
struct put_view {
	struct shown all;       /* every key of the call */
	struct shown checked;   /* the same before the master was asked: unusable keys have failed */
	struct shown offered;   /* as the client sees the answer: a duplicate is a success */
	struct shown at_master; /* as the master sees it: a duplicate is refused */
	struct shown started;   /* allocated */
	struct shown written;   /* the same with the outcome of the transfer */
	struct shown ended, revoked;
};

/* The one way in which a key that was allocated can fail here: its bytes did not arrive. */
static bool transfer_failed(const struct outcome *key)
{
	return key->result == KV_TRANSFER_FAIL;
}

static struct put_view view_put(const struct outcome *all, size_t count)
{
	struct put_view view = {0};
	for (size_t i = 0; i < count; i++) {
		const struct outcome *key = &all[i];
		uint64_t moved = key->duplicate ? 0 : key->size;
		add(&view.all, key->result < 0, moved);
		add(&view.checked, !usable(key), 0);
		if (!usable(key))
			continue;
		bool refused = key->result < 0 && !transfer_failed(key);
		add(&view.offered, refused, 0);
		add(&view.at_master, refused || key->duplicate, 0);
		if (refused || key->duplicate)
			continue;
		add(&view.started, false, 0);
		add(&view.written, transfer_failed(key), key->size);
		if (transfer_failed(key))
			add(&view.revoked, false, 0); /* the revoke itself succeeds */
		else
			add(&view.ended, false, key->size);
	}
	return view;
}

/* The master's own work for the keys of a put start. */
static void fire_allocations(struct model *model, const struct outcome *all, size_t count)
{
	for (size_t i = 0; i < count; i++) {
		if (!usable(&all[i]))
			continue;
		fire(model, KEY_MASTER_PUT_SHARD_LOCK, one_key(false, 0));
		if (all[i].duplicate)
			continue;
		uint64_t space = (all[i].size + SPACE_UNIT - 1) / SPACE_UNIT * SPACE_UNIT;
		fire(model, KEY_MASTER_PUT_ALLOCATE_MEM,
		     one_key(all[i].result < 0 && !transfer_failed(&all[i]), space));
	}
}

/* The master is told and moves nothing: its answer is a success, whatever the client's phase reports. */
static struct shown told_master(struct shown shown)
{
	return (struct shown){.keys = shown.keys};
}

static void fire_completion(struct model *model, const struct put_view *view, const struct put_keys *keys)
{
	if (view->ended.keys) {
		fire(model, keys->end, view->ended);
		fire(model, keys->master_end, told_master(view->ended));
	}
	if (view->revoked.keys) {
		fire(model, keys->revoke, view->revoked);
		fire(model, keys->master_revoke, told_master(view->revoked));
	}
}

static void client_batch_put(struct model *model, const struct outcome *all, size_t count)
{
	struct put_view view = view_put(all, count);
	fire(model, KEY_PUT_BATCH_FULL, view.all);
	fire(model, KEY_PUT_BATCH_CREATE_OPS, view.checked);
	fire(model, KEY_PUT_BATCH_COLLECT_RESULTS, view.all);
	if (view.offered.keys == 0)
		return;
	fire(model, KEY_PUT_BATCH_PUT_START, view.offered);
	fire(model, KEY_MASTER_RPC_BATCH_PUT_START, view.at_master);
	fire_allocations(model, all, count);
	if (view.started.keys == 0)
		return;
	fire(model, KEY_PUT_BATCH_SUBMIT, view.started);
	fire(model, KEY_PUT_BATCH_WAIT, view.written);
	static const struct put_keys keys = {KEY_PUT_BATCH_PUT_END, KEY_MASTER_RPC_BATCH_PUT_END,
	                                     KEY_PUT_BATCH_PUT_REVOKE, KEY_MASTER_RPC_BATCH_PUT_REVOKE};
	fire_completion(model, &view, &keys);
}

static void client_put(struct model *model, const struct outcome *one)
{
	struct put_view view = view_put(one, 1);
	fire(model, KEY_PUT_SINGLE_FULL, view.all);
	if (view.offered.keys == 0)
		return;
	fire(model, KEY_PUT_SINGLE_PUT_START, view.offered);
	fire(model, KEY_MASTER_RPC_PUT_START, view.at_master);
	fire_allocations(model, one, 1);
	if (view.started.keys == 0)
		return;
	fire(model, KEY_PUT_SINGLE_TRANSFER_WRITE, view.written);
	fire(model, KEY_PUT_SINGLE_TRANSFER_SUBMIT, view.started);
	fire(model, KEY_PUT_SINGLE_TRANSFER_WAIT, view.written);
	static const struct put_keys keys = {KEY_PUT_SINGLE_PUT_END, KEY_MASTER_RPC_PUT_END,
	                                     KEY_PUT_SINGLE_PUT_REVOKE, KEY_MASTER_RPC_PUT_REVOKE};
	fire_completion(model, &view, &keys);
}

/* --- get --------------------------------------------------------------------------------------------------- */

/* What a lookup says about a key whose read gave this result: only an unusable key and a missing object fail
 * there; a buffer that is too small fails later. */
static bool lookup_fails(const struct outcome *key)
{
	return !usable(key) || key->result == KV_OBJECT_NOT_FOUND;
}

struct get_view {
	struct shown all;       /* with the bytes read */
	struct shown answered;  /* without bytes */
	struct shown found;     /* before the transfer: what fails there has not failed yet */
	struct shown looked_up; /* after the lookup */
	struct shown at_master; /* the keys that the master is asked for */
	struct shown started, read;
};

static struct get_view view_get(const struct outcome *all, size_t count)
{
	struct get_view view = {0};
	for (size_t i = 0; i < count; i++) {
		const struct outcome *key = &all[i];
		bool failed = key->result < 0;
		add(&view.all, failed, failed ? 0 : (uint64_t)key->result);
		add(&view.answered, failed, 0);
		add(&view.found, failed && !transfer_failed(key), 0);
		add(&view.looked_up, lookup_fails(key), 0);
		if (usable(key))
			add(&view.at_master, lookup_fails(key), 0);
		if (failed && !transfer_failed(key))
			continue;
		add(&view.started, false, 0);
		add(&view.read, failed, failed ? 0 : (uint64_t)key->result);
	}
	return view;
}

static void client_batch_query(struct model *model, const struct get_view *view)
{
	fire(model, KEY_CLIENT_BATCH_QUERY, view->looked_up);
	if (view->at_master.keys)
		fire(model, KEY_MASTER_RPC_BATCH_GET_REPLICA, view->at_master);
}

static void client_batch_get(struct model *model, const struct get_view *view)
{
	fire(model, KEY_GET_BATCH_FULL, view->all);
	fire(model, KEY_GET_BATCH_FIND_REPLICA, view->found);
	if (view->started.keys == 0)
		return;
	fire(model, KEY_GET_BATCH_SUBMIT, view->started);
	fire(model, KEY_GET_BATCH_WAIT, view->read);
}

static void client_get(struct model *model, const struct get_view *view)
{
	fire(model, KEY_GET_SINGLE_FULL, view->all);
	fire(model, KEY_GET_SINGLE_FIND_REPLICA, view->found);
	if (view->started.keys == 0)
		return;
	fire(model, KEY_GET_SINGLE_TRANSFER_READ, view->read);
	fire(model, KEY_GET_SINGLE_TRANSFER_SUBMIT, view->started);
	fire(model, KEY_GET_SINGLE_TRANSFER_WAIT, view->read);
}

/* --- the public calls -------------------------------------------------------------------------------------- */

void model_setup(struct model *model, uint64_t segment_bytes, int status)
{
	model->public_calls++;
	fire(model, KEY_RC_SETUP_REAL, no_keys(status, 0));
	if (status) /* this worker's only failure: set up already, refused before anything is done */
		return;
	fire(model, KEY_RC_SETUP_INTERNAL, no_keys(status, 0));
	fire(model, KEY_MASTER_RPC_MOUNT_SEGMENT, no_keys(status, segment_bytes));
}

void model_close(struct model *model, uint64_t segment_bytes, int status)
{
	model->public_calls++;
	fire(model, KEY_RC_TEARDOWN_ALL, no_keys(status, 0));
	fire(model, KEY_RC_TEARDOWN_ALL_INTERNAL, no_keys(status, 0));
	if (segment_bytes)
		fire(model, KEY_MASTER_RPC_UNMOUNT_SEGMENT, no_keys(status, 0));
}

void model_register(struct model *model, uint64_t size, int status)
{
	model->public_calls++;
	fire(model, KEY_RC_REGISTER_BUFFER, no_keys(status, size));
	if (size) /* size 0 is refused at once, an overlap by the registration */
		fire(model, KEY_RC_REGISTER_BUFFER_INTERNAL, no_keys(status, size));
}

void model_unregister(struct model *model, int status)
{
	model->public_calls++;
	fire(model, KEY_RC_UNREGISTER_BUFFER, no_keys(status, 0));
}

void model_put(struct model *model, const struct outcome *one, bool fits_local_buffer)
{
	model->public_calls++;
	fire(model, KEY_PUT_INTERNAL_FULL, one_key(one->result < 0, one->duplicate ? 0 : one->size));
	if (!usable(one) || one->size == 0)
		return;
	fire(model, KEY_PUT_INTERNAL_ALLOC_BUFFER, one_key(!fits_local_buffer, 0));
	if (!fits_local_buffer)
		return;
	fire(model, KEY_PUT_INTERNAL_MEM_COPY, one_key(false, one->size));
	client_put(model, one);
}

void model_put_from(struct model *model, const struct outcome *one, bool config_fits)
{
	model->public_calls++;
	fire(model, KEY_RC_PUT_FROM, one_key(one->result < 0, one->duplicate ? 0 : one->size));
	if (usable(one) && one->size && config_fits)
		client_put(model, one);
}

void model_batch_put_from(struct model *model, const struct outcome *all, size_t count)
{
	model->public_calls++;
	fire(model, KEY_RC_BATCH_PUT_FROM, view_put(all, count).all);
	client_batch_put(model, all, count);
}

void model_batch_put_multi(struct model *model, const struct outcome *all, size_t count, bool lists_match)
{
	struct shown shown = view_put(all, count).all;
	model->public_calls++;
	fire(model, KEY_RC_BATCH_PUT_MULTI, shown);
	if (!lists_match)
		return;
	fire(model, KEY_RC_BATCH_PUT_MULTI_INTERNAL, shown);
	client_batch_put(model, all, count);
}

/* get_into and get_buffer are the same steps under other keys; where the destination is the store's own memory,
 * there is one more: it is taken once the size is known. */
struct single_get_keys {
	enum perf_key full, query, select, read;
	bool takes_memory;
};

static void single_get(struct model *model, const struct outcome *one, const struct single_get_keys *keys)
{
	struct get_view view = view_get(one, 1);
	bool missing = lookup_fails(one);
	model->public_calls++;
	fire(model, keys->full, view.all);
	if (!usable(one))
		return;
	fire(model, keys->query, one_key(missing, 0));
	fire(model, KEY_MASTER_RPC_GET_REPLICA_LIST, one_key(missing, 0));
	if (missing)
		return;
	fire(model, keys->select, one_key(false, 0));
	if (keys->takes_memory)
		fire(model, KEY_GET_INTERNAL_ALLOC_BUFFER, one_key(false, 0));
	fire(model, keys->read, view.all);
	client_get(model, &view);
}

void model_get_into(struct model *model, const struct outcome *one)
{
	static const struct single_get_keys keys = {.full = KEY_GET_INTO_INTERNAL,
	                                            .query = KEY_GET_INTO_INTERNAL_QUERY,
	                                            .select = KEY_GET_INTO_INTERNAL_SELECT_REPLICA,
	                                            .read = KEY_GET_INTO_INTERNAL_MEM_READ};
	single_get(model, one, &keys);
}

void model_get_buffer(struct model *model, const struct outcome *one)
{
	static const struct single_get_keys keys = {.full = KEY_GET_BUFFER_INTERNAL_FULL,
	                                            .query = KEY_GET_INTERNAL_QUERY,
	                                            .select = KEY_GET_INTERNAL_SELECT_REPLICA,
	                                            .read = KEY_GET_INTERNAL_MEM_READ,
	                                            .takes_memory = true};
	single_get(model, one, &keys);
}

void model_batch_get_into(struct model *model, const struct outcome *all, size_t count)
{
	struct get_view view = view_get(all, count);
	model->public_calls++;
	fire(model, KEY_GET_BATCH_INTO_INTERNAL, view.all);
	fire(model, KEY_GET_BATCH_INTO_INTERNAL_QUERY, view.looked_up);
	fire(model, KEY_GET_BATCH_INTO_INTERNAL_SELECT_REPLICA, view.looked_up);
	fire(model, KEY_GET_BATCH_INTO_INTERNAL_MEM_READ, view.all);
	client_batch_query(model, &view);
	client_batch_get(model, &view);
}

void model_batch_get_multi(struct model *model, const struct outcome *all, size_t count, bool lists_match)
{
	struct get_view view = view_get(all, count);
	model->public_calls++;
	fire(model, KEY_RC_BATCH_GET_INTO_MULTI, view.all);
	if (!lists_match)
		return;
	fire(model, KEY_RC_BATCH_GET_INTO_MULTI_INTERNAL, view.all);
	client_batch_query(model, &view);
	client_batch_get(model, &view);
}

void model_is_exist(struct model *model, const struct outcome *one)
{
	model->public_calls++;
	fire(model, KEY_RC_IS_EXIST, one_key(one->result < 0, 0));
	if (usable(one))
		fire(model, KEY_MASTER_RPC_EXIST_KEY, one_key(one->result < 0, 0));
}

void model_batch_is_exist(struct model *model, const struct outcome *all, size_t count)
{
	struct get_view view = view_get(all, count); /* a 0, absent, is no failure here */
	model->public_calls++;
	fire(model, KEY_RC_BATCH_IS_EXIST, view.answered);
	fire(model, KEY_RC_BATCH_IS_EXIST_INTERNAL, view.answered);
	if (view.at_master.keys)
		fire(model, KEY_MASTER_RPC_BATCH_EXIST_KEY, view.at_master);
}

void model_get_size(struct model *model, const struct outcome *one)
{
	model->public_calls++;
	fire(model, KEY_RC_GET_SIZE, one_key(one->result < 0, 0));
	if (usable(one))
		fire(model, KEY_MASTER_RPC_GET_REPLICA_LIST, one_key(one->result < 0, 0));
}

void model_remove(struct model *model, const struct outcome *one)
{
	model->public_calls++;
	fire(model, KEY_RC_REMOVE, one_key(one->result < 0, 0));
	if (usable(one))
		fire(model, KEY_MASTER_RPC_REMOVE, one_key(one->result < 0, 0));
}

void model_remove_all(struct model *model, int64_t result)
{
	struct shown shown = {.keys = result > 0 ? (uint64_t)result : 0, .failed_call = result < 0};
	model->public_calls++;
	fire(model, KEY_RC_REMOVE_ALL, shown);
	fire(model, KEY_RC_REMOVE_ALL_INTERNAL, shown);
	fire(model, KEY_MASTER_RPC_REMOVE_ALL, shown);
}

void model_replica_desc(struct model *model, const struct outcome *all, size_t count)
{
	struct get_view view = view_get(all, count);
	model->public_calls++;
	fire(model, KEY_RC_BATCH_GET_REPLICA_DESC, view.answered);
	client_batch_query(model, &view);
}

void model_null_keys(struct model *model, enum perf_key key, size_t count)
{
	model->public_calls++;
	fire(model, key, (struct shown){.keys = count, .failed = count, .failed_call = true});
}

void model_null_store(struct model *model)
{
	model->public_calls++;
}
