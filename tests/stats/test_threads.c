/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Writers on many threads while another takes snapshots: rows written = rows seen, no row is torn, and the rows of a
 * thread come in its order. A row's duration and descriptors follow from its bytes, and those say who wrote it and
 * which of its rows it is.
 */
#include "tests/unit/kv_cmocka.h"

#include <stdatomic.h>
#include <time.h>

#include "kvstore_status.h"
#include "store/base/clock.h"
#include "store/base/thread.h"
#include "store/stats/sketch.h"
#include "store/stats/transfer_stats.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define RUN_SECONDS 2
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define RUN_SECONDS 2
#endif
#endif
#ifndef RUN_SECONDS
#define RUN_SECONDS 10
#endif

/* LEAD: how far a writer may be ahead of what was looked at. On few CPUs the looking would otherwise fall ever
 * further behind, until the limit is passed. */
enum { WRITERS = 8, FAILURE_EVERY = 1000, LEAD = 5000 };
#define WRITER_SHIFT 40

struct world {
	struct xfer_stats *stats;
	atomic_bool stop;
	bool unbridled;                   /* no LEAD */
	_Atomic uint64_t looked[WRITERS]; /* rows of each that were looked at */
};

struct writer {
	struct world *world;
	int64_t number;
	uint64_t rows, failures[XFER_FAILURES];
};

static struct xfer_row row_of(int64_t writer, uint64_t i)
{
	int64_t bytes = writer << WRITER_SHIFT | (int64_t)i;
	return (struct xfer_row){(double)bytes, bytes, (uint32_t)(bytes * 2654435761u)};
}

static void short_pause(void)
{
	nanosleep(&(struct timespec){.tv_nsec = 200000}, NULL);
}

static bool too_far_ahead(const struct writer *writer)
{
	return !writer->world->unbridled &&
	       writer->rows - atomic_load_explicit(&writer->world->looked[writer->number], memory_order_relaxed) >
	               LEAD;
}

static void *write_rows(void *arg)
{
	struct writer *writer = arg;
	while (!atomic_load_explicit(&writer->world->stop, memory_order_relaxed)) {
		if (too_far_ahead(writer)) {
			short_pause();
			continue;
		}
		struct xfer_row row = row_of(writer->number, writer->rows);
		MUST(xfer_stats_record(writer->world->stats, XFER_DIRECTION_WRITE, &row) == KV_OK);
		writer->rows++;
		if (writer->rows % FAILURE_EVERY == 0) {
			enum xfer_failure kind = (writer->rows / FAILURE_EVERY) % XFER_FAILURES;
			xfer_stats_record_failure(writer->world->stats, XFER_DIRECTION_WRITE, kind);
			writer->failures[kind]++;
		}
	}
	return NULL;
}

/* What has been seen so far, in all snapshots. */
struct seen {
	uint64_t next[WRITERS]; /* the row of each writer that must come next */
	uint64_t failures[XFER_FAILURES];
	uint64_t beyond; /* rows in sketches */
	unsigned __int128 bytes_beyond;
};

/* gaps: rows may be missing between, because they are in sketches. */
static void look_at_row(struct seen *seen, const struct xfer_row *row, bool gaps)
{
	int64_t number = row->bytes >> WRITER_SHIFT;
	uint64_t i = (uint64_t)row->bytes & ((1ull << WRITER_SHIFT) - 1);
	struct xfer_row whole = row_of(number, i);
	MUST(number < WRITERS);
	MUST(row->duration_s == whole.duration_s);
	MUST(row->descriptors == whole.descriptors);
	MUST(gaps ? i >= seen->next[number] : i == seen->next[number]);
	seen->next[number] = i + 1;
}

static void look_at(struct seen *seen, const struct xfer_snapshot *snapshot, bool gaps)
{
	struct xfer_reduced figures;
	MUST(xfer_snapshot_reduce(snapshot, &figures) == KV_OK);
	MUST(figures.successes == xfer_snapshot_successes(snapshot));
	for (size_t i = 0; i < snapshot->n_rows; i++)
		look_at_row(seen, &snapshot->rows[i], gaps);
	for (int i = 0; i < XFER_FAILURES; i++)
		seen->failures[i] += snapshot->failures[i];
	if (snapshot->overflow) {
		seen->beyond += snapshot->overflow->rows;
		seen->bytes_beyond += snapshot->overflow->sums.bytes;
	}
}

/* Copies do not disturb; what is in them is whole as well. */
static void look_at_copy(struct world *world, const struct seen *seen)
{
	struct xfer_snapshot copy;
	struct seen at_copy = *seen;
	MUST(xfer_stats_copy(world->stats, &copy) == KV_OK);
	look_at(&at_copy, &copy, false);
	xfer_snapshot_free(&copy);
}

