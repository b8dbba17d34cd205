/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/kvprobe/findings.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <string.h>

#define MULTI_MAJOR 6
#define MULTI_MINOR 6

#define SECCOMP_FIX "allow bpf and perf_event_open in the seccomp profile, or run kvprobe on the host"

static void __attribute__((format(printf, 5, 6)))
add(struct findings *findings, enum finding_state state, const char *name, const char *more, const char *format, ...)
{
	if (findings->count == FINDINGS_MAX)
		return;
	struct finding *finding = &findings->list[findings->count++];
	va_list args;
	*finding = (struct finding){.state = state};
	snprintf(finding->name, sizeof(finding->name), "%s", name);
	snprintf(finding->more, sizeof(finding->more), "%s", more);
	va_start(args, format);
	vsnprintf(finding->text, sizeof(finding->text), format, args);
	va_end(args);
}

/* How to mend what was added last. */
static void mend(struct findings *findings, const char *fix)
{
	struct finding *last = &findings->list[findings->count - 1];
	snprintf(last->fix, sizeof(last->fix), "%s", fix);
	if (last->state == FINDING_NO && !findings->fix[0])
		snprintf(findings->fix, sizeof(findings->fix), "%s", fix);
}

static bool has(const struct findings_input *input, enum capability capability)
{
	return input->host.capabilities >> capability & 1;
}

/* With the programs loaded it was tried; before, the version is all that there is to go by. */
static bool expects_multi(const struct findings_input *input)
{
	if (input->single)
		return false;
	return input->test.loaded ? input->test.multi
	                          : !host_release_before(input->host.release, MULTI_MAJOR, MULTI_MINOR);
}

/* --- the kernel ---------------------------------------------------------------------------------------------------
 */

static void add_kernel(struct findings *findings, const struct findings_input *input)
{
	const char *more = "Uprobes with attach cookies (Linux 5.15) are what kvprobe cannot do without.";
	char name[48];
	snprintf(name, sizeof(name), "kernel %.40s", input->host.release);
	if (host_release_before(input->host.release, OLDEST_MAJOR, OLDEST_MINOR))
		add(findings, FINDING_NO, name, more,
		    "%s; too old: Linux %d.%d is the oldest that has what kvprobe needs", input->host.machine,
		    OLDEST_MAJOR, OLDEST_MINOR);
	else
		add(findings, FINDING_OK, name, more, "%s; new enough (Linux %d.%d is the oldest)",
		    input->host.machine, OLDEST_MAJOR, OLDEST_MINOR);
}

static void add_form(struct findings *findings, const struct findings_input *input)
{
	const char *more =
	        "A site has a nop of 1, 5 and 10 bytes; kvprobe attaches to the one that this kernel makes "
	        "cheapest. --attach of the other commands forces one.";
	enum attach_form form = input->test.kernel_form;
	const char *name = form == FORM_NOP5    ? "attach form nop5"
	                   : form == FORM_NOP10 ? "attach form nop10"
	                                        : "attach form int3";
	if (form == FORM_INT3)
		add(findings, FINDING_OK, name, more,
		    "this kernel optimises no nop (asked by system call 336), so a hit takes a trap, several times "
		    "the "
		    "cost of a call");
	else
		add(findings, FINDING_OK, name, more,
		    "this kernel turns that nop into a call (asked by system call 336), where the binary says that "
		    "it is "
		    "safe%s",
		    form == FORM_NOP10 ? "; not tested by kvprobe's makers" : "");
}

static void add_bpf_call(struct findings *findings, const struct findings_input *input)
{
	const char *more = "Everything that kvprobe counts is counted by BPF programs in the kernel.";
	int error = input->host.bpf_error;
	bool filtered = input->host.seccomp != 0;
	if (error == ENOSYS) {
		add(findings, FINDING_NO, "BPF system call", more,
		    filtered ? "answers ENOSYS under a seccomp filter"
		             : "not in this kernel (no CONFIG_BPF_SYSCALL)");
		mend(findings, filtered ? SECCOMP_FIX : "MC_LOG_ENABLE=on in the worker needs no BPF");
	} else if (error == EPERM || error == EACCES) {
		bool right = has(input, CAPABILITY_BPF) || has(input, CAPABILITY_SYS_ADMIN);
		const char *cause = filtered                     ? "a seccomp filter is in force"
		                    : input->host.user_namespace ? "it counts in this user namespace only"
		                                                 : "a security module (see the audit log)";
		add(findings, right ? FINDING_NO : FINDING_INFO, "BPF system call", more,
		    right ? "refuses, although the right is there: %s" : "is there, not for users without rights%s",
		    right ? cause : "");
		if (right)
			mend(findings, filtered ? SECCOMP_FIX : "run kvprobe on the host, outside of containers");
	} else {
		add(findings, FINDING_OK, "BPF system call", more, "enabled");
	}
}

