"""Counters that can be summed: Totals for a producer, and WriteTotals for a Spark task or a whole write.

To add a counter, add a field here and count it in ProducerMetrics or in the Spark task. Sums and differences, the
reports of tasks and writes, their JSON and the exporters iterate over the fields.
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

    If a counter's unit is bytes or milliseconds, its name in reports ends in `bytes` or `_ms`. Other counters count the
    things that `noun` names.
    """

    meaning: str
    noun: str = ""
    """The counted things in the singular, such as `record` or `batch`."""
    report_name: str = ""
    """The name in reports; defaults to the name of the field."""
    metric_name: str = ""
    """The name of the metric; defaults to the name in reports."""
    is_reported: bool = True
    """Whether reports and the metrics of writes include the counter."""


def _define_counter(meaning: str, noun: str = "", **names: Any) -> Any:
    return field(default=0, metadata={"counter": Counter(meaning, noun, **names)})


@dataclass(frozen=True)
class Totals:
    """Sums over a producer's lifetime, or over a part of it: `after - before`."""

    records: int = _define_counter("Records that brokers have acknowledged", "record", is_reported=False)
    bytes: int = _define_counter("Record batches as they were sent", report_name="wire_bytes")
    """Includes the batch headers."""
    uncompressed_bytes: int = _define_counter("These batches before compression")
    latencies: LatencyHistogram = field(default_factory=LatencyHistogram)
    """Times from the send of a batch's first record to the acknowledgement of the batch, including retries."""
    retries: int = _define_counter("Records that were retried", "record", metric_name="retried_records")
    errors: int = _define_counter("Records that failed", "record", is_reported=False)
    blocked_ms: float = _define_counter("Time that tasks waited for memory")
    batches: int = _define_counter("Record batches that brokers have stored", "batch")
    requests: int = _define_counter("Produce requests that brokers have answered", "request")
    throttle_ms: float = _define_counter("Time that brokers held producers back because of a quota")

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

    rows: int = _define_counter("Rows that brokers have acknowledged", "row")
    bytes: int = _define_counter("Keys, values and headers of these rows")
    """The sizes of the values that Spark passed to the sink."""
    dead_letters: int = _define_counter("Records that went to the dead-letter topic", "record")
    dead_letters_cut: int = _define_counter("Dead letters that were cut to fit", "record")
    paced_ms: int = _define_counter("Time that tasks waited because of maxBytesPerSecond")
    producer: Totals = field(default_factory=Totals)
    """The totals of the tasks' producers. Their `blocked_ms` includes the waits of the tasks themselves."""

    def __add__(self, other: WriteTotals) -> WriteTotals:
        return _combine(WriteTotals, operator.add, self, other)

    def counts(self) -> dict[str, float]:
        """Return the value of each of WRITE_COUNTERS."""
        own_counts = {name: getattr(self, name) for name in _find_counters(WriteTotals)}
        return own_counts | {name: getattr(self.producer, attribute) for name, attribute in PRODUCER_FIELDS.items()}


def _combine(sums_type: type[SumsT], combine: Callable[[Any, Any], Any], left: SumsT, right: SumsT) -> SumsT:
    names = [item.name for item in fields(sums_type)]  # type: ignore[arg-type]
    return sums_type(**{name: combine(getattr(left, name), getattr(right, name)) for name in names})


def _find_counters(sums_type: type[Any]) -> dict[str, Counter]:
    return {item.name: item.metadata["counter"] for item in fields(sums_type) if "counter" in item.metadata}


PRODUCER_FIELDS: Mapping[str, str] = {
    counter.report_name or name: name for name, counter in _find_counters(Totals).items() if counter.is_reported
}
"""Maps names in reports to fields of Totals."""
WRITE_COUNTERS: Mapping[str, Counter] = {
    **_find_counters(WriteTotals),
    **{name: _find_counters(Totals)[attribute] for name, attribute in PRODUCER_FIELDS.items()},
}
"""Maps names in reports to all counters of a write."""
