/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KV_BASE_STATUS_H
#define KV_BASE_STATUS_H

#include "kvstore_status.h"

/* A few words for a status code; never NULL. Positive numbers are counts: "ok". */
const char *kv_status_text(int status);

#endif