static void start(struct world *world, struct writer *writers, pthread_t *threads)
{
	for (int i = 0; i < WRITERS; i++) {
		writers[i] = (struct writer){.world = world, .number = i};
		assert_int_equal(kv_thread_start(&threads[i], write_rows, &writers[i], "writer"), 0);
	}
}

static void stop(struct world *world, pthread_t *threads)
{
	atomic_store(&world->stop, true);
	for (int i = 0; i < WRITERS; i++)
		pthread_join(threads[i], NULL);
}

static uint64_t run_for(struct world *world, struct seen *seen, double seconds)
{
	uint64_t end = kv_now_ns() + (uint64_t)(seconds * 1e9), snapshots = 0;
	while (kv_now_ns() < end) {
		struct xfer_snapshot taken;
		if (snapshots % 8 == 0)
			look_at_copy(world, seen);
		MUST(xfer_stats_take(world->stats, &taken) == KV_OK);
		look_at(seen, &taken, false);
		xfer_snapshot_free(&taken);
		for (int i = 0; i < WRITERS; i++)
			atomic_store_explicit(&world->looked[i], seen->next[i], memory_order_relaxed);
		snapshots++;
		if (snapshots % 4 == 0) /* often at once, and now and then when more has come together */
			short_pause();
	}
	return snapshots;
}

static void last_look(struct world *world, struct seen *seen)
{
	struct xfer_snapshot taken;
	assert_int_equal(xfer_stats_take(world->stats, &taken), KV_OK);
	look_at(seen, &taken, false);
	xfer_snapshot_free(&taken);
	assert_true(xfer_stats_is_empty(world->stats));
}

static void rows_written_are_rows_seen(void **state)
{
	(void)state;
	struct world world = {.stats = xfer_stats_new(0)};
	struct writer writers[WRITERS];
	pthread_t threads[WRITERS];
	struct seen seen = {0};
	uint64_t rows = 0, failures[XFER_FAILURES] = {0};

	assert_non_null(world.stats);
	start(&world, writers, threads);
	uint64_t snapshots = run_for(&world, &seen, RUN_SECONDS);
	stop(&world, threads);
	last_look(&world, &seen);
	for (int i = 0; i < WRITERS; i++) {
		assert_int_equal(seen.next[i], writers[i].rows);
		assert_true(writers[i].rows > 0);
		rows += writers[i].rows;
		for (int f = 0; f < XFER_FAILURES; f++)
			failures[f] += writers[i].failures[f];
	}
	for (int f = 0; f < XFER_FAILURES; f++)
		assert_int_equal(seen.failures[f], failures[f]);
	assert_int_equal(seen.beyond, 0);
	print_message("%llu rows in %llu snapshots\n", (unsigned long long)rows, (unsigned long long)snapshots);
	xfer_stats_free(world.stats);
}

/* Of rows that were kept and those in sketches together. */
struct sums {
	uint64_t rows;
	unsigned __int128 bytes;
};

static void add_taken(struct world *world, struct seen *seen, struct sums *kept)
{
	struct xfer_snapshot taken;
	MUST(xfer_stats_take(world->stats, &taken) == KV_OK);
	MUST(taken.n_rows <= 50);
	MUST(!taken.overflow || taken.n_rows == 50);
	look_at(seen, &taken, true);
	kept->rows += taken.n_rows;
	for (size_t i = 0; i < taken.n_rows; i++)
		kept->bytes += (uint64_t)taken.rows[i].bytes;
	xfer_snapshot_free(&taken);
}

/* A limit so low that it is passed all the time. */
static void nothing_is_lost_beyond_the_limit(void **state)
{
	(void)state;
	struct world world = {.stats = xfer_stats_new(50), .unbridled = true};
	struct writer writers[WRITERS];
	pthread_t threads[WRITERS];
	struct seen seen = {0};
	struct sums kept = {0}, written = {0};
	uint64_t end = kv_now_ns() + RUN_SECONDS * 200000000ull;

	assert_non_null(world.stats);
	start(&world, writers, threads);
	while (kv_now_ns() < end) {
		short_pause();
		add_taken(&world, &seen, &kept);
	}
	stop(&world, threads);
	add_taken(&world, &seen, &kept);
	for (int i = 0; i < WRITERS; i++) {
		unsigned __int128 n = writers[i].rows;
		written.rows += writers[i].rows;
		written.bytes += n * (uint64_t)row_of(i, 0).bytes + (n ? n * (n - 1) / 2 : 0);
	}
	assert_true(seen.beyond > 0);
	assert_int_equal(kept.rows + seen.beyond, written.rows);
	assert_true(kept.bytes + seen.bytes_beyond == written.bytes);
	xfer_stats_free(world.stats);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(rows_written_are_rows_seen),
	        cmocka_unit_test(nothing_is_lost_beyond_the_limit),
	};
	return cmocka_run_group_tests_name("stats-threads", tests, NULL, NULL);
}
