/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A worker for tests of the collector: it has the sites of libkvstore and of the KV transfer stats and fires them as
 * told, one command a line on stdin, one line of answer on stdout.
 *
 *   fire KEY THREADS LOOPS BYTES KEYS FAILED RC   timed calls of one key
 *   record KEY LOOPS NS BYTES KEYS FAILED RC      firings with a duration that someone else has measured (XFER)
 *   each LOOPS                                    every key, call i of key k with values made from k and i
 *   log OP THREADS CALLS KEYS SEED FILE           op_log blocks with hostile keys; their text goes to FILE, one
 *                                                 file per thread (FILE.0, FILE.1 ...)
 *   partial N                                     N calls that began before anyone watched
 *   blockless N                                   N calls for whose block there was no memory
 *   fork|vfork|spawn|exec KEY N                   a child fires KEY N times; the answer is how it ended
 *   grandchild KEY N                              a child of a child does, after the child has
 *   quit
 *
 * Started as "bpf-site-worker child KEY N" it is that child.
 */
#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "probes/mc_log.h"
#include "probes/op_block.h"
#include "probes/perf_points.h"

struct values {
	uint64_t bytes, n_keys, n_failed;
	int64_t rc;
};

typedef void (*fire_fn)(const struct values *values, uint64_t op_id);

#define FIRE(NAME)                                                                                                   \
	static void fire_##NAME(const struct values *values, uint64_t op_id)                                         \
	{                                                                                                            \
		PERF_SCOPE(NAME, perf, op_id, values->n_keys, values->bytes);                                        \
		perf_set(&perf, values->bytes, values->n_keys, values->n_failed, values->rc);                        \
	}
#define ROW(NAME) {#NAME, fire_##NAME},
/* the layers that this program has the sites of */
#define DO_PY(what, NAME)
#define DO_RC(what, NAME)                             what(NAME)
#define DO_CLIENT(what, NAME)                         what(NAME)
#define DO_TRANSFER(what, NAME)                       what(NAME)
#define DO_MASTER(what, NAME)                         what(NAME)
#define DO_XFER(what, NAME)                           what(NAME)

#define PERF_POINT(NAME, LAYER, LEVEL, site, meaning) DO_##LAYER(FIRE, NAME)
#include "perf_points.def"
#undef PERF_POINT

#define PERF_POINT(NAME, LAYER, LEVEL, site, meaning) DO_##LAYER(ROW, NAME)
static const struct {
	const char *name;
	fire_fn fire;
} keys[] = {
#include "perf_points.def"
};
#undef PERF_POINT
#define N_KEYS (sizeof(keys) / sizeof(keys[0]))

/* What can be recorded. */
typedef void (*record_fn)(uint64_t elapsed_ns, const struct values *values, uint64_t op_id);
#define RECORD(NAME)                                                                                                 \
	static void record_##NAME(uint64_t elapsed_ns, const struct values *values, uint64_t op_id)                  \
	{                                                                                                            \
		PERF_RECORD(NAME, elapsed_ns, values->bytes, values->n_keys, values->n_failed, values->rc, op_id);   \
	}
#define RECORD_ROW(NAME) {#NAME, record_##NAME},
#define REC_PY(what, NAME)
#define REC_RC(what, NAME)
#define REC_CLIENT(what, NAME)
#define REC_TRANSFER(what, NAME)
#define REC_MASTER(what, NAME)
#define REC_XFER(what, NAME)                          what(NAME)

#define PERF_POINT(NAME, LAYER, LEVEL, site, meaning) REC_##LAYER(RECORD, NAME)
#include "perf_points.def"
#undef PERF_POINT

#define PERF_POINT(NAME, LAYER, LEVEL, site, meaning) REC_##LAYER(RECORD_ROW, NAME)
static const struct {
	const char *name;
	record_fn record;
} records[] = {
#include "perf_points.def"
};
#undef PERF_POINT
#define N_RECORDS   (sizeof(records) / sizeof(records[0]))

