"""Sums of counters: Totals of a producer, and WriteTotals of a Spark task or of a whole write.

A counter is a field here, and the line that counts it in ProducerMetrics or in the Spark task. Everything else goes
through the fields: sums and differences, the reports of tasks and writes, their JSON, and the exporters.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, TypeVar

from spark_kafka_sink.producer.windows import LatencyHistogram

SumsT = TypeVar("SumsT")


@dataclass(frozen=True)
class Counter:
    """Metadata of a counter, for reports and exporters.

    The counter's name in reports ends in its unit if that is `_bytes` or `_ms`; other counters count `things`.
    """

    meaning: str
    things: str = ""
    """`record`, `batch`, ..."""
    report_name: str = ""
    """The field's own name by default."""
    metric_name: str = ""
    """The name in reports by default."""
    is_reported: bool = True
    """False: neither reports nor the metrics of writes have it."""


def _counter(meaning: str, things: str = "", **names: Any) -> Any:
    return field(default=0, metadata={"counter": Counter(meaning, things, **names)})


@dataclass(frozen=True)
class Totals:
    """Sums over a producer's life, or between two moments of it: `after - before`."""

    records: int = _counter("Records that brokers have acknowledged", "record", is_reported=False)
    bytes: int = _counter("Record batches as they were sent", report_name="wire_bytes")
    """of acknowledged batches with their headers"""
    uncompressed_bytes: int = _counter("These batches before compression")
    latencies: LatencyHistogram = field(default_factory=LatencyHistogram)
    """from a batch's first record, when it was given to the producer, to the acknowledgement, retries included"""
    retries: int = _counter("Records that were retried", "record", metric_name="retried_records")
    errors: int = _counter("Records that failed", "record", is_reported=False)
    blocked_ms: float = _counter("How long tasks waited for memory")
    batches: int = _counter("Record batches that brokers have stored", "batch")
    requests: int = _counter("Produce requests that brokers have answered", "request")
    throttle_ms: float = _counter("How long brokers held producers back because of a quota")

    def __add__(self, other: Totals) -> Totals:
        return _combine(Totals, operator.add, self, other)

    def __sub__(self, earlier: Totals) -> Totals:
        return _combine(Totals, operator.sub, self, earlier)

    def since(self, earlier: Totals) -> Totals:
        """Return `self - earlier`."""
        return self - earlier


@dataclass(frozen=True, kw_only=True)
class WriteTotals:
    """Sums over a Spark task, or over all tasks of a write."""

    rows: int = _counter("Rows that brokers have acknowledged", "row")
    bytes: int = _counter("Keys, values and headers of these rows")
    """as Spark handed them over"""
    dead_letters: int = _counter("Records that went to the dead-letter topic", "record")
    dead_letters_cut: int = _counter("Dead letters that were cut to fit", "record")
    paced_ms: int = _counter("How long tasks waited because of maxBytesPerSecond")
    producer: Totals = field(default_factory=Totals)
    """counted by the tasks' producers; `blocked_ms` has the tasks' own waits as well"""

    def __add__(self, other: WriteTotals) -> WriteTotals:
        return _combine(WriteTotals, operator.add, self, other)

    def counts(self) -> dict[str, float]:
        """Return the value of each of WRITE_COUNTERS."""
        own = {name: getattr(self, name) for name in _counters(WriteTotals)}
        return own | {name: getattr(self.producer, attribute) for name, attribute in PRODUCER_FIELDS.items()}


def _combine(kind: type[SumsT], combine: Callable[[Any, Any], Any], left: SumsT, right: SumsT) -> SumsT:
    names = [each.name for each in fields(kind)]  # type: ignore[arg-type]
    return kind(**{name: combine(getattr(left, name), getattr(right, name)) for name in names})


def _counters(kind: type[Any]) -> dict[str, Counter]:
    return {each.name: each.metadata["counter"] for each in fields(kind) if "counter" in each.metadata}


PRODUCER_FIELDS: Mapping[str, str] = {
    counter.report_name or name: name for name, counter in _counters(Totals).items() if counter.is_reported
}
"""The fields of Totals by their names in reports."""
WRITE_COUNTERS: Mapping[str, Counter] = {
    **_counters(WriteTotals),
    **{name: _counters(Totals)[attribute] for name, attribute in PRODUCER_FIELDS.items()},
}
"""All counters of a write by their names in reports."""
