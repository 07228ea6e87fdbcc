"""The base unit of each metric of a producer or a write, by UCUM, as OpenTelemetry and Prometheus want it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from spark_kafka_sink.producer.totals import WRITE_COUNTERS, Counter

SECONDS, BYTES = "s", "By"

_NANOSECOND, _MILLISECOND = 1e-9, 1e-3
_IN_MILLISECONDS = ("record-queue-time-", "request-latency-", "produce-throttle-time-")
_IN_BYTES = ("batch-size-", "record-size-", "request-size-")
_BYTE_COUNTERS = ("byte-", "incoming-byte-", "outgoing-byte-")
_RATIOS = ("compression-rate", "io-ratio", "io-wait-ratio", "bufferpool-wait-ratio")
_COUNTED = {
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
"""The unit of a counter, by the beginning of its name."""


class BaseUnit(NamedTuple):
    name: str
    """The metric's name without the unit that Java's producer puts into it."""
    unit: str
    factor: float
    """Multiplies a value of the producer into the base unit."""


def base_unit(metric: str) -> BaseUnit:
    stem, _, kind = metric.rpartition("-")
    if stem.endswith("-ns"):
        return BaseUnit(f"{stem.removesuffix('-ns')}-{kind}", SECONDS, _NANOSECOND)
    if metric.startswith(_IN_MILLISECONDS):
        return BaseUnit(metric, SECONDS, _MILLISECOND)
    if metric == "metadata-age":
        return BaseUnit(metric, SECONDS, 1)
    if kind == "bytes":
        return BaseUnit(stem, BYTES, 1)
    if metric.startswith(_IN_BYTES):
        return BaseUnit(metric, BYTES, 1)
    if metric.startswith(_RATIOS):
        return BaseUnit(metric, "1", 1)
    counted = BYTES if metric.startswith(_BYTE_COUNTERS) else _counted(metric)
    return BaseUnit(metric, f"{counted}/s" if kind == "rate" else counted, 1)


def _counted(metric: str) -> str:
    return next(unit for beginning, unit in _COUNTED.items() if metric.startswith(beginning))


def _write_metric(name: str, counter: Counter) -> BaseUnit:
    metric = counter.metric_name or name
    if metric.endswith("_ms"):
        return BaseUnit(metric.removesuffix("_ms"), SECONDS, _MILLISECOND)
    return BaseUnit(metric, f"{{{counter.things}}}" if counter.things else BYTES, 1)


WRITE_METRICS: Mapping[str, BaseUnit] = {name: _write_metric(name, counter) for name, counter in WRITE_COUNTERS.items()}
"""The metrics of a write's counters, by their names in reports."""
