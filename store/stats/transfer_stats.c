/* SPDX-License-Identifier: Apache-2.0 */
/* The live object: shards of rows that many threads write, and the cut that takes them. */
#include "store/stats/transfer_stats.h"

#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "kvstore_status.h"
#include "probes/perf_points.h"
#include "store/base/op_id.h"
#include "store/stats/sketch.h"

#define SHARDS     16u
#define ROOM_FIRST 64u
#define GRANT_MAX  64u /* at most ROOM_FIRST: one doubling makes room for it */
#define UNGRANTED  1   /* beside KV_OK and the negative codes */

/* What the threads that were given this shard have recorded. On cache lines of its own. */
struct shard {
	pthread_mutex_t lock;
	struct xfer_row *rows;
	_Atomic size_t n_rows; /* changed under the lock, read without it to estimate */
	size_t ready;          /* so many rows may be kept without a look at what follows */
	size_t granted;        /* ... for the limit's sake */
	size_t room;           /* ... for memory's sake */
	uint64_t failures[XFER_FAILURES];
} __attribute__((aligned(128)));

/*
 * The limit is exact, though no writer counts in a place that all share: shards draw a few rows at a time of what is
 * left of it. When nothing is left, what others have drawn and not used is put back; only when that is nothing
 * either, all is full, and rows go to the sketch.
 */
struct xfer_stats {
	struct shard shards[SHARDS];
	size_t row_limit;
	_Atomic size_t left;           /* of the limit, not granted; drawn under any shard's lock */
	bool full;                     /* set under every shard's lock, read under any */
	pthread_mutex_t overflow_lock; /* taken last */
	struct xfer_sketch *overflow;
};

/* Threads take the shards in turn. */
static _Atomic uint32_t next_shard;
/* Its number + 1; 0: none yet. Initial-exec: a word of the static block, no call to find it. */
static __thread uint32_t own_shard __attribute__((tls_model("initial-exec")));

static struct shard *shard_of_thread(struct xfer_stats *stats)
{
	if (own_shard == 0)
		own_shard = atomic_fetch_add_explicit(&next_shard, 1, memory_order_relaxed) % SHARDS + 1;
	return &stats->shards[own_shard - 1];
}

static size_t rows_of(const struct shard *shard)
{
	return atomic_load_explicit(&shard->n_rows, memory_order_relaxed);
}

static void set_rows(struct shard *shard, size_t n)
{
	atomic_store_explicit(&shard->n_rows, n, memory_order_relaxed);
}

/* --- life -------------------------------------------------------------------------------------------- */

struct xfer_stats *xfer_stats_new(size_t row_limit)
{
	struct xfer_stats *stats = aligned_alloc(_Alignof(struct xfer_stats), sizeof(*stats));
	if (!stats)
		return NULL;
	memset(stats, 0, sizeof(*stats));
	stats->row_limit = row_limit ? row_limit : XFER_ROW_LIMIT;
	atomic_init(&stats->left, stats->row_limit);
	for (uint32_t i = 0; i < SHARDS; i++)
		pthread_mutex_init(&stats->shards[i].lock, NULL);
	pthread_mutex_init(&stats->overflow_lock, NULL);
	return stats;
}

void xfer_stats_free(struct xfer_stats *stats)
{
	if (!stats)
		return;
	for (uint32_t i = 0; i < SHARDS; i++) {
		free(stats->shards[i].rows);
		pthread_mutex_destroy(&stats->shards[i].lock);
	}
	free(stats->overflow);
	pthread_mutex_destroy(&stats->overflow_lock);
	free(stats);
}

/* --- recording --------------------------------------------------------------------------------------- */

