/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Text on its way to stdout: collected, written in large pieces, and after a signal only as long as the reader
 * takes it. Calls that could not be written are counted.
 */
#ifndef KVPROBE_TEXT_OUT_H
#define KVPROBE_TEXT_OUT_H

#include "probes/mc_log.h"

struct text_out {
	int fd;
	struct mc_text text;
	uint64_t calls, keys; /* in the text, not yet written */
	uint64_t lost_calls, lost_keys;
	bool closed; /* the reader has gone, or writing failed */
	int error;   /* errno, if it failed */
};

void text_out_init(struct text_out *out, int fd);
/* One more call is in out->text. */
void text_out_call(struct text_out *out, uint64_t keys);
void text_out_flush(struct text_out *out);
void text_out_flush_if_large(struct text_out *out);
/* The last flush: does not wait for a reader that does not read. */
void text_out_finish(struct text_out *out);
void text_out_free(struct text_out *out);

#endif
