/* SPDX-License-Identifier: Apache-2.0 */
/* The text for /metrics, in both formats. */
#include "tests/unit/kv_cmocka.h"

#include <inttypes.h>
#include <locale.h>
#include <stdlib.h>
#include <string.h>

#include "kvstore_status.h"
#include "store/stats/histograms.h"
#include "store/stats/prom_text.h"

#define SIDES                                                                                                        \
	" Only the side that moves the bytes records successes: the sending side (role=producer) where blocks are "  \
	"pushed, the receiving side (role=consumer) where they are pulled; the other side records only failures "    \
	"and time-outs.\n"
#define LABELS             "model_name=\"m\",engine=\"0\",role=\"producer\""
#define TIME               "vllm:mooncake_xfer_time_seconds"
#define BYTES              "vllm:mooncake_bytes_transferred"
#define DESCS              "vllm:mooncake_num_descriptors"
#define FAILED             "vllm:mooncake_num_failed_transfers"
#define RECVS              "vllm:mooncake_num_failed_recvs"
#define EXPIRED            "vllm:mooncake_num_kv_expired_reqs"
#define B(name, le, count) name "_bucket{" LABELS ",le=\"" le "\"} " count "\n"

static char *text_of(struct xfer_metrics *metrics, bool openmetrics)
{
	size_t length = 0;
	char *text = xfer_metrics_text(metrics, openmetrics, &length);
	assert_non_null(text);
	assert_int_equal(length, strlen(text));
	return text;
}

static struct xfer_metrics *new_metrics(const char *model_name, const char *role)
{
	struct xfer_metrics *metrics = xfer_metrics_new(model_name, "0", role);
	assert_non_null(metrics);
	return metrics;
}

static void observe_rows(struct xfer_metrics *metrics, size_t limit, const struct xfer_row *rows, size_t n)
{
	struct xfer_snapshot snapshot = {.row_limit = limit};
	for (size_t i = 0; i < n; i++)
		assert_int_equal(xfer_snapshot_push(&snapshot, &rows[i]), KV_OK);
	xfer_metrics_observe(metrics, &snapshot);
	xfer_snapshot_free(&snapshot);
}

/* Two transfers and failures; what follows is all that such a worker exposes. */
static struct xfer_metrics *small_example(void)
{
	static const struct xfer_row rows[] = {{0.003, 1048576, 4}, {0.03, 4194304, 60}};
	struct xfer_metrics *metrics = new_metrics("m", "producer");
	struct xfer_snapshot failures = {.failures = {1, 2, 3}};
	observe_rows(metrics, 0, rows, 2);
	xfer_metrics_observe(metrics, &failures);
	return metrics;
}

static const char time_samples[] = B(TIME, "0.005", "1") B(TIME, "0.01", "1") B(TIME, "0.025", "1")
        B(TIME, "0.05", "2") B(TIME, "0.075", "2") B(TIME, "0.1", "2") B(TIME, "0.2", "2") B(TIME, "0.3", "2")
                B(TIME, "0.5", "2") B(TIME, "0.75", "2") B(TIME, "1.0", "2") B(TIME, "5.0", "2") B(TIME, "+Inf", "2")
                        TIME "_sum{" LABELS "} 0.033\n" TIME "_count{" LABELS "} 2\n";
static const char bytes_samples[] = B(BYTES, "2048.0", "0") B(BYTES, "8192.0", "0") B(BYTES, "32768.0", "0")
        B(BYTES, "131072.0", "0") B(BYTES, "524288.0", "0") B(BYTES, "2.097152e+06", "1")
                B(BYTES, "8.388608e+06", "2") B(BYTES, "3.3554432e+07", "2") B(BYTES, "1.34217728e+08", "2")
                        B(BYTES, "5.36870912e+08", "2") B(BYTES, "2.147483648e+09", "2")
                                B(BYTES, "8.589934592e+09", "2") B(BYTES, "+Inf", "2") BYTES
        "_sum{" LABELS "} 5242880\n" BYTES "_count{" LABELS "} 2\n";
static const char descriptors_samples[] = B(DESCS, "10.0", "1") B(DESCS, "20.0", "1") B(DESCS, "30.0", "1")
        B(DESCS, "50.0", "1") B(DESCS, "75.0", "2") B(DESCS, "100.0", "2") B(DESCS, "200.0", "2")
                B(DESCS, "400.0", "2") B(DESCS, "1000.0", "2") B(DESCS, "2000.0", "2") B(DESCS, "4000.0", "2")
                        B(DESCS, "10000.0", "2") B(DESCS, "20000.0", "2") B(DESCS, "50000.0", "2")
                                B(DESCS, "+Inf", "2") DESCS "_sum{" LABELS "} 64\n" DESCS "_count{" LABELS "} 2\n";

