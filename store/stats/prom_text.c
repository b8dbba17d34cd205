/* SPDX-License-Identifier: Apache-2.0 */
#include "store/stats/prom_text.h"

#include <inttypes.h>
#include <locale.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "store/stats/histograms.h"
#include "store/stats/sketch.h"

#define NUMBER_MAX 48
#define ASYMMETRY                                                                                                    \
	" Only the side that moves the bytes records successes: the sending side (role=producer) where blocks are "  \
	"pushed, the receiving side (role=consumer) where they are pulled; the other side records only failures "    \
	"and time-outs."

struct totals {
	struct xfer_histograms histograms;
	struct xfer_sums sums;
	uint64_t failures[XFER_FAILURES];
};

struct xfer_metrics {
	pthread_mutex_t lock;
	struct totals totals;
	locale_t plain; /* where a decimal point is a point, whatever the process has set */
	char *labels;   /* escaped, without braces */
};

const struct xfer_family xfer_families[XFER_FAMILIES] = {
        {"transfer_duration", "vllm:mooncake_xfer_time_seconds", "seconds",
         "Duration of successful KV transfers in seconds." ASYMMETRY, xfer_time_bounds, XFER_TIME_BOUNDS},
        {"bytes_transferred", "vllm:mooncake_bytes_transferred", NULL,
         "Bytes of each successful KV transfer." ASYMMETRY, xfer_bytes_bounds, XFER_BYTES_BOUNDS},
        {"num_descriptors", "vllm:mooncake_num_descriptors", NULL,
         "Descriptors (contiguous pieces of memory) of each successful KV transfer." ASYMMETRY,
         xfer_descriptor_bounds, XFER_DESCRIPTOR_BOUNDS},
        {"num_failed_transfers", "vllm:mooncake_num_failed_transfers", NULL,
         "KV transfers that failed on the side that moves the data; they are in none of the histograms." ASYMMETRY,
         NULL, 0},
        {"num_failed_recvs", "vllm:mooncake_num_failed_recvs", NULL,
         "KV receives that failed, seen by the receiving side." ASYMMETRY, NULL, 0},
        {"num_kv_expired_reqs", "vllm:mooncake_num_kv_expired_reqs", NULL,
         "Requests whose KV blocks were given up because the transfer did not come about in time." ASYMMETRY, NULL,
         0},
};

/* --- labels ------------------------------------------------------------------------------------------ */

static bool continues(unsigned char byte)
{
	return (byte & 0xc0) == 0x80;
}

/* The length of the UTF-8 character at text, 0 if it is none: cut short, longer than needed, a surrogate, or beyond
 * the last code point. */
static size_t utf8_length(const unsigned char *text)
{
	unsigned char first = text[0], second = text[1];
	if (first < 0x80)
		return 1;
	if (first < 0xc2 || first > 0xf4 || !continues(second))
		return 0;
	if (first < 0xe0)
		return 2;
	if ((first == 0xe0 && second < 0xa0) || (first == 0xed && second > 0x9f) || !continues(text[2]))
		return 0;
	if (first < 0xf0)
		return 3;
	if ((first == 0xf0 && second < 0x90) || (first == 0xf4 && second > 0x8f) || !continues(text[3]))
		return 0;
	return 4;
}

static void write_escaped(FILE *out, const char *value)
{
	const unsigned char *at = (const unsigned char *)value;
	while (*at) {
		size_t length = utf8_length(at);
		if (length == 0)
			fputs("\xef\xbf\xbd", out); /* the replacement character */
		else if (*at == '\n')
			fputs("\\n", out);
		else {
			if (*at == '\\' || *at == '"')
				fputc('\\', out);
			fwrite(at, 1, length, out);
		}
		at += length ? length : 1;
	}
}

/* Closes a stream made by open_memstream; its text, or NULL if it could not be written whole. */
static char *close_text(FILE *out, char **text)
{
	bool failed = ferror(out) != 0;
	failed = fclose(out) != 0 || failed;
	if (!failed)
		return *text;
	free(*text);
	return NULL;
}

static char *make_labels(const char *model_name, const char *engine, const char *role)
{
	const char *const pairs[][2] = {{"model_name", model_name}, {"engine", engine}, {"role", role}};
	char *text = NULL;
	size_t size;
	FILE *out = open_memstream(&text, &size);
	if (!out)
		return NULL;
	for (size_t i = 0; i < sizeof(pairs) / sizeof(pairs[0]); i++) {
		fprintf(out, "%s%s=\"", i ? "," : "", pairs[i][0]);
		write_escaped(out, pairs[i][1]);
		fputc('"', out);
	}
	return close_text(out, &text);
}

/* --- life -------------------------------------------------------------------------------------------- */

struct xfer_metrics *xfer_metrics_new(const char *model_name, const char *engine, const char *role)
{
	struct xfer_metrics *metrics = calloc(1, sizeof(*metrics));
	if (!metrics)
		return NULL;
	pthread_mutex_init(&metrics->lock, NULL);
	metrics->plain = newlocale(LC_NUMERIC_MASK, "C", (locale_t)0);
	metrics->labels = make_labels(model_name, engine, role);
	if (metrics->plain && metrics->labels)
		return metrics;
	xfer_metrics_free(metrics);
	return NULL;
}

void xfer_metrics_free(struct xfer_metrics *metrics)
{
	if (!metrics)
		return;
	if (metrics->plain)
		freelocale(metrics->plain);
	free(metrics->labels);
	pthread_mutex_destroy(&metrics->lock);
	free(metrics);
}

/* --- observing --------------------------------------------------------------------------------------- */

