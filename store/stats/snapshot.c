/* SPDX-License-Identifier: Apache-2.0 */
/* A cut of the stats: plain data of one thread; merged, and reduced to the nine figures. */
#include <stdlib.h>
#include <string.h>

#include "kvstore_status.h"
#include "store/stats/sketch.h"

#define ROOM_FIRST 64u
#define MIB        1048576.0L

static size_t limit_of(const struct xfer_snapshot *snapshot)
{
	return snapshot->row_limit ? snapshot->row_limit : XFER_ROW_LIMIT;
}

void xfer_snapshot_free(struct xfer_snapshot *snapshot)
{
	free(snapshot->rows);
	free(snapshot->overflow);
	*snapshot = (struct xfer_snapshot){.row_limit = snapshot->row_limit};
}

/* Room for `more` rows. */
static int reserve(struct xfer_snapshot *snapshot, size_t more)
{
	size_t wanted = snapshot->n_rows + more;
	if (wanted <= snapshot->room)
		return KV_OK;
	size_t room = snapshot->room ? snapshot->room : ROOM_FIRST;
	while (room < wanted)
		room *= 2;
	struct xfer_row *rows = realloc(snapshot->rows, room * sizeof(*rows));
	if (!rows)
		return KV_INTERNAL_ERROR;
	snapshot->rows = rows;
	snapshot->room = room;
	return KV_OK;
}

static int need_overflow(struct xfer_snapshot *snapshot)
{
	if (!snapshot->overflow)
		snapshot->overflow = xfer_sketch_new();
	return snapshot->overflow ? KV_OK : KV_INTERNAL_ERROR;
}

/* As many rows as there is room for below the limit, the others to the sketch. */
static int push_rows(struct xfer_snapshot *snapshot, const struct xfer_row *rows, size_t n)
{
	size_t limit = limit_of(snapshot);
	size_t free_rows = snapshot->n_rows < limit ? limit - snapshot->n_rows : 0;
	size_t kept = n < free_rows ? n : free_rows;

	if (kept < n && need_overflow(snapshot))
		return KV_INTERNAL_ERROR;
	if (reserve(snapshot, kept))
		return KV_INTERNAL_ERROR;
	if (kept)
		memcpy(snapshot->rows + snapshot->n_rows, rows, kept * sizeof(*rows));
	snapshot->n_rows += kept;
	for (size_t i = kept; i < n; i++)
		xfer_sketch_push(snapshot->overflow, &rows[i]);
	return KV_OK;
}

int xfer_snapshot_push(struct xfer_snapshot *snapshot, const struct xfer_row *row)
{
	return push_rows(snapshot, row, 1);
}

int xfer_snapshot_add(struct xfer_snapshot *into, const struct xfer_snapshot *from)
{
	/* Its own copy of the pointer: `from` may be `into`. */
	size_t n = from->n_rows;
	if (from->overflow && need_overflow(into))
		return KV_INTERNAL_ERROR;
	if (reserve(into, n) || push_rows(into, from->rows, n))
		return KV_INTERNAL_ERROR;
	if (from->overflow)
		xfer_sketch_add(into->overflow, from->overflow);
	for (int i = 0; i < XFER_FAILURES; i++)
		into->failures[i] += from->failures[i];
	return KV_OK;
}

uint64_t xfer_snapshot_successes(const struct xfer_snapshot *snapshot)
{
	return snapshot->n_rows + (snapshot->overflow ? snapshot->overflow->rows : 0);
}

bool xfer_snapshot_is_empty(const struct xfer_snapshot *snapshot)
{
	for (int i = 0; i < XFER_FAILURES; i++)
		if (snapshot->failures[i])
			return false;
	return xfer_snapshot_successes(snapshot) == 0;
}

/* --- reduce ----------------------------------------------------------------------------------------- */

static void swap(double *a, double *b)
{
	double kept = *a;
	*a = *b;
	*b = kept;
}

/* Reorders values so that values[k] is what it would be if they were sorted, with nothing larger before it and
 * nothing smaller behind it. The value at k is the pivot: durations often come nearly sorted. */
static void select_rank(double *values, size_t n, size_t k)
{
	ptrdiff_t left = 0, right = (ptrdiff_t)n - 1, wanted = (ptrdiff_t)k;
	while (left < right) {
		double pivot = values[wanted];
		ptrdiff_t i = left, j = right;
		while (i <= j) {
			while (values[i] < pivot)
				i++;
			while (values[j] > pivot)
				j--;
			if (i <= j)
				swap(&values[i++], &values[j--]);
		}
		if (j < wanted)
			left = i;
		if (wanted < i)
			right = j;
	}
}

/* Ranks from 0; between two of them the value is linear, as numpy.percentile has it. */
static double percentile(double *values, size_t n, double q)
{
	double position = q * (double)(n - 1);
	size_t rank = (size_t)position;
	select_rank(values, n, rank);
	double low = values[rank];
	if (rank + 1 == n)
		return low;
	double high = values[rank + 1];
	for (size_t i = rank + 2; i < n; i++)
		if (values[i] < high)
			high = values[i];
	return low + (high - low) * (position - (double)rank);
}

/* Of at least one row. */
static int exact_p90(const struct xfer_snapshot *snapshot, double *p90_ms)
{
	size_t n = snapshot->n_rows;
	double *values = n ? malloc(n * sizeof(*values)) : NULL;
	if (!values)
		return KV_INTERNAL_ERROR;
	for (size_t i = 0; i < n; i++)
		values[i] = snapshot->rows[i].duration_s;
	*p90_ms = percentile(values, n, 0.9) * 1e3;
	free(values);
	return KV_OK;
}

/* Of the rows that were kept and those in the sketch together. */
static int sketched_p90(const struct xfer_snapshot *snapshot, double *p90_ms)
{
	struct xfer_sketch *all = xfer_sketch_new();
	if (!all)
		return KV_INTERNAL_ERROR;
	for (size_t i = 0; i < snapshot->n_rows; i++)
		xfer_sketch_push(all, &snapshot->rows[i]);
	xfer_sketch_add(all, snapshot->overflow);
	*p90_ms = xfer_sketch_quantile(all->ns, all->rows, 0.9) / 1e6;
	free(all);
	return KV_OK;
}

int xfer_snapshot_reduce(const struct xfer_snapshot *snapshot, struct xfer_reduced *out)
{
	const struct xfer_sketch *overflow = snapshot->overflow;
	struct xfer_sums sums = overflow ? overflow->sums : (struct xfer_sums){0};

	*out = (struct xfer_reduced){.successes = xfer_snapshot_successes(snapshot),
	                             .approximate = overflow && overflow->rows};
	memcpy(out->failures, snapshot->failures, sizeof(out->failures));
	if (out->successes == 0)
		return KV_OK;
	for (size_t i = 0; i < snapshot->n_rows; i++)
		xfer_sums_push(&sums, &snapshot->rows[i]);
	long double n = (long double)out->successes, mib = (long double)sums.bytes / MIB;
	out->avg_ms = (double)(sums.seconds / n * 1e3L);
	out->avg_mib = (double)(mib / n);
	out->mib_per_s = sums.seconds > 0 ? (double)(mib / sums.seconds) : 0;
	out->avg_descriptors = (double)((long double)sums.descriptors / n);
	return out->approximate ? sketched_p90(snapshot, &out->p90_ms) : exact_p90(snapshot, &out->p90_ms);
}
