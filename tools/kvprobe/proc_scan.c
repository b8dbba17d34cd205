/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/kvprobe/proc_scan.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/uio.h>
#include <unistd.h>

#define PROVIDER          "kvstore"
#define KNOWN_FILES_MAX   65536
#define PROCESS_FILES_MAX 64
/* An inode without probes is looked at again after this long: a file can be rewritten in place. */
#define NEGATIVE_TTL_NS (30ull * 1000000000)

/* What is known of an inode; chained where two hash to one key. */
struct known_file {
	unsigned int major, minor;
	uint64_t ino;
	struct target_file *target; /* NULL: no probes */
	uint64_t checked_ns;
	struct known_file *next;
};

struct mapping {
	uint64_t start, end, offset, ino;
	unsigned int major, minor;
	bool executable;
	const char *path; /* "" if it has none */
};

/* --- files ------------------------------------------------------------------------------------------------ */

static uint64_t known_key(unsigned int major, unsigned int minor, uint64_t ino)
{
	uint64_t key = ino ^ ((uint64_t)major << 52) ^ ((uint64_t)minor << 36);
	return key ? key : 1;
}

static struct known_file *find_known(const struct scanner *scanner, const struct mapping *map)
{
	struct known_file *known = id_map_get(&scanner->known_files, known_key(map->major, map->minor, map->ino));
	while (known && (known->ino != map->ino || known->major != map->major || known->minor != map->minor))
		known = known->next;
	return known;
}

static void forget_known_files(struct scanner *scanner)
{
	for (size_t i = 0; i < scanner->known_files.capacity; i++) {
		struct known_file *known =
		        scanner->known_files.entries[i].key ? scanner->known_files.entries[i].value : NULL;
		while (known) {
			struct known_file *next = known->next;
			free(known);
			known = next;
		}
	}
	id_map_free(&scanner->known_files);
}

static struct known_file *add_known(struct scanner *scanner, const struct mapping *map)
{
	if (scanner->known_files.count >= KNOWN_FILES_MAX)
		forget_known_files(scanner);
	uint64_t key = known_key(map->major, map->minor, map->ino);
	struct known_file *known = need_memory(calloc(1, sizeof(*known)));
	known->major = map->major;
	known->minor = map->minor;
	known->ino = map->ino;
	known->next = id_map_get(&scanner->known_files, key);
	id_map_set(&scanner->known_files, key, known);
	return known;
}

static bool has_our_probes(const struct elf_file *elf)
{
	for (size_t i = 0; i < elf->n_notes; i++)
		if (strcmp(elf->notes[i].provider, PROVIDER) == 0)
			return true;
	return false;
}

/* Take over fd. Returns NULL (and closes it) for a file without probes; error is "" if that is all. */
static struct target_file *inspect(struct scanner *scanner, int fd, const char *path, char *error, size_t error_size)
{
	struct stat st;
	error[0] = '\0';
	if (fstat(fd, &st) < 0 || !S_ISREG(st.st_mode)) {
		snprintf(error, error_size, "%s is not a regular file", path);
		close(fd);
		return NULL;
	}
	for (size_t i = 0; i < scanner->n_files; i++) {
		if (scanner->files[i]->dev == st.st_dev && scanner->files[i]->ino == st.st_ino) {
			close(fd);
			return scanner->files[i];
		}
	}
	struct elf_file elf;
	struct elf_source source = {.fd = fd, .size = (uint64_t)st.st_size};
	bool parsed = elf_file_parse(&elf, &source);
	if (!parsed || !has_our_probes(&elf)) {
		if (!parsed)
			snprintf(error, error_size, "%s: %s", path, elf.error);
		elf_file_free(&elf);
		close(fd);
		return NULL;
	}
	struct target_file *target = need_memory(calloc(1, sizeof(*target)));
	target->fd = fd;
	target->path = need_memory(strdup(path));
	target->dev = st.st_dev;
	target->ino = st.st_ino;
	target->elf = elf;
	scanner->files =
	        grow_array(scanner->files, &scanner->files_room, scanner->n_files + 1, sizeof(*scanner->files));
	scanner->files[scanner->n_files++] = target;
	return target;
}

struct target_file *scan_file(struct scanner *scanner, const char *path, char *error, size_t error_size)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	if (fd < 0) {
		snprintf(error, error_size, "%s: %s", path, strerror(errno));
		return NULL;
	}
	struct target_file *target = inspect(scanner, fd, path, error, error_size);
	if (!target && !error[0])
		snprintf(error, error_size, "%s has no probes of provider " PROVIDER, path);
	return target;
}

/* Open the very file that a process maps. map_files needs CAP_CHECKPOINT_RESTORE (or SYS_ADMIN); the path,
 * seen from the process's root, may have been replaced, so its inode is compared. */
