# SPDX-License-Identifier: Apache-2.0
"""Stores in several processes: bytes over TCP, a worker that dies, fork, and the end of the interpreter."""

import os
import socket
import subprocess
import sys
import textwrap
import threading
import time
import unittest

import support
from support import MIB, NOT_FOUND, UNAVAILABLE, WAIT_S, Buffer, MasterCase, Peer, pattern


# fork() copies the sanitizers' allocator with the locks that other threads hold at that moment, for good in the
# child. So those tests let the store's new threads come to rest first.
SETTLE_S = 0 if support.PRESET == "release" else 0.5


class TestClosedStdio(MasterCase):
    """The next descriptor that is opened would be stderr, and log lines would go into the store's own sockets."""

    def test_no_descriptor_of_the_store_becomes_stderr(self):
        code = textwrap.dedent("""
            import os, sys
            from mooncake.store import MooncakeDistributedStore
            os.closerange(0, 3)
            store = MooncakeDistributedStore()
            assert store.setup("127.0.0.1", "P2PHANDSHAKE", 1 << 20, 1 << 20, "tcp", "", sys.argv[1]) == 0
            for i in range(20):
                assert store.put_from("empty", 4096, 0) == 0      # warns, on stderr
                assert store.put(f"k{i}", b"value") == 0
                assert store.get(f"k{i}") == b"value"
            assert not any(os.path.exists(f"/proc/self/fd/{fd}") for fd in range(3))
            os._exit(store.close())
        """)
        environment = dict(os.environ, PYTHONPATH=str(support.BUILD / "python"), MC_LOG_ENABLE="on")
        result = subprocess.run(
            [sys.executable, "-c", code, self.master.address], env=environment, timeout=WAIT_S, check=False
        )
        self.assertEqual(result.returncode, 0)


class TestTwoProcesses(MasterCase):
    def peer(self, segment):
        peer = Peer()
        self.addCleanup(peer.stop)
        self.assertEqual(
            peer.call("setup", "127.0.0.1", "P2PHANDSHAKE", segment, MIB, "tcp", "", self.master.address), 0
        )
        return peer

    def test_bytes_in_both_directions(self):
        owner = self.peer(32 * MIB)
        mine = self.new_store(segment=0)  # so all data lies with the owner
        keys = [f"from-owner.{i}" for i in range(4)]
        size = 64 * 1024
        self.assertEqual(owner.call("put_pattern", keys, 16, size), [0] * 4)

        target = Buffer(size * 4)
        self.assertEqual(mine.register_buffer(target.ptr, target.size), 0)
        ptrs = [[target.ptr + i * size + f * 4096 for f in range(16)] for i in range(4)]
        self.assertEqual(mine.batch_get_into_multi_buffers(keys, ptrs, [[4096] * 16] * 4), [size] * 4)
        for i in range(4):
            self.assertEqual(target.bytes(i * size, size), pattern(i, size))
        self.assertEqual(mine.get(keys[2]), pattern(2, size))
        endpoint = mine.get_replica_desc(keys[0])[0].get_memory_descriptor().buffer_descriptor.transport_endpoint
        self.assertEqual(endpoint, owner.call("get_hostname"))

        back = [f"to-owner.{i}" for i in range(4)]
        for i in range(4):
            target.fill(pattern(i, size), i * size)
        self.assertEqual(mine.batch_put_from_multi_buffers(back, ptrs, [[4096] * 16] * 4), [0] * 4)
        self.assertEqual(owner.call("get_pattern", back, 8, size), [[size] * 4, True])
        self.assertEqual(mine.put("copied", pattern(9, 100_000)), 0)
        self.assertEqual(owner.call("get_size", "copied"), 100_000)
        self.assertEqual(owner.call("remove_all", True), 9)
        self.assertEqual(mine.get_into("copied", target.ptr, target.size), NOT_FOUND)
        self.assertEqual(owner.call("close"), 0)

    def test_a_worker_that_leaves_takes_its_objects(self):
        owner = self.peer(8 * MIB)
        mine = self.new_store(segment=0)
        self.assertEqual(owner.call("put_pattern", ["gone"], 1, 4096), [0])
        self.assertEqual(mine.get("gone"), pattern(0, 4096))
        self.assertEqual(owner.call("close"), 0)
        self.assertEqual(mine.get("gone"), b"")
        self.assertEqual(mine.batch_is_exist(["gone"]), [0])
        self.assertEqual(mine.put("nowhere", b"v"), support.FULL)
        self.assertEqual(owner.stop(), 0)