/* --- rights -------------------------------------------------------------------------------------------------------
 */

static void add_missing(struct findings *findings, const char *name)
{
	size_t length = strlen(findings->missing);
	snprintf(findings->missing + length, sizeof(findings->missing) - length, "%s%s", length ? " " : "", name);
}

static void add_needed_right(struct findings *findings, const struct findings_input *input,
                             enum capability capability, const char *name, const char *what)
{
	if (has(input, capability)) {
		add(findings, FINDING_OK, name, "", "there; for %s", what);
	} else if (has(input, CAPABILITY_SYS_ADMIN)) {
		add(findings, FINDING_OK, name, "", "CAP_SYS_ADMIN stands for it; for %s", what);
	} else {
		add(findings, FINDING_NO, name, "", "missing; for %s", what);
		add_missing(findings, name);
	}
}

static void add_admin(struct findings *findings, const struct findings_input *input)
{
	const char *more =
	        "Stable kernels since July 2025 ask for it where uprobes are attached as perf events. It is "
	        "next to being root: do not give it where it is not wanted.";
	if (has(input, CAPABILITY_SYS_ADMIN)) {
		add(findings, FINDING_OK, "CAP_SYS_ADMIN", more, "there");
	} else if (expects_multi(input)) {
		add(findings, FINDING_INFO, "CAP_SYS_ADMIN", more, "missing, and not needed where uprobe_multi is");
	} else if (input->test.wants_admin) {
		add(findings, FINDING_NO, "CAP_SYS_ADMIN", more,
		    "missing: without uprobe_multi links this kernel wants it for attaching (tried)");
		add_missing(findings, "CAP_SYS_ADMIN");
	} else if (input->test.attached) {
		add(findings, FINDING_INFO, "CAP_SYS_ADMIN", more,
		    "missing, and this kernel does not want it (tried)");
	} else {
		add(findings, FINDING_WARN, "CAP_SYS_ADMIN", more,
		    "missing; without uprobe_multi links this kernel may want it for attaching (could not be tried)");
	}
}

static void add_rights(struct findings *findings, const struct findings_input *input)
{
	size_t first = findings->count;
	add_needed_right(findings, input, CAPABILITY_BPF, "CAP_BPF", "loading programs and tables");
	add_needed_right(findings, input, CAPABILITY_PERFMON, "CAP_PERFMON",
	                 "programs that trace, and attaching them");
	add_admin(findings, input);
	static const struct {
		enum capability capability;
		const char *name, *what;
	} wide[] = {
	        {CAPABILITY_SYS_PTRACE, "CAP_SYS_PTRACE", "finding workers of other users and in containers"},
	        {CAPABILITY_DAC_READ_SEARCH, "CAP_DAC_READ_SEARCH", "opening binaries that this user may not read"},
	};
	for (size_t i = 0; i < sizeof(wide) / sizeof(wide[0]); i++) {
		bool there = has(input, wide[i].capability);
		add(findings, there ? FINDING_OK : FINDING_WARN, wide[i].name, "", "%s; for %s",
		    there ? "there" : "missing", wide[i].what);
	}
	/* one command gives them all: it stands below the last that is missing */
	for (size_t i = findings->count; i > first; i--) {
		enum finding_state state = findings->list[i - 1].state;
		if (state != FINDING_NO && state != FINDING_WARN)
			continue;
		const char *command = expects_multi(input) ? input->setcap_multi : input->setcap_single;
		snprintf(findings->list[i - 1].fix, sizeof(findings->list[i - 1].fix), "%s   (or run it as root)",
		         command);
		if (findings->missing[0] && !findings->fix[0])
			snprintf(findings->fix, sizeof(findings->fix), "%s", command);
		break;
	}
}

/* --- what the loaded programs showed ------------------------------------------------------------------------------
 */

