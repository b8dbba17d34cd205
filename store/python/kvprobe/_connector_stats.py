# SPDX-License-Identifier: Apache-2.0
"""The stats objects of the connectors, and the connector classes that rebuild them from their serialised form."""

import statistics
import threading

from kvprobe._stats import TransferStats
from kvprobe._vllm_bases import KVConnectorStats


class MooncakeKVConnectorStats(TransferStats, KVConnectorStats):
    """MooncakeKVConnectorStats(data=None, *, row_limit=1000000): transfers between peers. TransferStats does the work
    and says how; this class adds what makes it vLLM's kind of object."""

    def to_dict(self):
        """What is sent to the process that logs: `data`, and beyond row_limit an entry "overflow" with the rest,
        which build_kv_connector_stats understands."""
        state = self.__getstate__()
        if "overflow" in state:
            return {**state["data"], "overflow": state["overflow"]}
        return self.data

    def __eq__(self, other):
        if other.__class__ is not self.__class__:
            return NotImplemented
        return _content(self) == _content(other)

    __hash__ = None

    def __repr__(self):
        return f"{type(self).__qualname__}(data={_content(self)[0]!r})"


def _content(stats):
    state = stats.__getstate__()
    return state["data"], state.get("overflow")


SAVE_EXISTS, SAVE_PUT, LOAD_GET, LOOKUP_EXISTS = "save_exists", "save_put", "load_get", "lookup_exists"
STATUSES = ("ok", "partial_failure", "error")


class MooncakeStoreConnectorStats(KVConnectorStats):
    """The operations of a connector that keeps its KV cache in the store. data: operation -> list of records
    {duration_seconds, num_keys, num_bytes, status, num_failed_keys}. Operations: save_exists, save_put, load_get,
    lookup_exists. Records may come from any thread; a snapshot is taken by putting a new object in this one's place."""

    def __init__(self, data=None):
        self.data = data or {}

    def record_operation(self, operation, duration_seconds, num_keys, *, num_bytes=0, status="ok", num_failed_keys=0):
        """One operation on num_keys keys. num_bytes: what was attempted, failed or not. status: "ok",
        "partial_failure" or "error" (nothing was done)."""
        if status not in STATUSES:
            raise ValueError(f"status must be one of {', '.join(STATUSES)}, not {status!r}")
        self.data.setdefault(operation, []).append({
            "duration_seconds": duration_seconds,
            "num_keys": num_keys,
            "num_bytes": num_bytes,
            "status": status,
            "num_failed_keys": num_failed_keys,
        })

    def reset(self):
        """A new dict; the old one stays with who holds it."""
        self.data = {}

    def is_empty(self):
        """No operation is recorded."""
        return not self.data

    def to_dict(self):
        """What is sent to the process that logs."""
        return self.data

    def aggregate(self, other):
        """Add another object's records; returns self."""
        if not other.is_empty():
            for operation, records in list(other.data.items()):
                self.data.setdefault(operation, []).extend(list(records))
        return self

    def reduce(self):
        """{<operation>_count, _avg_ms, _p90_ms (nearest rank), _total_keys, _total_bytes, _failed_keys,
        _error_count}, operations in the order of their names."""
        figures = {}
        for operation, records in sorted(self.data.items()):
            if records:
                figures.update(_reduce_operation(operation, list(records)))
        return figures


def _reduce_operation(operation, records):
    seconds = sorted(record["duration_seconds"] for record in records)
    return {
        f"{operation}_count": len(records),
        f"{operation}_avg_ms": round(statistics.fmean(seconds) * 1e3, 3),
        f"{operation}_p90_ms": round(_nearest_rank_p90(seconds) * 1e3, 3),
        f"{operation}_total_keys": sum(record["num_keys"] for record in records),
        f"{operation}_total_bytes": sum(record["num_bytes"] for record in records),
        f"{operation}_failed_keys": sum(record["num_failed_keys"] for record in records),
        f"{operation}_error_count": sum(record["status"] == "error" for record in records),
    }


def _nearest_rank_p90(ordered):
    n = len(ordered)
    # The small step keeps a product that is a whole number from being rounded up to the next rank.
    return ordered[min(max(int(0.9 * n - 1e-12), 0), n - 1)]


