#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""KV transfer stats of a prefill/decode pair, without vLLM or a GPU.

Two processes on loopback. The decode side takes blocks of its KV cache, asks the prefill side for a request, and the
prefill side pushes the request's blocks into them with mooncake.engine, as vLLM's Mooncake connector does. Every byte
is checked. Each side records what it sees in kvprobe.stats, prints the 'KV Transfer metrics: ...' line and serves
/metrics. One failure of each kind is made on purpose: a transfer to memory that the decode side has not registered
(prefill records a failed transfer, decode a failed receive), and a request that nobody fetches (prefill records it
as expired). The exit code is 0 if every byte arrived and exactly these failures were recorded, each on its side.

docs/pd_connector.md explains what is recorded where, and why.
"""

import argparse
import collections
import ctypes
import hashlib
import json
import mmap
import os
import random
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
import time

from kvprobe.stats import (KVConnectorLogging, MetricsServer, MooncakeConnector, MooncakeKVConnectorStats,
                           TransferMetrics, format_kv_transfer_metrics, get_kv_connector_stats)
from mooncake.engine import TransferEngine

EPILOG = """\
examples:
  python3 examples/pd_connector.py                               50 requests, a line per side, done
  python3 examples/pd_connector.py --wait --no-log               time to attach `kvprobe xfer -i 1` in another shell,
                                                                 which shows what these two do not print themselves
  VLLM_LOG_STATS_INTERVAL=2 python3 examples/pd_connector.py --duration 20 --rate 20
                                                                 a line every two seconds
  python3 examples/pd_connector.py --hold 600                    then fetch the two /metrics that it prints

PYTHONPATH has to name the directory of the packages kvprobe and mooncake, build/python in a build tree.
"""

FRAME_MAX = 1 << 20      # bytes of one message; more is refused, not allocated
ANSWER_S = 60            # one answer of the other side
CONNECT_S = 30           # until the prefill side is up
WAIT_S = 600             # for Enter, with --wait
IDLE_S = 7200            # without a message; more than any --duration, --hold or --wait
STEP_S = 0.1             # how often each side takes its stats, an engine's step
EXPIRE_S = 60.0          # a request that decode fetches has this long
EXPIRE_INJECTED_S = 0.2  # the one that nobody fetches
CACHE_MAX = 4 << 30


class Failure(Exception):
    """What ends the run with exit code 1 and one line on stderr."""


# --- the side channel: a length in four bytes, then JSON -----------------------------------------------------------


class Channel:
    """One connection. Requests and answers alternate, so that one thread at a time uses it."""

    def __init__(self, sock):
        self.socket = sock

    def send(self, message):
        data = json.dumps(message).encode()
        if len(data) > FRAME_MAX:
            raise Failure(f"a message of {len(data)} bytes, more than {FRAME_MAX}")
        self.socket.sendall(struct.pack("!I", len(data)) + data)

    def receive(self, timeout):
        """The next message, or None if the other side has closed."""
        self.socket.settimeout(timeout)
        head = self._exactly(4)
        if head is None:
            return None
        size, = struct.unpack("!I", head)
        if size > FRAME_MAX:
            raise Failure(f"the other side announces {size} bytes, more than {FRAME_MAX}")
        body = self._exactly(size)
        message = json.loads(body) if body is not None else None
        if not isinstance(message, dict):
            raise Failure("the other side sent something that is no message")
        return message

    def ask(self, message):
        self.send(message)
        answer = self.receive(ANSWER_S)
        if answer is None:
            raise Failure("the prefill side has gone")
        return answer

    def close(self):
        self.socket.close()

    def _exactly(self, size):
        data = bytearray()
        while len(data) < size:
            part = self.socket.recv(size - len(data))
            if not part:
                return None
            data += part
        return bytes(data)


# --- the KV cache: layers of blocks --------------------------------------------------------------------------------


class KvCache:
    """mmap'd in place of GPU memory. A request has the same blocks in each layer."""

    def __init__(self, layers, blocks, block_bytes):
        self.layers, self.block_bytes = layers, block_bytes
        self.memory = mmap.mmap(-1, layers * blocks * block_bytes)
        self.base = ctypes.addressof(ctypes.c_char.from_buffer(self.memory))
        self.layer_bytes = blocks * block_bytes
        self.bases = [self.base + layer * self.layer_bytes for layer in range(layers)]
        self._free = collections.deque(range(blocks))
        self._lock = threading.Lock()

    def register(self, engine):
        status = engine.batch_register_memory(self.bases, [self.layer_bytes] * self.layers)
        if status != 0:
            raise Failure(f"batch_register_memory: {status}")

    def allocate(self, count):
        with self._lock:
            if len(self._free) < count:
                raise Failure(f"no {count} free blocks")
            return [self._free.popleft() for _ in range(count)]

    def free(self, blocks):
        with self._lock:
            self._free.extend(blocks)

    def addresses(self, bases, blocks):
        """Layer by layer. bases: of this cache, or of a peer's with blocks of the same size."""
        return [base + block * self.block_bytes for base in bases for block in blocks]

    def fill(self, blocks, seed):
        """What the forward pass would have computed."""
        source = random.Random(seed)
        for address in self.addresses(self.bases, blocks):
            ctypes.memmove(address, source.randbytes(self.block_bytes), self.block_bytes)

    def digest(self, blocks):
        state = hashlib.sha256()
        for address in self.addresses(self.bases, blocks):
            offset = address - self.base
            state.update(memoryview(self.memory)[offset:offset + self.block_bytes])
        return state.hexdigest()


