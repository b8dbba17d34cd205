# SPDX-License-Identifier: Apache-2.0
"""The log line, the metrics in vLLM's registry, the metrics as text and over HTTP."""

import http.client
import logging
import os
import socket
import types
import unittest
from unittest import mock

from support import MIB, ROW_KEYS, WAIT_S, run_threads, stats_of
from kvprobe import _stats_output
from kvprobe.stats import (
    KVConnectorLogging,
    MetricsServer,
    MooncakeConnector,
    MooncakeKVConnectorStats,
    MooncakePromMetrics,
    MultiConnector,
    TransferMetrics,
    register_kv_connector,
)

ROWS = ((0.001, MIB, 4), (0.002, 2 * MIB, 6))
LINE = (
    "KV Transfer metrics: Num successful transfers=2, Avg xfer time (ms)=1.5, P90 xfer time (ms)=1.9, "
    "Avg MB per transfer=1.5, Throughput (MB/s)=1000.0, Avg number of descriptors=5.0, Num failed transfers=0, "
    "Num failed recvs=0, Num KV expired reqs=0"
)


@register_kv_connector
class SilentConnector:
    @classmethod
    def build_kv_connector_stats(cls, data=None):
        return None


class TestLogging(unittest.TestCase):
    def setUp(self):
        self.lines = []
        self.log = KVConnectorLogging(MooncakeConnector)

    def test_line(self):
        for row in ROWS:
            self.log.observe(stats_of(row).data)
        self.assertTrue(self.log.log(self.lines.append))
        self.assertEqual(self.lines, [LINE])
        figures = dict(item.partition("=")[::2] for item in self.lines[0].partition(": ")[2].split(", "))
        self.assertEqual(float(figures["Throughput (MB/s)"]), 1000.0)

    def test_line_without_a_success(self):
        self.log.observe(stats_of(failed=1).data)
        self.log.log(self.lines.append)
        self.assertIn("successful transfers=0, Avg xfer time (ms)=0, ", self.lines[0])
        self.assertTrue(self.lines[0].endswith("Num failed transfers=1, Num failed recvs=0, Num KV expired reqs=0"))

    def test_each_interval_begins_anew(self):
        self.assertFalse(self.log.log(self.lines.append))
        self.log.observe(MooncakeKVConnectorStats().data)
        self.assertFalse(self.log.log(self.lines.append))
        self.log.observe(stats_of(*ROWS).data)
        self.assertTrue(self.log.log(self.lines.append))
        self.assertFalse(self.log.log(self.lines.append))
        self.log.observe(stats_of(*ROWS).data)
        self.log.reset()
        self.assertFalse(self.log.log(self.lines.append))
        self.assertEqual(len(self.lines), 1)

    def test_beyond_the_limit(self):
        """What to_dict() takes along is in the line."""
        self.log.observe(stats_of(*ROWS * 50, row_limit=10).to_dict())
        self.log.observe(stats_of(*ROWS * 50, row_limit=10).to_dict())
        self.log.log(self.lines.append)
        self.assertIn("Num successful transfers=200, Avg xfer time (ms)=1.5, ", self.lines[0])
        self.assertIn("Throughput (MB/s)=1000.0, ", self.lines[0])

    def test_by_logger_and_by_name(self):
        log = KVConnectorLogging("MooncakeConnector")
        log.observe(stats_of(*ROWS).data)
        with self.assertLogs("kvprobe.stats", logging.INFO) as caught:
            log.log()
        self.assertEqual(caught.records[0].getMessage(), LINE)
        with self.assertRaisesRegex(ValueError, "Connector 'Nobody' is not registered."):
            KVConnectorLogging("Nobody")

    def test_a_connector_without_stats_is_said_once(self):
        log = KVConnectorLogging(SilentConnector)
        with self.assertLogs("kvprobe.stats", logging.WARNING) as caught:
            log.observe({"x": [1]})
            log.observe({"x": [1]})
        self.assertEqual(len(caught.records), 1)
        self.assertFalse(log.log(self.lines.append))

    def test_several_connectors(self):
        log = KVConnectorLogging(MultiConnector)
        log.observe({"MooncakeConnector": {"data": stats_of(*ROWS).data}})
        log.log(self.lines.append)
        self.assertTrue(self.lines[0].startswith("KV Transfer metrics: MooncakeConnector={'Num successful transfers': 2"))

    def test_interval(self):
        with mock.patch.dict(os.environ):
            os.environ.pop("VLLM_LOG_STATS_INTERVAL", None)
            self.assertEqual(KVConnectorLogging(MooncakeConnector).interval, 10.0)
            os.environ["VLLM_LOG_STATS_INTERVAL"] = "2.5"
            self.assertEqual(KVConnectorLogging(MooncakeConnector).interval, 2.5)
            self.assertEqual(KVConnectorLogging(MooncakeConnector, interval=3).interval, 3.0)
            for bad in ("x", "0", "-1", "nan", "inf"):
                os.environ["VLLM_LOG_STATS_INTERVAL"] = bad
                with self.assertLogs("kvprobe.stats", logging.WARNING):
                    self.assertEqual(KVConnectorLogging(MooncakeConnector).interval, 10.0)
        for bad in (0, -1, float("nan"), float("inf")):
            with self.assertRaises(ValueError):
                KVConnectorLogging(MooncakeConnector, interval=bad)

    def test_maybe_log(self):
        with mock.patch("time.monotonic") as clock:
            clock.return_value = 100.0
            log = KVConnectorLogging(MooncakeConnector, interval=10)
            log.observe(stats_of(*ROWS).data)
            clock.return_value = 109.9
            self.assertFalse(log.maybe_log(self.lines.append))
            clock.return_value = 110.0
            self.assertTrue(log.maybe_log(self.lines.append))
            log.observe(stats_of(*ROWS).data)
            clock.return_value = 119.0
            self.assertFalse(log.maybe_log(self.lines.append))
        self.assertEqual(self.lines, [LINE])

    def test_observers_on_many_threads(self):
        def observe():
            for _ in range(200):
                self.log.observe(stats_of(*ROWS).data)

        run_threads(*[observe] * 4)
        self.log.log(self.lines.append)
        self.assertIn("Num successful transfers=1600,", self.lines[0])


