/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/kvprobe/stat_rows.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <jansson.h>

static const char *const column_names[] = {
        [COLUMN_PID] = "pid",   [COLUMN_KEY] = "key",     [COLUMN_CALLS] = "calls", [COLUMN_FAILED] = "failed",
        [COLUMN_KEYS] = "keys", [COLUMN_BYTES] = "bytes", [COLUMN_AVG] = "avg",     [COLUMN_P50] = "p50",
        [COLUMN_P99] = "p99",   [COLUMN_P999] = "p999",   [COLUMN_MAX] = "max",
};

enum stat_column stat_column_of(const char *name)
{
	for (size_t i = 1; i < sizeof(column_names) / sizeof(column_names[0]); i++)
		if (strcmp(column_names[i], name) == 0)
			return (enum stat_column)i;
	return COLUMN_NONE;
}

/* --- reading ---------------------------------------------------------------------------------------------- */

static void add_row(struct stat_rows *rows, const struct stat_row *row)
{
	rows->rows = grow_array(rows->rows, &rows->room, rows->count + 1, sizeof(*rows->rows));
	rows->rows[rows->count++] = *row;
}

static void read_slot(struct stat_rows *rows, const struct session *session, struct snapshot *before, uint32_t slot)
{
	struct stat_row row = {.worker = &session->workers[slot]};
	for (row.key = 0; row.key < n_perf_keys; row.key++) {
		struct kvp_cell cell;
		snapshot_read(before, session, slot, row.key, &cell);
		cell_summarize(&row.cell, &cell);
		if (row.cell.calls)
			add_row(rows, &row);
	}
}

void stat_rows_read(struct stat_rows *rows, const struct session *session, struct snapshot *before)
{
	rows->count = 0;
	for (uint32_t slot = 0; slot < session->n_workers; slot++)
		read_slot(rows, session, before, slot);
}

/* Has a row of this key been read of more than one worker? */
static bool is_shared(const struct stat_rows *rows, int key)
{
	size_t sharers = 0;
	for (size_t i = 0; i < rows->count; i++)
		sharers += rows->rows[i].worker && rows->rows[i].key == key;
	return sharers > 1;
}

void stat_rows_add_totals(struct stat_rows *rows, const struct session *session)
{
	struct kvp_cell *sum = need_memory(malloc(sizeof(*sum)));
	for (int key = 0; key < n_perf_keys; key++) {
		if (!is_shared(rows, key))
			continue;
		memset(sum, 0, sizeof(*sum));
		for (uint32_t slot = 0; slot < session->n_workers; slot++)
			cell_add(sum, &session->kernel.cells[(size_t)slot * (size_t)n_perf_keys + (size_t)key]);
		struct stat_row row = {.key = key};
		cell_summarize(&row.cell, sum);
		add_row(rows, &row);
	}
	free(sum);
}

void stat_rows_free(struct stat_rows *rows)
{
	free(rows->rows);
	*rows = (struct stat_rows){0};
}

/* --- sorting ------------------------------------------------------------------------------------------------ */

static uint64_t column_value(const struct stat_row *row, enum stat_column column)
{
	switch (column) {
	case COLUMN_CALLS:
		return row->cell.calls;
	case COLUMN_FAILED:
		return row->cell.failed_calls;
	case COLUMN_KEYS:
		return row->cell.keys;
	case COLUMN_BYTES:
		return row->cell.bytes;
	case COLUMN_AVG:
		return row->cell.avg_ns;
	case COLUMN_P50:
		return row->cell.p50_ns;
	case COLUMN_P99:
		return row->cell.p99_ns;
	case COLUMN_P999:
		return row->cell.p999_ns;
	case COLUMN_MAX:
		return row->cell.max_ns;
	default:
		return 0;
	}
}

static int compare(const void *left, const void *right, void *context)
{
	const struct stat_row *a = left, *b = right;
	enum stat_column column = *(const enum stat_column *)context;
	int pid_a = a->worker ? a->worker->pid : 0, pid_b = b->worker ? b->worker->pid : 0;
	int order = 0;
	if (!a->worker != !b->worker) /* the rows of all workers together stay last */
		return a->worker ? -1 : 1;
	if (column == COLUMN_KEY)
		order = strcmp(perf_keys[a->key].name, perf_keys[b->key].name);
	else if (column != COLUMN_PID && column != COLUMN_NONE)
		order = (column_value(a, column) < column_value(b, column)) -
		        (column_value(a, column) > column_value(b, column)); /* largest first */
	if (order == 0)
		order = (pid_a > pid_b) - (pid_a < pid_b);
	if (order == 0)
		order = (a->key > b->key) - (a->key < b->key);
	return order;
}

