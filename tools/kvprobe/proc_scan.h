/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which processes have the probes mapped, and from which files. Files are told apart by device and inode,
 * and opened through the process that maps them, so that other mount namespaces and deleted files work.
 */
#ifndef KVPROBE_PROC_SCAN_H
#define KVPROBE_PROC_SCAN_H

#include <sys/types.h>

#include "tools/kvprobe/common.h"
#include "tools/kvprobe/elf_notes.h"

/* A file with probes of provider kvstore. Lives as long as the scanner. */
struct target_file {
	int fd;     /* open: the path may be gone, or mean something else here */
	char *path; /* as the process that maps it names it */
	dev_t dev;
	ino_t ino;
	struct elf_file elf;
	bool attached, refused; /* set by the session */
};

struct process_file {
	struct target_file *file;
	uint64_t bias;           /* run-time address - link-time address */
	uint64_t skipped_before; /* the fork guard's count when first seen; what went before is not ours */
	uint64_t skipped;        /* since then */
};

struct process {
	int pid, nspid; /* nspid: in its innermost pid namespace */
	char comm[64];  /* printable */
	uint64_t start_time, signature;
	struct process_file *files;
	size_t n_files, files_room;
	uint64_t scan;         /* the last scan that saw it */
	bool listed;           /* in scanner.with_probes */
	uint64_t skipped_gone; /* of files that it has no longer mapped */
};

struct scanner {
	struct id_map processes;      /* pid -> struct process, alive ones */
	struct process **with_probes; /* the living that have or had some, in order of discovery */
	size_t n_with_probes, with_probes_room;
	struct target_file **files;
	size_t n_files, files_room;
	struct id_map known_files; /* inode -> what we found in it */
	uint64_t scan;
	uint64_t skipped_gone; /* by fork guards of processes that have ended */
	bool first_scan_done;
	size_t denied;   /* processes of the last scan that could not be looked into */
	size_t unopened; /* mapped files that could not be opened, this run */
	int self;
};

enum scan_result {
	SCAN_OK,
	SCAN_NO_PROCESS,
	SCAN_DENIED,
	SCAN_IS_THREAD, /* the pid names a thread; *leader is its process */
};

/* False: /proc is not there or another pid namespace's; processes cannot be scanned, and it was said why. Files can.
 */
bool scanner_init(struct scanner *scanner);
void scanner_free(struct scanner *scanner);

/* A scan is scan_begin, then scan_all or scan_pid for each wanted, then scan_finish. */
void scan_begin(struct scanner *scanner);
/* Look at every process. Cheap when nothing changed: one small read per process. */
void scan_all(struct scanner *scanner);
/* Look at one process. */
enum scan_result scan_pid(struct scanner *scanner, int pid, int *leader);
/* Forget the processes that this scan did not find: what they skipped goes into skipped_gone. */
void scan_finish(struct scanner *scanner);
/* A file by path, whether mapped or not. NULL: *error says why (static or in the file). */
struct target_file *scan_file(struct scanner *scanner, const char *path, char *error, size_t error_size);

/* Read the memory of a process. False: not permitted, or not mapped. */
bool process_read(int pid, uint64_t address, void *out, size_t length);
/* Refresh the fork guard's counts of one process. */
void process_read_skipped(struct process *process);
/* What they were when last refreshed. */
uint64_t process_skipped(const struct process *process);

#endif
