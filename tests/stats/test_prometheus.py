# SPDX-License-Identifier: Apache-2.0
"""Prometheus' own tools on the metrics: promtool reads the text, a server scrapes both formats and is queried."""

import contextlib
import http.server
import json
import os
import pathlib
import shutil
import socket
import subprocess
import tempfile
import threading
import time
import unittest
import urllib.error
import urllib.parse
import urllib.request

from support import MIB, PRESET, WAIT_S, stats_of
from kvprobe.stats import MetricsServer, TransferMetrics

PRODUCER_ROWS = [(i / 1000, i * MIB, i) for i in range(1, 101)]  # 1 to 100 ms


def producer():
    metrics = TransferMetrics("m", 0, "producer")
    metrics.observe(stats_of(*PRODUCER_ROWS, failed=3, expired=2))
    return metrics


def consumer():
    metrics = TransferMetrics("m", 0, "consumer")
    metrics.observe(stats_of(recvs=4))
    return metrics


def need(test, program):
    if PRESET != "release":
        test.skipTest("not applicable: no code of ours is in Prometheus' tools, and text() has its tests elsewhere")
    path = shutil.which(program)
    if not path:
        test.skipTest(f"{program} is not installed")
    return path


class TestPromtool(unittest.TestCase):
    def test_check_metrics(self):
        """Names with a colon are vLLM's; that is all it has to say."""
        promtool = need(self, "promtool")
        for metrics in (producer(), consumer(), TransferMetrics("", "", "")):
            done = subprocess.run([promtool, "check", "metrics"], input=metrics.text(), capture_output=True, text=True,
                                  timeout=WAIT_S, check=False)
            complaints = (done.stdout + done.stderr).splitlines()
            self.assertTrue(complaints)
            for line in complaints:
                self.assertRegex(line, r"^vllm:mooncake_\w+ metric names should not contain ':'$")

    def test_it_would_find_something(self):
        promtool = need(self, "promtool")
        text = producer().text().replace("# TYPE vllm:mooncake_num_failed_recvs_total counter", "")
        done = subprocess.run([promtool, "check", "metrics"], input=text, capture_output=True, text=True,
                              timeout=WAIT_S, check=False)
        self.assertIn("num_failed_recvs", done.stdout + done.stderr)
        self.assertNotEqual(done.returncode, 0)


CONFIG = """
global: {{scrape_interval: 1s, scrape_timeout: 1s}}
scrape_configs:
  - job_name: kv
    static_configs:
      - targets: [{targets}]
"""


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextlib.contextmanager
def text_server(metrics):
    """A worker that serves the plain text whatever the client likes better; its port."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):  # noqa: N802
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.end_headers()
            self.wfile.write(metrics.text().encode())

        def log_message(self, *unused):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()
            thread.join()


class TestServer(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.directory = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.directory.cleanup)

    def start(self, targets):
        program = need(self, "prometheus")
        root = pathlib.Path(self.directory.name)
        config = root / "prometheus.yml"
        config.write_text(CONFIG.format(targets=", ".join(f"'127.0.0.1:{port}'" for port in targets)))
        self.port = free_port()
        log = open(root / "log", "w", encoding="utf-8")
        self.addCleanup(log.close)
        process = subprocess.Popen(
            [program, f"--config.file={config}", f"--storage.tsdb.path={root / 'data'}",
             f"--web.listen-address=127.0.0.1:{self.port}", "--web.enable-lifecycle"],
            stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, cwd=root, env={"PATH": os.environ["PATH"]},
        )

        def stop():
            process.terminate()
            try:
                process.wait(WAIT_S)
            finally:
                process.kill()
                process.wait()

        self.addCleanup(stop)

    def ask(self, path, **query):
        url = f"http://127.0.0.1:{self.port}{path}?{urllib.parse.urlencode(query)}"
        with urllib.request.urlopen(url, timeout=WAIT_S) as answer:
            return json.load(answer)["data"]

    def wait_for(self, condition):
        deadline = time.monotonic() + WAIT_S
        while time.monotonic() < deadline:
            try:
                last = condition()
                if last[0]:
                    return last[1]
            except (urllib.error.URLError, ConnectionError) as error:
                last = error
            time.sleep(0.2)
        log = pathlib.Path(self.directory.name, "log").read_text(encoding="utf-8")
        return self.fail(f"last seen: {last}; Prometheus says: {log[-2000:]}")

    def both_up(self):
        targets = [(target["health"], target["lastError"]) for target in
                   self.ask("/api/v1/targets")["activeTargets"]]
        return targets == [("up", "")] * 2, targets

    def counted(self):
        """Both sides' counts are there to be queried."""
        counts = self.value("sum by (role) (vllm:mooncake_xfer_time_seconds_count)")
        return counts == {"producer": 100.0, "consumer": 0.0}, counts

    def value(self, query):
        """{role: value} of an instant query."""
        return {item["metric"].get("role"): float(item["value"][1])
                for item in self.ask("/api/v1/query", query=query)["result"]}

    def test_scrape_and_query(self):
        need(self, "prometheus")
        in_text = self.enterContext(text_server(producer()))
        in_openmetrics = self.enterContext(MetricsServer(consumer())).port
        self.start([in_text, in_openmetrics])
        self.wait_for(self.both_up)
        self.wait_for(self.counted)
        # Of 100 transfers of 1 to 100 ms the 90th lies between the bounds 75 and 100 ms: 75 + 25 * 15 / 25.
        p90 = "histogram_quantile(0.9, sum by (le, role) (vllm:mooncake_xfer_time_seconds_bucket))"
        self.assertAlmostEqual(self.value(p90)["producer"], 0.09)
        failures = ("sum by (role) ({__name__=~'vllm:mooncake_num_(failed_transfers|failed_recvs|kv_expired_reqs)_total'})")
        self.assertEqual(self.value(failures), {"producer": 5.0, "consumer": 4.0})
        metadata = self.ask("/api/v1/metadata")
        self.assertEqual(metadata["vllm:mooncake_xfer_time_seconds"][0]["type"], "histogram")
        print("p90 (s):", self.value(p90), "failures by role:", self.value(failures))


if __name__ == "__main__":
    unittest.main()