void stat_rows_sort(struct stat_rows *rows, enum stat_column column)
{
	if (rows->count)
		qsort_r(rows->rows, rows->count, sizeof(*rows->rows), compare, &column);
}

/* --- printing ----------------------------------------------------------------------------------------------- */

#define TABLE_COLUMNS 14
#define TABLE_CELL    64
static const struct {
	const char *head;
	int width; /* at least */
	bool left;
} table_columns[TABLE_COLUMNS] = {
        {"PID", 8, false},   {"COMM", 15, true},  {"KEY", 0, true},       {"CALLS", 10, false}, {"FAILED", 7, false},
        {"KEYS", 10, false}, {"FKEYS", 7, false}, {"CALLS/s", 10, false}, {"AVG", 10, false},   {"P50", 10, false},
        {"P99", 10, false},  {"P999", 10, false}, {"MAX", 10, false},     {"GiB/s", 8, false},
};

static void format_row(char cells[TABLE_COLUMNS][TABLE_CELL], const struct stat_row *row, double seconds)
{
	const struct cell_summary *cell = &row->cell;
	const uint64_t counts[] = {cell->calls, cell->failed_calls, cell->keys, cell->failed_keys};
	const uint64_t durations[] = {cell->avg_ns, cell->p50_ns, cell->p99_ns, cell->p999_ns, cell->max_ns};
	int at = 3;
	if (row->worker)
		snprintf(cells[0], TABLE_CELL, "%d%s", row->worker->pid, row->worker->exited ? "+" : "");
	else
		snprintf(cells[0], TABLE_CELL, "all");
	snprintf(cells[1], TABLE_CELL, "%s", row->worker ? row->worker->comm : "");
	snprintf(cells[2], TABLE_CELL, "%s", perf_keys[row->key].name);
	for (size_t i = 0; i < sizeof(counts) / sizeof(counts[0]); i++)
		snprintf(cells[at++], TABLE_CELL, "%" PRIu64, counts[i]);
	snprintf(cells[at++], TABLE_CELL, "%.1f", (double)cell->calls / seconds);
	for (size_t i = 0; i < sizeof(durations) / sizeof(durations[0]); i++) {
		if (cell->max_ns)
			snprintf(cells[at++], TABLE_CELL, "%.1f", (double)durations[i] / 1e3);
		else
			snprintf(cells[at++], TABLE_CELL, "-");
	}
	snprintf(cells[at], TABLE_CELL, "%.3f", (double)cell->bytes / seconds / (1u << 30));
}

/* As wide as the widest cell, so that no large number or long name pushes the others out of line. */
static void fit_columns(const struct stat_rows *rows, double seconds, int widths[TABLE_COLUMNS])
{
	char cells[TABLE_COLUMNS][TABLE_CELL];
	for (int c = 0; c < TABLE_COLUMNS; c++)
		widths[c] = table_columns[c].width;
	for (int key = 0; key < n_perf_keys; key++) /* the same in every interval */
		if ((int)strlen(perf_keys[key].name) > widths[2])
			widths[2] = (int)strlen(perf_keys[key].name);
	for (size_t i = 0; i < rows->count; i++) {
		format_row(cells, &rows->rows[i], seconds);
		for (int c = 0; c < TABLE_COLUMNS; c++)
			if ((int)strlen(cells[c]) > widths[c])
				widths[c] = (int)strlen(cells[c]);
	}
}

static void print_cells(const char *const cells[TABLE_COLUMNS], const int widths[TABLE_COLUMNS])
{
	for (int c = 0; c < TABLE_COLUMNS; c++)
		printf("%s%*s", c ? " " : "", table_columns[c].left ? -widths[c] : widths[c], cells[c]);
	putchar('\n');
}

