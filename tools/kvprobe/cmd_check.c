/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kvprobe check: do the probes of a binary stand as the list of keys and the probe ABI say? For CI, from the
 * file alone.
 */
#include <argp.h>
#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tools/kvprobe/commands.h"
#include "tools/kvprobe/common.h"
#include "tools/kvprobe/def_file.h"
#include "tools/kvprobe/keys.h"
#include "tools/kvprobe/operands.h"
#include "tools/kvprobe/site.h"

#define PROVIDER       "kvstore"
#define SITE_ALIGNMENT 32

static const char doc[] =
        "Check the probes of binaries against a list of keys.\v"
        "Per binary, judged by the layers that it carries:\n"
        "keys: one note K and one note K__start per key of its layers, op_log with layer RC, no other.\n"
        "operands: the argument string is exactly the probe ABI's.\n"
        "base: not 0, and the address of section .stapsdt.base.\n"
        "semaphores: in section .probes, writable, 0 in the file, of one probe each, K and K__start side by side so "
        "that one load tests both, and not visible to other binaries.\n"
        "site: in an executable segment, exactly the three nops (1, 5 and 10 bytes), none across a page.\n"
        "red zone: the safety note promises none, and the site is the whole of a function: aligned, and followed by "
        "the return, so nothing of its own lies below the stack pointer; whoever called it made a call, so nothing "
        "of "
        "the caller's does either.\n"
        "fork guard: the safety note promises it, and its counter lies in writable memory.\n\n"
        "Prints a line per violation. Exit: 0 all is well, 1 violations or an unreadable file.\n\n"
        "Examples:\n"
        "  kvprobe check --def perf_points.def build/lib/libkvstore.so\n"
        "  kvprobe check -v --def perf_points.def build/bin/kvmaster";

struct check_options {
	const char *def_path;
	char **files;
	int n_files;
};

static const struct argp_option options[] = {
        {"def", 'd', "FILE", 0, "The list of keys (perf_points.def)", 0},
        {"verbose", 'v', NULL, 0, "Print every check, not only the violations", 0},
        {0},
};

static error_t parse_option(int key, char *arg, struct argp_state *state)
{
	struct check_options *opts = state->input;
	switch (key) {
	case 'd':
		opts->def_path = arg;
		return 0;
	case 'v':
		verbosity++;
		return 0;
	case ARGP_KEY_ARGS:
		opts->files = state->argv + state->next;
		opts->n_files = state->argc - state->next;
		return 0;
	case ARGP_KEY_END:
		if (!opts->def_path)
			argp_error(state, "--def FILE is needed");
		if (opts->n_files == 0)
			argp_error(state, "no binary given");
		return 0;
	default:
		return ARGP_ERR_UNKNOWN;
	}
}

/* The binary under judgement. */
struct judgement {
	const char *path;
	const struct elf_file *elf;
	size_t checks, violations;
};

static bool judge(struct judgement *j, bool good, const char *format, ...) __attribute__((format(printf, 3, 4)));
static bool judge(struct judgement *j, bool good, const char *format, ...)
{
	j->checks++;
	if (!good)
		j->violations++;
	if (good && verbosity < 1)
		return good;
	char text[512], shown[sizeof(text) * 4];
	va_list args;
	va_start(args, format);
	vsnprintf(text, sizeof(text), format, args);
	va_end(args);
	printable(shown, sizeof(shown), text, strlen(text)); /* names out of the file may be anything */
	printf("%s: %s: %s\n", j->path, good ? "ok" : "VIOLATION", shown);
	return good;
}

/* --- one note ---------------------------------------------------------------------------------------------- */

static void check_semaphore(struct judgement *j, const struct probe_note *note)
{
	const struct elf_file *elf = j->elf;
	uint64_t at = note->semaphore;
	if (!judge(j, at != 0, "%s: has a semaphore", note->name))
		return;
	judge(j,
	      at >= elf->probes_address && elf->probes_size >= 2 && at - elf->probes_address <= elf->probes_size - 2,
	      "%s: semaphore %#lx lies in section .probes", note->name, at);
	const struct elf_segment *segment = elf_file_segment(elf, at);
	judge(j, segment && segment->writable, "%s: semaphore is writable", note->name);
	uint16_t value = 1;
	judge(j, note->semaphore_offset && elf_file_read(elf, note->semaphore_offset, &value, 2) && value == 0,
	      "%s: semaphore is 0 in the file", note->name);
	size_t sharers = 0;
	for (size_t i = 0; i < elf->n_notes; i++)
		sharers += elf->notes[i].semaphore == at && strcmp(elf->notes[i].name, note->name) != 0;
	judge(j, sharers == 0, "%s: semaphore is not shared with another probe", note->name);
}