# --- what an engine does with the stats of its connector -----------------------------------------------------------


class Reporter:
    """Takes the stats at every step, prints the line at the interval, keeps /metrics and the totals up to date."""

    def __init__(self, stats, side, role, options, each_step=lambda: None):
        self.stats, self.side, self.log, self.each_step = stats, side, options.log, each_step
        self.total = MooncakeKVConnectorStats()
        self.logging = KVConnectorLogging(MooncakeConnector)
        self.metrics = TransferMetrics(model_name="example", engine="0", role=role)
        self.server = MetricsServer(self.metrics, options.metrics_port and options.metrics_port + (role == "consumer"))
        self.server.start()
        self._taking = threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="stats", daemon=True)
        self._thread.start()

    def step(self):
        self.each_step()
        with self._taking:
            snapshot = get_kv_connector_stats(self.stats)
            if snapshot is not None:
                self.metrics.observe(snapshot)
                self.logging.observe(snapshot.to_dict())
                self.total.aggregate(snapshot)
            if self.log:
                self.logging.maybe_log(lambda line: self.say("interval " + line))

    def say(self, text):
        print(f"{self.side} pid={os.getpid()} {text}", flush=True)

    def finish(self):
        """Take what is left. Returns the figures of the whole run."""
        self._stop.set()
        self._thread.join(ANSWER_S)
        self.step()
        reduced = self.total.reduce()
        if self.log:
            self.say("total " + format_kv_transfer_metrics(reduced))
        return reduced

    def close(self):
        self._stop.set()
        self.server.close()

    def _run(self):
        while not self._stop.wait(STEP_S):
            self.step()


def new_engine(cache):
    engine = TransferEngine()
    status = engine.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", "")
    if status != 0:
        raise Failure(f"TransferEngine.initialize: {status}")
    cache.register(engine)
    return engine


# --- the prefill side (kv_producer) --------------------------------------------------------------------------------


