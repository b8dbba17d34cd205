/* SPDX-License-Identifier: Apache-2.0 */
/* What store_connector_bench is asked to do, and whether this host can. */
#ifndef CONNECTOR_OPTIONS_H
#define CONNECTOR_OPTIONS_H

#include <stdbool.h>
#include <stdint.h>

struct connector_settings {
	const char *master, *protocol, *hostname, *scenario;
	uint64_t segment_size, buffer_size, layer_size;
	uint64_t n_requests, n_layers, n_threads, n_warmup;
	bool json;
};

/* Read only after connector_options_parse. */
extern struct connector_settings settings;

/* Fills settings; a usage error ends the program with status 64. */
void connector_options_parse(int argc, char **argv);
/* Whether pool and host have room for the objects. If not, stderr says what is needed. */
bool connector_has_room(void);

#endif
