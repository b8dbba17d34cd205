/* SPDX-License-Identifier: Apache-2.0 */
#include "store/base/thread.h"

#include <signal.h>

int kv_thread_start(pthread_t *thread, void *(*run)(void *arg), void *arg, const char *name)
{
	sigset_t all, before;
	pthread_t started;
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	int error = pthread_create(&started, NULL, run, arg);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	if (error)
		return error;
	pthread_setname_np(started, name);
	*thread = started;
	return 0;
}