class FakeMetric:
    """As the classes of prometheus_client are called."""

    made = []

    def __init__(self, name, documentation, labelnames, buckets=None):
        self.name, self.documentation, self.labelnames, self.buckets = name, documentation, labelnames, buckets
        self.children = {}
        FakeMetric.made.append(self)

    def labels(self, *values):
        assert len(values) == len(self.labelnames)
        return self.children.setdefault(values, mock.Mock(spec=["observe", "inc"]))


class Gauge(FakeMetric):
    pass


class Counter(FakeMetric):
    pass


class Histogram(FakeMetric):
    pass


class TestPromMetrics(unittest.TestCase):
    TYPES = {Gauge: Gauge, Counter: Counter, Histogram: Histogram}
    ENGINES = {0: ["m", "0"], 1: ["m", "1"]}

    def make(self, kv_role="kv_producer", types_=None):
        FakeMetric.made = []
        config = types.SimpleNamespace(kv_transfer_config=types.SimpleNamespace(kv_role=kv_role))
        metrics = MooncakePromMetrics(config, types_ or self.TYPES, ["model_name", "engine"], self.ENGINES)
        self.made = {metric.name: metric for metric in FakeMetric.made}
        return metrics

    def test_families(self):
        self.make()
        seconds = [.005, .01, .025, .05, .075, .1, .2, .3, .5, .75, 1, 5]
        descriptors = [10, 20, 30, 50, 75, 100, 200, 400, 1000, 2000, 4000, 10000, 20000, 50000]
        self.assertEqual({name: (type(m), m.buckets) for name, m in self.made.items()}, {
            "vllm:mooncake_xfer_time_seconds": (Histogram, seconds),
            "vllm:mooncake_bytes_transferred": (Histogram, [2**p for p in range(11, 35, 2)]),
            "vllm:mooncake_num_descriptors": (Histogram, descriptors),
            "vllm:mooncake_num_failed_transfers": (Counter, None),
            "vllm:mooncake_num_failed_recvs": (Counter, None),
            "vllm:mooncake_num_kv_expired_reqs": (Counter, None),
        })
        for metric in self.made.values():
            self.assertEqual(metric.labelnames, ["model_name", "engine", "role"])
            self.assertIn("Only the side that moves the bytes", metric.documentation)
            self.assertEqual(set(metric.children), {("m", "0", "producer"), ("m", "1", "producer")})

    def test_the_same_words_as_the_text(self):
        self.make()
        text = TransferMetrics("m", "0", "producer").text()
        for metric in self.made.values():
            self.assertRegex(text, f"# HELP {metric.name}(_total)? ")
            self.assertIn(metric.documentation, text)

    def test_one_observation_per_item(self):
        metrics = self.make()
        metrics.observe(stats_of(*ROWS, failed=2, recvs=1).data, engine_idx=1)
        for name, key in (("xfer_time_seconds", 0), ("bytes_transferred", 1), ("num_descriptors", 2)):
            here, there = (self.made[f"vllm:mooncake_{name}"].labels("m", e, "producer") for e in "10")
            self.assertEqual(here.observe.call_args_list, [mock.call(row[key]) for row in ROWS])
            there.observe.assert_not_called()
        for name, n in (("failed_transfers", 2), ("failed_recvs", 1), ("kv_expired_reqs", 0)):
            child = self.made[f"vllm:mooncake_num_{name}"].labels("m", "1", "producer")
            self.assertEqual(child.inc.call_args_list, [mock.call(1)] * n)

    def test_partial_data_and_default_engine(self):
        metrics = self.make()
        metrics.observe({"num_failed_recvs": [1]})
        self.made["vllm:mooncake_num_failed_recvs"].labels("m", "0", "producer").inc.assert_called_once_with(1)

    def test_roles(self):
        for kv_role, role in (("kv_producer", "producer"), ("kv_consumer", "consumer"), ("kv_both", "both"),
                              ("", "unknown"), (None, "unknown")):
            self.make(kv_role)
            self.assertIn(("m", "0", role), self.made["vllm:mooncake_num_failed_recvs"].children)
        FakeMetric.made = []
        MooncakeConnector.build_prom_metrics(types.SimpleNamespace(), self.TYPES, ["model_name", "engine"], self.ENGINES)
        self.assertIn(("m", "0", "unknown"), FakeMetric.made[0].children)

    def test_types_by_name(self):
        self.make(types_={"Gauge": Gauge, "Counter": Counter, "Histogram": Histogram})
        self.assertEqual(len(self.made), 6)

    def test_beyond_the_limit(self):
        metrics = self.make()
        plain = stats_of(*ROWS * 10, failed=7, row_limit=5).to_dict()
        with self.assertLogs("kvprobe.stats", logging.WARNING) as caught:
            metrics.observe(plain)
            metrics.observe(plain)
        self.assertEqual(len(caught.records), 1)
        failed = self.made["vllm:mooncake_num_failed_transfers"].labels("m", "0", "producer")
        self.assertEqual(sum(call.args[0] for call in failed.inc.call_args_list), 14)


