# SPDX-License-Identifier: Apache-2.0
"""Transfers that cannot work: each has its code within the timeout, harms nothing, and the next good one works. What
each failure gave and how long it took is printed."""

import os
import socket
import threading
import time
import unittest

from support import FAILED, INVALID, MIB, OK, TIMEOUT_S, Buffer, EngineCase

SIZE = 4096
GRACE_S = 60  # beyond the timeout: a loaded host, sanitizers


class Failures(EngineCase):
    def timeout_s(self):
        return TIMEOUT_S

    def setUp(self):
        super().setUp()
        self.here = self.memory(b"a" * SIZE)
        self.there = self.peer.new(SIZE, 0)
        self.assertGreater(self.there, 0)

    def good_transfer(self):
        session, ranges = self.peer.session, (self.here.ptr, self.there, SIZE)
        self.assertEqual(self.engine.transfer_sync_write(session, *ranges), OK)
        self.assertTrue(self.peer.only(self.there, SIZE, ord("a")))
        self.assertEqual(self.engine.transfer_sync_read(session, *ranges), OK)
        self.assertEqual(self.here.bytes(), b"a" * SIZE)

    def fails(self, what, code, function, *arguments, then_good=True):
        begin = time.monotonic()
        rc = function(*arguments)
        seconds = time.monotonic() - begin
        print(f"{what}: {rc} after {seconds:.3f} s", flush=True)
        self.assertEqual(rc, code, what)
        self.assertLess(seconds, TIMEOUT_S + GRACE_S, what)
        if then_good:
            self.good_transfer()

    def both_fail(self, what, code, session, local, remote, size):
        self.fails(f"write: {what}", code, self.engine.transfer_sync_write, session, local, remote, size)
        self.fails(f"read: {what}", code, self.engine.transfer_sync_read, session, local, remote, size)

    # --- ranges

    def test_address_not_registered_at_the_peer(self):
        self.both_fail("address 0 at the peer", INVALID, self.peer.session, self.here.ptr, 0, SIZE)
        self.both_fail("address of no range at the peer", INVALID, self.peer.session, self.here.ptr,
                       self.there + 16 * MIB, SIZE)

    def test_range_half_outside(self):
        for offset, size in ((-1, 2), (SIZE - 1, 2), (1, SIZE), (-1, SIZE)):
            self.both_fail(f"{size} bytes from {offset} of {SIZE} at the peer", INVALID, self.peer.session,
                           self.here.ptr, self.there + offset, size)

    def test_one_bad_range_among_good_ones(self):
        ptrs, remote = [self.here.ptr] * 3, [self.there, self.there + SIZE, self.there + 8]
        self.fails("one of three ranges outside", INVALID, self.engine.batch_transfer_sync_write, self.peer.session,
                   ptrs, remote, [8, 8, 8])

    def test_local_range_not_registered(self):
        stranger = Buffer(b"s" * SIZE)
        self.both_fail("local range not registered", INVALID, self.peer.session, stranger.ptr, self.there, SIZE)
        self.both_fail("local range half outside", INVALID, self.peer.session, self.here.ptr + 1, self.there, SIZE)
        self.assertEqual(stranger.bytes(), b"s" * SIZE)

    def test_unregistered_again(self):
        self.assertEqual(self.peer.unregister_memory(self.there), OK)
        self.fails("unregistered at the peer", INVALID, self.engine.transfer_sync_write, self.peer.session,
                   self.here.ptr, self.there, SIZE, then_good=False)
        self.assertEqual(self.peer.register_memory(self.there, SIZE), OK)
        self.good_transfer()

    # --- peers that are not there

    def test_unknown_host(self):
        self.both_fail("unknown host", FAILED, "no-such-host.invalid:4711", self.here.ptr, self.there, SIZE)

    def test_no_one_listens(self):
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))  # and never listens
            self.both_fail("no one listens", FAILED, f"127.0.0.1:{taken.getsockname()[1]}", self.here.ptr, self.there,
                           SIZE)

    def test_no_session(self):
        for session in ("", "127.0.0.1", "127.0.0.1:0", "127.0.0.1:x", "[::1"):
            self.both_fail(f"session {session!r}", INVALID, session, self.here.ptr, self.there, SIZE)

    # --- peers that die, hang or lie

    def large_transfers(self, victim):
        """Writes of 64 MiB to the victim in a thread of their own, until one fails; (thread, [codes])."""
        size = 64 * MIB
        local, remote = self.memory(bytes(size)), victim.new(size, 0)
        codes = []

        def write_on():
            while not codes or codes[-1] == OK:
                codes.append(self.engine.transfer_sync_write(victim.session, local.ptr, remote, size))

        thread = threading.Thread(target=write_on)
        thread.start()
        deadline = time.monotonic() + GRACE_S
        while not codes and time.monotonic() < deadline:
            time.sleep(0.001)
        return thread, codes

    def ends_failed(self, what, thread, codes):
        begin = time.monotonic()
        thread.join(TIMEOUT_S + GRACE_S)
        print(f"{what}: {codes[-1]} after {time.monotonic() - begin:.3f} s ({len(codes) - 1} writes before)", flush=True)
        self.assertFalse(thread.is_alive(), what)
        self.assertEqual(codes[-1], FAILED, what)
        self.good_transfer()

    def test_peer_killed_in_the_middle(self):
        victim = self.new_peer()
        thread, codes = self.large_transfers(victim)
        victim.kill()
        self.ends_failed("peer killed in the middle", thread, codes)
        self.both_fail("peer dead", FAILED, victim.session, self.here.ptr, self.there, SIZE)

    def test_peer_stopped_in_the_middle(self):
        victim = self.new_peer()
        thread, codes = self.large_transfers(victim)
        victim.hold()
        self.ends_failed("peer stopped in the middle", thread, codes)
        self.both_fail("peer stopped", FAILED, victim.session, self.here.ptr, self.there, SIZE)
        victim.go_on()
        again = victim.new(SIZE, 0)
        self.assertEqual(self.engine.transfer_sync_write(victim.session, self.here.ptr, again, SIZE), OK)
        self.assertTrue(victim.only(again, SIZE, ord("a")))

    def test_peer_never_answers(self):
        with socket.create_server(("127.0.0.1", 0)) as silent:
            self.both_fail("accepted, never answered", FAILED, f"127.0.0.1:{silent.getsockname()[1]}", self.here.ptr,
                           self.there, SIZE)

    def test_garbage_from_a_peer(self):
        answers = (b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n", bytes(200), b"\xff" * 200,
                   os.urandom(200), b"K")
        with socket.create_server(("127.0.0.1", 0)) as liar:
            for answer in answers:
                for function in (self.engine.transfer_sync_write, self.engine.transfer_sync_read):
                    thread = threading.Thread(target=answer_once, args=(liar, answer))
                    thread.start()
                    self.fails(f"garbage of {len(answer)} bytes", FAILED, function,
                               f"127.0.0.1:{liar.getsockname()[1]}", self.here.ptr, self.there, SIZE)
                    thread.join(GRACE_S)
                    self.assertFalse(thread.is_alive())

    # --- unregister under way

    def test_unregister_while_the_peer_writes(self):
        """Once unregister_memory has returned the memory is ours: no byte of it changes."""
        size = 8 * MIB
        target, source = self.memory(bytes(size)), self.peer.new(size, 7)
        session = f"127.0.0.1:{self.engine.get_rpc_port()}"
        codes = []
        for _ in range(10):
            self.peer.send("transfer_sync_write", session, source, target.ptr, size)
            if len(codes) % 2:
                time.sleep(0.002)
            self.assertEqual(self.engine.unregister_memory(target.ptr), OK)
            target.fill(b"\x55" * size)
            codes.append(self.peer.answer())
            self.assertTrue(target.bytes() == b"\x55" * size)
            self.assertEqual(self.engine.register_memory(target.ptr, size), OK)
        print(f"unregister while the peer writes: {codes}", flush=True)
        self.assertLessEqual(set(codes), {OK, INVALID})
        self.good_transfer()

    # --- a store is no engine

    def test_store_refuses_addresses(self):
        from mooncake.store import MooncakeDistributedStore
        store = MooncakeDistributedStore()
        self.assertEqual(store.setup("127.0.0.1", "P2PHANDSHAKE", 16 * MIB, 4 * MIB, "tcp", "", "embedded"), 0)
        buffer = Buffer(b"s" * SIZE)
        self.assertEqual(store.register_buffer(buffer.ptr, SIZE), 0)
        self.both_fail("a store's registered buffer", INVALID, store.get_hostname(), self.here.ptr, buffer.ptr, SIZE)
        self.assertEqual(buffer.bytes(), b"s" * SIZE)
        self.assertEqual(store.put("k", b"v"), 0)
        self.assertEqual(store.get("k"), b"v")
        self.assertEqual(store.close(), 0)


def answer_once(listener, answer):
    listener.settimeout(GRACE_S)
    connection, _ = listener.accept()
    with connection:
        connection.settimeout(GRACE_S)
        try:
            connection.recv(1 << 16)
            connection.sendall(answer)
            connection.shutdown(socket.SHUT_WR)
            while connection.recv(1 << 16):
                pass
        except OSError:
            pass  # the engine hangs up at once: what the test wants


if __name__ == "__main__":
    unittest.main()
