/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kvmaster's settings by name, as text: the same for the command line and for the configuration file.
 */
#ifndef KV_KVMASTER_SETTINGS_H
#define KV_KVMASTER_SETTINGS_H

#include <stdint.h>

#include "store/master/master.h"

struct settings {
	char rpc_address[256];
	uint16_t rpc_port;
	int rpc_threads;
	struct master_config master;
};

#define SETTINGS_WHY 256

void settings_default(struct settings *settings);
/* Set one. KV_OK, or KV_INVALID_PARAMS or KV_NOT_SUPPORTED with a sentence in why. */
int settings_set(struct settings *settings, const char *name, const char *value, char why[SETTINGS_WHY]);
/* Set all names of a JSON file. KV_OK, or a negative status with a sentence in why. */
int settings_load(struct settings *settings, const char *path, char why[SETTINGS_WHY]);

#endif