def samples(text):
    """{name and labels: value} of what is not a comment."""
    return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2])
            for line in text.splitlines() if line and not line.startswith("#")}


class TestTransferMetrics(unittest.TestCase):
    LABELS = 'model_name="m",engine="0",role="producer"'

    def value(self, metrics, name, extra=""):
        return samples(metrics.text())[f"vllm:mooncake_{name}{{{self.LABELS}{extra}}}"]

    def check(self, metrics, successes, failed):
        for name, total in (("xfer_time_seconds", 0.0015), ("bytes_transferred", 1.5 * MIB), ("num_descriptors", 5)):
            self.assertEqual(self.value(metrics, f"{name}_count"), successes)
            self.assertAlmostEqual(self.value(metrics, f"{name}_sum"), total * successes)
            self.assertEqual(self.value(metrics, f"{name}_bucket", ',le="+Inf"'), successes)
        self.assertEqual(self.value(metrics, "num_failed_transfers_total"), failed)
        self.assertEqual(self.value(metrics, "num_failed_recvs_total"), 0)

    def test_all_that_can_be_observed(self):
        in_core, in_lists = stats_of(*ROWS, failed=1), stats_of(*ROWS, failed=1)
        for what in (in_core, in_lists.data, in_lists, in_core.to_dict(),
                     stats_of(*ROWS, failed=1, row_limit=1).to_dict(), stats_of(*ROWS, failed=1, row_limit=1)):
            metrics = TransferMetrics("m", 0, "producer")
            metrics.observe(what)
            self.check(metrics, 2, 1)
            metrics.observe(what)
            self.check(metrics, 4, 2)

    def test_observe_takes_nothing_away(self):
        stats = stats_of(*ROWS)
        TransferMetrics("m", "0", "producer").observe(stats)
        self.assertEqual(stats.num_successful_transfers, 2)

    def test_openmetrics(self):
        metrics = TransferMetrics("m", "0", "producer")
        metrics.observe(stats_of(*ROWS))
        text = metrics.text(openmetrics=True)
        self.assertTrue(text.endswith("# EOF\n"))
        self.assertIn("# UNIT vllm:mooncake_xfer_time_seconds seconds\n", text)
        self.assertNotIn("# EOF", metrics.text())

    def test_labels_are_escaped(self):
        text = TransferMetrics('a"b\\c\nd\N{GREEK SMALL LETTER ALPHA}', "0", "producer").text()
        self.assertIn('model_name="a\\"b\\\\c\\nd\N{GREEK SMALL LETTER ALPHA}"', text)

    def test_bad_input(self):
        for arguments in ((), ("m",), ("m", "0", None), ("m", 1.5, "x"), ("m\0", "0", "x")):
            with self.subTest(arguments), self.assertRaises(TypeError):
                TransferMetrics(*arguments)
        metrics = TransferMetrics("m", "0", "producer")
        for what, error in ((None, TypeError), ([], TypeError), ({ROW_KEYS[0]: [1.0]}, AssertionError),
                            ({"overflow": 1}, TypeError), ({"overflow": {}}, ValueError),
                            ({key: [float("nan")] for key in ROW_KEYS}, ValueError)):
            with self.subTest(what), self.assertRaises(error):
                metrics.observe(what)
        self.check(metrics, 0, 0)

    def test_threads(self):
        metrics = TransferMetrics("m", "0", "producer")

        def observe():
            for _ in range(200):
                metrics.observe(stats_of(*ROWS, failed=1))
                metrics.text()

        run_threads(*[observe] * 4)
        self.check(metrics, 1600, 800)