static const char time_help[] = "Duration of successful KV transfers in seconds." SIDES;
static const char bytes_help[] = "Bytes of each successful KV transfer." SIDES;
static const char descriptors_help[] =
        "Descriptors (contiguous pieces of memory) of each successful KV transfer." SIDES;
static const char failed_help[] =
        "KV transfers that failed on the side that moves the data; they are in none of the histograms." SIDES;
static const char recvs_help[] = "KV receives that failed, seen by the receiving side." SIDES;
static const char expired_help[] =
        "Requests whose KV blocks were given up because the transfer did not come about in time." SIDES;

static void add_histogram(FILE *out, const char *name, const char *help, const char *unit, const char *samples)
{
	fprintf(out, "# HELP %s %s# TYPE %s histogram\n%s%s", name, help, name, unit, samples);
}

static void add_counter(FILE *out, const char *name, const char *suffix, const char *help, int value)
{
	fprintf(out, "# HELP %s%s %s# TYPE %s%s counter\n%s_total{" LABELS "} %d\n", name, suffix, help, name, suffix,
	        name, value);
}

static char *wanted_text(bool openmetrics)
{
	char *text = NULL;
	size_t size;
	FILE *out = open_memstream(&text, &size);
	assert_non_null(out);
	const char *suffix = openmetrics ? "" : "_total";
	add_histogram(out, TIME, time_help, openmetrics ? "# UNIT " TIME " seconds\n" : "", time_samples);
	add_histogram(out, BYTES, bytes_help, "", bytes_samples);
	add_histogram(out, DESCS, descriptors_help, "", descriptors_samples);
	add_counter(out, FAILED, suffix, failed_help, 1);
	add_counter(out, RECVS, suffix, recvs_help, 2);
	add_counter(out, EXPIRED, suffix, expired_help, 3);
	if (openmetrics)
		fputs("# EOF\n", out);
	assert_int_equal(fclose(out), 0);
	return text;
}

static void check_exact_text(bool openmetrics)
{
	struct xfer_metrics *metrics = small_example();
	char *got = text_of(metrics, openmetrics), *wanted = wanted_text(openmetrics);
	assert_string_equal(got, wanted);
	free(got);
	free(wanted);
	xfer_metrics_free(metrics);
}

static void prometheus_text_is_exact(void **state)
{
	(void)state;
	check_exact_text(false);
}

static void openmetrics_text_is_exact(void **state)
{
	(void)state;
	check_exact_text(true);
}

static void openmetrics_ends_with_eof_and_has_no_blank_line(void **state)
{
	(void)state;
	struct xfer_metrics *metrics = new_metrics("m", "consumer");
	char *text = text_of(metrics, true);
	const char *end = strstr(text, "# EOF\n");
	assert_non_null(end);
	assert_string_equal(end, "# EOF\n");
	assert_null(strstr(text, "\n\n"));
	free(text);
	text = text_of(metrics, false);
	assert_null(strstr(text, "# EOF"));
	assert_null(strstr(text, "# UNIT"));
	free(text);
	xfer_metrics_free(metrics);
	xfer_metrics_free(NULL);
}

/* --- labels ------------------------------------------------------------------------------------------ */

static void assert_escaped(const char *model_name, const char *wanted)
{
	struct xfer_metrics *metrics = new_metrics(model_name, "producer");
	char line[512];
	snprintf(line, sizeof(line), "\n" FAILED "_total{model_name=\"%s\",engine=\"0\",role=\"producer\"} 0\n",
	         wanted);
	for (int openmetrics = 0; openmetrics < 2; openmetrics++) {
		char *text = text_of(metrics, openmetrics);
		if (!strstr(text, line))
			fail_msg("no line%s in\n%s", line, text);
		free(text);
	}
	xfer_metrics_free(metrics);
}

#define REPLACED "\xef\xbf\xbd"

static void special_characters_are_escaped(void **state)
{
	(void)state;
	assert_escaped("", "");
	assert_escaped("org/model-7B", "org/model-7B");
	assert_escaped("a\"b", "a\\\"b");
	assert_escaped("a\\b", "a\\\\b");
	assert_escaped("a\nb", "a\\nb");
	assert_escaped("\\n", "\\\\n");
	assert_escaped("{x=\"1\"} 2 # \n", "{x=\\\"1\\\"} 2 # \\n");
	assert_escaped("%s%n", "%s%n");
}

