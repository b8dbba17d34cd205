/* SPDX-License-Identifier: Apache-2.0 */
#include "store/transfer/transfer.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "kvstore_status.h"
#include "store/base/log.h"
#include "store/transfer/buffers.h"
#include "store/transfer/data_server.h"
#include "store/transfer/transfer_internal.h"

/* In the order of preference. */
static const struct transport_ops *const known_transports[] = {&kv_transport_memcpy, &kv_transport_tcp};
#define N_TRANSPORTS (sizeof(known_transports) / sizeof(known_transports[0]))
#define NO_GROUP     UINT32_MAX

struct open_transport {
	const struct transport_ops *ops;
	void *priv;
};

struct transfer {
	struct segments segments;
	struct buffers buffers;
	struct open_transport transports[N_TRANSPORTS];
	size_t n_transports;
	struct data_server *server;
};

/* The jobs of a batch, per transport. */
struct transfer_batch {
	void **jobs[N_TRANSPORTS];
	size_t n_jobs[N_TRANSPORTS];
};

/* Requests that one job takes: same transport, same segment of the same owner, same direction. */
struct group {
	size_t transport;
	const struct transfer_target *target;
	enum transfer_direction direction;
	size_t count, filled;
	struct transfer_request **requests;
};

struct segments *transfer_segments(struct transfer *owner)
{
	return &owner->segments;
}

/* --- life ------------------------------------------------------------------------------------------ */

static void open_transports(struct transfer *transfer)
{
	for (size_t i = 0; i < N_TRANSPORTS; i++) {
		struct open_transport *open = &transfer->transports[transfer->n_transports];
		open->ops = known_transports[i];
		open->priv = NULL;
		int status = open->ops->open(&open->priv, transfer);
		if (status == KV_OK)
			transfer->n_transports++;
		else
			kv_info("transport %s is not used (%d)", open->ops->name, status);
	}
}

int transfer_create(struct transfer **out, const char *serve_host, uint16_t *port, uint16_t port_min,
                    uint16_t port_max)
{
	*out = NULL;
	struct transfer *transfer = calloc(1, sizeof(*transfer));
	if (!transfer)
		return KV_INTERNAL_ERROR;
	segments_init(&transfer->segments);
	buffers_init(&transfer->buffers);
	open_transports(transfer);
	if (serve_host) {
		int status = data_server_start(&transfer->server, &transfer->segments, serve_host, port, port_min,
		                               port_max);
		if (status) {
			transfer_destroy(transfer);
			return status;
		}
	}
	*out = transfer;
	return KV_OK;
}

void transfer_destroy(struct transfer *transfer)
{
	if (!transfer)
		return;
	data_server_stop(transfer->server);
	for (size_t i = 0; i < transfer->n_transports; i++)
		if (transfer->transports[i].ops->close)
			transfer->transports[i].ops->close(transfer->transports[i].priv);
	buffers_destroy(&transfer->buffers);
	segments_destroy(&transfer->segments);
	free(transfer);
}

/* --- segments and buffers ------------------------------------------------------------------------------ */

int transfer_add_segment(struct transfer *transfer, struct kv_id id, const struct kv_mem *mem)
{
	return segments_add(&transfer->segments, id, mem->base, mem->size);
}

void transfer_remove_segment(struct transfer *transfer, struct kv_id id)
{
	segments_remove(&transfer->segments, id);
}

uint8_t transfer_transports(const struct transfer *transfer)
{
	uint8_t bits = 0;
	for (size_t i = 0; i < transfer->n_transports; i++)
		bits |= transfer->transports[i].ops->bit;
	return bits;
}

/* Take back the registration of a buffer with the first n transports. */
static void forget_memory(struct transfer *transfer, size_t n, void *ptr, size_t size)
{
	while (n-- > 0) {
		const struct open_transport *open = &transfer->transports[n];
		if (open->ops->unregister_memory)
			open->ops->unregister_memory(open->priv, ptr, size);
	}
}