static void print_table(const struct stat_rows *rows, const char *type, double seconds)
{
	char clock[16], cells[TABLE_COLUMNS][TABLE_CELL];
	const char *line[TABLE_COLUMNS];
	int widths[TABLE_COLUMNS];
	bool exited = false, all = false;
	time_t now = time(NULL);
	struct tm local;
	localtime_r(&now, &local);
	strftime(clock, sizeof(clock), "%H:%M:%S", &local);
	for (size_t i = 0; i < rows->count; i++) {
		exited = exited || (rows->rows[i].worker && rows->rows[i].worker->exited);
		all = all || !rows->rows[i].worker;
	}
	printf("%s %s of %.1f s, durations in microseconds%s%s\n", clock, type, seconds,
	       exited ? "; +: the process has ended" : "", all ? "; all: the sum over all workers" : "");
	fit_columns(rows, seconds, widths);
	for (int c = 0; c < TABLE_COLUMNS; c++)
		line[c] = table_columns[c].head;
	print_cells(line, widths);
	for (int c = 0; c < TABLE_COLUMNS; c++)
		line[c] = cells[c];
	for (size_t i = 0; i < rows->count && !ferror(stdout); i++) {
		format_row(cells, &rows->rows[i], seconds);
		print_cells(line, widths);
	}
	if (rows->count == 0)
		printf("(no calls)\n");
}

static void print_json_row(const struct stat_row *row, const char *type, double seconds)
{
	const struct cell_summary *cell = &row->cell;
	json_t *object = json_pack(
	        "{ss sI si si ss ss ss ss sI sI sI sI sI sI sI sI sI sI sI sf sb sI}", "type", type, "time_ns",
	        (json_int_t)now_real_ns(), "pid", row->worker->pid, "nspid", row->worker->nspid, "comm",
	        row->worker->comm, "key", perf_keys[row->key].name, "layer",
	        perf_layer_name(perf_keys[row->key].layer), "level", perf_level_name(perf_keys[row->key].level),
	        "calls", (json_int_t)cell->calls, "failed_calls", (json_int_t)cell->failed_calls, "keys",
	        (json_int_t)cell->keys, "failed_keys", (json_int_t)cell->failed_keys, "bytes",
	        (json_int_t)cell->bytes, "untimed", (json_int_t)cell->untimed, "avg_ns", (json_int_t)cell->avg_ns,
	        "p50_ns", (json_int_t)cell->p50_ns, "p99_ns", (json_int_t)cell->p99_ns, "p999_ns",
	        (json_int_t)cell->p999_ns, "max_ns", (json_int_t)cell->max_ns, "seconds", seconds, "exited",
	        row->worker->exited, "skipped_fork", (json_int_t)row->worker->skipped_fork);
	if (!object)
		return;
	char *text = need_memory(json_dumps(object, JSON_COMPACT | JSON_PRESERVE_ORDER | JSON_REAL_PRECISION(9)));
	puts(text);
	free(text);
	json_decref(object);
}

/* comm is printable ASCII by now; a quote in it is doubled. */
static void print_csv_text(const char *text)
{
	putchar('"');
	for (; *text; text++) {
		if (*text == '"')
			putchar('"');
		putchar(*text);
	}
	putchar('"');
}

static void print_csv_row(const struct stat_row *row, const char *type, double seconds)
{
	const struct cell_summary *cell = &row->cell;
	printf("%s,%" PRIu64 ",%d,%d,", type, now_real_ns(), row->worker->pid, row->worker->nspid);
	print_csv_text(row->worker->comm);
	printf(",%s,%" PRIu64 ",%" PRIu64 ",%" PRIu64 ",%" PRIu64 ",%" PRIu64 ",%" PRIu64 ",%" PRIu64 ",%" PRIu64
	       ",%" PRIu64 ",%" PRIu64 ",%" PRIu64 ",%.3f,%d\n",
	       perf_keys[row->key].name, cell->calls, cell->failed_calls, cell->keys, cell->failed_keys, cell->bytes,
	       cell->untimed, cell->avg_ns, cell->p50_ns, cell->p99_ns, cell->p999_ns, cell->max_ns, seconds,
	       row->worker->exited);
}

void stat_print_header(enum stat_format format)
{
	if (format == STAT_CSV)
		puts("type,time_ns,pid,nspid,comm,key,calls,failed_calls,keys,failed_keys,bytes,untimed,avg_ns,p50_"
		     "ns,"
		     "p99_ns,p999_ns,max_ns,seconds,exited");
}

void stat_print(const struct stat_rows *rows, enum stat_format format, const char *type, double seconds)
{
	if (ferror(stdout))
		return;
	if (format == STAT_TABLE) {
		print_table(rows, type, seconds);
		return;
	}
	for (size_t i = 0; i < rows->count && !ferror(stdout); i++) { /* each write might wait for the alarm again */
		if (!rows->rows[i].worker)
			continue;
		if (format == STAT_JSON)
			print_json_row(&rows->rows[i], type, seconds);
		else
			print_csv_row(&rows->rows[i], type, seconds);
	}
}
