/* SPDX-License-Identifier: Apache-2.0 */
/* The transfer engine: batches of ranges between registered memory here and at a peer. */
#include "kvengine.h"

#include <stdlib.h>

#include "store/base/clock.h"
#include "store/base/log.h"
#include "store/base/op_id.h"
#include "store/base/parse.h"
#include "store/client/rc_internal.h"
#include "store/transfer/transfer.h"

#define DEFAULT_HOST       "127.0.0.1"
#define DEFAULT_TIMEOUT_MS 30000
#define MAX_TIMEOUT_MS     3600000

struct kvengine {
	struct transfer *transfer;
	uint64_t timeout_ns;
	uint32_t fork_generation; /* when it was made */
	uint16_t port;
};

/* What one call moves. */
struct ranges {
	enum transfer_direction direction;
	const char *session;
	void *const *local;
	const uint64_t *remote;
	const size_t *sizes;
	size_t count;
	uint64_t timeout_ms;
};

/* The same as the transfer layer takes it. */
struct pieces {
	struct transfer_target target;
	struct transfer_request *requests;
	struct kv_buf *local; /* of each request */
	size_t count;
};

/* --- life --------------------------------------------------------------------------------------------------- */

static int check_config(const kvengine_config_t *config, struct kv_hostport *host)
{
	if (!config || config->struct_size < sizeof(*config))
		return KV_INVALID_PARAMS;
	const char *name = config->host && config->host[0] ? config->host : DEFAULT_HOST;
	if (kv_hostport_parse(host, name)) {
		kv_error("engine: %.64s is not a host or host:port", name);
		return KV_INVALID_PARAMS;
	}
	if (config->port)
		host->port = config->port;
	return rc_check_protocol(config->protocol);
}

static uint64_t limit_of(uint64_t timeout_ms)
{
	return (timeout_ms < MAX_TIMEOUT_MS ? timeout_ms : MAX_TIMEOUT_MS) * KV_NS_PER_MS;
}

int kvengine_create(kvengine_t **out, const kvengine_config_t *config)
{
	struct kv_hostport host;
	if (!out)
		return KV_INVALID_PARAMS;
	*out = NULL;
	int status = check_config(config, &host);
	if (status)
		return status;
	struct kvengine *engine = calloc(1, sizeof(*engine));
	if (!engine)
		return KV_INTERNAL_ERROR;
	engine->port = host.port;
	engine->timeout_ns = limit_of(
	        config->timeout_ms ? config->timeout_ms
	                           : kv_env_u64("MC_TRANSFER_TIMEOUT_MS", DEFAULT_TIMEOUT_MS, 1, MAX_TIMEOUT_MS));
	engine->fork_generation = rc_fork_generation;
	status = transfer_create(&engine->transfer, host.host, &engine->port, config->port_min, config->port_max);
	if (status) {
		free(engine);
		return status;
	}
	*out = engine;
	return KV_OK;
}

static bool is_parents(const struct kvengine *engine)
{
	return engine->fork_generation != rc_fork_generation;
}

void kvengine_destroy(kvengine_t *engine)
{
	if (!engine || is_parents(engine))
		return;
	transfer_destroy(engine->transfer);
	free(engine);
}

int kvengine_rpc_port(const kvengine_t *engine)
{
	return engine ? engine->port : 0;
}

/* KV_OK, or why no call can be made on it. */
static int engine_status(const struct kvengine *engine)
{
	if (!engine)
		return KV_INVALID_PARAMS;
	return is_parents(engine) ? KV_UNAVAILABLE_IN_CURRENT_STATUS : KV_OK;
}

/* --- memory ------------------------------------------------------------------------------------------------- */

int kvengine_register(kvengine_t *engine, void *ptr, size_t size)
{
	PERF_SCOPE(ENGINE_REGISTER_MEMORY, perf, kv_op_id_new(), 0, size);
	int status = engine_status(engine);
	if (status == KV_OK)
		status = transfer_expose(engine->transfer, ptr, size);
	return (int)perf_result(&perf, status ? 0 : size, 0, status);
}

int kvengine_unregister(kvengine_t *engine, void *ptr)
{
	PERF_SCOPE(ENGINE_UNREGISTER_MEMORY, perf, kv_op_id_new(), 0, 0);
	int status = engine_status(engine);
	if (status == KV_OK)
		status = transfer_conceal(engine->transfer, ptr);
	return (int)perf_result(&perf, 0, 0, status);
}

/* --- transfers ---------------------------------------------------------------------------------------------- */

static bool is_session(const char *session)
{
	struct kv_hostport peer;
	return session && kv_hostport_parse(&peer, session) == KV_OK && peer.port != 0;
}

static int check_ranges(const struct ranges *ranges)
{
	uint64_t total = 0;
	if (!is_session(ranges->session)) {
		kv_warn("engine: %.64s is not a session of the form host:port",
		        ranges->session ? ranges->session : "NULL");
		return KV_INVALID_PARAMS;
	}
	if (ranges->count > KVENGINE_RANGES_MAX)
		return KV_INVALID_PARAMS;
	if (ranges->count && (!ranges->local || !ranges->remote || !ranges->sizes))
		return KV_INVALID_PARAMS;
	for (size_t i = 0; i < ranges->count; i++)
		if (ranges->sizes[i] == 0 || __builtin_add_overflow(total, ranges->sizes[i], &total))
			return KV_INVALID_PARAMS;
	return KV_OK;
}

