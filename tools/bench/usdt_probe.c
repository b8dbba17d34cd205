/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The yardstick of bench probes: libbpf's own USDT attach on one done probe of one process.
 *   usdt_probe PID FILE PROBE      says "attached" on stderr, counts until SIGINT or SIGTERM,
 *                                  then prints "calls N bytes N" on stdout
 */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <bpf/libbpf.h>

#include "usdt_probe.h"
#include "usdt_probe.skel.h"

static int wait_for_the_end(void)
{
	sigset_t stop;
	int signal_number;
	sigemptyset(&stop);
	sigaddset(&stop, SIGINT);
	sigaddset(&stop, SIGTERM);
	return sigwait(&stop, &signal_number);
}

static int count_probe(struct usdt_probe_bpf *skeleton, int pid, const char *file, const char *probe)
{
	struct bpf_link *link =
	        bpf_program__attach_usdt(skeleton->progs.count_call, pid, file, "kvstore", probe, NULL);
	if (!link) {
		fprintf(stderr, "usdt_probe: cannot attach to kvstore:%s in %s: %s\n", probe, file, strerror(errno));
		return 1;
	}
	fprintf(stderr, "attached\n");
	wait_for_the_end();
	bpf_link__destroy(link);
	struct usdt_cell cell = {0};
	unsigned int key = (unsigned int)pid;
	bpf_map__lookup_elem(skeleton->maps.cells, &key, sizeof(key), &cell, sizeof(cell), 0);
	printf("calls %llu bytes %llu\n", cell.calls, cell.bytes);
	return 0;
}

int main(int argc, char **argv)
{
	char *end;
	long pid = argc == 4 ? strtol(argv[1], &end, 10) : 0;
	if (argc != 4 || *end != '\0' || pid <= 0 || pid > 0x7fffffff) {
		fprintf(stderr, "usage: usdt_probe PID FILE PROBE\n");
		return 64;
	}
	sigset_t stop; /* blocked from the start: a signal that comes early waits for sigwait */
	sigemptyset(&stop);
	sigaddset(&stop, SIGINT);
	sigaddset(&stop, SIGTERM);
	sigprocmask(SIG_BLOCK, &stop, NULL);

	struct usdt_probe_bpf *skeleton = usdt_probe_bpf__open_and_load();
	if (!skeleton) {
		fprintf(stderr, "usdt_probe: cannot load the program: %s\n", strerror(errno));
		return 1;
	}
	int status = count_probe(skeleton, (int)pid, argv[2], argv[3]);
	usdt_probe_bpf__destroy(skeleton);
	return status;
}