static void check_site(struct judgement *j, const struct probe_note *note)
{
	const struct elf_file *elf = j->elf;
	size_t length;
	const uint8_t *want = site_bytes(elf->machine, &length);
	uint8_t bytes[SITE_BYTES + 1] = {0};

	judge(j, note->site_executable, "%s: site %#lx lies in an executable segment", note->name, note->site);
	bool read = note->site_offset && elf_file_read(elf, note->site_offset, bytes, sizeof(bytes));
	judge(j, read && memcmp(bytes, want, length) == 0, "%s: site bytes are exactly the nops", note->name);
	if (elf->machine != EM_X86_64)
		return;
	static const enum attach_form all[] = {FORM_INT3, FORM_NOP5, FORM_NOP10};
	for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
		const char *reason;
		bool possible = site_form_offset(elf, note, all[i], &reason) >= 0;
		judge(j, possible, "%s: can be attached as %s%s%s", note->name, form_name(all[i]),
		      possible ? "" : ": ", possible ? "" : reason);
	}
	judge(j, note->site % SITE_ALIGNMENT == 0, "%s: site is the entry of a function (aligned to %d)", note->name,
	      SITE_ALIGNMENT);
	judge(j, read && bytes[SITE_BYTES] == 0xc3, "%s: site is followed by the return (no red zone in use)",
	      note->name);
}

static void check_note(struct judgement *j, const struct probe_note *note, enum probe_kind kind)
{
	const char *abi = operands_of_abi(j->elf->machine, kind);
	judge(j, strcmp(note->args, abi) == 0, "%s: operands are '%s'%s%s%s", note->name, abi,
	      strcmp(note->args, abi) ? ", not '" : "", strcmp(note->args, abi) ? note->args : "",
	      strcmp(note->args, abi) ? "'" : "");
	judge(j, note->base != 0 && j->elf->has_base && note->base == j->elf->base_address,
	      "%s: base %#lx is the address of .stapsdt.base", note->name, note->base);
	check_semaphore(j, note);
	check_site(j, note);
}

/* --- one binary ---------------------------------------------------------------------------------------------- */

/* The only note of that name, judged; NULL if there is none. */
static const struct probe_note *check_present(struct judgement *j, const char *name)
{
	const struct probe_note *found = NULL;
	size_t n = 0;
	for (size_t i = 0; i < j->elf->n_notes; i++) {
		const struct probe_note *note = &j->elf->notes[i];
		if (strcmp(note->provider, PROVIDER) == 0 && strcmp(note->name, name) == 0) {
			found = note;
			n++;
		}
	}
	judge(j, n == 1, "%s: has exactly one note (has %zu)", name, n);
	return found;
}

static void check_key(struct judgement *j, const struct def_key *key)
{
	char start_name[ELF_NAME_MAX + 16];
	snprintf(start_name, sizeof(start_name), "%s__start", key->name);
	const struct probe_note *done = check_present(j, key->name);
	const struct probe_note *start = check_present(j, start_name);
	if (done)
		check_note(j, done, PROBE_DONE);
	if (start)
		check_note(j, start, PROBE_START);
	if (done && start)
		judge(j, done->semaphore % 4 == 0 && start->semaphore == done->semaphore + 2,
		      "%s: the semaphores of done and start are one aligned 32-bit word", key->name);
}

static void check_safety(struct judgement *j)
{
	const struct safety_note *safety = &j->elf->safety;
	if (!judge(j, safety->present, "has the kvprobe safety note"))
		return;
	judge(j, safety->version == SAFETY_VERSION, "safety note is of version %u", SAFETY_VERSION);
	judge(j, (safety->flags & SAFETY_NO_RED_ZONE) != 0, "safety note promises sites without a red zone");
	judge(j, (safety->flags & SAFETY_FORK_GUARD) != 0, "safety note promises the fork guard");
	judge(j, j->elf->has_base && safety->base == j->elf->base_address,
	      "safety note's base %#lx is the address of .stapsdt.base", safety->base);
	const struct elf_segment *segment = elf_file_segment(j->elf, safety->skipped_fork);
	judge(j, segment && segment->writable && safety->skipped_fork % 8 == 0,
	      "the fork guard's counter %#lx lies in writable memory", safety->skipped_fork);
}

