/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Segments of other processes over TCP. One job is one connection; the calling thread drives the
 * connections of all its jobs itself, so that every owner works at once and the bytes go straight between
 * the sockets and the caller's fragments. All frames of a job are sent without waiting for replies.
 */
#include <errno.h>
#include <poll.h>
#include <stdlib.h>

#include "kvstore_status.h"
#include "store/base/clock.h"
#include "store/base/log.h"
#include "store/base/parse.h"
#include "store/transfer/sg.h"
#include "store/transfer/tcp_pool.h"
#include "store/transfer/transfer_internal.h"
#include "store/wire/wire.h"

#define FRAME_RANGES 256u
#define FRAME_BYTES  ((uint64_t)64 << 20) /* a frame's data; a larger object has a frame of its own */
#define REPLY_MAX    64u                  /* bytes of an encoded data_resp, with room to spare */
#define TURN_BYTES   ((ssize_t)8 << 20)   /* a connection moves before the next has its turn */

struct tcp_frame {
	size_t first, count; /* of the job's requests */
	uint64_t bytes;      /* of data */
	struct sg data;      /* READ: where the data goes */
};

enum reply_stage { REPLY_HEADER, REPLY_MESSAGE, REPLY_DATA };

struct tcp_job {
	struct tcp_conn *conn; /* NULL: ended */
	struct transfer_request **requests;
	enum transfer_direction direction;
	struct kv_arena *arena;
	struct sg out; /* every frame, for WRITE with its data, in order */
	struct tcp_frame *frames;
	size_t n_frames, at_frame; /* at_frame: whose reply comes next */
	enum reply_stage stage;
	struct sg in;
	struct iovec in_piece;
	struct kvw_header header;
	uint8_t reply[KVW_HEADER_SIZE + REPLY_MAX];
};

static int open_tcp(void **priv, struct transfer *owner)
{
	(void)owner;
	struct tcp_pool *pool = malloc(sizeof(*pool));
	if (!pool)
		return KV_INTERNAL_ERROR;
	tcp_pool_init(pool, kv_env_u64("MC_RPC_CONNECT_TIMEOUT_MS", 3000, 1, 600000) * KV_NS_PER_MS);
	*priv = pool;
	return KV_OK;
}

static void close_tcp(void *priv)
{
	tcp_pool_destroy(priv);
	free(priv);
}

static bool reaches(void *priv, const struct transfer_target *target)
{
	(void)priv;
	return (target->transports & KV_VIA_TCP) && target->endpoint.len > 0;
}

/* --- making a job ------------------------------------------------------------------------------------ */

/* How the requests fall into frames; returns the number of frames. */
static size_t cut_into_frames(struct tcp_job *job, size_t count)
{
	size_t n = 0;
	for (size_t i = 0; i < count; i++) {
		uint64_t bytes = kv_bufs_size(job->requests[i]->local);
		struct tcp_frame *frame = n ? &job->frames[n - 1] : NULL;
		if (!frame || frame->count == FRAME_RANGES || bytes > FRAME_BYTES - frame->bytes) {
			frame = &job->frames[n++];
			*frame = (struct tcp_frame){.first = i};
		}
		frame->count++;
		frame->bytes = frame->bytes + bytes;
	}
	return n;
}

static int encode_frame(struct tcp_job *job, const struct tcp_frame *frame, size_t number, uint64_t op_id)
{
	struct kvm_data_req request = {.segment = job->requests[frame->first]->target->segment,
	                               .n_ranges = (uint32_t)frame->count};
	struct kvw_header header = {.version = KVW_VERSION,
	                            .type = job->direction == TRANSFER_READ ? KVW_DATA_READ : KVW_DATA_WRITE,
	                            .request = number,
	                            .op_id = op_id};
	const char *why = "no memory";
	uint8_t *bytes;
	size_t size;

	request.ranges = kv_arena_alloc(job->arena, frame->count * sizeof(*request.ranges));
	if (!request.ranges)
		return KV_INTERNAL_ERROR;
	for (size_t i = 0; i < frame->count; i++) {
		const struct transfer_request *r = job->requests[frame->first + i];
		request.ranges[i] = (struct kvm_range){.offset = r->offset, .size = kv_bufs_size(r->local)};
	}
	int status = kvw_frame_encode(job->arena, &header, &request, &bytes, &size, &why);
	if (status) {
		kv_error("data frame: %s", why);
		return status;
	}
	sg_push(&job->out, bytes, size);
	return KV_OK;
}

static void push_fragments(struct sg *sg, struct kv_bufs bufs)
{
	for (size_t i = 0; i < bufs.count; i++)
		sg_push(sg, bufs.frag[i].ptr, bufs.frag[i].len);
}

