/* SPDX-License-Identifier: Apache-2.0 */
#include "store/base/status.h"

const char *kv_status_text(int status)
{
	if (status > 0)
		return "ok";
	switch (status) {
#define X(name, code, text)                                                                                          \
	case name:                                                                                                   \
		return text;
		KV_STATUS_LIST(X)
#undef X
	}
	return "unknown status";
}
