# SPDX-License-Identifier: Apache-2.0
"""The runner counts what it is shown: throw-away programs that pass, fail, crash, hang, say nothing and skip."""

import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
import unittest

REPO = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(REPO / "tests"))

from runner import hostlock, plan, process, remote, report  # noqa: E402
from runner.cmocka import TapReader  # noqa: E402
from runner.pyreport import read_report  # noqa: E402
from runner.sanitizer import command, environment, reports_of  # noqa: E402

SUITE = plan.Suite("throwaway", ("release",), parallel=True)
C_PROGRAM = r"""
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>
static void good(void **s) { (void)s; }
static void bad(void **s) { (void)s; assert_int_equal(1, 2); }
static void left_out(void **s) { (void)s; print_message("SKIP: no such device\n"); skip(); }
static void leaves(void **s) { (void)s; _exit(0); }
static void dies(void **s) { (void)s; signal(SIGSEGV, SIG_DFL); raise(SIGKILL); }
static void hangs(void **s) { (void)s; printf("going to sleep\n"); sleep(1000); }
static void forks(void **s) { (void)s; if (fork() == 0) exit(0); wait(NULL); }
static int no_setup(void **s) { (void)s; return -1; }
int main(void)
{
	const struct CMUnitTest tests[] = { TESTS };
	return cmocka_run_group_tests(tests, SETUP, NULL);
}
"""


def outcomes(cases):
    return sorted((case.name, case.outcome) for case in cases)


class Throwaway(unittest.TestCase):
    def setUp(self):
        self.dir = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))

    def run_path(self, path, timeout=60):
        program = plan.Program(SUITE, "release", path)
        reports = self.dir / "reports"
        reports.mkdir(exist_ok=True)
        report_file = reports / "results"
        tap = TapReader(program)
        tail = []

        def on_line(text):
            tail.append(text)
            if not program.is_python:
                tap.line(text)

        ended = process.run(command(program, report_file, None), environment(program, self.dir, reports), self.dir,
                            timeout, on_line)
        self.ended = ended
        self.tail = tail
        if program.is_python:
            return read_report(program, report_file, ended, tail)
        return tap.finish(ended)

    def script(self, name, text):
        path = self.dir / name
        path.write_text(text)
        path.chmod(0o755)
        return path

    def c_program(self, tests, setup="NULL"):
        source = self.script("t.c", "#include <signal.h>\n" + C_PROGRAM)
        binary = self.dir / "throwaway-c"
        units = ", ".join(f"cmocka_unit_test({name})" for name in tests)
        subprocess.run(["gcc", f"-DTESTS={units}", f"-DSETUP={setup}", "-w", str(source), "-o", str(binary), "-lcmocka"],
                       check=True, timeout=120)
        return binary


class Cmocka(Throwaway):
    def test_pass_fail_skip(self):
        cases = self.run_path(self.c_program(["good", "bad", "left_out"]))
        self.assertEqual(outcomes(cases), [("bad", "failed"), ("good", "passed"), ("left_out", "skipped")])
        by_name = {case.name: case for case in cases}
        self.assertEqual(by_name["left_out"].reason, "no such device")
        self.assertIn("0x1 != 0x2", "\n".join(by_name["bad"].detail))

    def test_early_exit_with_status_0_is_a_failure(self):
        cases = self.run_path(self.c_program(["good", "leaves", "good"]))
        self.assertEqual([case.outcome for case in cases], ["passed", "failed", "failed"])
        self.assertEqual(self.ended.returncode, 0)

    def test_killed_by_a_signal(self):
        cases = self.run_path(self.c_program(["good", "dies"]))
        self.assertEqual([case.outcome for case in cases], ["passed", "failed", "failed"])
        self.assertIn("SIGKILL", cases[-1].detail[-1])

    def test_hanging_is_killed_with_its_output_shown(self):
        start = time.monotonic()
        cases = self.run_path(self.c_program(["good", "hangs"]), timeout=1)
        self.assertLess(time.monotonic() - start, 30)
        self.assertEqual([case.outcome for case in cases], ["passed", "failed", "failed"])
        self.assertIn("going to sleep", cases[1].detail)
        self.assertIn("time limit", cases[-1].detail[-1])

    def test_a_forked_child_that_exits_counts_nothing_twice(self):
        cases = self.run_path(self.c_program(["good", "forks", "good"]))
        self.assertEqual([case.outcome for case in cases], ["passed"] * 3)

    def test_failed_group_setup_fails_every_test(self):
        cases = self.run_path(self.c_program(["good", "good"], setup="no_setup"))
        self.assertEqual([case.outcome for case in cases], ["failed", "failed"])