static int make_frames(struct tcp_job *job, size_t count, uint64_t op_id)
{
	size_t fragments = 0;
	for (size_t i = 0; i < count; i++)
		fragments += job->requests[i]->local.count;
	job->frames = kv_arena_alloc(job->arena, count * sizeof(*job->frames));
	job->out.iov = kv_arena_alloc(job->arena, (count + fragments) * sizeof(struct iovec));
	struct iovec *data = kv_arena_alloc(job->arena, fragments * sizeof(struct iovec));
	if (!job->frames || !job->out.iov || !data)
		return KV_INTERNAL_ERROR;
	job->n_frames = cut_into_frames(job, count);
	for (size_t f = 0; f < job->n_frames; f++) {
		struct tcp_frame *frame = &job->frames[f];
		int status = encode_frame(job, frame, f, op_id);
		if (status)
			return status;
		frame->data.iov = data;
		for (size_t i = 0; i < frame->count; i++)
			push_fragments(job->direction == TRANSFER_WRITE ? &job->out : &frame->data,
			               job->requests[frame->first + i]->local);
		data += frame->data.count;
	}
	return KV_OK;
}

static void expect(struct tcp_job *job, enum reply_stage stage, uint8_t *at, size_t size)
{
	job->stage = stage;
	job->in_piece = (struct iovec){at, size};
	job->in = (struct sg){&job->in_piece, 1};
}

static int submit(void *priv, struct transfer_request **requests, size_t count, uint64_t op_id, uint64_t deadline_ns,
                  struct kv_arena *arena, void **out)
{
	struct tcp_job *job = kv_arena_calloc(arena, 1, sizeof(*job));
	if (!job)
		return KV_INTERNAL_ERROR;
	job->requests = requests;
	job->direction = requests[0]->direction;
	job->arena = arena;
	int status = make_frames(job, count, op_id);
	if (status)
		return status;
	job->conn = tcp_pool_take(priv, requests[0]->target->endpoint, op_id, deadline_ns);
	if (!job->conn)
		return KV_TRANSFER_FAIL;
	expect(job, REPLY_HEADER, job->reply, KVW_HEADER_SIZE);
	status = tcp_conn_step(job->conn);
	if (status < 0) {
		tcp_conn_abort(job->conn);
		return KV_TRANSFER_FAIL;
	}
	/* The owner starts now, while the other jobs are made. */
	if (status == KV_OK)
		sg_send(job->conn->fd, &job->out);
	*out = job;
	return KV_OK;
}

/* --- driving a job ------------------------------------------------------------------------------------- */

static void frame_done(struct tcp_job *job, int status)
{
	const struct tcp_frame *frame = &job->frames[job->at_frame++];
	for (size_t i = 0; i < frame->count; i++)
		job->requests[frame->first + i]->status = status;
	expect(job, REPLY_HEADER, job->reply, KVW_HEADER_SIZE);
}

static int header_arrived(struct tcp_job *job)
{
	const char *why;
	if (kvw_header_decode(&job->header, job->reply, &why)) {
		kv_warn("reply from %.*s: %s", (int)job->conn->endpoint_len, job->conn->endpoint, why);
		return KV_TRANSFER_FAIL;
	}
	uint16_t type = job->direction == TRANSFER_READ ? KVW_DATA_READ : KVW_DATA_WRITE;
	if (job->header.type != type || job->header.flags != KVW_RESPONSE || job->header.request != job->at_frame ||
	    job->header.payload == 0 || job->header.payload > REPLY_MAX) {
		kv_warn("reply from %.*s does not fit the request", (int)job->conn->endpoint_len,
		        job->conn->endpoint);
		return KV_TRANSFER_FAIL;
	}
	expect(job, REPLY_MESSAGE, job->reply + KVW_HEADER_SIZE, job->header.payload);
	return KV_OK;
}

static int message_arrived(struct tcp_job *job)
{
	struct tcp_frame *frame = &job->frames[job->at_frame];
	struct kvm_data_resp *reply;
	void *message;
	const char *why;

	if (kvw_payload_decode(job->arena, &job->header, job->reply + KVW_HEADER_SIZE, &message, &why)) {
		kv_warn("reply from %.*s: %s", (int)job->conn->endpoint_len, job->conn->endpoint, why);
		return KV_TRANSFER_FAIL;
	}
	reply = message;
	if (reply->status) {
		kv_warn("%.*s refused a transfer: %d", (int)job->conn->endpoint_len, job->conn->endpoint,
		        (int)reply->status);
		frame_done(job, reply->status == KV_INVALID_PARAMS ? KV_INVALID_PARAMS : KV_TRANSFER_FAIL);
		return KV_OK;
	}
	if (reply->bytes != frame->bytes) {
		kv_warn("%.*s moved %llu of %llu bytes", (int)job->conn->endpoint_len, job->conn->endpoint,
		        (unsigned long long)reply->bytes, (unsigned long long)frame->bytes);
		return KV_TRANSFER_FAIL;
	}
	if (job->direction == TRANSFER_WRITE) {
		frame_done(job, KV_OK);
		return KV_OK;
	}
	job->stage = REPLY_DATA;
	job->in = frame->data;
	return KV_OK;
}