static void add_loaded(struct findings *findings, const struct findings_input *input)
{
	const struct self_test *test = &input->test;
	const char *multi_more = "One link for all sites of a file, without tracefs and without CAP_SYS_ADMIN; since "
	                         "Linux 6.6. Otherwise a perf event per site, which attaches and detaches slowly.";
	const char *jit_more = "Compiled programs cost a fraction of interpreted ones at each hit.";
	if (!test->loaded) {
		bool old = host_release_before(input->host.release, MULTI_MAJOR, MULTI_MINOR);
		add(findings, FINDING_INFO, "uprobe_multi", multi_more,
		    "not tried: no program could be loaded. Linux %d.%d "
		    "and later have it, this is %s",
		    MULTI_MAJOR, MULTI_MINOR, old ? "older" : "not older");
		add(findings, FINDING_INFO, "ring buffer", "",
		    "not tried: no program could be loaded. Linux 5.8 and later "
		    "have it");
		add(findings, FINDING_INFO, "JIT", jit_more, "not tried: no program could be loaded");
		return;
	}
	if (test->multi)
		add(findings, FINDING_OK, "uprobe_multi", multi_more, "there: one link per file");
	else
		add(findings, FINDING_WARN, "uprobe_multi", multi_more, "%s: one perf event per site",
		    input->single ? "left aside, as --single asks" : "not in this kernel (tried)");
	add(findings, FINDING_OK, "ring buffer", "kvprobe log receives the calls' lines through it.", "there");
	if (test->jited) {
		add(findings, FINDING_OK, "JIT", jit_more, "programs are compiled");
	} else {
		add(findings, FINDING_WARN, "JIT", jit_more,
		    "programs are interpreted: hits cost several times more");
		mend(findings, "sysctl net.core.bpf_jit_enable=1");
	}
}

/* --- the surroundings ---------------------------------------------------------------------------------------------
 */

static void add_tracefs(struct findings *findings, const struct findings_input *input)
{
	const struct host_facts *host = &input->host;
	const char *more =
	        "Only kernels with neither uprobe_multi links nor uprobes as perf events of their own need it.";
	bool needed = !expects_multi(input) && !host->uprobe_events;
	if (host->tracefs[0]) {
		add(findings, FINDING_OK, "tracefs", more, "mounted at %s%s", host->tracefs,
		    needed ? "" : "; not needed here");
	} else if (needed) {
		add(findings, FINDING_NO, "tracefs", more, "not mounted, and this kernel has no uprobes without it");
		mend(findings, "mount -t tracefs tracefs /sys/kernel/tracing");
	} else {
		add(findings, FINDING_INFO, "tracefs", more,
		    "not mounted, and not needed here; if wanted: mount -t tracefs tracefs /sys/kernel/tracing");
	}
}

static void add_lockdown(struct findings *findings, const struct findings_input *input)
{
	const struct host_facts *host = &input->host;
	const char *more =
	        "A kernel that is locked down (lockdown=, Secure Boot) refuses some of perf and BPF even to root.";
	if (!host->lockdown_known) {
		add(findings, FINDING_INFO, "lockdown", more, "%s",
		    input->test.passed
		            ? "not to be read; it does not keep kvprobe from tracing (tried)"
		            : "not to be read: /sys/kernel/security is not mounted, or this kernel has none");
	} else if (strcmp(host->lockdown, "none") == 0) {
		add(findings, FINDING_OK, "lockdown", more, "none");
	} else if (input->test.passed) {
		add(findings, FINDING_OK, "lockdown", more, "%s, which does not keep kvprobe from tracing (tried)",
		    host->lockdown);
	} else {
		add(findings, FINDING_WARN, "lockdown", more, "%s: the kernel may refuse tracing even to root",
		    host->lockdown);
		mend(findings, "boot without lockdown= or Secure Boot; MC_LOG_ENABLE=on in the worker needs no BPF");
	}
}

static void add_process(struct findings *findings, const struct findings_input *input)
{
	const struct host_facts *host = &input->host;
	const char *more = "Before Linux 5.11 the tables were charged to this limit (ulimit -l).";
	if (host->memlock_bytes == HOST_UNKNOWN)
		add(findings, FINDING_INFO, "memlock", more, "not to be read; no matter since Linux 5.11");
	else if (host->memlock_bytes < 0)
		add(findings, FINDING_OK, "memlock", more, "unlimited");
	else
		add(findings, FINDING_OK, "memlock", more, "%" PRId64 " KiB; no matter since Linux 5.11",
		    host->memlock_bytes / 1024);

	more = "Containers forbid bpf and perf_event_open by such a filter.";
	if (host->seccomp == 0)
		add(findings, FINDING_OK, "seccomp", more, "no filter in force");
	else if (input->test.passed)
		add(findings, FINDING_OK, "seccomp", more, "a filter is in force, which allows what kvprobe does");
	else
		add(findings, FINDING_WARN, "seccomp", more, "a filter is in force, which may be what forbids it");
	if (host->no_new_privileges)
		add(findings, FINDING_WARN, "no_new_privs", "",
		    "set for this process: neither setcap nor sudo gives it a right; start kvprobe from elsewhere");
	if (host->user_namespace)
		add(findings, FINDING_WARN, "user namespace", "",
		    "this process is in one of its own: capabilities count only inside it, and tracing asks outside");
}

