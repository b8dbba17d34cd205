/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The KV transfer metrics of one worker as text for its /metrics: three histograms (time, bytes, descriptors) and
 * three counters (failed transfers, failed receives, expired requests), cumulative, labelled model_name, engine and
 * role. Prometheus text format 0.0.4 or OpenMetrics 1.0 (which ends with # EOF, so that nothing may be appended).
 */
#ifndef KV_PROM_TEXT_H
#define KV_PROM_TEXT_H

#include <stdbool.h>
#include <stddef.h>

#include "store/stats/histograms.h"
#include "store/stats/transfer_stats.h"

/* A metric: the column of the stats that it counts, and how it is exposed. One HELP and one set of buckets, whether
 * the text here or a registry elsewhere exposes it. */
struct xfer_family {
	const char *column;
	const char *name; /* without a counter's _total */
	const char *unit; /* NULL where the name does not end with one, which OpenMetrics demands */
	const char *help;
	const struct xfer_bound *bounds; /* NULL: a counter */
	uint32_t n_bounds;
};

#define XFER_HISTOGRAMS 3
#define XFER_FAMILIES   (XFER_HISTOGRAMS + XFER_FAILURES)
/* The histograms, then the counters in the order of enum xfer_failure. */
extern const struct xfer_family xfer_families[XFER_FAMILIES];

struct xfer_metrics; /* opaque, thread-safe */

/* The strings are copied; any bytes are allowed in them: what is special is escaped, and a byte that is not of a
 * UTF-8 character becomes U+FFFD. NULL without memory. */
struct xfer_metrics *xfer_metrics_new(const char *model_name, const char *engine, const char *role);
void xfer_metrics_free(struct xfer_metrics *metrics);
/* Add a snapshot to the cumulative figures. They are exact, for rows beyond a snapshot's limit too: its sketch counts
 * in the same buckets. */
void xfer_metrics_observe(struct xfer_metrics *metrics, const struct xfer_snapshot *snapshot);
/* The text, NUL-terminated, to be freed by the caller; *length (may be NULL) without the NUL. NULL without memory. */
char *xfer_metrics_text(struct xfer_metrics *metrics, bool openmetrics, size_t *length);

#endif