static int part_arrived(struct tcp_job *job)
{
	switch (job->stage) {
	case REPLY_HEADER:
		return header_arrived(job);
	case REPLY_MESSAGE:
		return message_arrived(job);
	case REPLY_DATA:
		frame_done(job, KV_OK);
		return KV_OK;
	}
	return KV_INTERNAL_ERROR;
}

static void end_job(struct tcp_pool *pool, struct tcp_job *job, bool clean)
{
	if (clean)
		tcp_pool_give(pool, job->conn);
	else
		tcp_conn_abort(job->conn);
	job->conn = NULL;
}

enum turn { TURN_MORE, TURN_BLOCKED, TURN_ENDED };

/* Move what can be moved without waiting, up to a limit. */
static enum turn take_turn(struct tcp_pool *pool, struct tcp_job *job)
{
	ssize_t total = 0;
	int connected = tcp_conn_step(job->conn);
	if (connected < 0) {
		end_job(pool, job, false);
		return TURN_ENDED;
	}
	if (connected == TCP_CONN_PENDING)
		return TURN_BLOCKED;
	while (total < TURN_BYTES) {
		ssize_t sent = job->out.count ? sg_send(job->conn->fd, &job->out) : 0;
		ssize_t received = sg_recv(job->conn->fd, &job->in);
		int status = sent < 0 ? (int)sent : received < 0 ? (int)received : KV_OK;
		if (status == KV_OK && job->in.count == 0)
			status = part_arrived(job);
		if (status) {
			end_job(pool, job, false);
			return TURN_ENDED;
		}
		if (job->at_frame == job->n_frames) {
			end_job(pool, job, job->out.count == 0);
			return TURN_ENDED;
		}
		if (sent == 0 && received == 0)
			return TURN_BLOCKED;
		total += sent + received;
	}
	return TURN_MORE;
}

/* One turn for every open job. Returns how many wait for their sockets; *more: some had not enough; *until_ns: comes
 * down to when the first connect has to be given up. */
static nfds_t turn_of_each(struct tcp_pool *pool, struct tcp_job **jobs, size_t *count, struct pollfd *waiters,
                           bool *more, uint64_t *until_ns)
{
	nfds_t waiting = 0;
	size_t open = 0;
	*more = false;
	for (size_t i = 0; i < *count; i++) {
		struct tcp_job *job = jobs[i];
		enum turn turn = take_turn(pool, job);
		if (turn == TURN_ENDED)
			continue;
		jobs[open++] = job;
		if (turn == TURN_MORE)
			*more = true;
		if (job->conn->is_connecting && job->conn->connect_until_ns < *until_ns)
			*until_ns = job->conn->connect_until_ns;
		waiters[waiting++] = (struct pollfd){.fd = job->conn->fd,
		                                     .events = (short)(POLLIN | (job->out.count ? POLLOUT : 0))};
	}
	*count = open;
	return waiting;
}

static void wait_for_jobs(void *priv, void **handles, size_t count, uint64_t deadline_ns)
{
	struct kv_arena *arena = ((struct tcp_job *)handles[0])->arena;
	struct tcp_job **jobs = kv_arena_alloc(arena, count * sizeof(struct tcp_job *));
	struct pollfd *waiters = kv_arena_alloc(arena, count * sizeof(*waiters));
	bool more;

	if (!jobs || !waiters) {
		for (size_t i = 0; i < count; i++)
			end_job(priv, handles[i], false);
		return;
	}
	for (size_t i = 0; i < count; i++)
		jobs[i] = handles[i];
	for (;;) {
		uint64_t until_ns = deadline_ns;
		nfds_t waiting = turn_of_each(priv, jobs, &count, waiters, &more, &until_ns);
		if (count == 0 || kv_now_ns() >= deadline_ns)
			break;
		if (!more && poll(waiters, waiting, kv_ms_until(until_ns)) < 0 && errno != EINTR)
			break;
	}
	for (size_t i = 0; i < count; i++) {
		kv_warn("transfer with %.*s not done in time", (int)jobs[i]->conn->endpoint_len,
		        jobs[i]->conn->endpoint);
		end_job(priv, jobs[i], false);
	}
}

const struct transport_ops kv_transport_tcp = {
        .name = "tcp",
        .bit = KV_VIA_TCP,
        .open = open_tcp,
        .close = close_tcp,
        .reaches = reaches,
        .submit = submit,
        .wait = wait_for_jobs,
};