#define MAX_THREADS 64

static fire_fn find_key(const char *name)
{
	for (size_t i = 0; i < N_KEYS; i++)
		if (strcmp(keys[i].name, name) == 0)
			return keys[i].fire;
	return NULL;
}

/* --- fire ---------------------------------------------------------------------------------------------- */

struct fire_job {
	fire_fn fire;
	uint64_t loops;
	struct values values;
};

static void *fire_thread(void *arg)
{
	const struct fire_job *job = arg;
	for (uint64_t i = 0; i < job->loops; i++)
		job->fire(&job->values, i + 1);
	return NULL;
}

static int run_threads(int n, void *(*run)(void *), void *jobs, size_t job_size)
{
	pthread_t threads[MAX_THREADS];
	for (int i = 0; i < n; i++)
		if (pthread_create(&threads[i], NULL, run, (char *)jobs + (size_t)i * job_size))
			abort();
	for (int i = 0; i < n; i++)
		pthread_join(threads[i], NULL);
	return n;
}

static void do_fire(const char *line)
{
	char name[128];
	int threads;
	struct fire_job job = {0};
	if (sscanf(line, "fire %127s %d %" SCNu64 " %" SCNu64 " %" SCNu64 " %" SCNu64 " %" SCNd64, name, &threads,
	           &job.loops, &job.values.bytes, &job.values.n_keys, &job.values.n_failed, &job.values.rc) != 7 ||
	    threads < 1 || threads > MAX_THREADS || !(job.fire = find_key(name))) {
		printf("error\n");
		return;
	}
	struct fire_job jobs[MAX_THREADS];
	for (int i = 0; i < threads; i++)
		jobs[i] = job;
	run_threads(threads, fire_thread, jobs, sizeof(job));
	printf("fired %" PRIu64 "\n", (uint64_t)threads * job.loops);
}

static void do_record(const char *line)
{
	char name[128];
	uint64_t loops, elapsed_ns;
	struct values values;
	record_fn record = NULL;
	if (sscanf(line, "record %127s %" SCNu64 " %" SCNu64 " %" SCNu64 " %" SCNu64 " %" SCNu64 " %" SCNd64, name,
	           &loops, &elapsed_ns, &values.bytes, &values.n_keys, &values.n_failed, &values.rc) == 7) {
		for (size_t i = 0; i < N_RECORDS; i++)
			if (strcmp(records[i].name, name) == 0)
				record = records[i].record;
	}
	if (!record) {
		printf("error\n");
		return;
	}
	for (uint64_t i = 0; i < loops; i++)
		record(elapsed_ns, &values, i + 1);
	printf("recorded %" PRIu64 "\n", loops);
}

/* What call i of key k reports; the test knows the same rule. */
static struct values values_of(uint64_t k, uint64_t i)
{
	bool failed = (k + i) % 5 == 0;
	uint64_t n_keys = k % 9 + i % 3;
	return (struct values){
	        .bytes = (k + 1) * 1000 + i,
	        .n_keys = n_keys,
	        .n_failed = failed ? n_keys : 0,
	        .rc = failed ? -(int64_t)(k + 1) : 0,
	};
}

static void do_each(const char *line)
{
	uint64_t loops;
	if (sscanf(line, "each %" SCNu64, &loops) != 1) {
		printf("error\n");
		return;
	}
	for (uint64_t k = 0; k < N_KEYS; k++) {
		for (uint64_t i = 0; i < loops; i++) {
			struct values values = values_of(k, i);
			keys[k].fire(&values, i + 1);
		}
	}
	printf("fired %" PRIu64 "\n", (uint64_t)N_KEYS * loops);
}

/* --- log ------------------------------------------------------------------------------------------------- */

struct log_job {
	unsigned int op;
	uint64_t calls, n_keys, seed;
	char path[512];
	uint64_t lines;
	bool failed;
};

static uint64_t next_random(uint64_t *state)
{
	*state ^= *state << 13;
	*state ^= *state >> 7;
	*state ^= *state << 17;
	return *state;
}