static void add_setting(struct findings *findings, const char *name, int64_t value, const char *more,
                        const char *meaning)
{
	if (value == HOST_UNKNOWN)
		add(findings, FINDING_INFO, name, more, "not to be read; %s", meaning);
	else
		add(findings, FINDING_INFO, name, more, "%" PRId64 "; %s", value, meaning);
}

static void add_visible(struct findings *findings, const struct findings_input *input)
{
	const char *more = "Processes that have the library with the probes mapped; kvprobe list names them.";
	if (!input->scanned)
		add(findings, FINDING_WARN, "workers", more, "cannot be looked for: %s", input->scan_problem);
	else if (input->denied)
		add(findings, FINDING_WARN, "workers", more,
		    "%zu processes with probes visible now; %zu could not be looked into", input->workers,
		    input->denied);
	else
		add(findings, FINDING_OK, "workers", more, "%zu processes with probes visible now", input->workers);
}

static void add_surroundings(struct findings *findings, const struct findings_input *input)
{
	const struct host_facts *host = &input->host;
	add_tracefs(findings, input);
	add_lockdown(findings, input);
	add_process(findings, input);
	add(findings, host->proc_shows_host ? FINDING_OK : FINDING_WARN, "PID namespace", "", "%s",
	    host->proc_shows_host
	            ? "the host's: every process can be found"
	            : "not the host's, or /proc is not its own: workers outside are not seen; in a container "
	              "give it the host's (--pid=host)");
	add_setting(findings, "unprivileged_bpf_disabled", host->unprivileged_bpf_disabled, "",
	            "no matter: programs that trace want rights in any case");
	add_setting(findings, "perf_event_paranoid", host->perf_event_paranoid, "",
	            "no matter: CAP_PERFMON passes it, and without CAP_PERFMON nothing is attached");
	add_visible(findings, input);
}

/* --- the verdict --------------------------------------------------------------------------------------------------
 */

static void add_self_test(struct findings *findings, const struct findings_input *input)
{
	const struct self_test *test = &input->test;
	const char *more = "The real programs, on a probe in kvprobe's own binary; nothing stays attached.";
	if (test->passed)
		add(findings, FINDING_OK, "self-test", more,
		    "loaded, attached to a probe of its own (form %s), one firing counted", test->form);
	else
		add(findings, FINDING_NO, "self-test", more, "%s", test->why[0] ? test->why : "failed");
	char *text = findings->list[findings->count - 1].text;
	text[strcspn(text, "\n")] = '\0'; /* what follows the cause is advice, which stands with the findings above */
}

static void set_verdict(struct findings *findings, const struct findings_input *input)
{
	findings->can_trace = input->test.passed;
	if (findings->can_trace) {
		snprintf(findings->verdict, sizeof(findings->verdict), "This user can trace here (form %s, %s).",
		         input->test.form, input->test.multi ? "one link per file" : "one perf event per site");
		return;
	}
	const struct finding *cause = NULL;
	for (size_t i = 0; i < findings->count && !cause; i++)
		if (findings->list[i].state == FINDING_NO)
			cause = &findings->list[i];
	if (findings->missing[0] && cause && strncmp(cause->name, "CAP_", 4) == 0) {
		const char *gap = strchr(findings->missing, ' ');
		snprintf(findings->verdict, sizeof(findings->verdict), "This user cannot trace here: %s missing: %s",
		         gap ? "rights are" : "a right is", findings->missing);
	} else if (cause) {
		snprintf(findings->verdict, sizeof(findings->verdict), "This user cannot trace here: %s: %.2200s",
		         cause->name, cause->text);
	}
}

void findings_make(struct findings *findings, const struct findings_input *input)
{
	findings->count = 0;
	findings->missing[0] = findings->fix[0] = findings->verdict[0] = '\0';
	add_kernel(findings, input);
	add_form(findings, input);
	add_bpf_call(findings, input);
	add_rights(findings, input);
	add_loaded(findings, input);
	add_surroundings(findings, input);
	add_self_test(findings, input);
	set_verdict(findings, input);
}

void findings_print(const struct findings *findings, FILE *out, bool more)
{
	static const char *const words[] = {
	        [FINDING_OK] = "ok", [FINDING_NO] = "no", [FINDING_WARN] = "warn", [FINDING_INFO] = "info"};
	for (size_t i = 0; i < findings->count; i++) {
		const struct finding *finding = &findings->list[i];
		fprintf(out, "%-5s %s: %s\n", words[finding->state], finding->name, finding->text);
		if (more && finding->more[0])
			fprintf(out, "      %s\n", finding->more);
		if (finding->fix[0])
			fprintf(out, "      fix: %s\n", finding->fix);
	}
	fprintf(out, "%s\n", findings->verdict);
}