int transfer_register(struct transfer *transfer, void *ptr, size_t size)
{
	int status = buffers_add(&transfer->buffers, ptr, size, NULL);
	for (size_t i = 0; status == KV_OK && i < transfer->n_transports; i++) {
		const struct open_transport *open = &transfer->transports[i];
		if (!open->ops->register_memory)
			continue;
		status = open->ops->register_memory(open->priv, ptr, size);
		if (status) {
			forget_memory(transfer, i, ptr, size);
			buffers_remove(&transfer->buffers, ptr, &size);
		}
	}
	return status;
}

int transfer_unregister(struct transfer *transfer, void *ptr)
{
	size_t size;
	int status = buffers_remove(&transfer->buffers, ptr, &size);
	if (status == KV_OK)
		forget_memory(transfer, transfer->n_transports, ptr, size);
	return status;
}

bool transfer_is_registered(struct transfer *transfer, const void *ptr, size_t size)
{
	return buffers_cover(&transfer->buffers, ptr, size);
}

int transfer_expose(struct transfer *transfer, void *ptr, size_t size)
{
	int status = transfer_register(transfer, ptr, size);
	if (status)
		return status;
	status = segments_expose(&transfer->segments, ptr, size);
	if (status)
		transfer_unregister(transfer, ptr);
	return status;
}

int transfer_conceal(struct transfer *transfer, void *ptr)
{
	int status = segments_conceal(&transfer->segments, ptr);
	return status ? status : transfer_unregister(transfer, ptr);
}

struct transfer_hold {
	size_t count;
	struct pinned_range ranges[];
};

int transfer_hold(struct transfer *transfer, const struct kv_buf *pieces, size_t count, struct kv_arena *arena,
                  struct transfer_hold **out)
{
	struct transfer_hold *hold = kv_arena_alloc(arena, sizeof(*hold) + count * sizeof(hold->ranges[0]));
	struct kvm_range *ranges = kv_arena_alloc(arena, count * sizeof(*ranges));
	if (!hold || !ranges)
		return KV_INTERNAL_ERROR;
	for (size_t i = 0; i < count; i++)
		ranges[i] = (struct kvm_range){(uint64_t)(uintptr_t)pieces[i].ptr, pieces[i].len};
	hold->count = count;
	*out = hold;
	return segments_pin_ranges(&transfer->segments, (struct kv_id){0}, ranges, count, hold->ranges);
}

void transfer_release(struct transfer *transfer, struct transfer_hold *hold)
{
	segments_unpin_ranges(&transfer->segments, hold->ranges, hold->count);
}

/* --- submit and wait ------------------------------------------------------------------------------------- */

static bool all_registered(struct transfer *transfer, struct kv_bufs local)
{
	for (size_t i = 0; i < local.count; i++)
		if (!buffers_cover(&transfer->buffers, local.frag[i].ptr, local.frag[i].len))
			return false;
	return true;
}

/* Index of the first transport that reaches the target, or KV_TRANSFER_FAIL. */
static int transport_to(const struct transfer *transfer, const struct transfer_target *target)
{
	for (size_t i = 0; i < transfer->n_transports; i++)
		if (transfer->transports[i].ops->reaches(transfer->transports[i].priv, target))
			return (int)i;
	return KV_TRANSFER_FAIL;
}

/* KV_OK, or why this transport cannot start the request. */
static int check_request(struct transfer *transfer, const struct transfer_request *request, int transport)
{
	const struct transfer_target *target = request->target;
	uint64_t bytes = kv_bufs_size(request->local);

	if (request->offset > target->size || bytes > target->size - request->offset)
		return KV_INVALID_PARAMS;
	if (transport < 0)
		return transport;
	if (transfer->transports[transport].ops->needs_registration && !all_registered(transfer, request->local))
		return KV_INVALID_PARAMS;
	return KV_OK;
}

/* The nil segment is another one with every owner. */
static bool same_target(const struct transfer_target *a, const struct transfer_target *b)
{
	if (a == b)
		return true;
	uint32_t len = a->endpoint.len;
	return kv_id_equal(a->segment, b->segment) && len == b->endpoint.len &&
	       (len == 0 || memcmp(a->endpoint.ptr, b->endpoint.ptr, len) == 0);
}