/* A share of what is left of the limit: the nearer the limit, the smaller. 0: nothing is left. */
static size_t draw(struct xfer_stats *stats)
{
	size_t left = atomic_load_explicit(&stats->left, memory_order_relaxed), grant;
	do {
		grant = left / SHARDS < GRANT_MAX ? left / SHARDS : GRANT_MAX;
		if (grant == 0)
			grant = left > 0;
	} while (!atomic_compare_exchange_weak_explicit(&stats->left, &left, left - grant, memory_order_relaxed,
	                                                memory_order_relaxed));
	return grant;
}

/* What was drawn and not used goes back. With every shard's lock. */
static void put_back(struct xfer_stats *stats)
{
	size_t left = atomic_load_explicit(&stats->left, memory_order_relaxed);
	for (uint32_t i = 0; i < SHARDS; i++) {
		struct shard *shard = &stats->shards[i];
		left += shard->granted - rows_of(shard);
		shard->granted = shard->ready = rows_of(shard);
	}
	atomic_store_explicit(&stats->left, left, memory_order_relaxed);
	stats->full = left == 0;
}

static bool grow(struct shard *shard)
{
	size_t room = shard->room ? shard->room * 2 : ROOM_FIRST;
	struct xfer_row *rows = realloc(shard->rows, room * sizeof(*rows));
	if (!rows)
		return false;
	shard->rows = rows;
	shard->room = room;
	return true;
}

static int push_overflow(struct xfer_stats *stats, const struct xfer_row *row)
{
	pthread_mutex_lock(&stats->overflow_lock);
	if (!stats->overflow)
		stats->overflow = xfer_sketch_new();
	struct xfer_sketch *overflow = stats->overflow;
	if (overflow)
		xfer_sketch_push(overflow, row);
	pthread_mutex_unlock(&stats->overflow_lock);
	return overflow ? KV_OK : KV_INTERNAL_ERROR;
}

/* Room for one row more that the limit allows. UNGRANTED: none is to be had with this shard's lock alone. */
static int make_ready(struct xfer_stats *stats, struct shard *shard)
{
	size_t n = rows_of(shard);
	if (n == shard->granted)
		shard->granted += draw(stats);
	if (n == shard->granted)
		return UNGRANTED;
	if (n == shard->room && !grow(shard))
		return KV_INTERNAL_ERROR;
	shard->ready = shard->granted < shard->room ? shard->granted : shard->room;
	return KV_OK;
}

/* UNGRANTED as above. */
static int push_locked(struct xfer_stats *stats, struct shard *shard, const struct xfer_row *row)
{
	size_t n = rows_of(shard);
	if (__builtin_expect(n == shard->ready, 0)) {
		if (stats->full)
			return push_overflow(stats, row);
		int status = make_ready(stats, shard);
		if (status)
			return status;
	}
	shard->rows[n] = *row;
	set_rows(shard, n + 1);
	return KV_OK;
}

/* With every shard's lock: never UNGRANTED. */
static int push_all_locked(struct xfer_stats *stats, struct shard *shard, const struct xfer_row *row)
{
	int status = push_locked(stats, shard, row);
	if (status != UNGRANTED)
		return status;
	put_back(stats);
	return push_locked(stats, shard, row);
}

static void lock_shards(struct xfer_stats *stats)
{
	for (uint32_t i = 0; i < SHARDS; i++)
		pthread_mutex_lock(&stats->shards[i].lock);
}

static void unlock_shards(struct xfer_stats *stats)
{
	for (uint32_t i = SHARDS; i-- > 0;)
		pthread_mutex_unlock(&stats->shards[i].lock);
}

static int push(struct xfer_stats *stats, const struct xfer_row *row)
{
	struct shard *shard = shard_of_thread(stats);
	pthread_mutex_lock(&shard->lock);
	int status = push_locked(stats, shard, row);
	pthread_mutex_unlock(&shard->lock);
	if (__builtin_expect(status == UNGRANTED, 0)) {
		lock_shards(stats);
		status = push_all_locked(stats, shard, row);
		unlock_shards(stats);
	}
	return status;
}