/* Any byte but NUL, line ends and the format's own words included. */
static size_t hostile_key(char *key, uint64_t *state)
{
	static const char *const nasty[] = {"\nsuccess=1 key=", "\\x0a",    " size=1",
	                                    "[batch_is_exist]", "\x7f\xff", "\r\t"};
	size_t length =
	        next_random(state) % 40 == 0 ? 1 + next_random(state) % KVP_KEY_MAX : 1 + next_random(state) % 64;
	for (size_t i = 0; i < length; i++)
		key[i] = (char)(1 + next_random(state) % 255);
	const char *word = nasty[next_random(state) % 6];
	if (length > strlen(word))
		memcpy(key + next_random(state) % (length - strlen(word)), word, strlen(word));
	return length;
}

static void add_record(struct op_block *block, const struct log_job *job, uint64_t *state, uint64_t i)
{
	char key[KVP_KEY_MAX], endpoint[64];
	bool success = next_random(state) % 4 != 0;
	struct op_record record = {
	        .key = key,
	        .key_len = hostile_key(key, state),
	        .success = success,
	        .has_size = job->op != KVP_OP_IS_EXIST,
	        .size = next_random(state) >> 40,
	        .rc = success ? 0 : -704,
	};
	if (success && (job->op == KVP_OP_GET || job->op == KVP_OP_REPLICA_DESC)) {
		record.replica = KVP_REPLICA_MEMORY;
		record.endpoint = endpoint;
		record.endpoint_len =
		        (size_t)snprintf(endpoint, sizeof(endpoint), "192.0.2.%" PRIu64 ":14024", i / 8 % 4);
	}
	op_block_add(block, &record);
}

static void *log_thread(void *arg)
{
	struct log_job *job = arg;
	struct op_block block = {0};
	struct mc_text text = {0};
	struct mc_log_style style = {0};
	uint64_t state = job->seed * 2654435761u + 88172645463325252u;
	FILE *file = fopen(job->path, "we");
	job->failed = !file;
	for (uint64_t call = 0; call < job->calls && !job->failed; call++) {
		uint64_t elapsed = 1 + next_random(&state) % 1000000000, op_id = next_random(&state);
		if (!op_block_begin(&block, (enum kvp_op)job->op, op_id, job->n_keys, next_random(&state) >> 32)) {
			job->failed = true;
			break;
		}
		for (uint64_t i = 0; i < job->n_keys && job->op != KVP_OP_REGISTER; i++)
			add_record(&block, job, &state, i);
		const struct kvp_block *done = op_block_finish(&block, elapsed);
		text.length = 0;
		int64_t lines = mc_log_format(&text, done, done->block_bytes, &style);
		job->failed = lines < 0 || fwrite(text.text, 1, text.length, file) != text.length;
		job->lines += lines < 0 ? 0 : (uint64_t)lines;
		kvp_op_log(done, done->block_bytes, op_id, elapsed, job->op, job->n_keys);
	}
	if (file && fclose(file))
		job->failed = true;
	free(text.text);
	op_block_free(&block);
	return NULL;
}

static void do_log(const char *line)
{
	struct log_job job = {0}, *jobs = calloc(MAX_THREADS, sizeof(job));
	int threads;
	char path[400];
	if (!jobs ||
	    sscanf(line, "log %u %d %" SCNu64 " %" SCNu64 " %" SCNu64 " %399s", &job.op, &threads, &job.calls,
	           &job.n_keys, &job.seed, path) != 6 ||
	    threads < 1 || threads > MAX_THREADS) {
		printf("error\n");
		free(jobs);
		return;
	}
	for (int i = 0; i < threads; i++) {
		jobs[i] = job;
		jobs[i].seed += (uint64_t)i;
		snprintf(jobs[i].path, sizeof(jobs[i].path), "%s.%d", path, i);
	}
	run_threads(threads, log_thread, jobs, sizeof(job));
	uint64_t lines = 0;
	bool failed = false;
	for (int i = 0; i < threads; i++) {
		lines += jobs[i].lines;
		failed = failed || jobs[i].failed;
	}
	printf("%s %" PRIu64 "\n", failed ? "error" : "logged", lines);
	free(jobs);
}

