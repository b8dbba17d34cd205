# SPDX-License-Identifier: Apache-2.0
"""Where the stats go: the log line, metrics in vLLM's registry, /metrics over HTTP."""

import contextlib
import http.server
import logging
import os
import socket
import threading
import time

from kvprobe._connector_stats import get_kv_connector_class
from kvprobe._stats import METRICS
from kvprobe._vllm_bases import KVConnectorPromMetrics

logger = logging.getLogger("kvprobe.stats")

# --- the log line ----------------------------------------------------------------------------------------------

DEFAULT_INTERVAL = 10.0


def _default_interval():
    text = os.environ.get("VLLM_LOG_STATS_INTERVAL", "")
    try:
        return _positive(float(text)) if text else DEFAULT_INTERVAL
    except ValueError:
        logger.warning("VLLM_LOG_STATS_INTERVAL=%r is not a number above 0; the interval is %g s", text,
                       DEFAULT_INTERVAL)
        return DEFAULT_INTERVAL


def _positive(seconds):
    if not 0 < seconds < float("inf"):
        raise ValueError(f"an interval must be a number of seconds above 0, not {seconds!r}")
    return seconds


def format_kv_transfer_metrics(figures):
    """The log line of what reduce() returned."""
    return "KV Transfer metrics: " + ", ".join(f"{name}={value}" for name, value in figures.items())


class KVConnectorLogging:
    """Accumulates snapshots and writes the line "KV Transfer metrics: name=value, ..." of them.

    connector_cls: a class with build_kv_connector_stats(data), or the name under which it is registered.
    interval: seconds between lines of maybe_log(); default VLLM_LOG_STATS_INTERVAL, or 10. Any thread may call.
    """

    def __init__(self, connector_cls, interval=None):
        if isinstance(connector_cls, str):
            connector_cls = get_kv_connector_class(connector_cls)
        self.connector_cls = connector_cls
        self.interval = _default_interval() if interval is None else _positive(float(interval))
        self.transfer_stats_accumulator = None
        self._lock = threading.RLock()
        self._last = time.monotonic()
        self._warned = False

    def reset(self):
        """Drop what is accumulated."""
        with self._lock:
            self.transfer_stats_accumulator = None

    def observe(self, transfer_stats_data):
        """Add one snapshot, given as its `data` or to_dict()."""
        stats = self.connector_cls.build_kv_connector_stats(transfer_stats_data)
        with self._lock:
            if stats is None:
                if not self._warned:
                    logger.warning("%s builds no stats of what it is given; it is not logged", self.connector_cls)
                self._warned = True
            elif self.transfer_stats_accumulator is None:
                self.transfer_stats_accumulator = stats
            else:
                self.transfer_stats_accumulator = self.transfer_stats_accumulator.aggregate(stats)

    def log(self, log_fn=logger.info):
        """Write the line by log_fn(text), and begin anew. Without anything to tell there is no line. Returns whether
        there was one."""
        with self._lock:
            accumulated = self.transfer_stats_accumulator
            if accumulated is None or accumulated.is_empty():
                return False
            self.transfer_stats_accumulator = None
        log_fn(format_kv_transfer_metrics(accumulated.reduce()))
        return True

    def maybe_log(self, log_fn=logger.info):
        """log() if the interval has passed since the last time; to be called as often as one likes."""
        with self._lock:
            now = time.monotonic()
            if now - self._last < self.interval:
                return False
            self._last = now
        return self.log(log_fn)


# --- metrics in vLLM's registry --------------------------------------------------------------------------------

ROLES = {"kv_producer": "producer", "kv_consumer": "consumer", "kv_both": "both"}

HISTOGRAMS = [metric for metric in METRICS if metric[3]]
COUNTERS = [metric for metric in METRICS if not metric[3]]


class MooncakePromMetrics(KVConnectorPromMetrics):
    """The KV transfer metrics in the registry that vLLM hands to connectors, with a label `role` besides its own:
    producer, consumer, both or unknown, from vllm_config.kv_transfer_config.kv_role."""

    def __init__(self, vllm_config, metric_types, labelnames, per_engine_labelvalues):
        super().__init__(vllm_config, metric_types, labelnames, per_engine_labelvalues)
        make = {kind if isinstance(kind, str) else kind.__name__: made for kind, made in metric_types.items()}
        role = ROLES.get(getattr(getattr(vllm_config, "kv_transfer_config", None), "kv_role", None), "unknown")
        names = [*labelnames, "role"]
        self._warned = False

        def per_engine(metric):
            return {idx: metric.labels(*values, role) for idx, values in per_engine_labelvalues.items()}

        self._histograms = {
            key: per_engine(make["Histogram"](name=name, documentation=text, buckets=bounds, labelnames=names))
            for key, name, text, bounds in HISTOGRAMS
        }
        self._counters = {
            key: per_engine(make["Counter"](name=name, documentation=text, labelnames=names))
            for key, name, text, _ in COUNTERS
        }

    def observe(self, transfer_stats_data, engine_idx=0):
        """Count in a snapshot's `data` or to_dict(): one observation per item of a histogram's list, one increment
        by each item of a counter's."""
        for key, metrics in self._histograms.items():
            for value in list(transfer_stats_data.get(key, ())):
                metrics[engine_idx].observe(value)
        for key, metrics in self._counters.items():
            for value in list(transfer_stats_data.get(key, ())):
                metrics[engine_idx].inc(value)
        if "overflow" in transfer_stats_data:
            self._observe_overflow(transfer_stats_data["overflow"], engine_idx)

    def _observe_overflow(self, overflow, engine_idx):
        for (key, *_), count in zip(COUNTERS, overflow["failures"]):
            self._counters[key][engine_idx].inc(count)
        if overflow.get("ns_counts") and not self._warned:
            self._warned = True
            logger.warning("more transfers than a snapshot keeps rows of: the rest is not in the histograms")


