/* SPDX-License-Identifier: Apache-2.0 */
/* Segments of this very process: the calling thread copies. Off with MC_STORE_MEMCPY=0. */
#include <stdlib.h>
#include <string.h>

#include "kvstore_status.h"
#include "store/base/clock.h"
#include "store/base/log.h"
#include "store/base/parse.h"
#include "store/transfer/transfer_internal.h"

struct copy_job {
	struct local_segment *segment;
	struct transfer_request **requests;
	size_t count;
};

static bool is_wanted(void)
{
	const char *text = getenv("MC_STORE_MEMCPY");
	int on = 1;
	if (text && *text && kv_parse_bool(&on, text))
		kv_warn("MC_STORE_MEMCPY=%s is not on or off; memcpy stays on", text);
	return on;
}

static int open_memcpy(void **priv, struct transfer *owner)
{
	if (!is_wanted())
		return KV_NOT_SUPPORTED;
	*priv = owner;
	return KV_OK;
}

static bool reaches(void *priv, const struct transfer_target *target)
{
	return segments_has(transfer_segments(priv), target->segment);
}

static int submit(void *priv, struct transfer_request **requests, size_t count, uint64_t op_id, uint64_t deadline_ns,
                  struct kv_arena *arena, void **job)
{
	(void)op_id, (void)deadline_ns;
	struct copy_job *copy = kv_arena_alloc(arena, sizeof(*copy));
	if (!copy)
		return KV_INTERNAL_ERROR;
	copy->segment = segments_pin(transfer_segments(priv), requests[0]->target->segment);
	if (!copy->segment)
		return KV_TRANSFER_FAIL;
	copy->requests = requests;
	copy->count = count;
	*job = copy;
	return KV_OK;
}

static void copy_one(const struct local_segment *segment, struct transfer_request *request)
{
	uint8_t *at = segment_range(segment, request->offset, kv_bufs_size(request->local));
	if (!at) {
		request->status = KV_INVALID_PARAMS;
		return;
	}
	for (size_t i = 0; i < request->local.count; i++) {
		const struct kv_buf *fragment = &request->local.frag[i];
		if (fragment->len == 0)
			continue;
		if (request->direction == TRANSFER_READ)
			memcpy(fragment->ptr, at, fragment->len);
		else
			memcpy(at, fragment->ptr, fragment->len);
		at += fragment->len;
	}
	request->status = KV_OK;
}

static void wait_for_copies(void *priv, void **jobs, size_t count, uint64_t deadline_ns)
{
	for (size_t j = 0; j < count; j++) {
		struct copy_job *job = jobs[j];
		for (size_t i = 0; i < job->count && kv_now_ns() < deadline_ns; i++)
			copy_one(job->segment, job->requests[i]);
		segments_unpin(transfer_segments(priv), job->segment);
	}
}

const struct transport_ops kv_transport_memcpy = {
        .name = "memcpy",
        .bit = KV_VIA_MEMCPY,
        .open = open_memcpy,
        .reaches = reaches,
        .submit = submit,
        .wait = wait_for_copies,
};
