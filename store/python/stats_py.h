/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the files of kvprobe._stats share: the class TransferStats (stats_object.c), its lists (stats_columns.c),
 * merging (stats_merge.c), pickling (stats_state.c) and the metrics (stats_metrics.c).
 *
 * A TransferStats is in one of two modes. Core mode (data NULL): the rows are in the C core and nowhere else. List
 * mode: `data`, usually a dict of six lists, is the truth, and callers may hold and change it; the core is empty but
 * for the moment between a record and its entry into the lists.
 *
 * Every function here needs the GIL. Python code runs wherever a caller's object is converted or compared, and it may
 * call back into the object: so what is taken from the object is held by a reference, and looked at again afterwards.
 * "0, or -1 with an exception" where nothing else is said.
 */
#ifndef KV_STATS_PY_H
#define KV_STATS_PY_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdbool.h>
#include <stdint.h>

#include "store/stats/transfer_stats.h"

/* The keys of `data`, in their order. */
enum stats_column {
	COLUMN_DURATION,
	COLUMN_BYTES,
	COLUMN_DESCRIPTORS,
	COLUMN_FAILURES, /* as many as there are kinds of failures, in the order of enum xfer_failure */
	COLUMNS = COLUMN_FAILURES + XFER_FAILURES,
};
#define ROW_COLUMNS COLUMN_FAILURES

struct stats_object {
	PyObject_HEAD struct xfer_stats *core;
	PyObject *data; /* NULL: core mode */
	/* List mode: what is beyond the limit. No rows; a sketch of them, and failures. */
	struct xfer_snapshot spill;
	size_t row_limit;
};

/* --- stats_object.c --------------------------------------------------------------------------------- */

int stats_add_type(PyObject *module);
bool stats_check(PyObject *object);
/* Into list mode, with what the core holds. `data` borrowed, or NULL with an exception. */
PyObject *stats_need_data(struct stats_object *stats);
/* What the core has got since the last access goes to the lists. In core mode: nothing. */
int stats_drain(struct stats_object *stats);
/* `data` by reference, NULL for core mode; nothing of what was recorded remains. */
int stats_replace(struct stats_object *stats, PyObject *data);
/* Everything that is recorded, as a snapshot to be freed; the object stays as it is. */
int stats_snapshot(struct stats_object *stats, struct xfer_snapshot *out);
/* The constructor's row_limit: None or an int above 0. */
int stats_set_row_limit(struct stats_object *stats, PyObject *limit);

/* --- stats_columns.c -------------------------------------------------------------------------------- */

extern PyObject *stats_names[COLUMNS]; /* interned */
int stats_names_init(void);

/* Which column a key is, or -1. Runs no Python code. */
int stats_column_of(PyObject *key);
/* A new reference in *out, or NULL if `data` has no such column. TypeError if data is not a dict. */
int stats_column(PyObject *data, enum stats_column column, PyObject **out);
/* The number of items of a column; 0 if there is none, -1 with an exception. */
Py_ssize_t stats_column_size(PyObject *data, enum stats_column column);
/* A new dict of six empty lists. */
PyObject *stats_new_data(void);

/* The lists of a dict, held: a missing one is made, something else than a list is an AssertionError. */
int stats_hold(PyObject *data, PyObject *lists[COLUMNS]);
void stats_release(PyObject *lists[COLUMNS]);
/* Append a snapshot to the lists, rows whole, as far as the limit lets; the rest to *spill. All of it or, without
 * memory, nothing. Runs no Python code. */
int stats_append(PyObject *lists[COLUMNS], size_t row_limit, const struct xfer_snapshot *from,
                 struct xfer_snapshot *spill);

/* ValueError for a duration that is not finite and for negative bytes, OverflowError beyond int64 or uint32. */
int stats_row(PyObject *duration, PyObject *bytes, PyObject *descriptors, struct xfer_row *row);
/* The rows of three tuples from `first` on, appended to *out. AssertionError if their lengths differ. */
int stats_rows(PyObject *columns[ROW_COLUMNS], Py_ssize_t first, struct xfer_snapshot *out);
/* A dict of lists as a snapshot to be freed, all rows kept. Missing columns are empty. */
int stats_snapshot_of_data(PyObject *data, struct xfer_snapshot *out);

/* How many of n more items the limit lets into a list. */
size_t stats_kept_of(PyObject *list, size_t limit, size_t n);
/* dict[key] = value. Takes the reference; NULL with an exception is passed on. */
int stats_set_new(PyObject *dict, const char *key, PyObject *value);

/* The spill gets all that `from` has, rows as part of its sketch; fails only if it has to make the sketch. */
int stats_spill(struct xfer_snapshot *spill, const struct xfer_snapshot *from);
int stats_need_sketch(struct xfer_snapshot *spill);
bool stats_spilled(const struct xfer_snapshot *spill);

/* --- the other methods ------------------------------------------------------------------------------- */

/* stats_merge.c */
PyObject *stats_aggregate(PyObject *self, PyObject *other);
extern const char stats_aggregate_doc[];

/* stats_state.c */
PyObject *stats_getstate(PyObject *self, PyObject *unused);
PyObject *stats_setstate(PyObject *self, PyObject *state);
PyObject *stats_reduce_ex(PyObject *self, PyObject *protocol);
/* What is beyond the lists as a dict of plain values, and back: ValueError for what cannot be. */
PyObject *stats_spill_to_dict(const struct xfer_snapshot *spill);
int stats_spill_from_dict(PyObject *dict, struct xfer_snapshot *spill);

/* stats_metrics.c */
int stats_add_metrics_type(PyObject *module);

#endif