class Scripts(Throwaway):
    def test_no_plan(self):
        cases = self.run_path(self.script("quiet", "#!/bin/sh\necho fine\nexit 0\n"))
        self.assertEqual(outcomes(cases), [("(program)", "failed")])

    def test_plan_met_but_bad_exit_status(self):
        cases = self.run_path(self.script("leaky", "#!/bin/sh\necho 1..1\necho 'ok 1 - a'\nexit 23\n"))
        self.assertEqual(outcomes(cases), [("(program)", "failed"), ("a", "passed")])

    def test_not_startable(self):
        cases = self.run_path(self.script("odd", "#!/nonexistent/interpreter\n"))
        self.assertEqual(outcomes(cases), [("(program)", "failed")])

    def test_what_it_leaves_running_is_killed(self):
        pid_file = self.dir / "pid"
        script = f"#!/bin/sh\nsleep 1000 &\necho $! > {pid_file}\necho 1..1\necho 'ok 1 - a'\n"
        cases = self.run_path(self.script("parent", script))
        self.assertEqual(outcomes(cases), [("a", "passed")])
        pid = int(pid_file.read_text())
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline and self.is_alive(pid):
            time.sleep(0.02)
        self.assertFalse(self.is_alive(pid))

    @staticmethod
    def is_alive(pid):
        try:
            state = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            return False
        return state != "Z"

    def test_sanitizer_report_is_found(self):
        self.run_path(self.script("noisy", "#!/bin/sh\necho 1..0\n"))
        (self.dir / "reports" / "report.17").write_text("ERROR: heap-use-after-free\n")
        self.assertEqual(reports_of(self.dir / "reports"), [("report.17", ["ERROR: heap-use-after-free"])])


class PythonModules(Throwaway):
    def run_module(self, body, timeout=60):
        head = "import os, signal, sys, time, unittest\n"
        return self.run_path(self.script("test_throwaway.py", head + body), timeout)

    def test_pass_fail_error_skip(self):
        cases = self.run_module("""
class T(unittest.TestCase):
    def test_a(self): pass
    def test_b(self): self.assertEqual(1, 2)
    def test_c(self): raise OSError("gone")
    def test_d(self): self.skipTest("no device")
    def test_e(self):
        for i in range(3):
            with self.subTest(i=i): self.assertEqual(i, 0)
    @unittest.expectedFailure
    def test_f(self): self.assertEqual(1, 2)
    @unittest.expectedFailure
    def test_g(self): pass
""")
        self.assertEqual(outcomes(cases), [("T.test_a", "passed"), ("T.test_b", "failed"), ("T.test_c", "failed"),
                                           ("T.test_d", "skipped"), ("T.test_e", "failed"), ("T.test_f", "passed"),
                                           ("T.test_g", "failed")])
        self.assertEqual([case.reason for case in cases if case.outcome == "skipped"], ["no device"])

    def test_class_setup_speaks_for_its_tests(self):
        cases = self.run_module("""
class S(unittest.TestCase):
    @classmethod
    def setUpClass(cls): raise unittest.SkipTest("no master")
    def test_a(self): pass
    def test_b(self): pass
class F(S):
    @classmethod
    def setUpClass(cls): raise OSError("broken")
""")
        self.assertEqual(outcomes(cases), [("F.test_a", "failed"), ("F.test_b", "failed"), ("S.test_a", "skipped"),
                                           ("S.test_b", "skipped")])

    def test_death_in_the_middle(self):
        cases = self.run_module("""
class T(unittest.TestCase):
    def test_a(self): pass
    def test_b(self): os.kill(os.getpid(), signal.SIGSEGV)
    def test_c(self): pass
""")
        self.assertEqual([(case.name, case.outcome) for case in cases][:2],
                         [("T.test_a", "passed"), ("T.test_b", "failed")])
        self.assertEqual(len(cases), 3)
        self.assertIn("SIGSEGV", cases[1].detail[-1])

    def test_clean_exit_in_the_middle_is_a_failure(self):
        cases = self.run_module("""
class T(unittest.TestCase):
    def test_a(self): os._exit(0)
    def test_b(self): pass
""")
        self.assertEqual([case.outcome for case in cases], ["failed", "failed"])

    def test_import_error(self):
        cases = self.run_module("import no_such_module_anywhere\n")
        self.assertEqual([case.outcome for case in cases], ["failed"])
        self.assertIn("no_such_module_anywhere", "\n".join(cases[0].detail))

    def test_hanging(self):
        cases = self.run_module("""
class T(unittest.TestCase):
    def test_a(self): time.sleep(1000)
""", timeout=2)
        self.assertEqual([(case.name, case.outcome) for case in cases], [("T.test_a", "failed")])
        self.assertIn("time limit", cases[0].detail[-1])


