/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/kvprobe/kernel_side.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <bpf/bpf.h>
#include <bpf/libbpf.h>

#include "kvprobe.skel.h"
#include "tools/kvprobe/attach_multi.h"
#include "tools/kvprobe/diagnose.h"
#include "tools/kvprobe/operands.h"

#define PROVIDER      "kvstore"
#define SELF_PROVIDER "kvprobe"
#define SELF_PROBE    "self_test"

static int print_libbpf(enum libbpf_print_level level, const char *format, va_list args)
{
	if (verbosity < (level == LIBBPF_DEBUG ? 2 : 1))
		return 0;
	return vfprintf(stderr, format, args);
}

/* Before 5.11 BPF memory is charged to this limit. It is never lowered, and failing to raise it may well not
 * matter. */
static void raise_memlock(void)
{
	struct rlimit limit = {RLIM_INFINITY, RLIM_INFINITY};
	if (setrlimit(RLIMIT_MEMLOCK, &limit) < 0)
		say_more("RLIMIT_MEMLOCK stays as it is (%s): matters only before Linux 5.11", strerror(errno));
}

static size_t page_round(size_t size)
{
	size_t page = (size_t)sysconf(_SC_PAGESIZE);
	return (size + page - 1) / page * page;
}

static size_t cells_size(const struct kernel_side *kernel)
{
	return page_round(sizeof(struct kvp_cell) * (size_t)n_perf_keys * kernel->options.workers);
}

static size_t workers_size(const struct kernel_side *kernel)
{
	return page_round(sizeof(struct kvp_worker) * kernel->options.workers);
}

/* The program that this run needs first: stands for both where only one is asked about. */
static struct bpf_program *first_program(const struct kernel_side *kernel)
{
	return kernel->options.count ? kernel->skeleton->progs.kv_done : kernel->skeleton->progs.kv_op_log;
}

static void configure(struct kernel_side *kernel)
{
	struct kvprobe_bpf *skeleton = kernel->skeleton;
	const struct kernel_options *options = &kernel->options;
	struct stat pidns;

	skeleton->rodata->n_keys = (uint32_t)n_perf_keys;
	skeleton->rodata->n_workers = options->workers;
	skeleton->rodata->filter_pids = options->filter_pids;
	skeleton->rodata->log_ops = options->log_ops;
	skeleton->rodata->log_min_ns = options->log_min_ns;
	skeleton->rodata->log_wake_bytes = options->ring_bytes / 8;
	if (stat("/proc/self/ns/pid", &pidns) == 0 && pidns.st_ino != INITIAL_PID_NAMESPACE) {
		skeleton->rodata->pidns_dev = pidns.st_dev;
		skeleton->rodata->pidns_ino = pidns.st_ino;
		if (!options->self_test)
			say("kvprobe runs inside a pid namespace: it counts the workers of this namespace only, not "
			    "those of "
			    "namespaces above or below");
	}
	bpf_map__set_max_entries(skeleton->maps.workers, options->workers);
	bpf_map__set_max_entries(skeleton->maps.slots, options->workers * 2);
	if (options->count)
		bpf_map__set_max_entries(skeleton->maps.cells, options->workers * (uint32_t)n_perf_keys);
	else
		bpf_map__set_autocreate(skeleton->maps.cells, false);
	if (options->log)
		bpf_map__set_max_entries(skeleton->maps.ring, (uint32_t)options->ring_bytes);
	else
		bpf_map__set_autocreate(skeleton->maps.ring, false);
	bpf_program__set_autoload(skeleton->progs.kv_done, options->count);
	bpf_program__set_autoload(skeleton->progs.kv_op_log, options->log);
	if (kernel->multi) {
		bpf_program__set_expected_attach_type(skeleton->progs.kv_done, ATTACH_TYPE_UPROBE_MULTI);
		bpf_program__set_expected_attach_type(skeleton->progs.kv_op_log, ATTACH_TYPE_UPROBE_MULTI);
	}
}

static int load(struct kernel_side *kernel)
{
	kernel->skeleton = kvprobe_bpf__open();
	if (!kernel->skeleton)
		return explain_failure(STEP_LOAD, errno);
	configure(kernel);
	int error = kvprobe_bpf__load(kernel->skeleton);
	return error ? explain_failure(STEP_LOAD, error) : EXIT_DONE;
}

