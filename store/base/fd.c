/* SPDX-License-Identifier: Apache-2.0 */
#include "store/base/fd.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

int kv_keep_off_stdio(int fd)
{
	if (fd < 0 || fd > STDERR_FILENO)
		return fd;
	int copy = fcntl(fd, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
	int error = errno;
	close(fd);
	errno = error;
	return copy;
}

void kv_fill_stdio(void)
{
	int fd;
	do {
		fd = open("/dev/null", O_RDWR);
	} while (fd >= 0 && fd <= STDERR_FILENO);
	if (fd >= 0)
		close(fd);
}