static void do_without_block(const char *count, uint64_t elapsed_ns)
{
	uint64_t n = strtoull(count, NULL, 10);
	for (uint64_t i = 0; i < n; i++)
		kvp_op_log(NULL, 0, i + 1, elapsed_ns, KVP_OP_GET, 8);
	printf("fired %" PRIu64 "\n", n);
}

/* --- children ---------------------------------------------------------------------------------------------- */

static int child_main(const char *name, const char *count)
{
	static const struct values values = {.bytes = 1, .n_keys = 1};
	fire_fn fire = find_key(name);
	uint64_t n = strtoull(count, NULL, 10);
	for (uint64_t i = 0; fire && i < n; i++)
		fire(&values, i + 1);
	return fire ? 0 : 1;
}

static pid_t start_child(const char *how, char *name, char *count)
{
	char self[] = "/proc/self/exe", word[] = "child", *argv[] = {self, word, name, count, NULL};
	pid_t pid = -1;
	if (strcmp(how, "spawn") == 0)
		return posix_spawn(&pid, self, NULL, NULL, argv, environ) ? -1 : pid;
	if (strcmp(how, "vfork") == 0) {
		pid = vfork();
		if (pid == 0) {
			execv(self, argv);
			_exit(127);
		}
		return pid;
	}
	pid = fork();
	if (pid != 0)
		return pid;
	if (strcmp(how, "exec") == 0) {
		execv(self, argv);
		_exit(127);
	}
	int code = child_main(name, count);
	if (strcmp(how, "grandchild") == 0) {
		pid_t grandchild = fork();
		if (grandchild == 0)
			_exit(child_main(name, count));
		int status;
		if (grandchild < 0 || waitpid(grandchild, &status, 0) != grandchild)
			_exit(126);
		code = WIFEXITED(status) ? WEXITSTATUS(status) : 100 + WTERMSIG(status);
	}
	/* stay until the collector has looked: it reads the fork guard's count once a second */
	const char *linger = getenv("SITE_WORKER_LINGER_MS");
	if (linger)
		usleep((useconds_t)atoi(linger) * 1000);
	_exit(code);
}

static void do_child(const char *line)
{
	char how[16], name[128], count[32];
	int status;
	if (sscanf(line, "%15s %127s %31s", how, name, count) != 3) {
		printf("error\n");
		return;
	}
	pid_t pid = start_child(how, name, count);
	if (pid < 0 || waitpid(pid, &status, 0) != pid)
		printf("error\n");
	else if (WIFSIGNALED(status))
		printf("child %d signal %d\n", pid, WTERMSIG(status));
	else
		printf("child %d exit %d\n", pid, WEXITSTATUS(status));
}

int main(int argc, char **argv)
{
	if (argc == 4 && strcmp(argv[1], "child") == 0)
		return child_main(argv[2], argv[3]);
	char line[1024];
	setvbuf(stdout, NULL, _IOLBF, 0);
	printf("ready %d\n", getpid());
	while (fgets(line, sizeof(line), stdin)) {
		if (strncmp(line, "quit", 4) == 0)
			break;
		if (strncmp(line, "fire ", 5) == 0)
			do_fire(line);
		else if (strncmp(line, "record ", 7) == 0)
			do_record(line);
		else if (strncmp(line, "each ", 5) == 0)
			do_each(line);
		else if (strncmp(line, "log ", 4) == 0)
			do_log(line);
		else if (strncmp(line, "partial ", 8) == 0)
			do_without_block(line + strlen("partial "), 0);
		else if (strncmp(line, "blockless ", 10) == 0)
			do_without_block(line + strlen("blockless "), 5000);
		else
			do_child(line);
	}
	return 0;
}
