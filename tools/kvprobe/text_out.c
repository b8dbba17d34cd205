/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/kvprobe/text_out.h"

#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tools/kvprobe/session.h"

#define LARGE       (256u << 10)
#define GRACE_NS    2000000000ull /* for the reader to take what is left at the end */
#define GRACE_STEPS 50            /* ms between looks */

void text_out_init(struct text_out *out, int fd)
{
	*out = (struct text_out){.fd = fd};
}

void text_out_call(struct text_out *out, uint64_t keys)
{
	out->marks = grow_array(out->marks, &out->marks_room, out->n_marks + 1, sizeof(*out->marks));
	out->marks[out->n_marks++] = (struct text_mark){.end = out->text.length, .keys = keys};
}

static void note_failure(struct text_out *out, int error)
{
	out->closed = true;
	if (error != EPIPE) /* a reader that has seen enough is no failure */
		out->error = error;
}

static void set_written(struct text_out *out, size_t done)
{
	out->text.length -= done;
	memmove(out->text.text, out->text.text + done, out->text.length);
	size_t whole = 0;
	for (; whole < out->n_marks && out->marks[whole].end <= done; whole++) {
		out->written_calls++;
		out->written_keys += out->marks[whole].keys;
	}
	out->n_marks -= whole;
	for (size_t i = 0; i < out->n_marks; i++) {
		out->marks[i] = out->marks[i + whole];
		out->marks[i].end -= done;
	}
}

void text_out_flush(struct text_out *out)
{
	size_t done = 0;
	if (out->text.failed) {
		note_failure(out, ENOMEM);
		return;
	}
	while (done < out->text.length && !out->closed) {
		/* after a signal a blocking write might never come back: text_out_finish does the rest */
		if (session_interrupted())
			break;
		ssize_t n = write(out->fd, out->text.text + done, out->text.length - done);
		if (n >= 0)
			done += (size_t)n;
		else if (errno == EAGAIN)
			poll(&(struct pollfd){.fd = out->fd, .events = POLLOUT}, 1, GRACE_STEPS);
		else if (errno != EINTR)
			note_failure(out, errno);
	}
	if (done)
		set_written(out, done);
}

void text_out_flush_if_large(struct text_out *out)
{
	if (out->text.length >= LARGE)
		text_out_flush(out);
}

void text_out_finish(struct text_out *out)
{
	size_t done = 0;
	uint64_t until = now_mono_ns() + GRACE_NS;
	while (done < out->text.length && !out->closed && now_mono_ns() < until) {
		struct pollfd fd = {.fd = out->fd, .events = POLLOUT};
		if (poll(&fd, 1, GRACE_STEPS) <= 0)
			continue;
		/* a pipe that is writable takes PIPE_BUF bytes without blocking */
		size_t left = out->text.length - done;
		ssize_t n = write(out->fd, out->text.text + done, left < PIPE_BUF ? left : PIPE_BUF);
		if (n >= 0)
			done += (size_t)n;
		else if (errno != EINTR && errno != EAGAIN)
			note_failure(out, errno);
	}
	if (done)
		set_written(out, done);
	for (size_t i = 0; i < out->n_marks && !out->closed; i++) {
		out->lost_calls++;
		out->lost_keys += out->marks[i].keys;
	}
}

void text_out_free(struct text_out *out)
{
	free(out->text.text);
	free(out->marks);
	*out = (struct text_out){0};
}