class Prefill:
    Waiting = collections.namedtuple("Waiting", "blocks expire_time")

    def __init__(self, options):
        self.cache = KvCache(options.layers, pool_blocks(options), options.block_bytes)
        self.engine = new_engine(self.cache)
        self.stats = MooncakeKVConnectorStats()
        self.reqs_need_send = {}
        self._lock = threading.Lock()
        self.reporter = Reporter(self.stats, "prefill", "producer", options, self.expire)
        self.handlers = {"hello": self.hello, "prefill": self.prefill, "pull": self.pull, "finish": self.finish}

    def hello(self, _message):
        return {"pid": os.getpid(), "port": self.reporter.server.port}

    def prefill(self, message):
        """Compute a request's blocks and keep them until decode fetches them, or nobody did."""
        blocks = self.cache.allocate(message["blocks"])
        self.cache.fill(blocks, message["request"])
        digest = self.cache.digest(blocks)
        with self._lock:
            self.reqs_need_send[message["request"]] = self.Waiting(blocks, time.perf_counter() + message["expire_s"])
        return {"digest": digest}

    def pull(self, message):
        """Push a request's blocks to where the decode side wants them."""
        with self._lock:
            waiting = self.reqs_need_send.pop(message["request"], None)
        if waiting is None:
            return {"error": "no such request, or it has expired", "code": None}
        try:
            sources = self.cache.addresses(self.cache.bases, waiting.blocks)
            targets = self.cache.addresses(message["kv_caches_base_addr"], message["block_ids"])
            if len(sources) != len(targets):
                return {"error": f"{len(targets)} addresses for {len(sources)} blocks", "code": None}
            code = self.send_blocks(message["session"], sources, targets)
        finally:
            self.cache.free(waiting.blocks)
        return {"error": "the transfer failed", "code": code} if code else {}

    def send_blocks(self, session, sources, targets):
        """One batched write: one row of the stats, whatever the number of its descriptors."""
        lengths = [self.cache.block_bytes] * len(sources)
        start = time.perf_counter()
        code = self.engine.batch_transfer_sync_write(session, sources, targets, lengths)
        duration = time.perf_counter() - start
        if code == 0:
            self.stats.record_transfer(duration_s=duration, total_bytes=sum(lengths), num_descs=len(lengths))
        else:
            self.stats.record_failed_transfer()
            print(f"prefill: a transfer to {session} failed with {code}", file=sys.stderr, flush=True)
        return code

    def expire(self):
        """Give up the blocks of requests that were not fetched in time."""
        now = time.perf_counter()
        with self._lock:
            late = [request for request, waiting in self.reqs_need_send.items() if waiting.expire_time < now]
            expired = [self.reqs_need_send.pop(request) for request in late]
        for waiting in expired:
            self.stats.record_kv_expired_req()
            self.cache.free(waiting.blocks)

    def finish(self, _message):
        deadline = time.monotonic() + ANSWER_S / 2
        while self.reqs_need_send and time.monotonic() < deadline:
            time.sleep(STEP_S)
        return {"reduced": self.reporter.finish()}

    def serve(self, channel):
        """Answer one connection until it closes."""
        try:
            while (message := channel.receive(IDLE_S)) is not None:
                channel.send(self.handlers[message["type"]](message))
        except (OSError, ValueError, KeyError, TypeError, Failure) as error:
            print(f"prefill: a connection ended: {error!r}", file=sys.stderr, flush=True)
        finally:
            channel.close()

    def close(self):
        self.reporter.close()