class Silence(Throwaway):
    def test_a_program_that_says_nothing_for_too_long_is_killed(self):
        said = []
        script = self.script("quiet", "#!/bin/sh\necho once\nsleep 1000\n")
        ended = process.run([str(script)], dict(os.environ), self.dir, 60, said.append, silence=1)
        self.assertTrue(ended.silent)
        self.assertFalse(ended.timed_out)
        self.assertIn("silent", ended.trouble())
        self.assertEqual(said, ["once"])

    def test_one_that_speaks_lives(self):
        script = self.script("slow", "#!/bin/sh\nfor i in 1 2 3 4 5 6; do echo $i; sleep 0.5; done\n")
        ended = process.run([str(script)], dict(os.environ), self.dir, 60, lambda text: None, silence=2)
        self.assertEqual((ended.returncode, ended.silent), (0, False))


class Reports(Throwaway):
    def test_cases_survive_the_journey_and_a_cut_line_does_not(self):
        program = plan.Program(plan.SUITES["bpf"], "release", pathlib.Path("test_attach.py"))
        sent = [report.Case(program, "a", "passed"), report.Case(program, "b", "skipped", "no device"),
                report.Case(program, "c", "failed", detail=["one", "two"])]
        path = self.dir / "cases"
        remote.append(path, sent[:1])
        remote.append(path, sent[1:])
        with open(path, "a", encoding="utf-8") as file:
            file.write('{"suite": "bpf", "prog')
        got = remote.read(path, "6.1.99")
        self.assertEqual([(case.name, case.outcome, case.reason, case.detail) for case in got],
                         [(case.name, case.outcome, case.reason, case.detail) for case in sent])
        self.assertEqual(got[0].title, "[6.1.99] bpf/test_attach: a")

    def test_no_report_is_no_case(self):
        self.assertEqual(remote.read(self.dir / "none", "6.1.99"), [])


class Labels(Throwaway):
    def test_of_a_module_and_of_a_suite(self):
        path = self.script("test_one.py", "# SPDX\n# labels: kernel slow\n")
        self.assertEqual(plan.Program(SUITE, "release", path).labels, {"kernel", "slow"})
        self.assertEqual(plan.Program(SUITE, "release", self.script("test_two.py", "x = 1\n")).labels, set())
        self.assertEqual(plan.Program(SUITE, "release", self.dir / "binary").labels, set())
        self.assertEqual(plan.Program(plan.SUITES["guest"], "release", self.dir / "binary").labels, {"kernel"})


class HostLock(Throwaway):
    def test_one_at_a_time(self):
        path = self.dir / "lock"
        said = []
        with hostlock.held(said.append, path), self.assertRaises(TimeoutError):
            with hostlock.held(said.append, path, limit=0.2):
                self.fail("held twice")
        self.assertEqual(len(said), 1)
        with hostlock.held(said.append, path):
            pass
        self.assertEqual(len(said), 1)


