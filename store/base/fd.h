/* SPDX-License-Identifier: Apache-2.0 */
/* Descriptors of a library in a process whose stdin, stdout or stderr may be closed: the next descriptor that is
 * opened becomes it, and what anyone prints would go into a socket or wake a thread. */
#ifndef KV_BASE_FD_H
#define KV_BASE_FD_H

/* fd, or a copy of it above 2 in its place. -1 with errno: fd was -1, or no copy can be had. */
int kv_keep_off_stdio(int fd);
/* For programs: /dev/null on those of 0, 1 and 2 that are closed. */
void kv_fill_stdio(void);

#endif