class TestFork(MasterCase):
    def in_child(self, function):
        """What function() returns as text in a forked child."""
        reader, writer = os.pipe()
        time.sleep(SETTLE_S)
        pid = os.fork()
        if pid == 0:
            os.close(reader)
            try:
                os.write(writer, repr(function()).encode())
            except BaseException as error:  # noqa: BLE001
                os.write(writer, repr(error).encode())
            finally:
                os._exit(0)
        os.close(writer)
        killer = threading.Timer(WAIT_S, os.kill, (pid, 9))
        killer.start()
        with os.fdopen(reader, "rb") as pipe:
            text = pipe.read().decode()
        _, status = os.waitpid(pid, 0)
        killer.cancel()
        self.assertEqual(status, 0)
        return text

    def test_the_childs_calls_fail_and_the_parents_work(self):
        store = self.new_store()
        buffer = Buffer(64)
        self.assertEqual(store.register_buffer(buffer.ptr, 64), 0)
        self.assertEqual(store.put("k", b"value"), 0)

        def child():
            p = buffer.ptr
            return [
                store.batch_is_exist(["k", "l"]), store.batch_put_from_multi_buffers(["k"], [[p]], [[1]]),
                store.batch_get_into_multi_buffers(["k"], [[p]], [[64]]), store.batch_put_from(["k"], [p], [1]),
                store.batch_get_into(["k"], [p], [64]), store.put("k", b"v"), store.put_from("k", p, 1),
                store.get("k"), store.get_into("k", p, 64), store.get_size("k"), store.remove("k"),
                store.remove_all(), store.register_buffer(p, 64), store.unregister_buffer(p),
                store.batch_get_replica_desc(["k"]), store.get_replica_desc("k"), store.health_check(),
                store.get_hostname(), store.close(),
                store.setup("127.0.0.1", "P2PHANDSHAKE", 0, 0, "tcp", "", self.master.address),
            ]

        no = UNAVAILABLE
        expected = [[no, no], [no], [no], [no], [no], no, no, b"", no, no, no, no, no, no, {}, [], 1, "", no, no]
        self.assertEqual(self.in_child(child), repr(expected))
        self.assertEqual(store.get("k"), b"value")

    def test_the_childs_copy_may_die(self):
        code = textwrap.dedent(f"""
            import os, sys, time
            from mooncake.store import MooncakeDistributedStore
            store = MooncakeDistributedStore()
            assert store.setup("127.0.0.1", "P2PHANDSHAKE", 1 << 22, 1 << 20, "tcp", "", "{self.master.address}") == 0
            assert store.put("k3", b"value") == 0
            time.sleep({SETTLE_S})
            pid = os.fork()
            if pid == 0:
                del store
                os._exit(0)
            _, status = os.waitpid(pid, 0)
            ok = status == 0 and store.get("k3") == b"value" and store.close() == 0
            sys.exit(0 if ok else 1)
            """)
        done = support.run_python(code)
        self.assertEqual(done.returncode, 0, done.stderr)

    # ThreadSanitizer's runtime ends a forked child that starts threads of its own.
    if support.PRESET != "tsan":

        def test_a_store_of_the_childs_own(self):
            store = self.new_store()
            self.assertEqual(store.put("k4", b"value"), 0)
            code = textwrap.dedent(f"""
                import os, sys, time
                from mooncake.store import MooncakeDistributedStore
                def new():
                    store = MooncakeDistributedStore()
                    assert store.setup("127.0.0.1", "P2PHANDSHAKE", 0, 1 << 20, "tcp", "", "{self.master.address}") == 0
                    return store
                mine = new()
                time.sleep({SETTLE_S})
                pid = os.fork()
                if pid == 0:
                    theirs = new()
                    ok = theirs.get("k4") == b"value" and theirs.close() == 0
                    os._exit(0 if ok else 1)
                ok = mine.get("k4") == b"value"
                _, status = os.waitpid(pid, 0)
                sys.exit(0 if ok and status == 0 else 1)
                """)
            done = support.run_python(code)
            self.assertEqual(done.returncode, 0, done.stderr)

    def test_multiprocessing_with_fork(self):
        code = textwrap.dedent("""
            import multiprocessing, time
            from mooncake.store import MooncakeDistributedStore
            store = MooncakeDistributedStore()
            assert store.setup("127.0.0.1", "P2PHANDSHAKE", 1 << 22, 1 << 20, "tcp", "", "embedded") == 0
            assert store.put("k", b"value") == 0
            def work(queue):
                queue.put(store.batch_is_exist(["k"]))
            time.sleep(SETTLE)
            context = multiprocessing.get_context("fork")
            queue = context.SimpleQueue()
            child = context.Process(target=work, args=(queue,))
            child.start()
            assert queue.get() == [-1010]
            child.join(30)
            assert child.exitcode == 0, child.exitcode
            assert store.get("k") == b"value"
            assert store.close() == 0
            """).replace("SETTLE", str(SETTLE_S))
        done = support.run_python(code)
        self.assertEqual(done.returncode, 0, done.stderr)


