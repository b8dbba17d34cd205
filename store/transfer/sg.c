/* SPDX-License-Identifier: Apache-2.0 */
#include "store/transfer/sg.h"

#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <sys/socket.h>

#include "kvstore_status.h"
#include "store/base/clock.h"

/* Bytes offered to one system call: more than a socket takes at once only costs the kernel's look at the vector. */
#define WINDOW_BYTES ((size_t)4 << 20)

static struct msghdr window(const struct sg *sg)
{
	size_t pieces = 0, bytes = 0;
	while (pieces < sg->count && pieces < IOV_MAX && bytes < WINDOW_BYTES)
		bytes += sg->iov[pieces++].iov_len;
	return (struct msghdr){.msg_iov = sg->iov, .msg_iovlen = pieces};
}

static void use_up(struct sg *sg, size_t bytes)
{
	while (sg->count && bytes >= sg->iov->iov_len) {
		bytes -= sg->iov->iov_len;
		sg->iov++;
		sg->count--;
	}
	if (bytes) {
		sg->iov->iov_base = (char *)sg->iov->iov_base + bytes;
		sg->iov->iov_len -= bytes;
	}
}

static ssize_t moved(struct sg *sg, ssize_t bytes)
{
	if (bytes > 0) {
		use_up(sg, (size_t)bytes);
		return bytes;
	}
	if (bytes < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR))
		return 0;
	return KV_TRANSFER_FAIL;
}

ssize_t sg_send(int fd, struct sg *sg)
{
	struct msghdr message = window(sg);
	return moved(sg, sendmsg(fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT));
}

ssize_t sg_recv(int fd, struct sg *sg)
{
	struct msghdr message = window(sg);
	return moved(sg, recvmsg(fd, &message, MSG_DONTWAIT));
}

int sg_send_all(int fd, struct sg *sg, uint64_t deadline_ns)
{
	while (sg->count) {
		ssize_t bytes = sg_send(fd, sg);
		if (bytes < 0)
			return KV_TRANSFER_FAIL;
		if (sg->count && kv_now_ns() >= deadline_ns)
			return KV_TRANSFER_FAIL;
		if (bytes == 0) {
			struct pollfd waiter = {.fd = fd, .events = POLLOUT};
			if (poll(&waiter, 1, kv_ms_until(deadline_ns)) < 0 && errno != EINTR)
				return KV_TRANSFER_FAIL;
		}
	}
	return KV_OK;
}