class MultiKVConnectorStats(KVConnectorStats):
    """The stats of several connectors. data: connector class name -> its stats object. Two connectors of one class
    share a name and are merged."""

    def __init__(self, data=None):
        self.data = data or {}

    def __getitem__(self, connector_id):
        return self.data[connector_id]

    def __setitem__(self, connector_id, stats):
        self.data[connector_id] = stats

    def reset(self):
        """Reset every child."""
        for stats in list(self.data.values()):
            stats.reset()

    def is_empty(self):
        """Every child is empty, or there is none."""
        return all(stats.is_empty() for stats in list(self.data.values()))

    def aggregate(self, other):
        """Child by child; one that is new here is adopted as it is. Returns self."""
        for connector_id, stats in list(other.data.items()):
            if connector_id not in self.data:
                self.data[connector_id] = stats
                continue
            mine = self.data[connector_id]
            assert type(stats) is type(mine), f"{connector_id}: {type(stats)} cannot be added to {type(mine)}"
            self.data[connector_id] = mine.aggregate(stats)
        return self

    def reduce(self):
        """Connector class name -> the figures of its stats."""
        return {connector_id: stats.reduce() for connector_id, stats in list(self.data.items())}

    def to_dict(self):
        """Connector class name -> to_dict() of its stats."""
        return {connector_id: stats.to_dict() for connector_id, stats in list(self.data.items())}


# --- connector classes by name ---------------------------------------------------------------------------------

_connectors = {}
_connectors_lock = threading.Lock()


def register_kv_connector(connector_class, name=None):
    """Make a class with build_kv_connector_stats(data) known under a name, its own by default; returns it, so that it
    can be used as a decorator. ValueError if another class has the name."""
    name = name or connector_class.__name__
    with _connectors_lock:
        if _connectors.setdefault(name, connector_class) is not connector_class:
            raise ValueError(f"Connector '{name}' is already registered.")
    return connector_class


def get_kv_connector_class(name):
    """The class that is registered under a name; ValueError if there is none."""
    with _connectors_lock:
        connector_class = _connectors.get(name)
    if connector_class is None:
        raise ValueError(f"Connector '{name}' is not registered.")
    return connector_class


@register_kv_connector
class MooncakeConnector:
    """KV transfers between peers: prefill pushes into decode."""

    @classmethod
    def build_kv_connector_stats(cls, data=None):
        """The stats object of `data`, `to_dict()`, or nothing."""
        return build_kv_connector_stats(data)

    @classmethod
    def build_prom_metrics(cls, vllm_config, metric_types, labelnames, per_engine_labelvalues):
        """The metrics of these stats in the registry of the caller."""
        from kvprobe._stats_output import MooncakePromMetrics  # which imports this module

        return MooncakePromMetrics(vllm_config, metric_types, labelnames, per_engine_labelvalues)


@register_kv_connector
class MooncakeStoreConnector:
    """KV cache in the store."""

    @classmethod
    def build_kv_connector_stats(cls, data=None):
        """The stats object of `data`, or of nothing."""
        return MooncakeStoreConnectorStats(data=data)


@register_kv_connector
class MultiConnector:
    """Several connectors at once."""

    @classmethod
    def build_kv_connector_stats(cls, data=None):
        """The stats object of {class name: child}. A child is a stats object, which is kept, or its serialised form:
        {"data": payload} or the payload itself. A connector that has no stats of its own is left out. ValueError for
        an unknown name, AssertionError for a child that is none of these."""
        stats = MultiKVConnectorStats()
        for connector_id, child in (data or {}).items():
            if callable(getattr(child, "aggregate", None)):
                stats[connector_id] = child
                continue
            built = get_kv_connector_class(connector_id).build_kv_connector_stats(_payload(child))
            if built is not None:
                stats[connector_id] = built
        return stats


def _payload(child):
    """What build_kv_connector_stats of the child's class takes. Lists and numbers are a payload, dicts below other
    names than "data" are not, unless they are the children of a MultiConnector."""
    assert isinstance(child, dict), f"Expected a dict with a 'data' field, got {child!r}"
    if isinstance(child.get("data"), dict):
        return child["data"]
    with _connectors_lock:
        strange = [name for name, value in child.items()
                   if isinstance(value, dict) and name != "overflow" and name not in _connectors]
    assert not strange, f"Expected a dict with a 'data' field, got {child!r}"
    return child


# --- building and handing out ----------------------------------------------------------------------------------


def build_kv_connector_stats(data=None):
    """A MooncakeKVConnectorStats: empty, or of `data`, which is kept by reference. Of a to_dict() with "overflow" it
    keeps the lists, in a dict of its own."""
    if not isinstance(data, dict) or not isinstance(data.get("overflow"), dict):
        return MooncakeKVConnectorStats(data=data)
    stats = MooncakeKVConnectorStats()
    lists = {name: values for name, values in data.items() if name != "overflow"}
    stats.__setstate__({"data": lists, "overflow": data["overflow"]})
    return stats


def get_kv_connector_stats(stats):
    """What was recorded since the last call, as an object of its own; None if that is nothing."""
    return None if stats.is_empty() else stats.clone_and_reset()