def run_prefill(options):
    """The child. It ends when the decode side has closed its connections, or is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches both; the decode side decides
    listener = socket.socket(fileno=options.listen_fd)
    listener.settimeout(CONNECT_S)
    side = Prefill(options)
    threads = []
    for _ in range(1 + options.streams):
        channel = Channel(listener.accept()[0])
        threads.append(threading.Thread(target=side.serve, args=(channel,)))
        threads[-1].start()
    for thread in threads:
        thread.join()
    side.close()
    return 0


# --- the decode side (kv_consumer) ---------------------------------------------------------------------------------


class Decode:
    def __init__(self, options):
        self.options = options
        self.cache = KvCache(options.layers, pool_blocks(options), options.block_bytes)
        self.engine = new_engine(self.cache)
        self.session = f"127.0.0.1:{self.engine.get_rpc_port()}"
        self.stats = MooncakeKVConnectorStats()
        self.reporter = Reporter(self.stats, "decode", "consumer", options)
        self.unregistered = mmap.mmap(-1, self.cache.layer_bytes)
        self.received = self.received_bytes = 0
        self.problems = []
        self._next = self._turns()
        self._turn = threading.Lock()
        self._lock = threading.Lock()

    def fetch(self, channel, request, bases=None):
        """One request: prefill it there, have its blocks pushed here, check them. Returns whether they came."""
        count = 1 + sum(request.encode()) % self.options.blocks
        blocks = self.cache.allocate(count)
        try:
            digest = channel.ask({"type": "prefill", "request": request, "blocks": count,
                                  "expire_s": EXPIRE_S})["digest"]
            try:
                answer = channel.ask({"type": "pull", "request": request, "session": self.session,
                                      "block_ids": blocks, "kv_caches_base_addr": bases or self.cache.bases})
            except (Failure, OSError):
                self.stats.record_failed_recv()
                raise
            if "error" in answer:
                self.stats.record_failed_recv()
                return False
            if self.cache.digest(blocks) != digest:
                raise Failure(f"request {request}: the blocks are not those that prefill computed")
        finally:
            self.cache.free(blocks)
        with self._lock:
            self.received += 1
            self.received_bytes += count * self.cache.layers * self.cache.block_bytes
        return True

    def fail_once(self, channel):
        """Ask for a request's last layer to be written to where nobody may write."""
        address = ctypes.addressof(ctypes.c_char.from_buffer(self.unregistered))
        if self.fetch(channel, "to-unregistered-memory", self.cache.bases[:-1] + [address]):
            raise Failure("a transfer to memory that is not registered succeeded")
        if self.unregistered[:] != bytes(len(self.unregistered)):
            raise Failure("a transfer wrote to memory that is not registered")

    def expire_once(self, channel):
        """A request that was prefilled and is then given up."""
        channel.ask({"type": "prefill", "request": "never-fetched", "blocks": 1, "expire_s": EXPIRE_INJECTED_S})

    def stream(self, channel):
        """Fetch requests, by turns with the other streams, until there are no more or something went wrong."""
        try:
            for request in iter(self._take_turn, None):
                if not self.fetch(channel, request):
                    raise Failure(f"request {request} failed")
        except (OSError, ValueError, KeyError, Failure) as error:
            self.problems.append(error)

    def _take_turn(self):
        with self._turn:
            return None if self.problems else next(self._next, None)

    def _turns(self):
        """The names of the requests, at the rate asked for."""
        options, start, number = self.options, time.monotonic(), 0
        while time.monotonic() < start + options.duration if options.duration else number < options.requests:
            if options.rate:
                time.sleep(max(0.0, start + number / options.rate - time.monotonic()))
            yield f"request-{number}"
            number += 1

    def run(self, control, channels):
        """All requests, and the failures among them."""
        threads = [threading.Thread(target=self.stream, args=(channel,), daemon=True) for channel in channels]
        for thread in threads:
            thread.start()
        self.expire_once(control)
        self.fail_once(control)
        for thread in threads:
            thread.join()
        if self.problems:
            raise self.problems[0]

    def close(self):
        self.reporter.close()


def wait_for_enter(decode, prefill_pid):
    print(f"prefill pid={prefill_pid} decode pid={os.getpid()}: press Enter to start", flush=True)
    if not select.select([sys.stdin], [], [], WAIT_S)[0]:
        raise Failure(f"nobody pressed Enter in {WAIT_S} s")
    sys.stdin.readline()


def check(result):
    """Every difference between what was recorded and what happened."""
    failures = ("Num failed transfers", "Num failed recvs", "Num KV expired reqs")
    wanted = {"prefill": (result["received"], 1, 0, 1), "decode": (0, 0, 1, 0)}
    return [f"{side}: {name}={result[side]['reduced'][name]}, not {value}"
            for side, values in wanted.items()
            for name, value in zip(("Num successful transfers", *failures), values)
            if result[side]["reduced"][name] != value]


def drive(decode, control, channels):
    options = decode.options
    prefill = control.ask({"type": "hello"})
    print(f"prefill pid={prefill['pid']} http://127.0.0.1:{prefill['port']}/metrics", flush=True)
    print(f"decode pid={os.getpid()} http://127.0.0.1:{decode.reporter.server.port}/metrics", flush=True)
    if options.wait:
        wait_for_enter(decode, prefill["pid"])
    decode.run(control, channels)
    prefill["reduced"] = control.ask({"type": "finish"})["reduced"]
    own = {"pid": os.getpid(), "port": decode.reporter.server.port, "reduced": decode.reporter.finish()}
    result = {"received": decode.received, "bytes": decode.received_bytes, "prefill": prefill, "decode": own}
    problems = check(result)
    print(f"{decode.received} requests, {decode.received_bytes} bytes received and checked", flush=True)
    for problem in problems:
        print(problem, file=sys.stderr)
    if options.json:
        print(json.dumps({**result, "ok": not problems}), flush=True)
    if options.hold:
        try:
            time.sleep(options.hold)
        except KeyboardInterrupt:
            pass  # the work is done, and its result stands
    return 1 if problems else 0


