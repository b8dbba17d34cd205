/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Text on its way to stdout: collected, written in large pieces, and after a signal only as long as the reader
 * takes it. Calls that could not be written are counted.
 */
#ifndef KVPROBE_TEXT_OUT_H
#define KVPROBE_TEXT_OUT_H

#include "probes/mc_log.h"

/* Where in the text a call ends. */
struct text_mark {
	size_t end;
	uint64_t keys;
};

struct text_out {
	int fd;
	struct mc_text text;
	struct text_mark *marks; /* of the calls in the text, in order */
	size_t n_marks, marks_room;
	uint64_t written_calls, written_keys; /* wholly */
	uint64_t lost_calls, lost_keys;
	bool closed; /* the reader has gone, or writing failed */
	int error;   /* errno, if it failed */
};

void text_out_init(struct text_out *out, int fd);
/* What was appended to out->text since the last time is one call. */
void text_out_call(struct text_out *out, uint64_t keys);
void text_out_flush(struct text_out *out);
void text_out_flush_if_large(struct text_out *out);
/* The last flush: does not wait for a reader that does not read. */
void text_out_finish(struct text_out *out);
void text_out_free(struct text_out *out);

#endif
