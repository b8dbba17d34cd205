/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The one log of a logged call: packs its per-key records into a block, fires the op_log probe with it and
 * hands it to the in-process log, whichever of the two was on when the call began.
 *
 *   struct op_log log = op_log_begin(KVP_OP_GET, op_id);
 *   PERF_SCOPE_TIMED(..., log.probe || log.text);
 *   ... the work ...
 *   op_log_end(&log, perf.start_ns, count, total_bytes, count, record_of_key, &context);
 *
 * Costs one load and one branch each at begin and end while no one listens.
 */
#ifndef KV_OP_LOG_H
#define KV_OP_LOG_H

#include <stdbool.h>
#include <stdint.h>

#include "probes/op_block.h"
#include "probes/perf_points.h"
#include "store/client/mc_log_sink.h"

struct op_log {
	enum kvp_op op;
	uint64_t op_id;
	bool probe; /* op_log was watched when the call began */
	bool text;  /* the in-process log takes this call */
};

/* Describe key i of the call. */
typedef void op_log_record(const void *context, size_t i, struct op_record *out);

static inline struct op_log op_log_begin(enum kvp_op op, uint64_t op_id)
{
	return (struct op_log){.op = op, .op_id = op_id, .probe = perf_op_log_watched(), .text = mc_log_takes(op_id)};
}

void op_log_write(const struct op_log *log, uint64_t start_ns, uint64_t n_keys, uint64_t total_bytes, size_t count,
                  op_log_record *record, const void *context);

/* n_keys: of the call; count: records to ask `record` for. The elapsed time is taken here, once. */
static inline void op_log_end(const struct op_log *log, uint64_t start_ns, uint64_t n_keys, uint64_t total_bytes,
                              size_t count, op_log_record *record, const void *context)
{
	if (KVP_UNLIKELY(log->probe || log->text || perf_op_log_watched()))
		op_log_write(log, start_ns, n_keys, total_bytes, count, record, context);
}

#endif