/* Index of the request's group, which is made if need be. Neighbours mostly share one. */
static uint32_t group_of(struct group *groups, uint32_t *n_groups, size_t transport,
                         const struct transfer_request *request)
{
	for (uint32_t i = *n_groups; i-- > 0;) {
		const struct group *group = &groups[i];
		if (group->transport == transport && group->direction == request->direction &&
		    same_target(group->target, request->target))
			return i;
	}
	groups[*n_groups] =
	        (struct group){.transport = transport, .target = request->target, .direction = request->direction};
	return (*n_groups)++;
}

static void sort_into_groups(struct transfer *transfer, struct transfer_request *requests, size_t count,
                             struct group *groups, uint32_t *n_groups, uint32_t *member_of)
{
	/* Neighbours mostly have one target: the transport is looked for once per run of them. */
	const struct transfer_target *last_target = NULL;
	int transport = KV_TRANSFER_FAIL;

	for (size_t i = 0; i < count; i++) {
		struct transfer_request *request = &requests[i];
		if (request->target != last_target) {
			last_target = request->target;
			transport = transport_to(transfer, last_target);
		}
		request->via = 0;
		member_of[i] = NO_GROUP;
		request->status = check_request(transfer, request, transport);
		if (request->status)
			continue;
		request->status = KV_TRANSFER_FAIL; /* until it is done */
		request->via = transfer->transports[transport].ops->bit;
		member_of[i] = group_of(groups, n_groups, (size_t)transport, request);
		groups[member_of[i]].count++;
	}
}

static void start_group(struct transfer *transfer, struct transfer_batch *batch, struct group *group, uint64_t op_id,
                        uint64_t deadline_ns, struct kv_arena *arena)
{
	const struct open_transport *open = &transfer->transports[group->transport];
	void *job = NULL;
	int status = open->ops->submit(open->priv, group->requests, group->count, op_id, deadline_ns, arena, &job);
	if (status == KV_OK) {
		batch->jobs[group->transport][batch->n_jobs[group->transport]++] = job;
		return;
	}
	for (size_t i = 0; i < group->count; i++)
		group->requests[i]->status = status;
}

int transfer_submit(struct transfer *transfer, struct transfer_request *requests, size_t count, uint64_t op_id,
                    uint64_t deadline_ns, struct kv_arena *arena, struct transfer_batch **out)
{
	struct transfer_batch *batch = kv_arena_calloc(arena, 1, sizeof(*batch));
	struct group *groups = kv_arena_alloc(arena, count * sizeof(*groups));
	uint32_t *member_of = kv_arena_alloc(arena, count * sizeof(*member_of));
	struct transfer_request **pointers = kv_arena_alloc(arena, count * sizeof(struct transfer_request *));
	uint32_t n_groups = 0;

	if (!batch || !groups || !member_of || !pointers)
		return KV_INTERNAL_ERROR;
	sort_into_groups(transfer, requests, count, groups, &n_groups, member_of);
	for (size_t i = 0; i < transfer->n_transports; i++) {
		batch->jobs[i] = kv_arena_calloc(arena, n_groups, sizeof(void *));
		if (!batch->jobs[i])
			return KV_INTERNAL_ERROR;
	}
	for (uint32_t g = 0; g < n_groups; g++) {
		groups[g].requests = pointers;
		pointers += groups[g].count;
	}
	for (size_t i = 0; i < count; i++)
		if (member_of[i] != NO_GROUP) {
			struct group *group = &groups[member_of[i]];
			group->requests[group->filled++] = &requests[i];
		}
	for (uint32_t g = 0; g < n_groups; g++)
		start_group(transfer, batch, &groups[g], op_id, deadline_ns, arena);
	*out = batch;
	return KV_OK;
}

void transfer_wait(struct transfer *transfer, struct transfer_batch *batch, uint64_t deadline_ns)
{
	for (size_t i = 0; i < transfer->n_transports; i++)
		if (batch->n_jobs[i])
			transfer->transports[i].ops->wait(transfer->transports[i].priv, batch->jobs[i],
			                                  batch->n_jobs[i], deadline_ns);
}
