/* SPDX-License-Identifier: Apache-2.0 */
/* Numbers as people write them. All reject trailing junk and overflow: 0 or KV_INVALID_PARAMS. */
#ifndef KV_BASE_PARSE_H
#define KV_BASE_PARSE_H

#include <stdint.h>

/* "16777216", "16MB", "16 MB", "1.5 GiB", "4gb": 1024-based, case-blind, B optional; "50%" is rejected, and so is a
 * fraction of a byte. */
int kv_parse_size(uint64_t *bytes, const char *text) __attribute__((visibility("default")));
/* "10000" (ms), "500ms", "10s", "30m", "24h" -> ms. */
int kv_parse_duration_ms(uint64_t *ms, const char *text);
int kv_parse_u64(uint64_t *out, const char *text);
int kv_parse_double(double *out, const char *text);
/* on|off|true|false|1|0|yes|no in any case. */
int kv_parse_bool(int *out, const char *text) __attribute__((visibility("default")));
/* Environment variable as a number in [min, max], else fallback (with a warning if it is set and bad). */
uint64_t kv_env_u64(const char *name, uint64_t fallback, uint64_t min, uint64_t max);

#endif