static int open_mapped(int pid, const struct mapping *map)
{
	char path[PATH_MAX + 64];
	snprintf(path, sizeof(path), "/proc/%d/map_files/%" PRIx64 "-%" PRIx64, pid, map->start, map->end);
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	if (fd >= 0)
		return fd;
	snprintf(path, sizeof(path), "/proc/%d/root%s", pid, map->path);
	for (int attempt = 0; attempt < 2; attempt++) {
		struct stat st;
		fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
		if (fd >= 0 && fstat(fd, &st) == 0 && st.st_ino == map->ino)
			return fd;
		if (fd >= 0) {
			close(fd);
			errno = ESTALE;
		}
		snprintf(path, sizeof(path), "/proc/%d/exe", pid);
	}
	return -1;
}

static struct target_file *target_of(struct scanner *scanner, int pid, const struct mapping *map)
{
	struct known_file *known = find_known(scanner, map);
	uint64_t now = now_mono_ns();
	if (known && (known->target || now - known->checked_ns < NEGATIVE_TTL_NS))
		return known->target;
	int fd = open_mapped(pid, map);
	struct target_file *target = NULL;
	char error[PATH_MAX + 256] = "";
	if (fd >= 0) {
		target = inspect(scanner, fd, map->path, error, sizeof(error));
	} else if (errno != ENOENT && errno != ESRCH) {
		scanner->unopened++;
		say_more("cannot open what pid %d maps as %s: %s", pid, map->path,
		         errno == ESTALE ? "the file was replaced; give CAP_CHECKPOINT_RESTORE to reach the old one"
		                         : strerror(errno));
	}
	if (!known)
		known = add_known(scanner, map);
	known->target = target;
	known->checked_ns = now;
	return target;
}

/* --- maps --------------------------------------------------------------------------------------------------- */

static bool parse_mapping(char *line, struct mapping *map)
{
	char perms[5];
	int path_at = 0;
	if (sscanf(line, "%" SCNx64 "-%" SCNx64 " %4s %" SCNx64 " %x:%x %" SCNu64 " %n", &map->start, &map->end,
	           perms, &map->offset, &map->major, &map->minor, &map->ino, &path_at) < 7)
		return false;
	map->executable = perms[2] == 'x';
	char *path = line + path_at;
	path[strcspn(path, "\n")] = '\0';
	map->path = path;
	return true;
}

static void note_file(struct process *process, struct target_file *file, const struct mapping *map)
{
	for (size_t i = 0; i < file->elf.n_segments; i++) {
		const struct elf_segment *segment = &file->elf.segments[i];
		uint64_t page_start = segment->offset & ~4095ull;
		if (!segment->executable || map->offset < page_start ||
		    map->offset >= segment->offset + segment->file_size)
			continue;
		uint64_t bias = map->start - (segment->vaddr - segment->offset + map->offset);
		for (size_t k = 0; k < process->n_files; k++)
			if (process->files[k].file == file && process->files[k].bias == bias)
				return;
		if (process->n_files >= PROCESS_FILES_MAX)
			return;
		process->files = grow_array(process->files, &process->files_room, process->n_files + 1,
		                            sizeof(*process->files));
		process->files[process->n_files++] = (struct process_file){.file = file, .bias = bias};
		return;
	}
}

/* False: not permitted (errno EACCES or EPERM) or gone. */
static bool read_maps(struct scanner *scanner, struct process *process)
{
	char path[64];
	snprintf(path, sizeof(path), "/proc/%d/maps", process->pid);
	FILE *maps = fopen(path, "re");
	if (!maps)
		return false;
	char *line = NULL;
	size_t room = 0;
	while (getline(&line, &room, maps) > 0) {
		struct mapping map;
		if (!parse_mapping(line, &map) || !map.executable || map.ino == 0 || map.path[0] != '/')
			continue;
		struct target_file *file = target_of(scanner, process->pid, &map);
		if (file)
			note_file(process, file, &map);
	}
	bool readable = !ferror(maps);
	int error = errno;
	free(line);
	fclose(maps);
	errno = error;
	return readable;
}

/* --- processes ------------------------------------------------------------------------------------------------ */

static ssize_t read_proc(int pid, const char *name, char *out, size_t size)
{
	char path[64];
	snprintf(path, sizeof(path), "/proc/%d/%s", pid, name);
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return -1;
	ssize_t n = read(fd, out, size - 1);
	close(fd);
	if (n < 0)
		return -1;
	out[n] = '\0';
	return n;
}