# --- metrics over HTTP -----------------------------------------------------------------------------------------

TEXT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS_TYPE = "application/openmetrics-text; version=1.0.0; charset=utf-8"
REQUEST_SECONDS = 10
MAX_REQUESTS = 16


def _wants_openmetrics(accept):
    """Does the client like OpenMetrics at least as much as plain text?"""
    liking = {"application/openmetrics-text": 0.0, "text/plain": 0.0}
    for item in accept.split(","):
        kind, *parameters = (part.strip().lower() for part in item.split(";"))
        if kind in liking:
            liking[kind] = max(liking[kind], _quality(parameters))
    return 0 < liking["application/openmetrics-text"] >= liking["text/plain"]


def _quality(parameters):
    for parameter in parameters:
        name, _, value = parameter.partition("=")
        if name.strip() == "q":
            try:
                return float(value)
            except ValueError:
                return 0.0
    return 1.0


class _Handler(http.server.BaseHTTPRequestHandler):
    timeout = REQUEST_SECONDS
    server_version = "kvprobe"

    def do_GET(self):  # noqa: N802
        if self.path.partition("?")[0] != "/metrics":
            self.send_error(404)
            return
        openmetrics = _wants_openmetrics(",".join(self.headers.get_all("Accept", [])))
        body = self.server.metrics.text(openmetrics=openmetrics).encode()
        self.send_response(200)
        self.send_header("Content-Type", OPENMETRICS_TYPE if openmetrics else TEXT_TYPE)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    do_HEAD = do_GET

    def log_message(self, format, *args):
        logger.debug("%s %s", self.address_string(), format % args)


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def __init__(self, address, metrics):
        self.metrics = metrics
        self._free = threading.BoundedSemaphore(MAX_REQUESTS)
        self._ends = {}  # request that is being served -> when it has to be over
        self._ends_lock = threading.Lock()
        super().__init__(address, _Handler)

    def service_actions(self):
        """The handler's timeout starts anew with every byte: this one ends clients that drip, and those that hang."""
        now = time.monotonic()
        with self._ends_lock:
            for request, end in self._ends.items():
                if now >= end:
                    with contextlib.suppress(OSError):
                        request.shutdown(socket.SHUT_RDWR)

    def process_request(self, request, client_address):
        if not self._free.acquire(blocking=False):
            logger.warning("/metrics: more than %d requests at once; one is refused", MAX_REQUESTS)
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:
            self._free.release()
            raise

    def process_request_thread(self, request, client_address):
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def finish_request(self, request, client_address):
        with self._ends_lock:
            self._ends[request] = time.monotonic() + REQUEST_SECONDS
        try:
            super().finish_request(request, client_address)
        finally:
            with self._ends_lock:
                del self._ends[request]

    def handle_error(self, request, client_address):
        logger.debug("/metrics: a request of %s failed", client_address, exc_info=True)


class MetricsServer:
    """Serves /metrics of a TransferMetrics (or of whatever has text(openmetrics=...)) until close().

    host: loopback unless told otherwise; port: 0 for any, which start() returns. Also usable by `with`."""

    def __init__(self, metrics, port=0, host="127.0.0.1"):
        self._server = _Server((host, port), metrics)
        self._thread = None
        self.host = host
        self.port = self._server.server_address[1]

    def start(self):
        """Serve from a thread of its own; returns the port."""
        if self._server is None:
            raise RuntimeError("this server is closed")
        if self._thread is None:
            self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.1},
                                            name="kvprobe-metrics", daemon=True)
            self._thread.start()
        return self.port

    def close(self):
        """Stop serving and free the port. May be called again."""
        server, self._server = self._server, None
        if server is None:
            return
        if self._thread is not None:
            server.shutdown()
            self._thread.join()
        server.server_close()

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *unused):
        self.close()
