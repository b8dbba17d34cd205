# SPDX-License-Identifier: Apache-2.0
"""KV transfer stats: what a KV connector records of its transfers, the log line, the metrics.

A connector's worker records into MooncakeKVConnectorStats; every step it hands out a snapshot, which is merged, logged
(KVConnectorLogging) and shown as metrics (MooncakePromMetrics inside vLLM, TransferMetrics and MetricsServer without).
Needs neither vLLM nor numpy; where vLLM is installed, the classes are subclasses of its bases.
"""

from kvprobe._connector_stats import (
    KVConnectorStats,
    MooncakeConnector,
    MooncakeKVConnectorStats,
    MooncakeStoreConnector,
    MooncakeStoreConnectorStats,
    MultiConnector,
    MultiKVConnectorStats,
    build_kv_connector_stats,
    get_kv_connector_class,
    get_kv_connector_stats,
    register_kv_connector,
)
from kvprobe._connector_worker import MooncakeConnectorWorker
from kvprobe._stats import TransferMetrics, TransferStats
from kvprobe._stats_output import (
    KVConnectorLogging,
    KVConnectorPromMetrics,
    MetricsServer,
    MooncakePromMetrics,
    format_kv_transfer_metrics,
)

__all__ = [
    "KVConnectorLogging",
    "KVConnectorPromMetrics",
    "KVConnectorStats",
    "MetricsServer",
    "MooncakeConnector",
    "MooncakeConnectorWorker",
    "MooncakeKVConnectorStats",
    "MooncakePromMetrics",
    "MooncakeStoreConnector",
    "MooncakeStoreConnectorStats",
    "MultiConnector",
    "MultiKVConnectorStats",
    "TransferMetrics",
    "TransferStats",
    "build_kv_connector_stats",
    "format_kv_transfer_metrics",
    "get_kv_connector_class",
    "get_kv_connector_stats",
    "register_kv_connector",
]
