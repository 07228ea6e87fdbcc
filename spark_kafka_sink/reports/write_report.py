"""The report of a batch job or micro-batch, which is stored as one line of JSON.

A report counts the rows that brokers have acknowledged or, with acks=0, the rows that were sent. To combine several
reports, merge their offset ranges and latency histograms, and add up their counters.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from datetime import datetime, timezone
from typing import Any

from spark_kafka_sink.diagnostics.text import format_bytes, format_count, sanitize
from spark_kafka_sink.errors import ConfigurationError
from spark_kafka_sink.producer.results import OffsetRange
from spark_kafka_sink.producer.totals import PRODUCER_FIELDS, Totals, WriteTotals
from spark_kafka_sink.producer.windows import LatencyHistogram, compute_bucket_end_ms

COMMITTED = "committed"
FAILED = "failed"

MAX_LISTED_TASKS = 1_000
"""Maximum number of tasks in a report. If a write has more, the report lists those that took longest."""
_MAX_NAMED_TOPICS = 5
"""Maximum number of topic names in the log line. The JSON report contains all topics."""
_LATENCY_QUANTILES = {"p50": 0.5, "p95": 0.95, "p99": 0.99, "max": 1.0}

OffsetRanges = dict[str, dict[int, OffsetRange]]
"""Range of the written offsets, by topic and partition."""


@dataclass(frozen=True)
class TaskSummary:
    """The rows, duration and retries of one task of a write."""

    partition_id: int
    """Spark's partition id (the task's number within its stage)."""
    attempt: int
    host: str
    rows: int
    bytes: int
    duration_ms: int
    retries: int
    blocked_ms: int


class WriteFigures(WriteTotals):
    """Figures derived from the totals and the duration of one write or of several writes."""

    duration_ms: int
    """The duration, which each subclass defines as a field."""

    @property
    def uncompressed_bytes(self) -> int:
        """Size of the acknowledged record batches before compression."""
        return self.producer.uncompressed_bytes

    @property
    def wire_bytes(self) -> int:
        """Size of the acknowledged record batches as they were sent. Retries are not included."""
        return self.producer.bytes

    @property
    def retries(self) -> int:
        """Number of records that were retried after an error."""
        return self.producer.retries

    @property
    def blocked_ms(self) -> int:
        """Total time that tasks spent waiting for free memory."""
        return round(self.producer.blocked_ms)

    @property
    def batches(self) -> int:
        """Number of acknowledged record batches."""
        return self.producer.batches

    @property
    def requests(self) -> int:
        """Number of produce requests to which brokers have responded."""
        return self.producer.requests

    @property
    def throttle_ms(self) -> int:
        """Total time that brokers throttled producers because of a quota."""
        return round(self.producer.throttle_ms)

    @property
    def latencies(self) -> LatencyHistogram:
        """Histogram of record latencies.

        Each is measured from the arrival of the oldest row in the stage of the record's batch to the acknowledgement.
        """
        return self.producer.latencies

    @property
    def compression_ratio(self) -> float:
        """Bytes sent divided by bytes before compression; nan if nothing was sent."""
        return self.wire_bytes / self.uncompressed_bytes if self.uncompressed_bytes else math.nan

    @property
    def rows_per_second(self) -> float:
        """Mean throughput of the write; nan if the duration is 0."""
        return 1000 * self.rows / self.duration_ms if self.duration_ms else math.nan

    @property
    def requests_per_second(self) -> float:
        """Mean rate of produce requests to all brokers; nan if the duration is 0."""
        return 1000 * self.requests / self.duration_ms if self.duration_ms else math.nan

    @property
    def mean_batch_bytes(self) -> float:
        """Mean size of the record batches as they were sent; nan if nothing was sent."""
        return self.wire_bytes / self.batches if self.batches else math.nan


@dataclass(frozen=True, kw_only=True)
class WriteReport(WriteFigures):
    """Totals over all tasks of a batch job or micro-batch."""

    batch: str
    """`<query id>/<batch id>` for a micro-batch, or `<application id>/stage-<stage id>` for a batch job."""
    status: str = COMMITTED
    """`committed` or `failed`. For a failed write, the rows of successful tasks count unless they were aborted."""
    is_acknowledged: bool = True
    """Whether brokers have acknowledged the rows. False with acks=0."""
    started_ms: int = 0
    """Start of the first task, as a Unix timestamp in milliseconds, according to the executor's clock."""
    duration_ms: int = 0
    """Time from the start of the first task to the end of the last, according to the executors' clocks."""
    published_ms: int = 0
    """Time at which the driver published the report, as a Unix timestamp in milliseconds, by the driver's clock."""
    tasks: int
    partitions: OffsetRanges
    errors: Mapping[str, int] = field(default_factory=dict)
    """Number of rejected records that became dead letters, by error name."""
    longest_task_ms: int
    task_list: tuple[TaskSummary, ...] = ()
    """At most MAX_LISTED_TASKS tasks, in descending order of duration."""

    @property
    def started_at(self) -> datetime:
        return datetime.fromtimestamp(self.started_ms / 1000, timezone.utc)

    @property
    def ended_ms(self) -> int:
        """End of the last task, as a Unix timestamp in milliseconds."""
        return self.started_ms + self.duration_ms

    @property
    def is_micro_batch(self) -> bool:
        """Whether `batch` ends with the number of a micro-batch rather than with a stage."""
        return self.batch.rpartition("/")[2].isdecimal()

    def latency_ms(self, quantile: float) -> float:
        """Return this quantile (0 to 1) of the records' latencies in milliseconds, or nan if there are no records."""
        return self.latencies.percentile(quantile)

    def line(self) -> str:
        """Return the report as one line for the application log."""
        topics = [
            f"{topic} ({format_count(len(topic_ranges), 'partition')})"
            for topic, topic_ranges in sorted(self.partitions.items())
        ]
        if len(topics) > _MAX_NAMED_TOPICS:
            topics[_MAX_NAMED_TOPICS:] = [format_count(len(topics) - _MAX_NAMED_TOPICS, "other topic")]
        destination = f" to {', '.join(topics)}" if topics else ""
        rows = f"{format_count(self.rows, 'row')} ({format_bytes(self.bytes)}){destination}"
        result = f"Wrote {rows}" if self.is_acknowledged else f"Sent, not acknowledged (acks=0): {rows}"
        tasks = f"{format_count(self.tasks, 'task')}, the longest {self.longest_task_ms} ms"
        retries = f"{format_count(self.retries, 'record')} retried"
        dead_letters = format_count(self.dead_letters, "dead letter")
        if self.dead_letters_cut:
            dead_letters += f", {self.dead_letters_cut} of them truncated"
        return f"{result}; {tasks}; {retries}; {dead_letters} [{self.batch}]"

    def to_json(self) -> str:
        """Return the report as a JSON object on one line. `parse_report` is the inverse."""
        counter_names = {counter.name for counter in fields(WriteTotals)}
        other_names = [item.name for item in fields(self) if item.name not in counter_names]
        document: dict[str, Any] = {name: getattr(self, name) for name in other_names}
        document["partitions"] = [
            {"topic": topic, "partition": partition, **_range_to_json(offsets)}
            for topic, topic_ranges in sorted(self.partitions.items())
            for partition, offsets in sorted(topic_ranges.items())
        ]
        document["errors"] = dict(self.errors)
        document["task_list"] = [asdict(task) for task in self.task_list]
        document |= {name: round(value) for name, value in self.counts().items()}
        document["started_at"] = self.started_at.isoformat(timespec="milliseconds")
        document["compression_ratio"] = _round_number(self.compression_ratio)
        document["rows_per_second"] = _round_number(self.rows_per_second)
        document["requests_per_second"] = _round_number(self.requests_per_second)
        document["mean_batch_bytes"] = _round_number(self.mean_batch_bytes)
        document["latency_ms"] = {
            name: _round_number(self.latency_ms(quantile)) for name, quantile in _LATENCY_QUANTILES.items()
        }
        latency_counts = sorted(self.latencies.counts.items())
        document["latency_counts"] = [[compute_bucket_end_ms(bucket), count] for bucket, count in latency_counts]
        return json.dumps(document, ensure_ascii=False)


