"""WriteReport: what a batch job or a micro-batch has written, and how it went. A line of JSON has all of it.

Only what brokers have acknowledged is counted. Reports add up: ranges of offsets, sums, and latencies, which stand in
buckets.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from datetime import datetime, timezone
from typing import Any

from spark_kafka_sink.diagnostics.text import format_bytes, format_count, sanitize
from spark_kafka_sink.errors import ConfigurationError
from spark_kafka_sink.producer.results import OffsetRange
from spark_kafka_sink.producer.totals import PRODUCER_FIELDS, Totals, WriteTotals
from spark_kafka_sink.producer.windows import Latencies, bucket_end_ms

COMMITTED = "committed"
FAILED = "failed"

MAX_LISTED_TASKS = 1_000
"""A report lists as many tasks as this, the longest ones."""
_TOPICS_NAMED_MAX = 5
"""In the line of a commit; reportPath has all of them."""
_PERCENTILES = {"p50": 0.5, "p95": 0.95, "p99": 0.99, "max": 1.0}

Partitions = dict[str, dict[int, OffsetRange]]
"""topic -> partition -> what was written there"""


@dataclass(frozen=True)
class TaskSummary:
    """One task of a write."""

    partition_id: int
    attempt: int
    host: str
    rows: int
    bytes: int
    duration_ms: int
    retries: int
    blocked_ms: int


@dataclass(frozen=True, kw_only=True)
class WriteReport(WriteTotals):
    """The sum over the tasks of a batch job or of a micro-batch."""

    batch: str
    """`<query id>/<batch id>`, or `<application id>/stage-<stage id>`"""
    status: str = COMMITTED
    """`committed`; `failed` if the write failed, with what those tasks wrote that ended well, unless it was aborted"""
    is_acknowledged: bool = True
    """False with acks=0: rows were sent, and no broker has confirmed that it stored them"""
    started_ms: int = 0
    """when the first task began, since 1970"""
    duration_ms: int = 0
    """until the last task ended, by the clocks of the executors"""
    tasks: int
    partitions: Partitions
    errors: Mapping[str, int] = field(default_factory=dict)
    """records that were refused and became dead letters, by the name of the error"""
    longest_task_ms: int
    task_list: tuple[TaskSummary, ...] = ()
    """at most TASKS_MAX, the longest first"""

    @property
    def uncompressed_bytes(self) -> int:
        """Size of the stored record batches before compression."""
        return self.producer.uncompressed_bytes

    @property
    def wire_bytes(self) -> int:
        """Size of the stored record batches as they were sent; a retry is not counted again."""
        return self.producer.bytes

    @property
    def retries(self) -> int:
        """Records that were retried."""
        return self.producer.retries

    @property
    def blocked_ms(self) -> int:
        """Total time for which tasks waited because their memory was full."""
        return round(self.producer.blocked_ms)

    @property
    def batches(self) -> int:
        """Record batches that brokers have stored."""
        return self.producer.batches

    @property
    def requests(self) -> int:
        """Produce requests that brokers have answered."""
        return self.producer.requests

    @property
    def throttle_ms(self) -> int:
        """How long brokers held producers back because of a quota, added up."""
        return round(self.producer.throttle_ms)

    @property
    def latencies(self) -> Latencies:
        """Of all records, from a batch's first record to its acknowledgement."""
        return self.producer.latencies

    @property
    def compression_ratio(self) -> float:
        """Bytes sent by bytes before compression; nan if nothing was sent."""
        return self.wire_bytes / self.uncompressed_bytes if self.uncompressed_bytes else math.nan

    @property
    def rows_per_second(self) -> float:
        """Of the whole write; nan if it took no time."""
        return 1000 * self.rows / self.duration_ms if self.duration_ms else math.nan

    @property
    def requests_per_second(self) -> float:
        """Of the whole write, to all brokers; nan if it took no time."""
        return 1000 * self.requests / self.duration_ms if self.duration_ms else math.nan

    @property
    def mean_batch_bytes(self) -> float:
        """Of the record batches as they were sent; nan if nothing was sent."""
        return self.wire_bytes / self.batches if self.batches else math.nan

    @property
    def started_at(self) -> datetime:
        return datetime.fromtimestamp(self.started_ms / 1000, timezone.utc)

    @property
    def ended_ms(self) -> int:
        return self.started_ms + self.duration_ms

    @property
    def is_micro_batch(self) -> bool:
        return self.batch.rpartition("/")[2].isdecimal()

    def latency_ms(self, share: float) -> float:
        """Milliseconds within which this share (0 to 1) of the records was acknowledged; nan if there are none."""
        return self.latencies.percentile(share)

    def line(self) -> str:
        named = [
            f"{topic} ({format_count(len(of_topic), 'partition')})"
            for topic, of_topic in sorted(self.partitions.items())
        ]
        if len(named) > _TOPICS_NAMED_MAX:
            named[_TOPICS_NAMED_MAX:] = [format_count(len(named) - _TOPICS_NAMED_MAX, "other topic")]
        where = f" to {', '.join(named)}" if named else ""
        verb = "wrote" if self.is_acknowledged else "sent, not acknowledged (acks=0):"
        words = (
            f"{verb} {format_count(self.rows, 'row')} ({format_bytes(self.bytes)}){where}; "
            f"{format_count(self.tasks, 'task')}, the longest {self.longest_task_ms} ms; "
            f"{format_count(self.retries, 'record')} retried; {format_count(self.dead_letters, 'dead letter')}"
        )
        if self.dead_letters_cut:
            words += f", {self.dead_letters_cut} of them cut to fit"
        return f"{words} [{self.batch}]"

    def to_json(self) -> str:
        counters = {each.name for each in fields(WriteTotals)}
        plain = {each.name: getattr(self, each.name) for each in fields(self) if each.name not in counters}
        plain["partitions"] = [
            {"topic": topic, "partition": partition, **asdict(written)}
            for topic, of_topic in sorted(self.partitions.items())
            for partition, written in sorted(of_topic.items())
        ]
        plain["errors"] = dict(self.errors)
        plain["task_list"] = [asdict(task) for task in self.task_list]
        plain |= {name: round(value) for name, value in self.counts().items()}
        plain["started_at"] = self.started_at.isoformat(timespec="milliseconds")
        plain["compression_ratio"] = _number(self.compression_ratio)
        plain["rows_per_second"] = _number(self.rows_per_second)
        plain["requests_per_second"] = _number(self.requests_per_second)
        plain["mean_batch_bytes"] = _number(self.mean_batch_bytes)
        plain["latency_ms"] = {name: _number(self.latency_ms(share)) for name, share in _PERCENTILES.items()}
        plain["latency_counts"] = [[bucket_end_ms(one), n] for one, n in sorted(self.latencies.counts.items())]
        return json.dumps(plain, ensure_ascii=False)