static int map_tables(struct kernel_side *kernel)
{
	int workers_fd = bpf_map__fd(kernel->skeleton->maps.workers);
	void *at = mmap(NULL, workers_size(kernel), PROT_READ | PROT_WRITE, MAP_SHARED, workers_fd, 0);
	if (at == MAP_FAILED)
		return explain_failure(STEP_LOAD, errno);
	kernel->workers = at;
	if (!kernel->options.count)
		return EXIT_DONE;
	at = mmap(NULL, cells_size(kernel), PROT_READ, MAP_SHARED, bpf_map__fd(kernel->skeleton->maps.cells), 0);
	if (at == MAP_FAILED)
		return explain_failure(STEP_LOAD, errno);
	kernel->cells = at;
	say_more("table of %u workers x %d keys: %zu KiB of kernel memory", kernel->options.workers, n_perf_keys,
	         cells_size(kernel) / 1024);
	return EXIT_DONE;
}

int kernel_side_open(struct kernel_side *kernel, const struct kernel_options *options)
{
	*kernel = (struct kernel_side){.options = *options, .multi = !options->single};
	kernel->kernel_form = form_of_kernel();
	if (options->form > FORM_INT3 && options->form != kernel->kernel_form) {
		say("--attach=%s: this kernel does not optimise that form (it optimises %s)",
		    form_name(options->form),
		    kernel->kernel_form == FORM_INT3 ? "none" : form_name(kernel->kernel_form));
		return EXIT_NO_RIGHT;
	}
	libbpf_set_print(print_libbpf);
	raise_memlock();
	int code = load(kernel);
	if (code == EXIT_DONE && kernel->multi && !attach_multi_works(bpf_program__fd(first_program(kernel)))) {
		say_more("this kernel has no uprobe_multi links (%s): attaching one uprobe per site",
		         strerror(errno));
		kvprobe_bpf__destroy(kernel->skeleton);
		kernel->multi = false;
		code = load(kernel);
	}
	return code == EXIT_DONE ? map_tables(kernel) : code;
}

/* --- attach ------------------------------------------------------------------------------------------------- */

/* A map row for an argument string that is not the probe ABI's. False: it cannot be read. */
static bool add_spec(struct kernel_side *kernel, const struct target_file *file, const struct probe_note *note,
                     uint64_t *cookie)
{
	struct kvp_operand_spec spec;
	char error[128] = "no generic reader for this machine";
	bool parsed =
	        file->elf.machine == 62 /* EM_X86_64 */ && operands_parse(note->args, &spec, error, sizeof(error));
	if (parsed && kernel->n_specs >= KVP_SPECS) {
		snprintf(error, sizeof(error), "more than %d different argument strings", KVP_SPECS);
		parsed = false;
	}
	if (parsed && bpf_map_update_elem(bpf_map__fd(kernel->skeleton->maps.operand_specs), &kernel->n_specs, &spec,
	                                  BPF_ANY)) {
		snprintf(error, sizeof(error), "map update: %s", strerror(errno));
		parsed = false;
	}
	if (!parsed) {
		say("%s: probe %s is left out: %s", file->path, note->name, error);
		return false;
	}
	*cookie |= (uint64_t)kernel->n_specs++ << KVP_COOKIE_SPEC_SHIFT;
	return true;
}

/* Where to attach to a site: the form asked for, or the kernel's own where the file allows it. */
static bool place_site(struct kernel_side *kernel, const struct target_file *file, const struct probe_note *note,
                       struct site_list *list, const char **fallback)
{
	enum attach_form form = kernel->options.form == FORM_AUTO ? kernel->kernel_form : kernel->options.form;
	const char *reason;
	int offset = site_form_offset(&file->elf, note, form, &reason);
	if (offset < 0) {
		*fallback = reason;
		if (kernel->options.form != FORM_AUTO)
			return false;
		form = FORM_INT3;
		offset = 0;
	}
	site_list_add(list, note->site_offset + (uint64_t)offset, note->semaphore_offset, form);
	return true;
}

static bool add_site(struct kernel_side *kernel, const struct target_file *file, const struct probe_note *note,
                     struct site_list *list, enum probe_kind kind, int key, const char **fallback)
{
	uint64_t cookie = (uint64_t)(key < 0 ? 0 : key);
	if (key >= 0 && perf_keys[key].layer == PERF_LAYER_XFER)
		cookie |= KVP_COOKIE_EVENT; /* what someone else has measured; a failure has no duration */
	if (!note->site_offset || !note->site_executable || (note->semaphore && !note->semaphore_offset)) {
		say("%s: probe %s is left out: its address is in no segment", file->path, note->name);
		return true;
	}
	const char *abi = operands_of_abi(file->elf.machine, kind);
	if (abi && strcmp(note->args, abi) == 0)
		cookie |= KVP_COOKIE_PINNED;
	else if (!add_spec(kernel, file, note, &cookie))
		return true;
	if (!place_site(kernel, file, note, list, fallback))
		return false;
	list->cookies[list->count - 1] = cookie;
	return true;
}

