/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Diagnostics of the store on stderr, one line each, by write(2) of the whole line:
 *   2026-12-02T06:39:00.123456Z W kvstore[1234] text
 * MC_LOG_LEVEL (TRACE|INFO|WARNING|ERROR) sets the least level shown; default WARNING in workers, and
 * what kv_log_set_level says in kvmaster. Of warnings and errors with the same format at most KV_LOG_LINES_A_PERIOD
 * are written in 10 s; the last one says so, and the first one after says how many were not.
 */
#ifndef KV_BASE_LOG_H
#define KV_BASE_LOG_H

#define KV_LOG_LINES_A_PERIOD 50

enum kv_log_level { KV_LOG_TRACE, KV_LOG_INFO, KV_LOG_WARNING, KV_LOG_ERROR };

void kv_log_set_level(enum kv_log_level level);
enum kv_log_level kv_log_level(void);
void kv_log(enum kv_log_level level, const char *format, ...)
        __attribute__((format(printf, 2, 3), visibility("default")));
#define kv_trace(...) kv_log(KV_LOG_TRACE, __VA_ARGS__)
#define kv_info(...)  kv_log(KV_LOG_INFO, __VA_ARGS__)
#define kv_warn(...)  kv_log(KV_LOG_WARNING, __VA_ARGS__)
#define kv_error(...) kv_log(KV_LOG_ERROR, __VA_ARGS__)

#endif