static void add_totals(struct totals *into, const struct totals *from)
{
	xfer_histograms_add(&into->histograms, &from->histograms);
	xfer_sums_add(&into->sums, &from->sums);
	for (int i = 0; i < XFER_FAILURES; i++)
		into->failures[i] += from->failures[i];
}

static void total_up(struct totals *totals, const struct xfer_snapshot *snapshot)
{
	const struct xfer_sketch *overflow = snapshot->overflow;
	*totals = (struct totals){0};
	if (overflow) {
		totals->histograms = overflow->histograms;
		totals->sums = overflow->sums;
	}
	for (size_t i = 0; i < snapshot->n_rows; i++) {
		xfer_histograms_push(&totals->histograms, &snapshot->rows[i]);
		xfer_sums_push(&totals->sums, &snapshot->rows[i]);
	}
	memcpy(totals->failures, snapshot->failures, sizeof(totals->failures));
}

void xfer_metrics_observe(struct xfer_metrics *metrics, const struct xfer_snapshot *snapshot)
{
	/* Added up first: a scrape need not wait for a million rows. */
	struct totals more;
	total_up(&more, snapshot);
	pthread_mutex_lock(&metrics->lock);
	add_totals(&metrics->totals, &more);
	pthread_mutex_unlock(&metrics->lock);
}

/* --- the text ---------------------------------------------------------------------------------------- */

struct writer {
	FILE *out;
	const char *labels;
	bool openmetrics;
};

/* suffix: what the samples' name has beyond the family's; it belongs to the described name in the older format. */
static void write_header(const struct writer *writer, const struct xfer_family *family, const char *type,
                         const char *suffix)
{
	if (writer->openmetrics)
		suffix = "";
	fprintf(writer->out, "# HELP %s%s %s\n# TYPE %s%s %s\n", family->name, suffix, family->help, family->name,
	        suffix, type);
	if (writer->openmetrics && family->unit)
		fprintf(writer->out, "# UNIT %s %s\n", family->name, family->unit);
}

static void write_counter(const struct writer *writer, const struct xfer_family *family, uint64_t value)
{
	write_header(writer, family, "counter", "_total");
	fprintf(writer->out, "%s_total{%s} %" PRIu64 "\n", family->name, writer->labels, value);
}

static void write_bucket(const struct writer *writer, const struct xfer_family *family, const char *le,
                         uint64_t count)
{
	fprintf(writer->out, "%s_bucket{%s,le=\"%s\"} %" PRIu64 "\n", family->name, writer->labels, le, count);
}

static void write_histogram(const struct writer *writer, const struct xfer_family *family, const uint64_t *counts,
                            const char *sum)
{
	uint64_t cumulative = 0;
	write_header(writer, family, "histogram", "");
	for (uint32_t i = 0; i < family->n_bounds; i++) {
		cumulative += counts[i];
		write_bucket(writer, family, family->bounds[i].le, cumulative);
	}
	cumulative += counts[family->n_bounds];
	write_bucket(writer, family, "+Inf", cumulative);
	fprintf(writer->out, "%s_sum{%s} %s\n", family->name, writer->labels, sum);
	fprintf(writer->out, "%s_count{%s} %" PRIu64 "\n", family->name, writer->labels, cumulative);
}

/* The shortest of the usual forms that reads back as the same number. */
static void format_real(locale_t plain, double value, char text[NUMBER_MAX])
{
	locale_t before = uselocale(plain);
	for (int digits = 15; digits <= 17; digits++) {
		snprintf(text, NUMBER_MAX, "%.*g", digits, value);
		if (strtod(text, NULL) == value)
			break;
	}
	uselocale(before);
}

static void format_integer(unsigned __int128 value, char text[NUMBER_MAX])
{
	const uint64_t ten_to_19 = 10000000000000000000u; /* the largest power of ten that fits */
	if (value < ten_to_19)
		snprintf(text, NUMBER_MAX, "%" PRIu64, (uint64_t)value);
	else
		snprintf(text, NUMBER_MAX, "%" PRIu64 "%019" PRIu64, (uint64_t)(value / ten_to_19),
		         (uint64_t)(value % ten_to_19));
}

static void write_all(const struct writer *writer, locale_t plain, const struct totals *totals)
{
	const struct xfer_histograms *histograms = &totals->histograms;
	char sum[NUMBER_MAX];

	format_real(plain, (double)totals->sums.seconds, sum);
	write_histogram(writer, &xfer_families[0], histograms->time, sum);
	format_integer(totals->sums.bytes, sum);
	write_histogram(writer, &xfer_families[1], histograms->bytes, sum);
	format_integer(totals->sums.descriptors, sum);
	write_histogram(writer, &xfer_families[2], histograms->descriptors, sum);
	for (int i = 0; i < XFER_FAILURES; i++)
		write_counter(writer, &xfer_families[XFER_HISTOGRAMS + i], totals->failures[i]);
	if (writer->openmetrics)
		fputs("# EOF\n", writer->out);
}

char *xfer_metrics_text(struct xfer_metrics *metrics, bool openmetrics, size_t *length)
{
	char *text = NULL;
	size_t size = 0;
	FILE *out = open_memstream(&text, &size);
	if (!out)
		return NULL;
	pthread_mutex_lock(&metrics->lock);
	struct totals totals = metrics->totals;
	pthread_mutex_unlock(&metrics->lock);
	struct writer writer = {.out = out, .labels = metrics->labels, .openmetrics = openmetrics};
	write_all(&writer, metrics->plain, &totals);
	text = close_text(out, &text);
	if (text && length)
		*length = size;
	return text;
}