static void valid_utf8_is_kept(void **state)
{
	(void)state;
	assert_escaped("\xc3\xa9", "\xc3\xa9");
	assert_escaped("\xe6\xa8\xa1\xe5\x9e\x8b", "\xe6\xa8\xa1\xe5\x9e\x8b");
	assert_escaped("\xf0\x9f\x98\x80", "\xf0\x9f\x98\x80");
	assert_escaped("\xed\x9f\xbf\xee\x80\x80", "\xed\x9f\xbf\xee\x80\x80"); /* either side of the surrogates */
	assert_escaped("\xf4\x8f\xbf\xbf", "\xf4\x8f\xbf\xbf");                 /* the last one */
}

static void invalid_utf8_is_replaced(void **state)
{
	(void)state;
	assert_escaped("\xff", REPLACED);
	assert_escaped("a\x80z", "a" REPLACED "z");
	assert_escaped("\xc0\xaf", REPLACED REPLACED);              /* longer than needed */
	assert_escaped("\xe0\x80\xaf", REPLACED REPLACED REPLACED); /* the same */
	assert_escaped("\xf0\x80\x80\xaf", REPLACED REPLACED REPLACED REPLACED);
	assert_escaped("\xed\xa0\x80", REPLACED REPLACED REPLACED);              /* a surrogate */
	assert_escaped("\xf4\x90\x80\x80", REPLACED REPLACED REPLACED REPLACED); /* beyond the last */
	assert_escaped("\xc3", REPLACED);                                        /* cut short */
	assert_escaped("\xe6\xa8", REPLACED REPLACED);
	assert_escaped("\xf0\x9f\x98", REPLACED REPLACED REPLACED);
	assert_escaped("\xc3\"", REPLACED "\\\""); /* ... by what ends a label */
	assert_escaped("\xe6\n", REPLACED "\\n");
}

/* --- buckets ----------------------------------------------------------------------------------------- */

/* The number of a sample. `name` is the whole name, le NULL without that label. */
static uint64_t sample(const char *text, const char *name, const char *le)
{
	char start[256];
	if (le)
		snprintf(start, sizeof(start), "\n%s{" LABELS ",le=\"%s\"} ", name, le);
	else
		snprintf(start, sizeof(start), "\n%s{" LABELS "} ", name);
	const char *at = strstr(text, start);
	if (!at)
		fail_msg("no sample%s", start);
	return strtoull(at + strlen(start), NULL, 10);
}

struct column {
	const char *name;
	const struct xfer_bound *bounds;
	uint32_t n;
};

static const struct column columns[] = {
        {TIME, xfer_time_bounds, XFER_TIME_BOUNDS},
        {BYTES, xfer_bytes_bounds, XFER_BYTES_BOUNDS},
        {DESCS, xfer_descriptor_bounds, XFER_DESCRIPTOR_BOUNDS},
};

static void assert_monotone(const char *text, uint64_t rows)
{
	for (size_t c = 0; c < 3; c++) {
		char name[128];
		uint64_t before = 0;
		snprintf(name, sizeof(name), "%s_bucket", columns[c].name);
		for (uint32_t i = 0; i < columns[c].n; i++) {
			uint64_t count = sample(text, name, columns[c].bounds[i].le);
			assert_true(count >= before);
			before = count;
		}
		assert_true(sample(text, name, "+Inf") >= before);
		assert_int_equal(sample(text, name, "+Inf"), rows);
		snprintf(name, sizeof(name), "%s_count", columns[c].name);
		assert_int_equal(sample(text, name, NULL), rows);
	}
}

static void labels_of_buckets_are_their_bounds(void **state)
{
	(void)state;
	for (size_t c = 0; c < 3; c++)
		for (uint32_t i = 0; i < columns[c].n; i++) {
			assert_true(strtod(columns[c].bounds[i].le, NULL) == columns[c].bounds[i].value);
			assert_true(i == 0 || columns[c].bounds[i].value > columns[c].bounds[i - 1].value);
		}
}

/* Rows on, below and above every bound; also as rows beyond the limit, where nothing may change. */
static void check_edges(size_t limit)
{
	struct xfer_metrics *metrics = new_metrics("m", "producer");
	struct xfer_row rows[XFER_BYTES_BOUNDS * 2];
	for (uint32_t i = 0; i < XFER_BYTES_BOUNDS; i++) {
		int64_t bytes = (int64_t)xfer_bytes_bounds[i].value;
		double seconds = xfer_time_bounds[i].value;
		uint32_t descriptors = (uint32_t)xfer_descriptor_bounds[i].value;
		rows[2 * i] = (struct xfer_row){seconds, bytes, descriptors};
		rows[2 * i + 1] = (struct xfer_row){seconds * (1 + 1e-15), bytes + 1, descriptors + 1};
	}
	observe_rows(metrics, limit, rows, XFER_BYTES_BOUNDS * 2);
	char *text = text_of(metrics, true);
	for (uint32_t i = 0; i < XFER_BYTES_BOUNDS; i++) {
		/* what is equal to a bound is in its bucket, what is above is not */
		assert_int_equal(sample(text, TIME "_bucket", xfer_time_bounds[i].le), 2 * i + 1);
		assert_int_equal(sample(text, BYTES "_bucket", xfer_bytes_bounds[i].le), 2 * i + 1);
		assert_int_equal(sample(text, DESCS "_bucket", xfer_descriptor_bounds[i].le), 2 * i + 1);
	}
	assert_monotone(text, XFER_BYTES_BOUNDS * 2);
	free(text);
	xfer_metrics_free(metrics);
}