_COMPUTED_FIELDS = (
    "started_at",
    "compression_ratio",
    "rows_per_second",
    "requests_per_second",
    "mean_batch_bytes",
    "latency_ms",
)
"""JSON fields that `parse_report` ignores, because WriteReport computes them from other fields."""

_MAX_INTEGER = 1 << 63
_MAX_VALUE_CHARACTERS = 40
"""Maximum length of the invalid number that an error shows."""
_JSON_TYPE_NAMES: dict[type, str] = {str: "a string", list: "an array", dict: "an object"}
_DIGEST_PATTERN = re.compile("[0-9a-f]{32}")
_MAX_STARTED_MS = 253_402_300_799_999
"""Last millisecond of the year 9999, the latest time that datetime supports."""


def parse_report(line: str) -> WriteReport:
    """Parse a report from JSON. Raise ConfigurationError if it is invalid.

    Every field is checked, because the file may have been edited or written by another program. The error shows no text
    from the line, which may contain secrets if the file is the wrong one.
    """
    try:
        document: dict[str, Any] = json.loads(line)
        partitions = _parse_partitions(document["partitions"])
        latencies = _parse_latency_counts(document.pop("latency_counts", ()))
        arguments = {name: value for name, value in document.items() if name not in _COMPUTED_FIELDS}
        # WriteReport groups the counters of the producer in one field.
        producer_totals = {
            attribute: _require_integer(name, arguments.pop(name))
            for name, attribute in PRODUCER_FIELDS.items()
            if name in arguments
        }
        arguments["partitions"] = partitions
        arguments["producer"] = Totals(latencies=latencies, **producer_totals)
        tasks = document.get("task_list", ())
        arguments["task_list"] = tuple(TaskSummary(**_require_valid_fields(TaskSummary, task)) for task in tasks)
        arguments["errors"] = {
            _require_text("errors", name): _require_integer("a count in errors", count)
            for name, count in document.get("errors", {}).items()
        }
        report = WriteReport(**_require_valid_fields(WriteReport, arguments))
        if report.started_ms > _MAX_STARTED_MS:
            raise ValueError(f"started_ms is {report.started_ms}, which is out of range")
        return report
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ConfigurationError(f"this is not a write report ({_describe_error(error)})") from error


