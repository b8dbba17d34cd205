# SPDX-License-Identifier: Apache-2.0
"""The Python interface: names, types, states, what callers do with it."""

import gc
import inspect
import os
import subprocess
import sys
import threading
import time
import unittest
import weakref

import support
from support import INVALID, MIB, NOT_SUPPORTED, OK, UNAVAILABLE, Buffer, EngineCase, TransferEngine, new_engine

HINTED = ("transfer_sync_write", "transfer_sync_read", "batch_transfer_sync_write", "batch_transfer_sync_read")


class Names(unittest.TestCase):
    def test_both_names_are_one_class(self):
        import kvprobe.engine
        import mooncake.engine
        self.assertIs(mooncake.engine.TransferEngine, kvprobe.engine.TransferEngine)

    def test_signatures(self):
        signatures = {name: str(inspect.signature(getattr(TransferEngine, name))).replace("self, /", "self")
                      for name in dir(TransferEngine) if not name.startswith("_")}
        self.assertEqual(signatures, {
            "initialize": "(self, hostname, metadata_server='P2PHANDSHAKE', protocol='tcp', device_name='')",
            "get_rpc_port": "(self)",
            "register_memory": "(self, ptr, length)",
            "unregister_memory": "(self, ptr)",
            "batch_register_memory": "(self, ptrs, lens)",
            "batch_unregister_memory": "(self, ptrs)",
            "transfer_sync_write": "(self, session, src, dst, length, transport_hint='')",
            "transfer_sync_read": "(self, session, local, remote, length, transport_hint='')",
            "batch_transfer_sync_write": "(self, session, src_ptrs, dst_ptrs, lens, transport_hint='')",
            "batch_transfer_sync_read": "(self, session, local_ptrs, remote_ptrs, lens, transport_hint='')",
        })