class TestServer(unittest.TestCase):
    def setUp(self):
        self.metrics = TransferMetrics("m", "0", "producer")
        self.metrics.observe(stats_of(*ROWS))
        self.server = MetricsServer(self.metrics)
        self.addCleanup(self.server.close)
        self.port = self.server.start()

    def request(self, method="GET", path="/metrics", **headers):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=WAIT_S)
        try:
            connection.request(method, path, headers=headers)
            response = connection.getresponse()
            return response.status, response.headers["Content-Type"], response.read().decode()
        finally:
            connection.close()

    def test_text(self):
        for accept in ({}, {"Accept": "*/*"}, {"Accept": "text/plain"},
                       {"Accept": "application/openmetrics-text;q=0.4,text/plain;q=0.5"},
                       {"Accept": "application/openmetrics-text;q=0"}, {"Accept": "application/openmetrics-text;q=x"}):
            status, kind, text = self.request(**accept)
            self.assertEqual((status, kind), (200, "text/plain; version=0.0.4; charset=utf-8"))
            self.assertEqual(text, self.metrics.text())

    def test_openmetrics(self):
        for accept in ("application/openmetrics-text",
                       "application/openmetrics-text;version=1.0.0;q=0.6,text/plain;version=0.0.4;q=0.5,*/*;q=0.1"):
            status, kind, text = self.request(Accept=accept)
            self.assertEqual((status, kind), (200, "application/openmetrics-text; version=1.0.0; charset=utf-8"))
            self.assertEqual(text, self.metrics.text(openmetrics=True))

    def test_other_requests(self):
        self.assertEqual(self.request(path="/metrics?x=1")[0], 200)
        self.assertEqual(self.request("HEAD")[::2], (200, ""))
        self.assertEqual(self.request(path="/")[0], 404)
        self.assertEqual(self.request("POST")[0], 501)

    def test_a_client_that_says_nothing_blocks_nobody(self):
        with socket.create_connection(("127.0.0.1", self.port), WAIT_S):
            self.assertEqual(self.request()[0], 200)

    def test_too_many_at_once(self):
        silent = [socket.create_connection(("127.0.0.1", self.port), WAIT_S) for _ in range(16)]
        with self.assertLogs("kvprobe.stats", logging.WARNING), self.assertRaises(OSError):
            self.request()
        for connection in silent:
            connection.close()
        for _ in range(100):
            try:
                self.assertEqual(self.request()[0], 200)
                break
            except OSError:
                pass
        else:
            self.fail("no request gets through after the others have gone")

    def test_a_client_that_drips_is_ended(self):
        with mock.patch.object(_stats_output, "REQUEST_SECONDS", 0.5), \
                socket.create_connection(("127.0.0.1", self.port), WAIT_S) as connection:
            connection.settimeout(0.05)  # between the bytes
            for _ in range(WAIT_S * 20):
                try:
                    connection.send(b"G")
                    if connection.recv(1) == b"":
                        return
                except TimeoutError:
                    pass
                except OSError:
                    return
        self.fail("a client that sends a byte now and then keeps its place")

    def test_close(self):
        self.server.close()
        self.server.close()
        with self.assertRaises(OSError):
            self.request()
        with self.assertRaises(RuntimeError):
            self.server.start()
        with MetricsServer(self.metrics) as again:
            self.port = again.port
            self.assertEqual(self.request()[0], 200)

    def test_two_on_one_port(self):
        with self.assertRaises(OSError):
            MetricsServer(self.metrics, port=self.port)


if __name__ == "__main__":
    unittest.main()
