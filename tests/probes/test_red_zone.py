# SPDX-License-Identifier: Apache-2.0
# labels: kernel
"""A hit overwrites nothing of the code around it, at a trap and at a call: the kernel's CALL writes 8 bytes below the
stack pointer, where a leaf function keeps its values."""

import unittest

import tracer
from probe_elf import BUILD, Binary, below_stack
from processes import Talker, semaphores, site_bytes

PROGRAM = BUILD / "bin" / "probe_red_zone"
KVPROBE = BUILD / "bin" / "kvprobe"
ROUNDS = 200000
WARM = 100
CALL, TRAP = 0xE8, 0xCC
OFFSET_OF_FORM = {"nop5": 1, "nop10": 6}


@unittest.skipIf(tracer.why_not(), tracer.why_not())
class RedZone(unittest.TestCase):
    def run_attached(self, form):
        """The site's bytes after some hits, and what the program and the tool have to say."""
        with Talker(PROGRAM, ROUNDS) as program:
            program.expect("ready")
            with tracer.KvprobeStat(KVPROBE, "-p", program.pid, f"--attach={form}") as stat:
                program.go_on()
                program.expect("warm")
                code = site_bytes(program.pid, PROGRAM, "RC_REMOVE")
                self.assertEqual(semaphores(program.pid, PROGRAM)["RC_REMOVE"], 1)
                program.go_on()
                self.assertEqual(program.line(), "wrong 0")
                totals, summary = stat.stop()
            row = totals[program.pid, "RC_REMOVE"]
            self.assertEqual(row["calls"], ROUNDS + WARM)
            self.assertEqual(row["bytes"], sum(range(ROUNDS)) + sum(range(WARM)))
            self.assertEqual(row["failed_calls"], 0)
            self.assertEqual(summary["attach_form"], form)
        return code

    def test_at_a_trap(self):
        self.assertEqual(self.run_attached("int3")[0], TRAP)

    def test_at_the_call_that_this_kernel_makes(self):
        form = tracer.optimised_form()
        if form != "nop5":
            self.skipTest(f"this kernel makes no call of the 5-byte nop (it optimises {form})")
        code = self.run_attached(form)
        self.assertEqual(code[OFFSET_OF_FORM[form]], CALL, f"the site is not optimised: {code.hex()}")

    def test_the_program_is_what_it_says(self):
        """Its instrumented leaf would use the red zone but for its probe: without it, the compiler takes it."""
        functions = Binary(PROGRAM).disassembly()
        self.assertTrue(below_stack(functions["without_probe"]))
        self.assertTrue(any("kvp_done_RC_REMOVE" in text for text in functions["leaf"]))


if __name__ == "__main__":
    unittest.main()