static void bounds_are_inclusive(void **state)
{
	(void)state;
	check_edges(0);
}

static void bounds_are_inclusive_beyond_the_limit(void **state)
{
	(void)state;
	check_edges(1);
}

static void many_rows_are_counted_alike_on_both_sides_of_the_limit(void **state)
{
	(void)state;
	enum { ROWS = 5000 };
	static struct xfer_row rows[ROWS];
	static const size_t limits[] = {0, 1, 777};
	struct rng rng = {9};
	char *texts[3];
	for (size_t i = 0; i < ROWS; i++) /* times of whole 2^-20 s: their sum is the same in any order */
		rows[i] = (struct xfer_row){(double)rng_below(&rng, 1u << 23) * 0x1p-20,
		                            (int64_t)rng_below(&rng, 1ull << (5 + i % 32)),
		                            (uint32_t)rng_below(&rng, 100000)};
	for (int i = 0; i < 3; i++) {
		struct xfer_metrics *metrics = new_metrics("m", "producer");
		for (int part = 0; part < 5; part++)
			observe_rows(metrics, limits[i], rows + (ptrdiff_t)part * (ROWS / 5), ROWS / 5);
		texts[i] = text_of(metrics, false);
		assert_monotone(texts[i], ROWS);
		xfer_metrics_free(metrics);
	}
	assert_string_equal(texts[0], texts[1]);
	assert_string_equal(texts[0], texts[2]);
	for (int i = 0; i < 3; i++)
		free(texts[i]);
}

static void sums_beyond_64_bits_are_written_out(void **state)
{
	(void)state;
	static const struct xfer_row rows[] = {{1, INT64_MAX, 1}, {1, INT64_MAX, 1}, {1, INT64_MAX, 1}};
	struct xfer_metrics *metrics = new_metrics("m", "producer");
	observe_rows(metrics, 0, rows, 3);
	char *text = text_of(metrics, false);
	assert_non_null(strstr(text, "\n" BYTES "_sum{" LABELS "} 27670116110564327421\n"));
	assert_non_null(strstr(text, "\n" TIME "_sum{" LABELS "} 3\n"));
	free(text);
	xfer_metrics_free(metrics);
}

static void run(const char *format, const char *directory)
{
	char command[256];
	snprintf(command, sizeof(command), format, directory);
	assert_int_equal(system(command), 0);
}

static void decimal_point_is_a_point_in_every_locale(void **state)
{
	(void)state;
	char directory[] = "/tmp/kvprobe-locale-XXXXXX";
	assert_non_null(mkdtemp(directory));
	run("localedef --no-archive -i de_DE -f UTF-8 %s/de_DE.UTF-8", directory);
	assert_int_equal(setenv("LOCPATH", directory, 1), 0);
	assert_non_null(setlocale(LC_NUMERIC, "de_DE.UTF-8"));
	assert_string_equal(localeconv()->decimal_point, ",");

	struct xfer_metrics *metrics = small_example();
	char *text = text_of(metrics, false);
	setlocale(LC_NUMERIC, "C");
	unsetenv("LOCPATH");
	run("rm -r -- %s", directory);
	assert_non_null(strstr(text, "\n" TIME "_sum{" LABELS "} 0.033\n"));
	free(text);
	xfer_metrics_free(metrics);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(prometheus_text_is_exact),
	        cmocka_unit_test(openmetrics_text_is_exact),
	        cmocka_unit_test(openmetrics_ends_with_eof_and_has_no_blank_line),
	        cmocka_unit_test(special_characters_are_escaped),
	        cmocka_unit_test(valid_utf8_is_kept),
	        cmocka_unit_test(invalid_utf8_is_replaced),
	        cmocka_unit_test(labels_of_buckets_are_their_bounds),
	        cmocka_unit_test(bounds_are_inclusive),
	        cmocka_unit_test(bounds_are_inclusive_beyond_the_limit),
	        cmocka_unit_test(many_rows_are_counted_alike_on_both_sides_of_the_limit),
	        cmocka_unit_test(sums_beyond_64_bits_are_written_out),
	        cmocka_unit_test(decimal_point_is_a_point_in_every_locale),
	};
	return cmocka_run_group_tests_name("stats-prom", tests, NULL, NULL);
}