/* The one probe of our own binary. */
static bool collect_self(struct kernel_side *kernel, const struct target_file *file, struct site_list *done,
                         const char **fallback)
{
	for (size_t i = 0; i < file->elf.n_notes; i++) {
		const struct probe_note *note = &file->elf.notes[i];
		if (strcmp(note->provider, SELF_PROVIDER) == 0 && strcmp(note->name, SELF_PROBE) == 0)
			return add_site(kernel, file, note, done, PROBE_DONE, 0, fallback);
	}
	return true;
}

/* Sort the file's notes into the two programs' lists. False: the form asked for is not possible. */
static bool collect_sites(struct kernel_side *kernel, const struct target_file *file, struct site_list *done,
                          struct site_list *log, const char **fallback)
{
	const struct kernel_options *options = &kernel->options;
	size_t unknown = 0;
	if (options->self_test)
		return collect_self(kernel, file, done, fallback);
	for (size_t i = 0; i < file->elf.n_notes; i++) {
		const struct probe_note *note = &file->elf.notes[i];
		if (strcmp(note->provider, PROVIDER) != 0)
			continue;
		if (strcmp(note->name, "op_log") == 0) {
			if (options->log && !add_site(kernel, file, note, log, PROBE_OP_LOG, -1, fallback))
				return false;
			continue;
		}
		size_t length = strlen(note->name), suffix = strlen("__start");
		if (!options->count || (length > suffix && strcmp(note->name + length - suffix, "__start") == 0))
			continue;
		int key = perf_key_find(note->name);
		if (key < 0) {
			unknown++;
		} else if (!options->wanted || options->wanted[key]) {
			if (!add_site(kernel, file, note, done, PROBE_DONE, key, fallback))
				return false;
		}
	}
	if (unknown)
		say("%s: %zu of its keys are not in this kvprobe's list and are not watched; use the kvprobe of its "
		    "version",
		    file->path, unknown);
	return true;
}

static int attach_singly(struct kernel_side *kernel, struct bpf_program *program, const char *path,
                         const struct site_list *list)
{
	for (size_t i = 0; i < list->count; i++) {
		LIBBPF_OPTS(bpf_uprobe_opts, opts, .ref_ctr_offset = list->semaphores[i],
		            .bpf_cookie = list->cookies[i]);
		struct bpf_link *link = bpf_program__attach_uprobe_opts(program, -1, path, list->offsets[i], &opts);
		if (!link)
			return explain_failure(STEP_ATTACH_SINGLE, errno);
		kernel->links =
		        grow_array(kernel->links, &kernel->links_room, kernel->n_links + 1, sizeof(*kernel->links));
		kernel->links[kernel->n_links++] = link;
	}
	return EXIT_DONE;
}

static int attach_list(struct kernel_side *kernel, struct bpf_program *program, const char *path,
                       const struct site_list *list)
{
	if (list->count == 0)
		return EXIT_DONE;
	if (!kernel->multi)
		return attach_singly(kernel, program, path, list);
	int fd = attach_multi(bpf_program__fd(program), path, list);
	if (fd < 0)
		return explain_failure(STEP_ATTACH_MULTI, errno);
	kernel->link_fds = grow_array(kernel->link_fds, &kernel->link_fds_room, kernel->n_link_fds + 1,
	                              sizeof(*kernel->link_fds));
	kernel->link_fds[kernel->n_link_fds++] = fd;
	return EXIT_DONE;
}

static void say_form(const struct kernel_side *kernel, const struct target_file *file, size_t sites,
                     const char *fallback)
{
	enum attach_form form = kernel->options.form == FORM_AUTO ? kernel->kernel_form : kernel->options.form;
	if (fallback)
		say_more("%s: %zu sites; form int3 for at least one, as %s", file->path, sites, fallback);
	else if (kernel->options.form != FORM_AUTO)
		say_more("%s: %zu sites, form %s, as --attach asks", file->path, sites, form_name(form));
	else if (form == FORM_INT3)
		say_more("%s: %zu sites, form int3: this kernel optimises no nop (Linux 6.18 and later do)",
		         file->path, sites);
	else
		say_more("%s: %zu sites, form %s: this kernel turns it into a call, and the file's safety note "
		         "allows it",
		         file->path, sites, form_name(form));
	if (form == FORM_NOP10 && !fallback)
		say_more("form nop10 is not tested: no kernel that has it was at hand");
}