def _parse_partitions(entries: Iterable[Any]) -> OffsetRanges:
    """Parse the JSON field `partitions`, which has one entry for each topic-partition."""
    partitions: OffsetRanges = {}
    for entry in entries:
        range_fields = {name: entry[name] for name in ("first_offset", "last_offset", "rows")}
        range_fields["rows_without_offset"] = entry.get("rows_without_offset", 0)
        digest = _parse_digest(entry["digest"]) if "digest" in entry else None
        topic = _require_text("topic", entry["topic"])
        partition = _require_integer("partition", entry["partition"])
        offsets = OffsetRange(**_require_valid_fields(OffsetRange, range_fields), digest=digest)
        partitions.setdefault(topic, {})[partition] = offsets
    return partitions


def _parse_latency_counts(entries: Iterable[Any]) -> LatencyHistogram:
    """Parse the JSON field `latency_counts`: for each bucket, its end in milliseconds and its number of records."""
    latencies = LatencyHistogram()
    for bucket_end_ms, record_count in entries:
        if not isinstance(bucket_end_ms, int | float) or not 0 < bucket_end_ms < _MAX_INTEGER:
            value = _describe_value(bucket_end_ms)
            raise ValueError(f"latency_counts has a time that is {value}, not a positive number in range")
        # The end of a bucket belongs to the next bucket, so add the largest number below it.
        latencies.add(math.nextafter(bucket_end_ms, 0), _require_integer("a count in latency_counts", record_count))
    return latencies