static uint32_t layers_of(const struct elf_file *elf, const struct def_file *def)
{
	if (elf->safety.present)
		return elf->safety.layers;
	uint32_t layers = 0;
	for (size_t i = 0; i < def->n_keys; i++)
		for (size_t k = 0; k < elf->n_notes; k++)
			if (strcmp(elf->notes[k].name, def->keys[i].name) == 0)
				layers |= 1u << def->keys[i].layer;
	return layers;
}

/* Is this a probe that the binary's layers call for? */
static bool is_expected(const struct def_file *def, uint32_t layers, const char *name)
{
	if (strcmp(name, "op_log") == 0)
		return (layers & 1u << PERF_LAYER_RC) != 0;
	size_t length = strlen(name), suffix = strlen("__start");
	if (length > suffix && strcmp(name + length - suffix, "__start") == 0)
		length -= suffix;
	for (size_t i = 0; i < def->n_keys; i++)
		if (strlen(def->keys[i].name) == length && strncmp(def->keys[i].name, name, length) == 0)
			return (layers & 1u << def->keys[i].layer) != 0;
	return false;
}

static void check_binary(struct judgement *j, const struct def_file *def)
{
	uint32_t layers = layers_of(j->elf, def);
	size_t keys = 0, exported = 0;
	check_safety(j);
	judge(j, layers != 0, "carries at least one layer");
	for (size_t i = 0; i < def->n_keys; i++) {
		if (layers & 1u << def->keys[i].layer) {
			check_key(j, &def->keys[i]);
			keys++;
		}
	}
	if (layers & 1u << PERF_LAYER_RC) {
		const struct probe_note *op_log = check_present(j, "op_log");
		if (op_log)
			check_note(j, op_log, PROBE_OP_LOG);
	}
	for (size_t i = 0; i < j->elf->n_notes; i++)
		if (strcmp(j->elf->notes[i].provider, PROVIDER) == 0)
			judge(j, is_expected(def, layers, j->elf->notes[i].name),
			      "%s: is a probe of the list and of the binary's layers", j->elf->notes[i].name);
	bool readable = elf_file_count_exports(j->elf, PROVIDER "_", "_semaphore", &exported);
	judge(j, readable && exported == 0, "no semaphore is visible to other binaries (%zu are)", exported);
	printf("%s: %zu keys of layers", j->path, keys);
	for (unsigned int layer = 1; layer <= PERF_LAYER_XFER; layer++)
		if (layers & 1u << layer)
			printf(" %s", perf_layer_name(layer));
	printf(": %zu checks, %zu violations\n", j->checks, j->violations);
}

static size_t check_file(const char *path, const struct def_file *def)
{
	struct stat st;
	struct elf_file elf;
	struct judgement j = {.path = path, .elf = &elf};
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	if (fd < 0 || fstat(fd, &st) < 0 || !S_ISREG(st.st_mode)) {
		say("%s: %s", path, fd < 0 ? strerror(errno) : "not a regular file");
		if (fd >= 0)
			close(fd);
		return 1;
	}
	struct elf_source source = {.fd = fd, .size = (uint64_t)st.st_size};
	if (elf_file_parse(&elf, &source)) {
		check_binary(&j, def);
	} else {
		say("%s: %s", path, elf.error);
		j.violations++;
	}
	elf_file_free(&elf);
	close(fd);
	return j.violations;
}

int cmd_check(int argc, char **argv)
{
	static const struct argp argp = {options, parse_option, "BINARY...", doc, NULL, NULL, NULL};
	struct check_options opts = {0};
	argp_parse(&argp, argc, argv, 0, NULL, &opts);

	struct def_file def;
	char error[512];
	if (!def_file_read(&def, opts.def_path, error, sizeof(error))) {
		say("%s", error);
		def_file_free(&def);
		return EXIT_RUNTIME;
	}
	size_t violations = 0;
	for (int i = 0; i < opts.n_files; i++)
		violations += check_file(opts.files[i], &def);
	def_file_free(&def);
	return violations ? EXIT_RUNTIME : EXIT_DONE;
}