class CommandLine(Throwaway):
    def run_py(self, *args, **kwargs):
        return subprocess.run([sys.executable, str(REPO / "tests" / "run.py"), *args], capture_output=True, text=True,
                              timeout=120, stdin=subprocess.DEVNULL, **kwargs)

    def test_suite_without_tests_fails(self):
        done = self.run_py("--build", str(self.dir), "unit")
        self.assertEqual(done.returncode, 1)
        self.assertEqual(done.stdout.splitlines()[-1], "0 passed, 1 failed, 0 skipped")

    def test_last_line_and_status(self):
        tests = self.dir / "tests"
        tests.mkdir()
        program = tests / "unit-made_up"
        program.write_text("#!/bin/sh\necho 1..2\necho 'ok 1 - a'\necho 'SKIP: too small'\necho 'ok 2 # SKIP b'\n")
        program.chmod(0o755)
        done = self.run_py("--build", str(self.dir), "-k", "made_up", "unit")
        self.assertEqual(done.stdout.splitlines()[-1], "1 passed, 0 failed, 1 skipped")
        self.assertIn("unit/made_up: b: too small", done.stdout)
        self.assertEqual(done.returncode, 0)

    def test_a_sanitizer_report_of_a_child_process_fails_the_program(self):
        tests = self.dir / "tests"
        tests.mkdir()
        source = self.script("t.c", "#include <stdlib.h>\nint main(int c, char **v)\n{\n\tchar *p = malloc(4);\n"
                                    "\tfree(p);\n\treturn p[c - 1] != v[0][0];\n}\n")
        subprocess.run(["gcc", "-w", "-fsanitize=address", str(source), "-o", str(self.dir / "child")], check=True,
                       timeout=120)
        program = tests / "unit-made_up"
        program.write_text(f"#!/bin/sh\n{self.dir}/child\necho 1..1\necho 'ok 1 - a'\n")
        program.chmod(0o755)
        done = self.run_py("--build", str(self.dir), "--preset", "asan", "-k", "made_up", "unit")
        self.assertEqual(done.stdout.splitlines()[-1], "1 passed, 1 failed, 0 skipped")
        self.assertIn("heap-use-after-free", done.stdout)

    def test_unknown_suite_is_a_usage_error(self):
        self.assertEqual(self.run_py("nonsense").returncode, 2)
        self.assertEqual(self.run_py("vm", "unit").returncode, 2)

    def test_guests_are_left_out_of_a_quick_run_and_take_suites(self):
        self.assertIn("vm", self.run_py("--list-suites").stdout.split())
        self.assertNotIn("vm", self.run_py("--list-suites", "--quick").stdout.split())
        self.assertEqual(self.run_py("--list-suites", "vm", "--kernel", "6.1", "bpf").stdout.split(), ["vm"])

    def test_release_only_suites_need_no_sanitizer_build(self):
        self.assertEqual(self.run_py("--list-builds", "bpf", "lint").stdout.split(), ["release"])
        self.assertEqual(self.run_py("--list-builds", "probes").stdout.split(), ["release", "noprobes"])
        self.assertEqual(self.run_py("--list-builds", "--quick", "unit").stdout.split(), ["release"])

    def test_interrupt_ends_the_programs(self):
        tests = self.dir / "tests"
        tests.mkdir()
        pid_file = self.dir / "pid"
        program = tests / "unit-sleeper"
        program.write_text(f"#!/bin/sh\necho $$ > {pid_file}.new\nmv {pid_file}.new {pid_file}\nexec sleep 1000\n")
        program.chmod(0o755)
        runner = subprocess.Popen([sys.executable, str(REPO / "tests" / "run.py"), "--build", str(self.dir), "-k",
                                   "sleeper", "unit"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + 60
        while not pid_file.exists() and time.monotonic() < deadline:
            time.sleep(0.02)
        runner.send_signal(signal.SIGINT)
        self.assertEqual(runner.wait(timeout=60), 130)
        self.assertFalse(os.path.exists(f"/proc/{pid_file.read_text().strip()}"))


if __name__ == "__main__":
    unittest.main()