class TestInterpreterExit(unittest.TestCase):
    HEAD = textwrap.dedent("""
        import sys, threading, time
        from mooncake.store import MooncakeDistributedStore
        def new(master="embedded"):
            store = MooncakeDistributedStore()
            assert store.setup("127.0.0.1", "P2PHANDSHAKE", 1 << 22, 1 << 20, "tcp", "", master) == 0
            assert store.put("k", b"value") == 0
            return store
        """)

    def ends_well(self, body, code=0):
        done = support.run_python(self.HEAD + textwrap.dedent(body))
        self.assertEqual(done.returncode, code, done.stderr)

    def test_never_closed(self):
        self.ends_well("store = new()")

    def test_in_a_cycle(self):
        self.ends_well("""
            holder = []
            holder.append((new(), holder))
            sys.modules["keeps_it_to_the_very_end"] = holder
            """)

    def test_sys_exit_and_exception(self):
        self.ends_well("store = new()\nsys.exit(3)", 3)
        self.ends_well("store = new()\nraise RuntimeError('wanted')", 1)

    def test_daemon_thread_that_calls(self):
        self.ends_well("""
            store = new()
            def forever():
                while True:
                    store.batch_is_exist(["k"] * 100)
                    store.get("k")
            for _ in range(2):
                threading.Thread(target=forever, daemon=True).start()
            time.sleep(0.3)
            """)

    def test_daemon_thread_in_a_call_that_hangs(self):
        with socket.create_server(("127.0.0.1", 0)) as silent:
            self.ends_well(f"""
                started = threading.Event()
                def hang():
                    started.set()
                    MooncakeDistributedStore().setup("127.0.0.1", "P2PHANDSHAKE", 0, 1 << 20, "tcp", "",
                                                     "127.0.0.1:{silent.getsockname()[1]}")
                threading.Thread(target=hang, daemon=True).start()
                started.wait()
                time.sleep(0.3)
                """)

    def test_many_stores_die_one_after_the_other(self):
        self.ends_well("""
            for _ in range(5):
                store = new()
            """)

    def test_killed_by_a_signal(self):
        done = subprocess.run(
            [sys.executable, "-c", self.HEAD + "import os, signal\nstore = new()\nos.kill(os.getpid(), signal.SIGTERM)"],
            env=dict(os.environ, PYTHONPATH=str(support.BUILD / "python")), timeout=WAIT_S, check=False,
        )
        self.assertEqual(done.returncode, -15)


if __name__ == "__main__":
    unittest.main()
