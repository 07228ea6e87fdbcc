"""Base units of producer metrics and write metrics, in UCUM notation, for OpenTelemetry and Prometheus."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from spark_kafka_sink.producer.totals import WRITE_COUNTERS, Counter

SECONDS, BYTES = "s", "By"
_RATIO_UNIT = "1"

_SECONDS_PER_NANOSECOND, _SECONDS_PER_MILLISECOND = 1e-9, 1e-3
# Units of the metrics whose names begin with these prefixes. `to_exported_metric` checks them in this order.
_MILLISECOND_PREFIXES = ("record-queue-time-", "request-latency-", "produce-throttle-time-")
_BYTE_SIZE_PREFIXES = ("batch-size-", "record-size-", "request-size-")
_BYTE_COUNTER_PREFIXES = ("byte-", "incoming-byte-", "outgoing-byte-")
_RATIO_PREFIXES = ("compression-rate", "io-ratio", "io-wait-ratio", "bufferpool-wait-ratio")
_COUNTER_UNIT_BY_PREFIX = {
    "batch-split": "{split}",
    "buffer-exhausted": "{record}",
    "connection": "{connection}",
    "failed-": "{authentication}",
    "network-io": "{operation}",
    "record": "{record}",
    "request": "{request}",
    "response": "{response}",
    "select": "{select}",
    "successful-": "{authentication}",
    "waiting-threads": "{thread}",
}
"""Units of counters, by the prefix of the metric name. At most one prefix matches a name.

`record` and `request` have no trailing hyphen, because they also match names like `records-per-request-avg`.
"""


class ExportedMetric(NamedTuple):
    """The name and base unit under which a metric is exported."""

    name: str
    """The metric's name without the unit that the Java producer includes in some names, such as `-ns` or `-bytes`."""
    unit: str
    """The UCUM unit, such as `s`, `By` or `{record}/s`; `1` for a ratio."""
    factor: float
    """The factor that converts the metric's values to the unit."""


def to_exported_metric(name: str) -> ExportedMetric:
    """Return a producer metric's exported name and unit.

    `name`: the metric's name in docs/metrics.md, without tags.
    """
    # For example, the kind of `record-send-total` is `total`.
    name_without_kind, _, kind = name.rpartition("-")
    if name_without_kind.endswith("-ns"):
        return ExportedMetric(f"{name_without_kind.removesuffix('-ns')}-{kind}", SECONDS, _SECONDS_PER_NANOSECOND)
    if name.startswith(_MILLISECOND_PREFIXES):
        return ExportedMetric(name, SECONDS, _SECONDS_PER_MILLISECOND)
    if name == "metadata-age":
        return ExportedMetric(name, SECONDS, factor=1)
    if kind == "bytes":
        return ExportedMetric(name_without_kind, BYTES, factor=1)
    if name.startswith(_BYTE_SIZE_PREFIXES):
        return ExportedMetric(name, BYTES, factor=1)
    if name.startswith(_RATIO_PREFIXES):
        return ExportedMetric(name, _RATIO_UNIT, factor=1)
    # Check the prefixes of counters last, because they also match other metrics: `request` is the prefix of counters
    # of requests, but also of `request-latency-avg`, which is a time.
    counter_unit = BYTES if name.startswith(_BYTE_COUNTER_PREFIXES) else _find_counter_unit(name)
    return ExportedMetric(name, f"{counter_unit}/s" if kind == "rate" else counter_unit, factor=1)


def _find_counter_unit(name: str) -> str:
    return next(unit for prefix, unit in _COUNTER_UNIT_BY_PREFIX.items() if name.startswith(prefix))


def _build_write_metric(name: str, counter: Counter) -> ExportedMetric:
    metric_name = counter.metric_name or name
    if metric_name.endswith("_ms"):
        return ExportedMetric(metric_name.removesuffix("_ms"), SECONDS, _SECONDS_PER_MILLISECOND)
    return ExportedMetric(metric_name, f"{{{counter.noun}}}" if counter.noun else BYTES, factor=1)


WRITE_METRICS: Mapping[str, ExportedMetric] = {
    name: _build_write_metric(name, counter) for name, counter in WRITE_COUNTERS.items()
}
"""Exported names and units of write counters, by the counter's name in reports."""
