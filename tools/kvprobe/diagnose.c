/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/kvprobe/diagnose.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "tools/kvprobe/common.h"

#define DESCRIPTORS 32

static bool kernel_too_old(char release[80])
{
	struct utsname name;
	if (uname(&name) < 0)
		return false;
	snprintf(release, 80, "%.79s", name.release);
	return host_release_before(release, OLDEST_MAJOR, OLDEST_MINOR);
}

/* A limit that is met while libbpf tries out the kernel's features comes back as some other error. */
static bool short_of_descriptors(int error)
{
	struct rlimit limit;
	return error == EMFILE || (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < DESCRIPTORS);
}

char *setcap_command(const char *capabilities)
{
	char path[PATH_MAX];
	ssize_t length = readlink("/proc/self/exe", path, sizeof(path) - 1);
	path[length > 0 ? length : 0] = '\0';
	return format_text("sudo setcap %s=ep %s", capabilities, length > 0 ? path : "kvprobe");
}

static void say_setcap(const char *capabilities)
{
	char *command = setcap_command(capabilities);
	say("run it as root, or once: %s", command);
	free(command);
}

static void say_locked_down(const char *what, int error, const char *lockdown)
{
	say("not permitted to %s (%s): the kernel is locked down (/sys/kernel/security/lockdown says %s); only a "
	    "boot "
	    "without lockdown=, or without Secure Boot, changes that. MC_LOG_ENABLE=on in the worker needs no BPF",
	    what, strerror(error), lockdown);
}

/* In this mode the kernel has fewer helpers for programs, and refuses ours as it would a wrong one. */
static bool helpers_locked_away(enum bpf_step step, int error, char lockdown[HOST_WORD_MAX])
{
	return step == STEP_LOAD && error == EINVAL && host_lockdown(lockdown) &&
	       strcmp(lockdown, "confidentiality") == 0;
}

static int explain_permission(enum bpf_step step, const char *what, int error)
{
	char lockdown[HOST_WORD_MAX];
	bool admin = have_capability(CAPABILITY_SYS_ADMIN);
	bool bpf = admin || have_capability(CAPABILITY_BPF), perfmon = admin || have_capability(CAPABILITY_PERFMON);
	if (!bpf || !perfmon) {
		const char *missing = !bpf && !perfmon ? "CAP_BPF and CAP_PERFMON are"
		                      : bpf            ? "CAP_PERFMON is"
		                                       : "CAP_BPF is";
		say("not permitted to %s (%s): %s missing. Since Linux 5.8 CAP_BPF is wanted for loading programs "
		    "and "
		    "maps, CAP_PERFMON for programs that trace and for attaching them",
		    what, strerror(error), missing);
		say_setcap(SETCAP_MULTI);
	} else if (host_lockdown(lockdown) && strcmp(lockdown, "none") != 0) {
		say_locked_down(what, error, lockdown);
	} else if (step == STEP_ATTACH_SINGLE && !admin) {
		say("not permitted to %s (%s): CAP_SYS_ADMIN is missing. Kernels without uprobe_multi links (before "
		    "6.6) "
		    "attach uprobes through perf events, and the stable kernels since July 2025 want CAP_SYS_ADMIN "
		    "for "
		    "those",
		    what, strerror(error));
		say_setcap(SETCAP_SINGLE);
	} else if (host_self_status("Seccomp", 10) != 0) {
		say("not permitted to %s (%s): a seccomp filter is in force for this process and seems to forbid it. "
		    "In a "
		    "container allow bpf and perf_event_open in its seccomp profile, or run kvprobe on the host",
		    what, strerror(error));
	} else {
		say("not permitted to %s (%s), although CAP_BPF and CAP_PERFMON are there: a security module "
		    "(SELinux, AppArmor; see the audit log), or capabilities that count only in a user namespace%s",
		    what, strerror(error),
		    step == STEP_LOAD && error == EACCES
		            ? ", or the kernel's verifier refuses the program: -v shows its words"
		            : "");
	}
	return EXIT_NO_RIGHT;
}

int explain_failure(enum bpf_step step, int error)
{
	static const char *const steps[] = {
	        [STEP_LOAD] = "load BPF programs",
	        [STEP_ATTACH_MULTI] = "attach to the probes",
	        [STEP_ATTACH_SINGLE] = "attach to the probes one by one",
	};
	const char *what = steps[step];
	char release[80] = "", lockdown[HOST_WORD_MAX];
	error = error < 0 ? -error : error;
	if (error == EPERM || error == EACCES)
		return explain_permission(step, what, error);
	if (helpers_locked_away(step, error, lockdown)) {
		say_locked_down(what, error, lockdown);
		return EXIT_NO_RIGHT;
	}
	if (error == ENOSYS) {
		if (host_self_status("Seccomp", 10) != 0)
			say("cannot %s: the system call answers ENOSYS under a seccomp filter; in a container allow "
			    "bpf and "
			    "perf_event_open, or run kvprobe on the host",
			    what);
		else
			say("cannot %s: BPF is disabled in this kernel (built without CONFIG_BPF_SYSCALL); "
			    "MC_LOG_ENABLE=on "
			    "in the worker needs none",
			    what);
		return EXIT_NO_RIGHT;
	}
	if (short_of_descriptors(error)) {
		say("cannot %s: too few open files are allowed (ulimit -n); kvprobe needs about %d, and one more for "
		    "each file with probes",
		    what, DESCRIPTORS);
		return EXIT_RUNTIME;
	}
	if (kernel_too_old(release)) {
		say("cannot %s: %s. This kernel (%s) is too old: Linux %d.%d is the oldest that has what kvprobe "
		    "needs "
		    "(attach cookies in uprobes)",
		    what, strerror(error), release, OLDEST_MAJOR, OLDEST_MINOR);
		return EXIT_NO_RIGHT;
	}
	if (error == ENOMEM) {
		say("cannot %s: no memory; fewer --workers or a smaller --ring-mb need less", what);
		return EXIT_RUNTIME;
	}
	if (step == STEP_ATTACH_SINGLE && !host_has_uprobe_events()) {
		if (access("/sys/kernel/tracing/uprobe_events", F_OK) < 0 &&
		    access("/sys/kernel/debug/tracing/uprobe_events", F_OK) < 0)
			say("cannot %s: no tracefs is mounted, and this kernel has no uprobe events without it. "
			    "Mount it: mount "
			    "-t tracefs tracefs /sys/kernel/tracing",
			    what);
		else
			say("cannot %s: %s (this kernel has uprobes only through tracefs)", what, strerror(error));
		return EXIT_NO_RIGHT;
	}
	say("cannot %s: %s (kernel %s); -v shows what the kernel said", what, strerror(error), release);
	return error == EOPNOTSUPP || error == 524 ? EXIT_NO_RIGHT : EXIT_RUNTIME;
}