static uint64_t elapsed_of(const struct xfer_row *row)
{
	uint64_t ns = xfer_row_ns(row);
	return ns ? ns : 1;
}

int xfer_stats_record(struct xfer_stats *stats, enum xfer_direction direction, const struct xfer_row *row)
{
	if (!isfinite(row->duration_s) || row->bytes < 0)
		return KV_INVALID_PARAMS;
	int status = push(stats, row);
	if (status)
		return status;
	if (direction == XFER_DIRECTION_READ)
		PERF_RECORD(XFER_READ, elapsed_of(row), (uint64_t)row->bytes, row->descriptors, 0, 0, kv_op_id_new());
	else
		PERF_RECORD(XFER_WRITE, elapsed_of(row), (uint64_t)row->bytes, row->descriptors, 0, 0,
		            kv_op_id_new());
	return KV_OK;
}

static void fire_failure(enum xfer_direction direction, enum xfer_failure failure)
{
	if (failure == XFER_FAILED_RECV)
		PERF_RECORD(XFER_RECV_FAILED, 0, 0, 0, 1, KV_TRANSFER_FAIL, kv_op_id_new());
	else if (failure == XFER_EXPIRED_REQ)
		PERF_RECORD(XFER_REQ_EXPIRED, 0, 0, 0, 1, KV_RPC_TIMEOUT, kv_op_id_new());
	else if (direction == XFER_DIRECTION_READ)
		PERF_RECORD(XFER_READ, 0, 0, 0, 1, KV_TRANSFER_FAIL, kv_op_id_new());
	else
		PERF_RECORD(XFER_WRITE, 0, 0, 0, 1, KV_TRANSFER_FAIL, kv_op_id_new());
}

void xfer_stats_record_failure(struct xfer_stats *stats, enum xfer_direction direction, enum xfer_failure failure)
{
	struct shard *shard = shard_of_thread(stats);
	pthread_mutex_lock(&shard->lock);
	shard->failures[failure]++;
	pthread_mutex_unlock(&shard->lock);
	fire_failure(direction, failure);
}

static int add_overflow(struct xfer_stats *stats, const struct xfer_sketch *from)
{
	pthread_mutex_lock(&stats->overflow_lock);
	if (!stats->overflow)
		stats->overflow = xfer_sketch_new();
	struct xfer_sketch *overflow = stats->overflow;
	if (overflow)
		xfer_sketch_add(overflow, from);
	pthread_mutex_unlock(&stats->overflow_lock);
	return overflow ? KV_OK : KV_INTERNAL_ERROR;
}

int xfer_stats_add(struct xfer_stats *stats, const struct xfer_snapshot *from)
{
	struct shard *shard = shard_of_thread(stats);
	int status = KV_OK;

	lock_shards(stats);
	for (size_t i = 0; i < from->n_rows && status == KV_OK; i++)
		status = push_all_locked(stats, shard, &from->rows[i]);
	for (int i = 0; i < XFER_FAILURES; i++)
		shard->failures[i] += from->failures[i];
	if (status == KV_OK && from->overflow)
		status = add_overflow(stats, from->overflow);
	unlock_shards(stats);
	return status;
}

/* --- the cut ----------------------------------------------------------------------------------------- */

static void lock_all(struct xfer_stats *stats)
{
	lock_shards(stats);
	pthread_mutex_lock(&stats->overflow_lock);
}

static void unlock_all(struct xfer_stats *stats)
{
	pthread_mutex_unlock(&stats->overflow_lock);
	unlock_shards(stats);
}

static size_t total_rows(const struct xfer_stats *stats)
{
	size_t total = 0;
	for (uint32_t i = 0; i < SHARDS; i++)
		total += rows_of(&stats->shards[i]);
	return total;
}

