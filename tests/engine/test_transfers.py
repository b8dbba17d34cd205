# SPDX-License-Identifier: Apache-2.0
"""Transfers that work: every size, number and place of descriptors, both ways, many threads; every byte compared."""

import concurrent.futures
import random
import unittest

from support import MIB, EngineCase, pattern

GUARD = 64  # bytes around every range that must stay as they are
UNTOUCHED = 0xEE


class Transfers(EngineCase):
    def layout(self, sizes, seed):
        """Offsets of ranges of these sizes, apart from one another, unaligned and in another order; and the total."""
        draw = random.Random(seed)
        order = list(range(len(sizes)))
        draw.shuffle(order)
        offsets, at = [0] * len(sizes), GUARD + draw.randrange(64)
        for i in order:
            offsets[i] = at
            at += sizes[i] + GUARD + draw.randrange(64)
        return offsets, at + GUARD

    def check_gaps(self, where, offsets, sizes, total, only):
        end = 0
        for offset, size in sorted(zip(offsets, sizes)):
            self.assertTrue(only(end, offset - end), f"{where}: bytes before {offset} changed")
            end = offset + size
        self.assertTrue(only(end, total - end), f"{where}: bytes after {end} changed")

    def both_ways(self, sizes, seed=1):
        here_at, here_size = self.layout(sizes, seed)
        there_at, there_size = self.layout(sizes, seed + 1)
        here = self.memory(bytes([UNTOUCHED]) * here_size)
        there = self.peer.new(there_size, UNTOUCHED)
        self.assertGreater(there, 0)
        for i, (offset, size) in enumerate(zip(here_at, sizes)):
            here.fill(pattern(i + seed, size), offset)
        ptrs, remote = [here.ptr + at for at in here_at], [there + at for at in there_at]

        rc = self.engine.batch_transfer_sync_write(self.peer.session, ptrs, remote, sizes)
        self.assertEqual(rc, 0)
        for i, size in enumerate(sizes):
            self.assertTrue(self.peer.holds(remote[i], size, i + seed), f"write of {size} bytes")
            self.peer.pattern(remote[i], size, i + seed + 100)
        self.check_gaps("peer", there_at, sizes, there_size,
                        lambda at, size: self.peer.only(there + at, size, UNTOUCHED))

        rc = self.engine.batch_transfer_sync_read(self.peer.session, ptrs, remote, sizes)
        self.assertEqual(rc, 0)
        for i, size in enumerate(sizes):
            self.assertTrue(here.bytes(here_at[i], size) == pattern(i + seed + 100, size), f"read of {size} bytes")
        self.check_gaps("here", here_at, sizes, here_size,
                        lambda at, size: here.bytes(at, size) == bytes([UNTOUCHED]) * size)
        self.assertEqual(self.peer.unregister_memory(there), 0)

    def test_one_descriptor_of_every_size(self):
        for size in (1, 2, 3, 63, 64, 4095, 4096, 4097, 65535, MIB, MIB + 1, 16 * MIB + 3, 64 * MIB):
            with self.subTest(size=size):
                self.both_ways([size])

    def test_many_descriptors(self):
        draw = random.Random(5)
        for count in (2, 17, 255, 256, 257, 1000):
            with self.subTest(count=count):
                self.both_ways([draw.choice((1, 7, 100, 4096, 5000)) for _ in range(count)], seed=count)

    def test_large_and_small_together(self):
        self.both_ways([1, 64 * MIB, 3, 8 * MIB + 1, 1], seed=9)

    def test_single_calls(self):
        here, there = self.memory(b"0123456789"), self.peer.new(10, UNTOUCHED)
        self.assertEqual(self.engine.transfer_sync_write(self.peer.session, here.ptr + 2, there + 1, 3), 0)
        self.assertEqual(self.engine.transfer_sync_read(self.peer.session, here.ptr + 5, there, 5), 0)
        self.assertEqual(here.bytes(), b"01234\xee234\xee")

    def test_no_descriptors(self):
        self.assertEqual(self.engine.batch_transfer_sync_write(self.peer.session, [], [], []), 0)

    def test_the_peer_writes_back(self):
        here, there = self.memory(bytes(1000)), self.peer.new(1000, 3)
        session = f"127.0.0.1:{self.engine.get_rpc_port()}"
        self.assertEqual(self.peer.transfer_sync_write(session, there, here.ptr, 1000), 0)
        self.assertEqual(here.bytes(), b"\3" * 1000)

    def test_eight_threads(self):
        threads, rounds, part = 8, 40, 256 << 10
        here = self.memory(bytes(threads * part))
        there = self.peer.new(threads * part, UNTOUCHED)

        def work(thread):
            draw, base = random.Random(thread), thread * part
            for number in range(rounds):
                size = draw.randrange(1, part)
                at = base + draw.randrange(part - size)
                data = pattern(thread * rounds + number, size)
                here.fill(data, at)
                ranges = ([here.ptr + at], [there + at], [size])
                if self.engine.batch_transfer_sync_write(self.peer.session, *ranges) != 0:
                    return f"thread {thread} round {number}: write"
                here.fill(bytes(size), at)
                if self.engine.batch_transfer_sync_read(self.peer.session, *ranges) != 0:
                    return f"thread {thread} round {number}: read"
                if here.bytes(at, size) != data:
                    return f"thread {thread} round {number}: other bytes"
            return None

        with concurrent.futures.ThreadPoolExecutor(threads) as pool:
            self.assertEqual([wrong for wrong in pool.map(work, range(threads)) if wrong], [])


if __name__ == "__main__":
    unittest.main()
