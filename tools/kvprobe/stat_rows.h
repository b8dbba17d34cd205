/* SPDX-License-Identifier: Apache-2.0 */
/* The rows of kvprobe stat: read from the kernel's cells, sorted, and printed as a table, CSV or JSON. */
#ifndef KVPROBE_STAT_ROWS_H
#define KVPROBE_STAT_ROWS_H

#include "tools/kvprobe/hist.h"
#include "tools/kvprobe/session.h"
#include "tools/kvprobe/snapshot.h"

enum stat_format {
	STAT_TABLE,
	STAT_JSON,
	STAT_CSV,
};

enum stat_column {
	COLUMN_NONE, /* by worker, then as in perf_points.def */
	COLUMN_PID,
	COLUMN_KEY,
	COLUMN_CALLS,
	COLUMN_FAILED,
	COLUMN_KEYS,
	COLUMN_BYTES,
	COLUMN_AVG,
	COLUMN_P50,
	COLUMN_P99,
	COLUMN_P999,
	COLUMN_MAX,
};
/* COLUMN_NONE if it is none. */
enum stat_column stat_column_of(const char *name);

struct stat_row {
	const struct worker *worker; /* NULL: all workers together */
	int key;
	struct cell_summary cell;
};

struct stat_rows {
	struct stat_row *rows;
	size_t count, room;
};

/* Read every cell that has calls. before NULL: since the start; else what came since, and *before becomes now. */
void stat_rows_read(struct stat_rows *rows, const struct session *session, struct snapshot *before);
/* Add a row per key for all workers together, if there are several. */
void stat_rows_add_totals(struct stat_rows *rows, const struct session *session);
void stat_rows_sort(struct stat_rows *rows, enum stat_column column);
void stat_rows_free(struct stat_rows *rows);

/* type: "interval" or "total"; seconds: the time that the rows cover. */
void stat_print(const struct stat_rows *rows, enum stat_format format, const char *type, double seconds);
void stat_print_header(enum stat_format format);

#endif
