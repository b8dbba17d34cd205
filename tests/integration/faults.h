/* SPDX-License-Identifier: Apache-2.0 */
/* What the tests of failing others share: short limits, and a test that clears them whatever its way out. */
#ifndef KV_TEST_FAULTS_H
#define KV_TEST_FAULTS_H

#include <stdlib.h>

#include "support.h"

#define MIB ((size_t)1 << 20)
/* Longer than any limit set here, far shorter than the defaults: a call that took this long ignored its limit. */
#define PROMPT_MS 20000

static inline void set_limits(void)
{
	setenv("MC_RPC_TIMEOUT_MS", "2000", 1);
	setenv("MC_RPC_CONNECT_TIMEOUT_MS", "2000", 1);
	setenv("MC_TRANSFER_TIMEOUT_MS", "2000", 1);
}

static inline int clear_limits(void **state)
{
	(void)state;
	unsetenv("MC_RPC_TIMEOUT_MS");
	unsetenv("MC_RPC_CONNECT_TIMEOUT_MS");
	unsetenv("MC_TRANSFER_TIMEOUT_MS");
	return 0;
}

#define FAULT(test)                                                                                                  \
	{                                                                                                            \
#test, test, NULL, clear_limits, NULL                                                                \
	}

#endif
