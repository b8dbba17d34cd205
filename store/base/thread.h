/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KV_BASE_THREAD_H
#define KV_BASE_THREAD_H

#include <pthread.h>

/* A thread that blocks every signal, so that the process's own threads handle them, named for ps and gdb (at
 * most 15 bytes). 0, or an errno value with *thread unchanged. */
int kv_thread_start(pthread_t *thread, void *(*run)(void *arg), void *arg, const char *name);

#endif