/* A request per range, even where neighbours are contiguous: the peer may have registered each for itself. */
static int make_pieces(const struct ranges *ranges, struct kv_arena *arena, struct pieces *pieces)
{
	*pieces = (struct pieces){
	        .target = {.endpoint = kv_str(ranges->session), .size = UINT64_MAX, .transports = KV_VIA_TCP},
	        .requests = kv_arena_alloc(arena, ranges->count * sizeof(*pieces->requests)),
	        .local = kv_arena_alloc(arena, ranges->count * sizeof(*pieces->local)),
	        .count = ranges->count,
	};
	if (!pieces->requests || !pieces->local)
		return KV_INTERNAL_ERROR;
	for (size_t i = 0; i < ranges->count; i++) {
		pieces->local[i] = (struct kv_buf){ranges->local[i], ranges->sizes[i]};
		pieces->requests[i] = (struct transfer_request){.direction = ranges->direction,
		                                                .target = &pieces->target,
		                                                .offset = ranges->remote[i],
		                                                .local = {&pieces->local[i], 1},
		                                                .status = KV_TRANSFER_FAIL};
	}
	return KV_OK;
}

/* What the pieces came to, for the call's or a phase's probe; returns the first failure's code. */
static int sum_up(struct perf_scope *perf, const struct pieces *pieces)
{
	uint64_t bytes = 0, n_failed = 0;
	int first = KV_OK;
	for (size_t i = 0; i < pieces->count; i++) {
		int status = pieces->requests[i].status;
		bytes += status == KV_OK ? pieces->local[i].len : 0;
		n_failed += status != KV_OK;
		if (first == KV_OK)
			first = status;
	}
	perf_set(perf, bytes, pieces->count, n_failed, first);
	return first;
}

/* KV_OK: it ran; each request has its status. */
static int run_transfer(struct kvengine *engine, struct pieces *pieces, uint64_t op_id, uint64_t deadline_ns,
                        struct kv_arena *arena)
{
	struct transfer_batch *batch;
	{
		PERF_SCOPE(ENGINE_TRANSFER_SUBMIT, perf, op_id, pieces->count, 0);
		int status = transfer_submit(engine->transfer, pieces->requests, pieces->count, op_id, deadline_ns,
		                             arena, &batch);
		perf_result(&perf, 0, pieces->count, status);
		if (status)
			return status;
	}
	PERF_SCOPE(ENGINE_TRANSFER_WAIT, perf, op_id, pieces->count, 0);
	transfer_wait(engine->transfer, batch, deadline_ns);
	sum_up(&perf, pieces);
	return KV_OK;
}

/* The memory of the ranges stays registered until the transfer is over. */
static int hold_and_run(struct kvengine *engine, const struct ranges *ranges, struct pieces *pieces, uint64_t op_id,
                        struct kv_arena *arena)
{
	uint64_t limit_ns = ranges->timeout_ms ? limit_of(ranges->timeout_ms) : engine->timeout_ns;
	uint64_t deadline_ns = kv_now_ns() + limit_ns;
	struct transfer_hold *hold;

	int status = transfer_hold(engine->transfer, pieces->local, pieces->count, arena, &hold);
	if (status)
		return status;
	status = run_transfer(engine, pieces, op_id, deadline_ns, arena);
	transfer_release(engine->transfer, hold);
	return status;
}

static int move_ranges(struct kvengine *engine, const struct ranges *ranges, uint64_t op_id, struct perf_scope *perf)
{
	struct kv_arena arena = {0};
	struct pieces pieces;
	int status = engine_status(engine);
	if (status == KV_OK)
		status = check_ranges(ranges);
	if (status == KV_OK)
		status = make_pieces(ranges, &arena, &pieces);
	if (status == KV_OK && pieces.count)
		status = hold_and_run(engine, ranges, &pieces, op_id, &arena);
	if (status == KV_OK)
		status = sum_up(perf, &pieces);
	else
		perf_result(perf, 0, ranges->count, status);
	kv_arena_free(&arena);
	return status;
}

int kvengine_write(kvengine_t *engine, const char *session, void *const *local, const uint64_t *remote,
                   const size_t *sizes, size_t count, uint64_t timeout_ms)
{
	struct ranges ranges = {TRANSFER_WRITE, session, local, remote, sizes, count, timeout_ms};
	uint64_t op_id = kv_op_id_new();
	PERF_SCOPE(ENGINE_TRANSFER_WRITE, perf, op_id, count, 0);
	return move_ranges(engine, &ranges, op_id, &perf);
}

int kvengine_read(kvengine_t *engine, const char *session, void *const *local, const uint64_t *remote,
                  const size_t *sizes, size_t count, uint64_t timeout_ms)
{
	struct ranges ranges = {TRANSFER_READ, session, local, remote, sizes, count, timeout_ms};
	uint64_t op_id = kv_op_id_new();
	PERF_SCOPE(ENGINE_TRANSFER_READ, perf, op_id, count, 0);
	return move_ranges(engine, &ranges, op_id, &perf);
}
