/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kvprobe list: the keys of a file, or of the files that processes have mapped, straight from the ELF notes.
 * Attaches nothing; for a file it needs no rights.
 */
#include <argp.h>
#include <jansson.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "tools/kvprobe/commands.h"
#include "tools/kvprobe/common.h"
#include "tools/kvprobe/diagnose.h"
#include "tools/kvprobe/keys.h"
#include "tools/kvprobe/pid_list.h"
#include "tools/kvprobe/proc_scan.h"

#define PROVIDER "kvstore"

static const char doc[] =
        "Show the keys of binaries, or of running processes.\v"
        "WATCHED says whether some tool watches the key in that process now (its semaphore is not 0); for a file, "
        "and where the process may not be read, it is '-'. Without a file and without -p, every process that has "
        "the probes mapped is shown.\n\n"
        "Examples:\n"
        "  kvprobe list                        every worker on this host\n"
        "  kvprobe list -p 4711                one process\n"
        "  kvprobe list /usr/lib/libkvstore.so a file; needs no rights\n"
        "  kvprobe list --level KEY_MODULE     the public entry points only";

struct list_options {
	struct pid_list pids;
	char **files;
	int n_files;
	unsigned int levels; /* bit per level */
	bool json;
};

static const struct argp_option options[] = {
        {"process", 'p', "PID,...", 0, "Show these processes (may be repeated)", 0},
        {"level", 'l', "LEVEL,...", 0, "Only keys of these levels: SUB_SYSTEM, KEY_MODULE, MODULE, DEBUG or 1 to 4",
         0},
        {"json", 'j', NULL, 0, "One JSON object per key and process", 0},
        {"verbose", 'v', NULL, 0, "Say more on stderr", 0},
        {0},
};

static error_t parse_option(int key, char *arg, struct argp_state *state)
{
	struct list_options *opts = state->input;
	switch (key) {
	case 'p':
		if (!pid_list_add(&opts->pids, arg))
			argp_error(state, "-p takes process ids from 1 to %d, separated by commas, not '%s'", INT_MAX,
			           arg);
		return 0;
	case 'l':
		if (!perf_levels_parse(arg, &opts->levels))
			argp_error(state,
			           "'%s' is not a list of levels; those are SUB_SYSTEM, KEY_MODULE, MODULE, DEBUG or "
			           "1 to 4",
			           arg);
		return 0;
	case 'j':
		opts->json = true;
		return 0;
	case 'v':
		verbosity++;
		return 0;
	case ARGP_KEY_ARGS:
		opts->files = state->argv + state->next;
		opts->n_files = state->argc - state->next;
		return 0;
	case ARGP_KEY_END:
		if (opts->n_files && opts->pids.count)
			argp_error(state, "either files or -p, not both");
		return 0;
	default:
		return ARGP_ERR_UNKNOWN;
	}
}

/* Where a key was found. process NULL: in a file. */
struct place {
	const struct target_file *file;
	const struct process *process;
	uint64_t bias;
};

static bool is_start(const char *name)
{
	size_t length = strlen(name), suffix = strlen("__start");
	return length > suffix && strcmp(name + length - suffix, "__start") == 0;
}

/* 1 watched, 0 not, -1 unknown. */
static int watched(const struct place *place, const struct probe_note *note)
{
	uint16_t value;
	if (!place->process || !note->semaphore ||
	    !process_read(place->process->pid, note->semaphore + place->bias, &value, sizeof(value)))
		return -1;
	return value != 0;
}

static void print_json(const struct place *place, const struct probe_note *note, const char *name,
                       const struct perf_key *key, int on)
{
	char path[PATH_MAX];
	printable(path, sizeof(path), place->file->path, strlen(place->file->path));
	json_t *row = need_memory(json_pack("{ss ss sI sI}", "type", "key", "key", name, "address",
	                                    (json_int_t)note->site, "semaphore", (json_int_t)note->semaphore));
	json_object_set_new(row, "file", json_string(path));
	json_object_set_new(row, "watched", on < 0 ? json_null() : json_boolean(on));
	if (key) {
		json_object_set_new(row, "layer", json_string(perf_layer_name(key->layer)));
		json_object_set_new(row, "level", json_string(perf_level_name(key->level)));
		json_object_set_new(row, "site", json_string(key->site));
		json_object_set_new(row, "meaning", json_string(key->meaning));
	}
	if (place->process) {
		json_object_set_new(row, "pid", json_integer(place->process->pid));
		json_object_set_new(row, "nspid", json_integer(place->process->nspid));
		json_object_set_new(row, "comm", json_string(place->process->comm));
	}
	char *text = need_memory(json_dumps(row, JSON_COMPACT | JSON_PRESERVE_ORDER));
	puts(text);
	free(text);
	json_decref(row);
}