def run_decode(options):
    """The parent: starts the prefill side and asks it for requests."""
    channels, child = [], None
    listener = socket.create_server(("127.0.0.1", 0), backlog=1 + options.streams)
    decode = Decode(options)
    try:
        child = subprocess.Popen([sys.executable, os.path.abspath(__file__), *sys.argv[1:], "--listen-fd",
                                  str(listener.fileno())], pass_fds=[listener.fileno()], stdin=subprocess.DEVNULL)
        for _ in range(1 + options.streams):
            channels.append(Channel(socket.create_connection(listener.getsockname(), CONNECT_S)))
        listener.close()
        return drive(decode, channels[0], channels[1:])
    finally:
        listener.close()
        for channel in channels:
            channel.close()
        if child:
            reap(child)
        decode.close()


def reap(child):
    try:
        child.wait(CONNECT_S)
    except (subprocess.TimeoutExpired, KeyboardInterrupt):
        child.kill()
        child.wait()


# --- options -------------------------------------------------------------------------------------------------------


def pool_blocks(options):
    """Blocks of a cache: what the streams and the two injected failures may hold at a time."""
    return (options.streams + 2) * options.blocks


def number(convert, low, high):
    def parse(text):
        value = convert(text)
        if not low <= value <= high:
            raise argparse.ArgumentTypeError(f"{text}: not from {low} to {high}")
        return value
    return parse


def parse_options():
    parser = argparse.ArgumentParser(description=__doc__, epilog=EPILOG,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=number(int, 1, 1000000), default=50, metavar="N",
                        help="requests to move (default 50), besides those that are made to fail")
    parser.add_argument("--duration", type=number(float, 0.1, 3600), metavar="SECONDS",
                        help="go on for so long instead of for --requests")
    parser.add_argument("--rate", type=number(float, 0.1, 100000), metavar="R",
                        help="start at most R requests a second (default: as fast as they go)")
    parser.add_argument("--streams", type=number(int, 1, 64), default=2, metavar="N",
                        help="requests in flight at a time (default 2)")
    parser.add_argument("--layers", type=number(int, 1, 1024), default=16, metavar="N",
                        help="layers of the model; a transfer has a descriptor per layer and block (default 16)")
    parser.add_argument("--blocks", type=number(int, 1, 1024), default=4, metavar="N",
                        help="a request has 1 to N blocks in each layer (default 4)")
    parser.add_argument("--block-bytes", type=number(int, 1, 1 << 26), default=65536, metavar="BYTES",
                        help="bytes of a block in one layer (default 65536)")
    parser.add_argument("--no-log", dest="log", action="store_false",
                        help="do not print the 'KV Transfer metrics' lines (kvprobe xfer still can)")
    parser.add_argument("--wait", action="store_true",
                        help="print both pids and wait for Enter before the first request")
    parser.add_argument("--hold", type=number(float, 0, 3600), default=0, metavar="SECONDS",
                        help="keep serving /metrics for so long at the end (Ctrl-C ends it)")
    parser.add_argument("--metrics-port", type=number(int, 0, 65534), default=0, metavar="PORT",
                        help="serve the prefill side's /metrics on PORT, decode's on PORT + 1 (default 0: any)")
    parser.add_argument("--json", action="store_true",
                        help="print a last line with both sides' figures, pids and ports")
    parser.add_argument("--listen-fd", type=int, help=argparse.SUPPRESS)  # makes it the prefill side
    options = parser.parse_args()
    if options.layers * pool_blocks(options) * options.block_bytes > CACHE_MAX:
        parser.error(f"a KV cache of more than {CACHE_MAX >> 30} GiB; take fewer streams, layers, blocks or bytes")
    return options


def main():
    options = parse_options()
    try:
        return run_decode(options) if options.listen_fd is None else run_prefill(options)
    except (Failure, OSError, ValueError, KeyError) as error:
        print(f"pd_connector: {error if isinstance(error, Failure) else repr(error)}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 128 + signal.SIGINT


if __name__ == "__main__":
    sys.exit(main())