/* From /proc/PID/stat: the name, the start time, and a number that changes when the address space does. */
static bool read_identity(int pid, char comm[64], uint64_t *start_time, uint64_t *signature)
{
	char text[1024];
	if (read_proc(pid, "stat", text, sizeof(text)) <= 0)
		return false;
	char *open_paren = strchr(text, '('), *close_paren = strrchr(text, ')');
	if (!open_paren || !close_paren)
		return false;
	printable(comm, 64, open_paren + 1, (size_t)(close_paren - open_paren - 1));
	unsigned long long start = 0, vsize = 0, startcode = 0;
	char state = '?';
	/* after the name: field 3 is the state, 22 the start time, 23 the size, 26 the code's start */
	if (sscanf(close_paren + 1,
	           " %c %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %llu %llu %*s %*s "
	           "%llu",
	           &state, &start, &vsize, &startcode) < 3)
		return false;
	*start_time = start;
	*signature = vsize ^ (startcode * 31);
	return state != 'Z' && state != 'X';
}

static void read_namespace_pid(struct process *process)
{
	char text[8192];
	process->nspid = process->pid;
	if (read_proc(process->pid, "status", text, sizeof(text)) <= 0)
		return;
	char *line = strstr(text, "\nNSpid:");
	if (!line)
		return;
	line += strlen("\nNSpid:");
	char *end = strchr(line, '\n');
	if (end)
		*end = '\0';
	char *last = strrchr(line, '\t');
	if (last && isdigit((unsigned char)last[1]))
		process->nspid = atoi(last + 1);
}

static int thread_leader(int pid)
{
	char text[8192];
	if (read_proc(pid, "status", text, sizeof(text)) <= 0)
		return pid;
	char *line = strstr(text, "\nTgid:");
	return line ? atoi(line + strlen("\nTgid:")) : pid;
}

bool process_read(int pid, uint64_t address, void *out, size_t length)
{
	struct iovec local = {out, length}, remote = {(void *)(uintptr_t)address, length};
	return process_vm_readv(pid, &local, 1, &remote, 1, 0) == (ssize_t)length;
}

static bool read_skipped(const struct process *process, const struct process_file *mapped, uint64_t *out)
{
	const struct safety_note *safety = &mapped->file->elf.safety;
	return safety->present && safety->skipped_fork &&
	       process_read(process->pid, safety->skipped_fork + mapped->bias, out, sizeof(*out));
}

void process_read_skipped(struct process *process)
{
	for (size_t i = 0; i < process->n_files; i++) {
		struct process_file *mapped = &process->files[i];
		uint64_t now;
		if (read_skipped(process, mapped, &now) && now >= mapped->skipped_before)
			mapped->skipped = now - mapped->skipped_before;
	}
}

uint64_t process_skipped(const struct process *process)
{
	uint64_t skipped = process->skipped_gone;
	for (size_t i = 0; i < process->n_files; i++)
		skipped += process->files[i].skipped;
	return skipped;
}

static void drop_process(struct scanner *scanner, struct process *process)
{
	id_map_take(&scanner->processes, (uint64_t)process->pid);
	scanner->skipped_gone += process_skipped(process);
	for (size_t i = 0; process->listed && i < scanner->n_with_probes; i++) {
		if (scanner->with_probes[i] == process) {
			scanner->n_with_probes--;
			memmove(&scanner->with_probes[i], &scanner->with_probes[i + 1],
			        (scanner->n_with_probes - i) * sizeof(*scanner->with_probes));
			break;
		}
	}
	free(process->files);
	free(process);
}

static void list_process(struct scanner *scanner, struct process *process)
{
	process->listed = true;
	read_namespace_pid(process);
	scanner->with_probes = grow_array(scanner->with_probes, &scanner->with_probes_room,
	                                  scanner->n_with_probes + 1, sizeof(*scanner->with_probes));
	scanner->with_probes[scanner->n_with_probes++] = process;
}

/* Read the maps anew (the process is new, loaded a library, or called exec) and keep what was known of the
 * files that are still there. */
static void look_into(struct scanner *scanner, struct process *process)
{
	struct process_file *before = process->files;
	size_t n_before = process->n_files;
	process->files = NULL;
	process->n_files = process->files_room = 0;
	if (!read_maps(scanner, process)) {
		if (errno == EACCES || errno == EPERM)
			scanner->denied++;
		process->signature = 0; /* try again at the next scan */
		free(process->files);
		process->files = before;
		process->n_files = process->files_room = n_before;
		return;
	}
	for (size_t i = 0; i < process->n_files; i++) {
		struct process_file *mapped = &process->files[i];
		bool known = false;
		for (size_t k = 0; k < n_before && !known; k++) {
			known = before[k].file == mapped->file && before[k].bias == mapped->bias;
			if (known) {
				*mapped = before[k];
				before[k].skipped = 0;
			}
		}
		/* what a process that ran before us has skipped belongs to an earlier attach */
		if (!known && !scanner->first_scan_done && !read_skipped(process, mapped, &mapped->skipped_before))
			mapped->skipped_before = 0;
	}
	for (size_t k = 0; k < n_before; k++)
		process->skipped_gone += before[k].skipped;
	free(before);
	if (process->n_files && !process->listed)
		list_process(scanner, process);
}

