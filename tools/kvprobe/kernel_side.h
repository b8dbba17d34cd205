/* SPDX-License-Identifier: Apache-2.0 */
/* The kernel side as loaded: programs, maps and the links to the files' sites. */
#ifndef KVPROBE_KERNEL_SIDE_H
#define KVPROBE_KERNEL_SIDE_H

#include "bpf/kvprobe_bpf.h"
#include "tools/kvprobe/common.h"
#include "tools/kvprobe/keys.h"
#include "tools/kvprobe/proc_scan.h"
#include "tools/kvprobe/site.h"

struct kvprobe_bpf;
struct bpf_link;

struct kernel_options {
	bool count;          /* the keys' done probes, into cells */
	bool log;            /* op_log, into the ring */
	uint32_t workers;    /* rows of the worker table */
	uint64_t ring_bytes; /* a power of two */
	bool filter_pids;    /* only the processes of kernel_side_allow */
	uint64_t log_ops;    /* bit per op */
	uint64_t log_min_ns;
	enum attach_form form; /* FORM_AUTO: the one that this kernel optimises, where it is safe */
	bool single;           /* a perf event per site even where the kernel has multi links */
	const bool *wanted;    /* per key; NULL: all */
	bool self_test;        /* instead of the keys, kvprobe's own probe, counted as key 0 */
};

struct kernel_side {
	struct kvprobe_bpf *skeleton;
	bool multi;
	enum attach_form kernel_form;
	struct kernel_options options;
	struct bpf_link **links;
	size_t n_links, links_room;
	int *link_fds;
	size_t n_link_fds, link_fds_room;
	uint32_t n_specs;
	const struct kvp_cell *cells; /* mapped; slot * n_perf_keys + key */
	struct kvp_worker *workers;   /* mapped */
	size_t sites;
	size_t sites_by_form[FORM_NOP10 + 1];
};

/* Load. Returns an exit code; says what went wrong. kernel_side_close in every case. */
int kernel_side_open(struct kernel_side *kernel, const struct kernel_options *options);
/* Attach to a file's sites. EXIT_NO_MATCH: it has no wanted site. */
int kernel_side_attach(struct kernel_side *kernel, const struct target_file *file);
/* Detach everything; what was counted can still be read. */
void kernel_side_detach(struct kernel_side *kernel);
void kernel_side_close(struct kernel_side *kernel);

/* With filter_pids: let this process be seen. False: the worker table is full. */
bool kernel_side_allow(struct kernel_side *kernel, int pid);
/* The process of a row has ended: a later one with its pid gets its own row. */
void kernel_side_retire(struct kernel_side *kernel, uint32_t slot);

/* Counters of the whole run. */
struct kvp_totals kernel_side_totals(const struct kernel_side *kernel);
/* Hits that the kernel did not run a program for, because one was running. */
uint64_t kernel_side_missed(const struct kernel_side *kernel);
/* Was the program compiled to machine code? False: it is interpreted, or the kernel does not say. */
bool kernel_side_jited(const struct kernel_side *kernel);
int kernel_side_ring_fd(const struct kernel_side *kernel);
/* "nop5", "int3", "mixed"; "none" before the first attach. */
const char *kernel_side_form(const struct kernel_side *kernel);

#endif
