/* SPDX-License-Identifier: Apache-2.0 */
/* What kvprobe doctor makes of hosts that are not at hand, and the parsers of what a host says. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "kv_cmocka.h"
#include "tools/kvprobe/findings.h"

#define BIT(capability) (1ull << (capability))

/* A 6.18 host on which root has traced. */
static struct findings_input healthy(void)
{
	struct findings_input input = {
	        .host = {.release = "6.18.5",
	                 .machine = "x86_64",
	                 .capabilities = ~0ull,
	                 .bpf_error = EINVAL,
	                 .lockdown = "none",
	                 .lockdown_known = true,
	                 .tracefs = "/sys/kernel/tracing",
	                 .uprobe_events = true,
	                 .memlock_bytes = -1,
	                 .proc_shows_host = true},
	        .test = {.loaded = true,
	                 .attached = true,
	                 .fired = true,
	                 .passed = true,
	                 .multi = true,
	                 .jited = true,
	                 .kernel_form = FORM_NOP5,
	                 .form = "nop5",
	                 .counted = 1},
	        .scanned = true,
	        .setcap_multi = "setcap multi",
	        .setcap_single = "setcap single",
	};
	return input;
}

static void fail_with(struct findings_input *input, const char *why)
{
	input->test = (struct self_test){.kernel_form = input->test.kernel_form, .form = "none"};
	snprintf(input->test.why, sizeof(input->test.why), "%s", why);
}

static const struct finding *find(const struct findings *findings, const char *name)
{
	for (size_t i = 0; i < findings->count; i++)
		if (strcmp(findings->list[i].name, name) == 0)
			return &findings->list[i];
	return NULL;
}

static void assert_state(const struct findings *findings, const char *name, enum finding_state state)
{
	const struct finding *finding = find(findings, name);
	assert_non_null(finding);
	assert_int_equal(finding->state, state);
}

static struct findings *make(const struct findings_input *input)
{
	struct findings *findings = calloc(1, sizeof(*findings));
	assert_non_null(findings);
	findings_make(findings, input);
	assert_true(findings->count < FINDINGS_MAX);
	return findings;
}

static void test_healthy(void **state)
{
	(void)state;
	struct findings_input input = healthy();
	struct findings *findings = make(&input);
	assert_true(findings->can_trace);
	assert_string_equal(findings->verdict, "This user can trace here (form nop5, one link per file).");
	for (size_t i = 0; i < findings->count; i++) {
		assert_true(findings->list[i].state == FINDING_OK || findings->list[i].state == FINDING_INFO);
		assert_string_equal(findings->list[i].fix, "");
	}
	free(findings);
}

static void test_missing_rights(void **state)
{
	(void)state;
	struct findings_input input = healthy();
	input.host.capabilities = 0;
	fail_with(&input, "not permitted\nadvice");
	struct findings *findings = make(&input);
	assert_false(findings->can_trace);
	assert_string_equal(findings->missing, "CAP_BPF CAP_PERFMON");
	assert_string_equal(findings->fix, "setcap multi");
	assert_non_null(strstr(findings->verdict, "CAP_BPF CAP_PERFMON"));
	assert_string_equal(find(findings, "self-test")->text, "not permitted");
	assert_state(findings, "CAP_SYS_ADMIN", FINDING_INFO);
	free(findings);

	input.host.capabilities = BIT(CAPABILITY_BPF);
	findings = make(&input);
	assert_string_equal(findings->missing, "CAP_PERFMON");
	free(findings);

	input.host.capabilities = BIT(CAPABILITY_SYS_ADMIN);
	findings = make(&input);
	assert_string_equal(findings->missing, "");
	assert_state(findings, "CAP_BPF", FINDING_OK);
	free(findings);
}