static bool visit(struct scanner *scanner, int pid)
{
	char comm[64];
	uint64_t start_time, signature;
	if (!read_identity(pid, comm, &start_time, &signature))
		return false;
	struct process *process = id_map_get(&scanner->processes, (uint64_t)pid);
	if (process && process->start_time != start_time) {
		drop_process(scanner, process);
		process = NULL;
	}
	if (!process) {
		process = need_memory(calloc(1, sizeof(*process)));
		process->pid = pid;
		process->start_time = start_time;
		id_map_set(&scanner->processes, (uint64_t)pid, process);
	} else if (process->signature == signature) {
		process->scan = scanner->scan;
		return true;
	}
	process->scan = scanner->scan;
	process->signature = signature;
	memcpy(process->comm, comm, sizeof(comm));
	look_into(scanner, process);
	return true;
}

/* Every file with probes is kept open. */
static void raise_open_files(void)
{
	struct rlimit limit;
	if (getrlimit(RLIMIT_NOFILE, &limit) < 0)
		return;
	limit.rlim_cur = limit.rlim_max;
	if (setrlimit(RLIMIT_NOFILE, &limit) < 0)
		say_more("RLIMIT_NOFILE stays as it is (%s)", strerror(errno));
}

/* Numbers out of /proc are of use only if it is our own namespace's. */
static bool proc_is_ours(void)
{
	char self[32] = "";
	ssize_t length = readlink("/proc/self", self, sizeof(self) - 1);
	if (length <= 0) {
		say("/proc is not mounted: mount -t proc proc /proc");
		return false;
	}
	if (atoi(self) == (int)getpid())
		return true;
	say("/proc is that of another pid namespace: its numbers are not the ones that count here. Mount our own: "
	    "mount "
	    "-t proc proc /proc");
	return false;
}

bool scanner_init(struct scanner *scanner)
{
	raise_open_files();
	*scanner = (struct scanner){.self = (int)getpid()};
	return proc_is_ours();
}

void scan_begin(struct scanner *scanner)
{
	scanner->scan++;
	scanner->denied = 0;
}

void scan_all(struct scanner *scanner)
{
	DIR *proc = opendir("/proc");
	if (!proc)
		return;
	struct dirent *entry;
	while ((entry = readdir(proc))) {
		int64_t pid;
		if (parse_integer(entry->d_name, 1, INT_MAX, &pid) && pid != scanner->self)
			visit(scanner, (int)pid);
	}
	closedir(proc);
}

enum scan_result scan_pid(struct scanner *scanner, int pid, int *leader)
{
	size_t denied = scanner->denied;
	*leader = thread_leader(pid);
	if (*leader != pid)
		return SCAN_IS_THREAD;
	if (!visit(scanner, pid))
		return SCAN_NO_PROCESS;
	return scanner->denied > denied ? SCAN_DENIED : SCAN_OK;
}

void scan_finish(struct scanner *scanner)
{
	/* collect first: dropping moves entries */
	struct process **gone = NULL;
	size_t n_gone = 0, room = 0;
	for (size_t i = 0; i < scanner->processes.capacity; i++) {
		struct process *process = scanner->processes.entries[i].value;
		if (!scanner->processes.entries[i].key || process->scan == scanner->scan)
			continue;
		gone = grow_array(gone, &room, n_gone + 1, sizeof(*gone));
		gone[n_gone++] = process;
	}
	for (size_t i = 0; i < n_gone; i++)
		drop_process(scanner, gone[i]);
	free(gone);
	scanner->first_scan_done = true;
}

void scanner_free(struct scanner *scanner)
{
	for (size_t i = 0; i < scanner->n_files; i++) {
		elf_file_free(&scanner->files[i]->elf);
		close(scanner->files[i]->fd);
		free(scanner->files[i]->path);
		free(scanner->files[i]);
	}
	for (size_t i = 0; i < scanner->processes.capacity; i++) {
		struct process *process = scanner->processes.entries[i].value;
		if (scanner->processes.entries[i].key) {
			free(process->files);
			free(process);
		}
	}
	free(scanner->files);
	free(scanner->with_probes);
	id_map_free(&scanner->processes);
	forget_known_files(scanner);
}