/* Locks everything with room in *out for all rows, which is found without the locks: nobody waits for malloc. */
static int lock_all_with_room(struct xfer_stats *stats, struct xfer_snapshot *out)
{
	for (;;) {
		size_t wanted = total_rows(stats);
		if (wanted > out->room) {
			wanted += wanted / 8 + ROOM_FIRST; /* for what comes meanwhile */
			struct xfer_row *rows = realloc(out->rows, wanted * sizeof(*rows));
			if (!rows)
				return KV_INTERNAL_ERROR;
			out->rows = rows;
			out->room = wanted;
		}
		lock_all(stats);
		if (total_rows(stats) <= out->room)
			return KV_OK;
		unlock_all(stats);
	}
}

static void append(struct xfer_snapshot *out, const struct xfer_row *rows, size_t n)
{
	if (n)
		memcpy(out->rows + out->n_rows, rows, n * sizeof(*rows));
	out->n_rows += n;
}

static void add_failures(struct xfer_snapshot *out, const struct shard *shard)
{
	for (int i = 0; i < XFER_FAILURES; i++)
		out->failures[i] += shard->failures[i];
}

int xfer_stats_take(struct xfer_stats *stats, struct xfer_snapshot *out)
{
	struct shard taken[SHARDS];

	*out = (struct xfer_snapshot){.row_limit = stats->row_limit};
	if (lock_all_with_room(stats, out)) {
		xfer_snapshot_free(out);
		return KV_INTERNAL_ERROR;
	}
	for (uint32_t i = 0; i < SHARDS; i++) {
		struct shard *shard = &stats->shards[i];
		taken[i].rows = shard->rows;
		set_rows(&taken[i], rows_of(shard));
		add_failures(out, shard);
		shard->rows = NULL;
		shard->room = shard->granted = shard->ready = 0;
		set_rows(shard, 0);
		memset(shard->failures, 0, sizeof(shard->failures));
	}
	atomic_store_explicit(&stats->left, stats->row_limit, memory_order_relaxed);
	stats->full = false;
	out->overflow = stats->overflow;
	stats->overflow = NULL;
	unlock_all(stats);
	for (uint32_t i = 0; i < SHARDS; i++) {
		append(out, taken[i].rows, rows_of(&taken[i]));
		free(taken[i].rows);
	}
	return KV_OK;
}

int xfer_stats_copy(struct xfer_stats *stats, struct xfer_snapshot *out)
{
	*out = (struct xfer_snapshot){.row_limit = stats->row_limit};
	struct xfer_sketch *overflow = xfer_sketch_new();
	if (!overflow || lock_all_with_room(stats, out)) {
		free(overflow);
		xfer_snapshot_free(out);
		return KV_INTERNAL_ERROR;
	}
	for (uint32_t i = 0; i < SHARDS; i++) {
		append(out, stats->shards[i].rows, rows_of(&stats->shards[i]));
		add_failures(out, &stats->shards[i]);
	}
	if (stats->overflow) {
		*overflow = *stats->overflow;
		out->overflow = overflow;
		overflow = NULL;
	}
	unlock_all(stats);
	free(overflow);
	return KV_OK;
}

uint64_t xfer_stats_successes(struct xfer_stats *stats)
{
	lock_all(stats);
	uint64_t n = total_rows(stats) + (stats->overflow ? stats->overflow->rows : 0);
	unlock_all(stats);
	return n;
}

bool xfer_stats_is_approximate(struct xfer_stats *stats)
{
	pthread_mutex_lock(&stats->overflow_lock);
	bool approximate = stats->overflow && stats->overflow->rows;
	pthread_mutex_unlock(&stats->overflow_lock);
	return approximate;
}

bool xfer_stats_is_empty(struct xfer_stats *stats)
{
	bool empty = true;
	lock_all(stats);
	for (uint32_t i = 0; i < SHARDS; i++)
		for (int f = 0; f < XFER_FAILURES; f++)
			empty = empty && stats->shards[i].failures[f] == 0;
	empty = empty && total_rows(stats) == 0 && !stats->overflow;
	unlock_all(stats);
	return empty;
}
