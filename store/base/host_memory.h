/* SPDX-License-Identifier: Apache-2.0 */
/* How much memory there is, by what the kernel and the control group of this process say. */
#ifndef KV_BASE_HOST_MEMORY_H
#define KV_BASE_HOST_MEMORY_H

#include <stdint.h>

/* Bytes that a process here could ever have: memory of the host or, if less, memory.max of the control group
 * (version 2) or of one above it, and swap. UINT64_MAX: not known. */
uint64_t kv_memory_total(void);
/* Bytes that can be had now without swapping and without anyone's end: what the host has available or what is
 * left below memory.max. UINT64_MAX: not known. */
uint64_t kv_memory_available(void);

#endif