static size_t print_place(const struct list_options *opts, const struct place *place)
{
	const struct elf_file *elf = &place->file->elf;
	static const char *const words[] = {"-", "no", "yes"};
	size_t shown = 0;
	if (!opts->json) {
		char path[PATH_MAX];
		printable(path, sizeof(path), place->file->path, strlen(place->file->path));
		if (place->process && place->process->nspid != place->process->pid)
			printf("pid %d (in its namespace %d) %s: ", place->process->pid, place->process->nspid,
			       place->process->comm);
		else if (place->process)
			printf("pid %d %s: ", place->process->pid, place->process->comm);
		printf("%s\n  %-34s %-9s %-11s %-8s %-30s %s\n", path, "KEY", "LAYER", "LEVEL", "WATCHED", "SITE",
		       "MEANING");
	}
	for (size_t i = 0; i < elf->n_notes; i++) {
		const struct probe_note *note = &elf->notes[i];
		if (strcmp(note->provider, PROVIDER) != 0 || is_start(note->name))
			continue;
		int number = perf_key_find(note->name);
		const struct perf_key *key = number < 0 ? NULL : &perf_keys[number];
		if (opts->levels && (!key || !(opts->levels >> key->level & 1)))
			continue;
		char name[ELF_NAME_MAX * 4];
		printable(name, sizeof(name), note->name, strlen(note->name));
		bool op_log = strcmp(note->name, "op_log") == 0;
		int on = watched(place, note);
		shown++;
		if (opts->json)
			print_json(place, note, name, key, on);
		else
			printf("  %-34s %-9s %-11s %-8s %-30s %s\n", name,
			       key      ? perf_layer_name(key->layer)
			       : op_log ? "RC"
			                : "?",
			       key ? perf_level_name(key->level) : "-", words[on + 1], key ? key->site : "-",
			       key      ? key->meaning
			       : op_log ? "per-key results of the logged calls (kvprobe log)"
			                : "not a key of this kvprobe's list");
	}
	return shown;
}

static int list_files(const struct list_options *opts, struct scanner *scanner)
{
	int code = EXIT_DONE;
	for (int i = 0; i < opts->n_files; i++) {
		char error[512];
		struct place place = {.file = scan_file(scanner, opts->files[i], error, sizeof(error))};
		if (!place.file) {
			say("%s", error);
			code = EXIT_NO_MATCH;
		} else if (print_place(opts, &place) == 0) {
			say("%s has no key of that level", opts->files[i]);
			code = EXIT_NO_MATCH;
		}
	}
	return code;
}

static size_t list_process(const struct list_options *opts, const struct process *process)
{
	size_t shown = 0;
	for (size_t i = 0; i < process->n_files; i++) {
		struct place place = {
		        .file = process->files[i].file, .process = process, .bias = process->files[i].bias};
		shown += print_place(opts, &place);
	}
	return shown;
}

static int list_processes(const struct list_options *opts, struct scanner *scanner)
{
	scan_begin(scanner);
	int code = EXIT_DONE;
	if (opts->pids.count)
		code = pid_list_scan(&opts->pids, scanner);
	else
		scan_all(scanner);
	if (code != EXIT_DONE)
		return code;
	size_t shown = 0;
	for (size_t i = 0; i < scanner->n_with_probes; i++)
		shown += list_process(opts, scanner->with_probes[i]);
	if (scanner->denied)
		say("%zu processes could not be looked into: that needs CAP_SYS_PTRACE (or root)", scanner->denied);
	if (shown)
		return EXIT_DONE;
	if (scanner->n_with_probes)
		say("no key of that level");
	else
		say("no process has probes of provider " PROVIDER " mapped; kvprobe list FILE shows those of a file");
	bool blind = scanner->denied && !have_capability(CAPABILITY_SYS_PTRACE);
	return blind && !scanner->n_with_probes ? EXIT_NO_RIGHT : EXIT_NO_MATCH;
}

int cmd_list(int argc, char **argv)
{
	static const struct argp argp = {options, parse_option, "[FILE...]", doc, NULL, NULL, NULL};
	struct list_options opts = {0};
	struct scanner scanner;
	argp_parse(&argp, argc, argv, 0, NULL, &opts);
	bool processes = scanner_init(&scanner);
	int code = EXIT_RUNTIME;
	if (opts.n_files)
		code = list_files(&opts, &scanner);
	else if (processes)
		code = list_processes(&opts, &scanner);
	scanner_free(&scanner);
	pid_list_free(&opts.pids);
	return code;
}
