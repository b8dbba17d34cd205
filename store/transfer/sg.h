/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Scatter/gather over a non-blocking socket: a vector of pieces that is used up from the front as bytes
 * move, without copies in between.
 */
#ifndef KV_SG_H
#define KV_SG_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <sys/uio.h>

/* Owned by the caller; the pieces change as bytes move. No piece is empty. */
struct sg {
	struct iovec *iov;
	size_t count;
};

/* One piece more, where the array has room for it; empty ones are left out. */
static inline void sg_push(struct sg *sg, void *ptr, size_t size)
{
	if (size)
		sg->iov[sg->count++] = (struct iovec){ptr, size};
}

/* Bytes moved by one system call, 0 if the socket is not ready, or KV_TRANSFER_FAIL (closed, reset). */
ssize_t sg_send(int fd, struct sg *sg);
ssize_t sg_recv(int fd, struct sg *sg);
/* All of it, or KV_TRANSFER_FAIL (closed, reset, deadline). */
int sg_send_all(int fd, struct sg *sg, uint64_t deadline_ns);

#endif