int kernel_side_attach(struct kernel_side *kernel, const struct target_file *file)
{
	struct site_list done = {0}, log = {0};
	const char *fallback = NULL;
	char path[64];
	int code = EXIT_NO_RIGHT;
	/* through the open file: the path may be another namespace's, or gone */
	snprintf(path, sizeof(path), "/proc/self/fd/%d", file->fd);
	if (!collect_sites(kernel, file, &done, &log, &fallback)) {
		say("--attach=%s is not possible for %s: %s", form_name(kernel->options.form), file->path, fallback);
	} else if (done.count + log.count == 0) {
		code = EXIT_NO_MATCH;
	} else {
		code = attach_list(kernel, kernel->skeleton->progs.kv_done, path, &done);
		if (code == EXIT_DONE)
			code = attach_list(kernel, kernel->skeleton->progs.kv_op_log, path, &log);
	}
	if (code == EXIT_DONE) {
		kernel->sites += done.count + log.count;
		for (size_t i = 0; i < done.count; i++)
			kernel->sites_by_form[done.forms[i]]++;
		for (size_t i = 0; i < log.count; i++)
			kernel->sites_by_form[log.forms[i]]++;
		say_form(kernel, file, done.count + log.count, fallback);
	}
	if (code != EXIT_DONE && code != EXIT_NO_MATCH)
		say("%s: not attached", file->path);
	site_list_free(&done);
	site_list_free(&log);
	return code;
}

void kernel_side_detach(struct kernel_side *kernel)
{
	for (size_t i = 0; i < kernel->n_links; i++)
		bpf_link__destroy(kernel->links[i]);
	for (size_t i = 0; i < kernel->n_link_fds; i++)
		close(kernel->link_fds[i]);
	kernel->n_links = kernel->n_link_fds = 0;
}

void kernel_side_close(struct kernel_side *kernel)
{
	kernel_side_detach(kernel);
	if (kernel->cells)
		munmap((void *)kernel->cells, cells_size(kernel));
	if (kernel->workers)
		munmap(kernel->workers, workers_size(kernel));
	kvprobe_bpf__destroy(kernel->skeleton);
	free(kernel->links);
	free(kernel->link_fds);
	*kernel = (struct kernel_side){0};
}

/* --- workers and counters --------------------------------------------------------------------------------------- */

bool kernel_side_allow(struct kernel_side *kernel, int pid)
{
	for (uint32_t slot = 0; slot < kernel->options.workers; slot++) {
		uint32_t tgid = (uint32_t)pid;
		if (kernel->workers[slot].claim)
			continue;
		kernel->workers[slot].claim = tgid;
		return bpf_map_update_elem(bpf_map__fd(kernel->skeleton->maps.slots), &tgid, &slot, BPF_ANY) == 0;
	}
	return false;
}

void kernel_side_retire(struct kernel_side *kernel, uint32_t slot)
{
	uint32_t tgid = (uint32_t)kernel->workers[slot].claim;
	__atomic_fetch_or(&kernel->workers[slot].claim, KVP_WORKER_EXITED, __ATOMIC_SEQ_CST);
	bpf_map_delete_elem(bpf_map__fd(kernel->skeleton->maps.slots), &tgid);
	uint32_t index = tgid % KVP_RECENT;
	uint64_t entry;
	int recent = bpf_map__fd(kernel->skeleton->maps.recent);
	if (bpf_map_lookup_elem(recent, &index, &entry) == 0 && entry >> 32 == tgid)
		bpf_map_update_elem(recent, &index, &(uint64_t){0}, BPF_ANY);
}

struct kvp_totals kernel_side_totals(const struct kernel_side *kernel)
{
	return kernel->skeleton ? kernel->skeleton->bss->totals : (struct kvp_totals){0};
}

static struct bpf_prog_info info_of(const struct bpf_program *program)
{
	struct bpf_prog_info info = {0};
	uint32_t size = sizeof(info);
	int fd = bpf_program__fd(program);
	if (fd < 0 || bpf_obj_get_info_by_fd(fd, &info, &size) != 0)
		info = (struct bpf_prog_info){0};
	return info;
}

static uint64_t missed_by(const struct bpf_program *program)
{
	return info_of(program).recursion_misses;
}

bool kernel_side_jited(const struct kernel_side *kernel)
{
	return info_of(first_program(kernel)).jited_prog_len > 0;
}

uint64_t kernel_side_missed(const struct kernel_side *kernel)
{
	uint64_t missed = 0;
	if (kernel->options.count)
		missed += missed_by(kernel->skeleton->progs.kv_done);
	if (kernel->options.log)
		missed += missed_by(kernel->skeleton->progs.kv_op_log);
	return missed;
}

int kernel_side_ring_fd(const struct kernel_side *kernel)
{
	return bpf_map__fd(kernel->skeleton->maps.ring);
}

const char *kernel_side_form(const struct kernel_side *kernel)
{
	enum attach_form found = FORM_AUTO;
	for (enum attach_form form = FORM_INT3; form <= FORM_NOP10; form++) {
		if (!kernel->sites_by_form[form])
			continue;
		if (found != FORM_AUTO)
			return "mixed";
		found = form;
	}
	return found == FORM_AUTO ? "none" : form_name(found);
}
