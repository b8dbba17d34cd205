/* SPDX-License-Identifier: Apache-2.0 */
/* Ids. Unique across processes and hosts for all practical purposes, never 0, right again after fork. */
#ifndef KV_BASE_OP_ID_H
#define KV_BASE_OP_ID_H

#include <stdint.h>

#include "store/base/bytes.h"

/* One per public call: follows it through every probe, frame and log line. A few ns, no lock. Thread-safe. */
uint64_t kv_op_id_new(void) __attribute__((visibility("default")));
/* For clients and segments, from getrandom. */
struct kv_id kv_id_new(void);

#endif
