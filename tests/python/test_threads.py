# SPDX-License-Identifier: Apache-2.0
"""Many threads on one store, lists that change under a call, and the GIL dropped in every blocking call."""

import socket
import threading
import unittest

from support import MIB, WAIT_S, Buffer, MasterCase, MooncakeDistributedStore, StoreCase, pattern, run_threads

THREADS = 8


class TestOneStore(StoreCase):
    SEGMENT = 64 * MIB

    def worker(self, number):
        size, rounds = 8192, 20
        source, target = self.buffer(pattern(number, size)), self.buffer(size)

        def run():
            for turn in range(rounds):
                keys = [f"t{number}.{turn}.{i}" for i in range(4)]
                ptrs, sizes = source.parts(4)
                put = self.store.batch_put_from_multi_buffers(keys, [[p] for p in ptrs], [[s] for s in sizes])
                self.assertEqual(put, [0] * 4)
                self.assertEqual(self.store.batch_is_exist(keys + ["absent"]), [1] * 4 + [0])
                target.clear()
                tptrs, _ = target.parts(4)
                got = self.store.batch_get_into_multi_buffers(keys, [[p] for p in tptrs], [[s] for s in sizes])
                self.assertEqual(got, sizes)
                self.assertEqual(target.bytes(), source.bytes())
                self.assertEqual(self.store.get(keys[0]), source.bytes(0, size // 4))
                self.assertEqual(self.store.put(keys[0] + ".single", keys[0].encode()), 0)
                self.assertEqual(self.store.remove(keys[0] + ".single"), 0)

        return run

    def test_eight_threads(self):
        run_threads(*[self.worker(n) for n in range(THREADS)])
        self.assertEqual(self.store.remove_all(force=True), THREADS * 20 * 4)

    def test_the_same_key_from_all(self):
        """First writer wins; whoever reads sees one whole value."""
        values = [bytes([n]) * 5000 for n in range(1, THREADS + 1)]
        seen = set()

        def put_and_get(value):
            def run():
                for turn in range(20):
                    self.assertEqual(self.store.put(f"shared.{turn}", value), 0)
                    got = self.store.get(f"shared.{turn}")
                    self.assertIn(got, [b"", *values])  # empty: the winner is still writing
                    seen.add((turn, got))

            return run

        run_threads(*[put_and_get(v) for v in values])
        for turn in range(20):
            self.assertLessEqual(len({got for t, got in seen if t == turn and got}), 1)
            self.assertIn(self.store.get(f"shared.{turn}"), values)

    def test_close_while_others_call(self):
        calls = threading.Barrier(5)

        def caller(number):
            def run():
                calls.wait(WAIT_S)
                while True:
                    result = self.store.batch_is_exist([f"k{number}", "k"])
                    if result[0] < 0:
                        self.assertEqual(result, [result[0]] * 2)
                        return

            return run

        def closer():
            calls.wait(WAIT_S)
            self.assertEqual(self.store.close(), 0)

        run_threads(closer, *[caller(n) for n in range(4)])
        self.assertEqual(self.store.health_check(), 1)


class TestListsThatChange(StoreCase):
    def test_lists_emptied_during_calls(self):
        buffer = self.buffer(4096)
        keys, ptrs, sizes, inner = [], [], [], []
        done = threading.Event()

        def spoil():
            turn = 0
            while not done.is_set():
                turn += 1
                keys[:] = [f"made.{turn}.{i}" for i in range(50)]  # the old ones die
                ptrs[:] = [[buffer.ptr] for _ in range(50)]
                sizes[:] = [[16] for _ in range(50)]
                inner[:] = []
                for values in (keys, ptrs, sizes):
                    values.clear()

        def call():
            try:
                for _ in range(300):
                    for result in (
                        self.store.batch_is_exist(keys),
                        self.store.batch_put_from_multi_buffers(keys, ptrs, sizes),
                        self.store.batch_get_into_multi_buffers(keys, ptrs, sizes),
                    ):
                        self.assertIsInstance(result, list)
                    self.assertIsInstance(self.store.batch_get_replica_desc(keys), dict)
            finally:
                done.set()

        run_threads(spoil, call)

    def test_lists_emptied_while_they_are_parsed(self):
        buffer = self.buffer(64)
        ptrs, sizes = [], []

        class Spoiler:
            def __index__(self):
                for values in (ptrs, sizes, *ptrs):
                    values.clear()
                return buffer.ptr

        def fresh():
            sizes[:] = [[1] * 100 for _ in range(100)]
            ptrs[:] = [[Spoiler()] + [buffer.ptr + int("1" * 1)] * 99 for _ in range(100)]

        keys = [f"k{i}" for i in range(100)]
        fresh()
        results = self.store.batch_put_from_multi_buffers(keys, ptrs, sizes)
        self.assertEqual(len(results), 100)
        fresh()
        self.assertEqual(len(self.store.batch_get_into_multi_buffers(keys, ptrs, sizes)), 100)
        ptrs[:] = [Spoiler(), 1, 2]
        sizes[:] = [1, 2, 3]
        with self.assertRaises(AttributeError):  # *ptrs are no lists here; the exception passes through
            self.store.batch_put_from(["a", "b", "c"], ptrs, sizes)


class Relay:
    """Passes bytes between a store and its master, in threads of this interpreter: a call that kept the GIL
    would wait for an answer that no one could pass on."""

    def __init__(self, port):
        self._port = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._sockets = [self._listener]
        self._lock = threading.Lock()
        self.passed = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        while True:
            try:
                near = self._listener.accept()[0]
                far = socket.create_connection(("127.0.0.1", self._port), timeout=WAIT_S)
            except OSError:
                return
            self._sockets += [near, far]
            for source, target in ((near, far), (far, near)):
                threading.Thread(target=self._pass, args=(source, target), daemon=True).start()

    def _pass(self, source, target):
        try:
            while data := source.recv(65536):
                with self._lock:
                    self.passed += len(data)  # before they go: the call that they answer returns at once
                target.sendall(data)
        except OSError:
            pass
        for end in (source, target):
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    def stop(self):
        for end in self._sockets:
            end.close()


class TestGil(MasterCase):
    def test_every_call_lets_other_threads_run(self):
        relay = Relay(self.master.port)
        self.addCleanup(relay.stop)
        store = self.new_store(address=relay.address)  # setup() itself
        buffer, target = Buffer(pattern(1, 64)), Buffer(64)

        def passes(result, expected):
            nonlocal before
            self.assertEqual(result, expected)
            self.assertGreater(relay.passed, before, "the call did not ask the master")
            before = relay.passed

        before = 0
        self.assertEqual(store.register_buffer(buffer.ptr, 64), 0)
        self.assertEqual(store.register_buffer(target.ptr, 64), 0)
        passes(store.health_check(), 0)
        passes(store.put("a", b"value"), 0)
        passes(store.put_from("b", buffer.ptr, 64), 0)
        passes(store.batch_put_from(["c"], [buffer.ptr], [64]), [0])
        passes(store.batch_put_from_multi_buffers(["d"], [[buffer.ptr, buffer.ptr]], [[8, 8]]), [0])
        passes(store.get("a"), b"value")
        passes(store.get_into("b", target.ptr, 64), 64)
        passes(store.batch_get_into(["c"], [target.ptr], [64]), [64])
        passes(store.batch_get_into_multi_buffers(["d"], [[target.ptr, target.ptr + 8]], [[8, 8]]), [16])
        passes(store.is_exist("a"), 1)
        passes(store.batch_is_exist(["a", "z"]), [1, 0])
        passes(store.get_size("a"), 5)
        passes(len(store.get_replica_desc("a")), 1)
        passes(list(store.batch_get_replica_desc(["a"])), ["a"])
        passes(store.remove("a", True), 0)
        passes(store.remove_all(True), 3)
        passes(store.close(), 0)

    def test_setup_at_a_silent_master(self):
        """Threads run while setup waits; the wait ends when the master hangs up."""
        with socket.create_server(("127.0.0.1", 0)) as listener:
            listener.settimeout(WAIT_S)
            result = []

            def call():
                result.append(MooncakeDistributedStore().setup(
                    "127.0.0.1", "P2PHANDSHAKE", MIB, MIB, "tcp", "", f"127.0.0.1:{listener.getsockname()[1]}"))

            caller = threading.Thread(target=call, daemon=True)
            caller.start()
            connection = listener.accept()[0]
            connection.settimeout(WAIT_S)
            self.assertGreater(len(connection.recv(1)), 0)
            self.assertTrue(caller.is_alive())
            connection.close()
            listener.close()
            caller.join(WAIT_S)
            self.assertIn(result[0], (-900, -901))


if __name__ == "__main__":
    unittest.main()
