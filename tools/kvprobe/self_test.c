/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/kvprobe/self_test.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tools/kvprobe/diagnose.h"
#include "tools/kvprobe/hist.h"
#include "tools/kvprobe/kernel_side.h"

#define OWN_BINARY "/proc/self/exe"
#define RING_BYTES (64u << 10)

/* What the firing says, to be found again in the table. */
#define FIRED_NS    1000u
#define FIRED_BYTES 4096u
#define FIRED_KEYS  3u

/* In probes/perf_unit.c. False: no one watches, nothing fired. */
bool kvp_self_test(uint64_t elapsed_ns, uint64_t bytes, uint64_t n_keys);

static bool open_own_file(struct target_file *file)
{
	static char path[] = OWN_BINARY;
	struct stat status;
	*file = (struct target_file){.path = path, .fd = open(OWN_BINARY, O_RDONLY | O_CLOEXEC)};
	if (file->fd < 0 || fstat(file->fd, &status) < 0) {
		say("cannot read kvprobe's own binary: %s", strerror(errno));
		return false;
	}
	struct elf_source source = {.fd = file->fd, .size = (uint64_t)status.st_size};
	if (!elf_file_parse(&file->elf, &source)) {
		say("kvprobe's own binary: %s", file->elf.error);
		return false;
	}
	return true;
}

static void close_own_file(struct target_file *file)
{
	elf_file_free(&file->elf);
	if (file->fd >= 0)
		close(file->fd);
}

static void fire_once(struct self_test *test, const struct kernel_side *kernel)
{
	test->fired = kvp_self_test(FIRED_NS, FIRED_BYTES, FIRED_KEYS);
	const struct kvp_cell *cell = &kernel->cells[0];
	test->counted = cell_calls(cell);
	test->passed = test->fired && test->counted == 1 && cell->sum_ns == FIRED_NS && cell->bytes == FIRED_BYTES &&
	               cell->keys == FIRED_KEYS;
	if (!test->fired)
		say("attached, but the probe's semaphore was not raised: the kernel did not find it in memory");
	else if (!test->passed)
		say("attached and fired once, but %" PRIu64 " firings were counted (%" PRIu64 " ns, %" PRIu64
		    " bytes, %" PRIu64 " keys)",
		    test->counted, cell->sum_ns, cell->bytes, cell->keys);
}

static void attach_and_fire(struct self_test *test, struct kernel_side *kernel, const struct target_file *file)
{
	if (!kernel_side_allow(kernel, (int)getpid())) {
		say("cannot enter this process into the worker table: %s", strerror(errno));
		return;
	}
	int code = kernel_side_attach(kernel, file);
	if (code == EXIT_NO_MATCH)
		say("kvprobe's own binary has lost its probe: it must not be stripped of notes");
	test->attached = code == EXIT_DONE;
	test->wants_admin = code == EXIT_NO_RIGHT && !kernel->multi && host_has_uprobe_events() &&
	                    !have_capability(CAPABILITY_SYS_ADMIN) && have_capability(CAPABILITY_BPF) &&
	                    have_capability(CAPABILITY_PERFMON);
	if (test->attached) {
		test->form = kernel_side_form(kernel);
		fire_once(test, kernel);
	}
}

void self_test_run(struct self_test *test, bool single)
{
	struct kernel_side kernel = {0};
	struct kernel_options options = {
	        .count = true,
	        .log = true,
	        .workers = 1,
	        .ring_bytes = RING_BYTES,
	        .filter_pids = true,
	        .single = single,
	        .self_test = true,
	};
	struct target_file file;
	*test = (struct self_test){.kernel_form = form_of_kernel(), .form = "none"};
	say_into(test->why, sizeof(test->why));
	if (open_own_file(&file)) {
		test->loaded = kernel_side_open(&kernel, &options) == EXIT_DONE;
		if (test->loaded) {
			test->multi = kernel.multi;
			test->jited = kernel_side_jited(&kernel);
			attach_and_fire(test, &kernel, &file);
		}
		kernel_side_close(&kernel);
	}
	close_own_file(&file);
	say_into(NULL, 0);
}