class States(unittest.TestCase):
    def test_before_initialize(self):
        engine = TransferEngine()
        self.assertEqual(engine.get_rpc_port(), UNAVAILABLE)
        self.assertEqual(engine.register_memory(4096, 1), UNAVAILABLE)
        self.assertEqual(engine.unregister_memory(4096), UNAVAILABLE)
        self.assertEqual(engine.batch_register_memory([4096], []), UNAVAILABLE)
        self.assertEqual(engine.batch_unregister_memory([4096]), UNAVAILABLE)
        for name in HINTED[:2]:
            self.assertEqual(getattr(engine, name)("127.0.0.1:1", 4096, 4096, 1), UNAVAILABLE)
        for name in HINTED[2:]:
            self.assertEqual(getattr(engine, name)("127.0.0.1:1", [4096], [4096], [1]), UNAVAILABLE)

    def test_initialize(self):
        engine = TransferEngine()
        self.assertEqual(engine.initialize("127.0.0.1", "etcd://127.0.0.1:2379", "tcp", ""), NOT_SUPPORTED)
        self.assertEqual(engine.initialize("127.0.0.1", "P2PHANDSHAKE", "smoke signals", ""), INVALID)
        self.assertEqual(engine.initialize("not a host", "P2PHANDSHAKE", "tcp", ""), INVALID)
        # what vLLM passes by default
        self.assertEqual(engine.initialize("127.0.0.1", "P2PHANDSHAKE", "rdma", ""), OK)
        port = engine.get_rpc_port()
        self.assertTrue(0 < port < 65536)
        self.assertEqual(engine.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", ""), INVALID)
        self.assertEqual(engine.get_rpc_port(), port)

    def test_hostname_with_a_port(self):
        first = new_engine()
        port = first.get_rpc_port()
        second = TransferEngine()
        self.assertEqual(second.initialize(f"127.0.0.1:{port}"), -1)  # taken
        del first
        gc.collect()
        self.assertEqual(second.initialize(hostname=f"127.0.0.1:{port}"), OK)
        self.assertEqual(second.get_rpc_port(), port)

    def test_the_end_of_the_object_closes_it(self):
        engine = new_engine()
        gone, before = weakref.ref(engine), len(os.listdir("/proc/self/task"))
        del engine
        gc.collect()
        self.assertIsNone(gone())
        self.assertLess(len(os.listdir("/proc/self/task")), before)

    def test_interpreter_exit_with_an_engine_in_use(self):
        code = ("import sys, threading, support\n"
                "a, b = support.new_engine(), support.new_engine()\n"
                "m = support.Buffer(bytes(1 << 20))\n"
                "a.register_memory(m.ptr, m.size), b.register_memory(m.ptr, m.size)\n"
                "def forever():\n"
                "    while True:\n"
                "        a.transfer_sync_write(f'127.0.0.1:{b.get_rpc_port()}', m.ptr, m.ptr, 1)\n"
                "threading.Thread(target=forever, daemon=True).start()\n"
                "import time; time.sleep(0.2); print('end')\n")
        done = subprocess.run([sys.executable, "-c", code], cwd=support.HERE, capture_output=True, text=True,
                              timeout=support.WAIT_S)
        self.assertEqual((done.returncode, done.stdout), (0, "end\n"), done.stderr)

    @unittest.skipIf(support.PRESET == "tsan", "the sanitizer does not follow a fork of a process with threads")
    def test_after_a_fork(self):
        engine, memory = new_engine(), Buffer(bytes(100))
        self.assertEqual(engine.register_memory(memory.ptr, 100), OK)
        session = f"127.0.0.1:{engine.get_rpc_port()}"
        child = os.fork()
        if child == 0:
            right = engine.transfer_sync_write(session, memory.ptr, memory.ptr + 50, 5) == UNAVAILABLE
            right &= engine.register_memory(memory.ptr, 1) == UNAVAILABLE
            own = new_engine()
            right &= own.register_memory(memory.ptr, 100) == OK
            right &= own.transfer_sync_write(session, memory.ptr, memory.ptr + 50, 5) == OK
            del engine
            os._exit(0 if right else 1)
        self.assertEqual(os.waitpid(child, 0)[1], 0)
        self.assertEqual(engine.transfer_sync_write(session, memory.ptr, memory.ptr + 50, 5), OK)


class Arguments(EngineCase):
    def setUp(self):
        self.engine = new_engine()
        self.session = f"127.0.0.1:{self.engine.get_rpc_port()}"

    def test_types(self):
        engine = self.engine
        for call in (lambda: TransferEngine(1), lambda: engine.initialize(), lambda: engine.initialize(1),
                     lambda: engine.initialize("h", None), lambda: engine.initialize("h", unknown=1),
                     lambda: engine.register_memory("x", 1), lambda: engine.register_memory(1),
                     lambda: engine.register_memory(-1, 1), lambda: engine.register_memory(1, 1 << 64),
                     lambda: engine.register_memory(1.5, 1), lambda: engine.unregister_memory(None),
                     lambda: engine.batch_register_memory(1, [1]), lambda: engine.batch_register_memory([1], ["x"]),
                     lambda: engine.batch_register_memory("12", [1, 2]), lambda: engine.batch_unregister_memory(5)):
            with self.assertRaises(TypeError):
                call()
        for name in HINTED:
            one = 1 if name in HINTED[:2] else [1]
            for arguments in ((b"s", one, one, one), ("s", None, one, one), ("s", one, "1", one), ("s", one, one),
                              ("s", one, one, 1.5), ("s", one, one, one, 5), ("s", one, one, one, "", 6)):
                with self.subTest(name=name, arguments=arguments), self.assertRaises(TypeError):
                    getattr(engine, name)(*arguments)
        with self.assertRaisesRegex(TypeError, r"batch_transfer_sync_write\(\): dst_ptrs\[1\] must be an int, not str"):
            engine.batch_transfer_sync_write("s", [1, 2], [1, "2"], [1, 1])
        with self.assertRaisesRegex(TypeError, "nonsense"):
            engine.transfer_sync_write("s", 1, 1, 1, nonsense=1)

    def test_lists_of_different_lengths(self):
        memory = self.memory(bytes(100))
        for lists in (([memory.ptr], [memory.ptr], []), ([memory.ptr], [], [1]), ([], [memory.ptr], [1])):
            self.assertEqual(self.engine.batch_transfer_sync_write(self.session, *lists), INVALID)
            self.assertEqual(self.engine.batch_transfer_sync_read(self.session, *lists), INVALID)
        self.assertEqual(self.engine.batch_register_memory([4096, 8192], [1]), INVALID)

    def test_names_hints_and_sequences(self):
        memory = self.memory(bytes(range(100)))
        at = memory.ptr
        self.assertEqual(self.engine.transfer_sync_write(session=self.session, src=at, dst=at + 50, length=10,
                                                         transport_hint="tcp"), OK)
        self.assertEqual(self.engine.transfer_sync_read(self.session, at + 60, at, 10, ""), OK)
        self.assertEqual(self.engine.batch_transfer_sync_write(self.session, (at,), range(at + 70, at + 71), [10],
                                                               transport_hint="rdma"), OK)
        self.assertEqual(memory.bytes(50, 30), bytes(range(10)) * 3)

    def test_batch_register_is_all_or_nothing(self):
        memory = Buffer(bytes(3000))
        ptrs = [memory.ptr, memory.ptr + 1000, memory.ptr + 500]  # the last overlaps the first
        self.assertEqual(self.engine.batch_register_memory(ptrs, [1000] * 3), INVALID)
        self.assertEqual(self.engine.transfer_sync_write(self.session, memory.ptr, memory.ptr, 1), INVALID)
        ptrs[2] = memory.ptr + 2000
        self.assertEqual(self.engine.batch_register_memory(ptrs, [1000] * 3), OK)
        self.assertEqual(self.engine.register_memory(memory.ptr + 2999, 1), INVALID)
        self.assertEqual(self.engine.batch_unregister_memory([ptrs[0], 12345, ptrs[1], ptrs[2]]), INVALID)
        self.assertEqual(self.engine.register_memory(memory.ptr, 3000), OK)
        self.assertEqual(self.engine.batch_unregister_memory([memory.ptr]), OK)
        self.assertEqual(self.engine.batch_register_memory([], []), OK)

    def test_zero_lengths(self):
        memory = self.memory(bytes(10))
        self.assertEqual(self.engine.register_memory(0, 10), INVALID)
        self.assertEqual(self.engine.register_memory(memory.ptr, 0), INVALID)
        self.assertEqual(self.engine.transfer_sync_write(self.session, memory.ptr, memory.ptr, 0), INVALID)

    def test_other_threads_run_during_a_transfer(self):
        """A call that waits for a silent peer does not hold the GIL."""
        import socket
        engine, memory = new_engine(timeout_s=1), Buffer(bytes(10))
        self.assertEqual(engine.register_memory(memory.ptr, 10), OK)
        with socket.create_server(("127.0.0.1", 0)) as silent:
            session = f"127.0.0.1:{silent.getsockname()[1]}"
            thread = threading.Thread(target=engine.transfer_sync_write, args=(session, memory.ptr, 1, 10))
            thread.start()
            steps = 0
            while thread.is_alive():
                steps += 1
                time.sleep(0.001)
            thread.join()
        self.assertGreater(steps, 10)

    def test_lists_that_change_during_the_call(self):
        memory = self.memory(bytes(8 * MIB))
        ptrs, remote, lens = [memory.ptr], [memory.ptr + 4 * MIB], [4 * MIB]
        stop = threading.Event()

        def disturb():
            while not stop.is_set():
                for values in (ptrs, remote, lens):
                    values[0] = values[0] + 0
                    time.sleep(0)

        thread = threading.Thread(target=disturb)
        thread.start()
        try:
            for _ in range(20):
                self.assertEqual(self.engine.batch_transfer_sync_write(self.session, ptrs, remote, lens), OK)
        finally:
            stop.set()
            thread.join()


if __name__ == "__main__":
    unittest.main()