_DERIVED = (
    "started_at",
    "compression_ratio",
    "rows_per_second",
    "requests_per_second",
    "mean_batch_bytes",
    "latency_ms",
)
"""In the JSON for those who read it; WriteReport computes them."""

_WHOLE_MAX = 1 << 63
_STARTED_MS_MAX = 253_402_300_799_999
"""The last millisecond of the year 9999."""


def parse_report(line: str) -> WriteReport:
    """ConfigurationError names what is wrong: a file may have been changed, or written by another program."""
    try:
        plain: dict[str, Any] = json.loads(line)
        partitions: Partitions = {}
        for row in plain["partitions"]:
            written = {name: row[name] for name in ("first_offset", "last_offset", "rows")}
            topic, partition = _text("topic", row["topic"]), _whole("partition", row["partition"])
            partitions.setdefault(topic, {})[partition] = OffsetRange(**_checked(OffsetRange, written))
        latencies = Latencies()
        for end_ms, records in plain.pop("latency_counts", ()):
            if not isinstance(end_ms, int | float) or not 0 < end_ms < _WHOLE_MAX:
                raise ValueError(f"latency_counts has the time {_shown(end_ms)}")
            latencies.add(math.nextafter(end_ms, 0), _whole("latency_counts", records))
        known = {name: value for name, value in plain.items() if name not in _DERIVED}
        producer = {
            attribute: _whole(name, known.pop(name)) for name, attribute in PRODUCER_FIELDS.items() if name in known
        }
        known["partitions"], known["producer"] = partitions, Totals(latencies=latencies, **producer)
        known["task_list"] = tuple(TaskSummary(**_checked(TaskSummary, task)) for task in plain.get("task_list", ()))
        known["errors"] = {_text("errors", name): _whole(name, n) for name, n in plain.get("errors", {}).items()}
        report = WriteReport(**_checked(WriteReport, known))
        if report.started_ms > _STARTED_MS_MAX:
            raise ValueError(f"started_ms is {report.started_ms}, which is no time")
        return report
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ConfigurationError(f"this is no report of a write: {line[:80]!r} ({_fault(error)})") from error


def _checked(kind: type[Any], plain: Mapping[str, Any]) -> Mapping[str, Any]:
    """What a report has for this class; ValueError where a number or a text is not what the class declares."""
    checks = {"bool": _boolean, "int": _whole, "str": _text}
    for one in fields(kind):
        if one.name in plain and one.type in checks:
            checks[str(one.type)](one.name, plain[one.name])
    return plain


def _whole(name: str, value: object) -> int:
    lowest = -1 if name.endswith("_offset") else 0  # which is unknown then
    if type(value) is not int or not lowest <= value < _WHOLE_MAX:
        raise ValueError(f"{name} is {_shown(value)}, not a whole number")
    return value


def _boolean(name: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"{name} is {_shown(value)}, not true or false")
    return value


def _text(name: str, value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{name} is {_shown(value)}, not a text")
    return value


def _shown(value: object) -> str:
    return sanitize(json.dumps(value), 40)


def _fault(error: Exception) -> str:
    if isinstance(error, KeyError):
        return f"it has no {error.args[0]}"
    return str(error) if isinstance(error, ValueError) else "its fields are not those of a report"


def get_query_id(report: WriteReport) -> str:
    """Return the id of a stream's query, or of a batch job's application."""
    return report.batch.partition("/")[0]


def merge_report_ranges(reports: Iterable[WriteReport]) -> Partitions:
    """The partitions of several reports, such as those of a stream's micro-batches, added up."""
    return merge_offset_ranges(report.partitions for report in reports)


def merge_offset_ranges(several: Iterable[Partitions]) -> Partitions:
    partitions: Partitions = {}
    for one in several:
        for topic, of_topic in one.items():
            known = partitions.setdefault(topic, {})
            for partition, written in of_topic.items():
                known[partition] = known[partition] + written if partition in known else written
    return partitions


def sum_errors(several: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """Dead letters by the name of their error, added up."""
    errors: Counter[str] = Counter()
    for one in several:
        errors.update(one)
    return dict(errors)


def merge_latencies(reports: Iterable[WriteReport]) -> Latencies:
    """The latencies of several reports, merged."""
    merged = Latencies()
    for report in reports:
        merged.merge(report.latencies)
    return merged


def _number(value: float) -> float | None:
    """Four digits are enough; JSON has no nan."""
    return None if math.isnan(value) else float(f"{value:.4g}")
