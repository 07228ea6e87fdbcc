"""Counters that can be added up: Totals for a producer, and WriteTotals for a Spark task or a whole write.

To add a counter, add a field here, and count it in ProducerMetrics or in the Spark task. Everything else is derived
from the fields: sums and differences, the reports of tasks and writes, their JSON, and the exporters.

Users and programs read the names in reports, so these names are an interface.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, TypeVar

from spark_kafka_sink.producer.windows import LatencyHistogram

TotalsT = TypeVar("TotalsT")


@dataclass(frozen=True)
class Counter:
    """Metadata of a counter, for reports and exporters.

    If the name of a counter in reports ends in `bytes` or `_ms`, its unit is bytes or milliseconds. All other counters
    count items, such as records.
    """

    meaning: str
    """A description of the counter, for the documentation of its metric."""
    noun: str = ""
    """The name of one counted item, such as `record` or `batch`."""
    report_name: str = ""
    """The name in reports; defaults to the name of the field."""
    metric_name: str = ""
    """The name of the metric; defaults to the name in reports."""
    is_reported: bool = True
    """Whether reports and the metrics of writes include the counter."""


def _define_counter(
    meaning: str, noun: str = "", *, report_name: str = "", metric_name: str = "", is_reported: bool = True
) -> Any:
    """Return a dataclass field with the default 0, and with a Counter in its metadata."""
    return field(default=0, metadata={"counter": Counter(meaning, noun, report_name, metric_name, is_reported)})


@dataclass(frozen=True)
class Totals:
    """Sums over a producer's lifetime, or over a part of it: `after - before`."""

    records: int = _define_counter("Records that brokers have acknowledged", "record", is_reported=False)
    bytes: int = _define_counter("Size of the record batches as sent, headers included", report_name="wire_bytes")
    uncompressed_bytes: int = _define_counter("Size of the record batches before compression, headers included")
    latencies: LatencyHistogram = field(default_factory=LatencyHistogram)
    """The time that each record took, including retries: from the arrival of the oldest row in its batch's stage to the
    batch's acknowledgement."""
    retries: int = _define_counter("Records that were retried", "record", metric_name="retried_records")
    errors: int = _define_counter("Records that failed", "record", is_reported=False)
    blocked_ms: float = _define_counter("Time that tasks waited for memory")
    batches: int = _define_counter("Record batches that brokers have stored", "batch")
    requests: int = _define_counter("Produce requests that brokers have responded to", "request")
    throttle_ms: float = _define_counter("Time that brokers throttled producers because of a quota")

    def __add__(self, other: Totals) -> Totals:
        return _combine(Totals, operator.add, self, other)

    def __sub__(self, earlier: Totals) -> Totals:
        return _combine(Totals, operator.sub, self, earlier)


@dataclass(frozen=True, kw_only=True)
class WriteTotals:
    """Totals for one Spark task, or for all the tasks of a write."""

    rows: int = _define_counter("Rows that brokers have acknowledged", "row")
    bytes: int = _define_counter("Size of the keys, values and headers of acknowledged rows")
    """Counted as the sizes in the records: with keyFormat or valueFormat, the sizes of the encoded keys or values."""
    dead_letters: int = _define_counter("Records that went to the dead-letter topic", "record")
    dead_letters_cut: int = _define_counter("Dead letters that were truncated to fit", "record")
    paced_ms: int = _define_counter("Time that tasks waited because of maxBytesPerSecond")
    producer: Totals = field(default_factory=Totals)
    """The totals of the tasks' producers. Their `blocked_ms` includes the time that the tasks themselves waited."""

    def __add__(self, other: WriteTotals) -> WriteTotals:
        return _combine(WriteTotals, operator.add, self, other)

    def counts(self) -> dict[str, float]:
        """Return the value of each counter of WRITE_COUNTERS, keyed by its name in reports."""
        own_counts = {name: getattr(self, name) for name in _find_counters(WriteTotals)}
        return own_counts | {name: getattr(self.producer, attribute) for name, attribute in PRODUCER_FIELDS.items()}


def _combine(
    totals_type: type[TotalsT], operation: Callable[[Any, Any], Any], left: TotalsT, right: TotalsT
) -> TotalsT:
    """Apply `operation` to each field of two totals, and return the totals that consist of the results."""
    names = [item.name for item in fields(totals_type)]  # type: ignore[arg-type]
    return totals_type(**{name: operation(getattr(left, name), getattr(right, name)) for name in names})


def _find_counters(totals_type: type[Any]) -> dict[str, Counter]:
    """Return the counters of a dataclass, keyed by field name."""
    return {item.name: item.metadata["counter"] for item in fields(totals_type) if "counter" in item.metadata}


PRODUCER_FIELDS: Mapping[str, str] = {
    counter.report_name or name: name for name, counter in _find_counters(Totals).items() if counter.is_reported
}
"""The fields of Totals, keyed by their names in reports. Counters that are not reported are omitted."""
WRITE_COUNTERS: Mapping[str, Counter] = {
    **_find_counters(WriteTotals),
    **{name: _find_counters(Totals)[attribute] for name, attribute in PRODUCER_FIELDS.items()},
}
"""All counters of a write, including those of its producers, keyed by their names in reports."""
