# SPDX-License-Identifier: Apache-2.0
"""vLLM's base classes if it is installed, else classes of the same shape. Looked for once, at the first import."""

import logging
from dataclasses import dataclass, field
from typing import Any


@dataclass
class _Stats:
    """What one connector has recorded. `data` can be pickled, and a connector class can rebuild the object of it."""

    data: dict[str, Any] = field(default_factory=dict)

    def reset(self):
        """Begin anew."""
        raise NotImplementedError

    def aggregate(self, other):
        """Add another object's content; returns self."""
        raise NotImplementedError

    def reduce(self):
        """The figures of the log line: a dict."""
        raise NotImplementedError

    def is_empty(self):
        """Nothing is recorded."""
        raise NotImplementedError

    def to_dict(self):
        """What is sent to the process that logs."""
        return self.data


class _PromMetrics:
    """metric_types: {Gauge: class, Counter: class, Histogram: class}, the keys by class or by name.
    per_engine_labelvalues: {engine index: values of labelnames}."""

    def __init__(self, vllm_config, metric_types, labelnames, per_engine_labelvalues):
        self._vllm_config = vllm_config
        self._labelnames = labelnames
        self._per_engine_labelvalues = per_engine_labelvalues

    def observe(self, transfer_stats_data, engine_idx=0):
        """Count in the data of one snapshot."""
        raise NotImplementedError


def _find():
    try:
        from vllm.distributed.kv_transfer.kv_connector.v1 import metrics
    except ImportError:
        return _Stats, _PromMetrics
    except Exception as error:  # noqa: BLE001 - an installation that does not work must not stop the stats
        logging.getLogger("kvprobe.stats").warning("vLLM is installed but cannot be imported: %r", error)
        return _Stats, _PromMetrics
    return metrics.KVConnectorStats, getattr(metrics, "KVConnectorPromMetrics", _PromMetrics)


KVConnectorStats, KVConnectorPromMetrics = _find()