def _range_to_json(offsets: OffsetRange) -> dict[str, Any]:
    """Convert an offset range to JSON fields.

    The digest (32 hexadecimal digits) is included only if it is known, and `rows_without_offset` only if it is not 0.
    """
    document = asdict(offsets)
    del document["digest"]
    if not offsets.rows_without_offset:
        del document["rows_without_offset"]
    return document if offsets.digest is None else document | {"digest": f"{offsets.digest:032x}"}


def _parse_digest(value: object) -> int:
    text = _require_text("digest", value)
    if not _DIGEST_PATTERN.fullmatch(text):
        raise ValueError("digest is a string, but not 32 hexadecimal digits")
    return int(text, 16)


def _require_valid_fields(dataclass_type: type[Any], values: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return `values` unchanged. Raise ValueError if the value of a bool, int or str field is invalid."""
    requirements = {"bool": _require_boolean, "int": _require_integer, "str": _require_text}
    for item in fields(dataclass_type):
        if item.name in values and item.type in requirements:
            require_valid_value = requirements[str(item.type)]
            require_valid_value(item.name, values[item.name])
    return values


def _require_integer(name: str, value: object) -> int:
    min_value = -1 if name.endswith("_offset") else 0  # -1 means that the offset is unknown
    if type(value) is not int or not min_value <= value < _MAX_INTEGER:
        raise ValueError(f"{name} is {_describe_value(value)}, not an integer in range")
    return value


def _require_boolean(name: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"{name} is {_describe_value(value)}, not true or false")
    return value


def _require_text(name: str, value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{name} is {_describe_value(value)}, not a string")
    return value


def _describe_value(value: object) -> str:
    """Describe a JSON value by its type, or show it if it is a number, a boolean or null."""
    return _JSON_TYPE_NAMES.get(type(value)) or sanitize(json.dumps(value), _MAX_VALUE_CHARACTERS)


def _describe_error(error: Exception) -> str:
    if isinstance(error, KeyError):
        return f"the field {error.args[0]} is missing"
    if isinstance(error, json.JSONDecodeError):
        return f"column {error.colno}: {error.msg}"
    return str(error) if isinstance(error, ValueError) else "its fields are not those of a write report"


def get_query_id(report: WriteReport) -> str:
    """Return the query id of a stream, or the application id of a batch job."""
    return report.batch.partition("/")[0]


def merge_report_ranges(reports: Iterable[WriteReport]) -> OffsetRanges:
    """Merge the offset ranges of several reports, for example those of a stream's micro-batches."""
    return merge_offset_ranges(report.partitions for report in reports)


def merge_offset_ranges(ranges: Iterable[OffsetRanges]) -> OffsetRanges:
    """Merge the offset ranges of several tasks or writes, partition by partition."""
    merged_ranges: OffsetRanges = {}
    for ranges_by_topic in ranges:
        for topic, topic_ranges in ranges_by_topic.items():
            merged_topic = merged_ranges.setdefault(topic, {})
            for partition, offsets in topic_ranges.items():
                merged_topic[partition] = merged_topic[partition] + offsets if partition in merged_topic else offsets
    return merged_ranges


def sum_errors(error_counts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """Add up the dead-letter counts of several reports by error name."""
    total_counts: Counter[str] = Counter()
    for counts in error_counts:
        total_counts.update(counts)
    return dict(total_counts)


def merge_latencies(reports: Iterable[WriteReport]) -> LatencyHistogram:
    """Merge the latency histograms of several reports into a new histogram."""
    merged_histogram = LatencyHistogram()
    for report in reports:
        merged_histogram.merge(report.latencies)
    return merged_histogram


def _round_number(value: float) -> float | None:
    """Round to four significant digits. Return None for nan, because JSON has no nan."""
    return None if math.isnan(value) else float(f"{value:.4g}")