/* 6.1 of a stable series that asks for CAP_SYS_ADMIN. */
static void test_kernel_without_multi(void **state)
{
	(void)state;
	struct findings_input input = healthy();
	strcpy(input.host.release, "6.1.0-44-amd64");
	input.host.capabilities = BIT(CAPABILITY_BPF) | BIT(CAPABILITY_PERFMON);
	input.test =
	        (struct self_test){.loaded = true, .wants_admin = true, .kernel_form = FORM_INT3, .form = "none"};
	struct findings *findings = make(&input);
	assert_string_equal(findings->missing, "CAP_SYS_ADMIN");
	assert_string_equal(findings->fix, "setcap single");
	assert_state(findings, "CAP_SYS_ADMIN", FINDING_NO);
	assert_state(findings, "uprobe_multi", FINDING_WARN);
	assert_non_null(find(findings, "attach form int3"));
	assert_non_null(strstr(findings->verdict, "CAP_SYS_ADMIN"));
	free(findings);

	input.test.wants_admin = false;
	input.host.uprobe_events = false;
	input.host.tracefs[0] = '\0';
	findings = make(&input);
	assert_state(findings, "tracefs", FINDING_NO);
	assert_string_equal(findings->fix, "mount -t tracefs tracefs /sys/kernel/tracing");
	free(findings);
}

static void test_obstacles(void **state)
{
	(void)state;
	struct findings_input input = healthy();
	strcpy(input.host.release, "5.10.3");
	fail_with(&input, "too old");
	struct findings *findings = make(&input);
	assert_state(findings, "kernel 5.10.3", FINDING_NO);
	free(findings);

	input = healthy();
	input.host.bpf_error = ENOSYS;
	fail_with(&input, "no such call");
	findings = make(&input);
	assert_non_null(strstr(findings->verdict, "CONFIG_BPF_SYSCALL"));
	assert_non_null(strstr(findings->fix, "MC_LOG_ENABLE"));
	free(findings);

	input.host.seccomp = 2;
	findings = make(&input);
	assert_non_null(strstr(findings->verdict, "seccomp"));
	assert_non_null(strstr(findings->fix, "seccomp profile"));
	free(findings);

	input = healthy();
	strcpy(input.host.lockdown, "confidentiality");
	fail_with(&input, "locked");
	findings = make(&input);
	assert_state(findings, "lockdown", FINDING_WARN);
	free(findings);

	/* passed: the same facts stand in no one's way */
	input = healthy();
	strcpy(input.host.lockdown, "integrity");
	input.host.seccomp = 2;
	findings = make(&input);
	assert_true(findings->can_trace);
	assert_state(findings, "lockdown", FINDING_OK);
	assert_state(findings, "seccomp", FINDING_OK);
	free(findings);
}

static void test_parsers(void **state)
{
	(void)state;
	char word[HOST_WORD_MAX];
	int major, minor;
	assert_true(host_chosen_word("none [integrity] confidentiality\n", word));
	assert_string_equal(word, "integrity");
	assert_false(host_chosen_word("none integrity", word));
	assert_false(host_chosen_word("none [] x", word));
	assert_false(host_chosen_word("] [none", word));
	assert_true(host_chosen_word("[a-word-that-is-longer-than-there-is-room-for-it]", word));
	assert_int_equal(strlen(word), HOST_WORD_MAX - 1);

	assert_true(host_release_parse("6.1.0-44-amd64", &major, &minor));
	assert_int_equal(major, 6);
	assert_int_equal(minor, 1);
	assert_false(host_release_parse("six", &major, &minor));
	assert_true(host_release_before("5.14.99", 5, 15));
	assert_false(host_release_before("5.15.0", 5, 15));
	assert_true(host_release_before("4.20", 5, 15));
	assert_false(host_release_before("6.0", 5, 15));
	assert_false(host_release_before("unknown", 5, 15));

	assert_true(host_uid_map_is_whole("         0          0 4294967295\n"));
	assert_false(host_uid_map_is_whole("0 1000 1\n"));
	assert_false(host_uid_map_is_whole("0 0 65536\n"));
	assert_false(host_uid_map_is_whole(""));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_healthy),
	        cmocka_unit_test(test_missing_rights),
	        cmocka_unit_test(test_kernel_without_multi),
	        cmocka_unit_test(test_obstacles),
	        cmocka_unit_test(test_parsers),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
