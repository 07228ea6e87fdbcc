"""The error of a failed task: what failed where, how often, for example with which key, and what to do about it."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from spark_kafka_sink.diagnostics.text import format_count, format_partition
from spark_kafka_sink.errors import (
    BatchRefusedError,
    DeliveryError,
    InvalidRecordError,
    KafkaSinkError,
    RecordTooLargeError,
)
from spark_kafka_sink.records.columns import RecordColumns, combine_chunks
from spark_kafka_sink.spark.options.names import add_kafka_prefix
from spark_kafka_sink.spark.options.sink_options import SinkOptions
from spark_kafka_sink.spark.task_report import TaskIdentity

_GROUPS_MAX = 10
_KEY_CHARACTERS_MAX = 60


@dataclass
class _Group:
    """Records that failed for the same reason at the same place."""

    error: KafkaSinkError
    sample_key: str
    count: int = 0


class Failures:
    """The failed records of one task, counted by topic, partition and reason."""

    def __init__(self, task: TaskIdentity) -> None:
        self._task = task
        self._groups: dict[tuple[str | None, int | None, str], _Group] = {}
        self._count = 0

    def __bool__(self) -> bool:
        return self._count > 0

    def add(self, topic: str | None, partition: int | None, error: KafkaSinkError, rows: RecordColumns) -> None:
        self._count += rows.num_rows
        place = (topic, partition, str(error.__cause__ or error))
        if place not in self._groups and len(self._groups) >= _GROUPS_MAX:
            return
        group = self._groups.setdefault(place, _Group(error, _sample_key(rows)))
        group.count += rows.num_rows
        if error.possibly_stored:
            group.error = error

    def error(self, options: SinkOptions) -> DeliveryError:
        """Its first line has the first reason; then each place and reason has a line."""
        groups = {place: _reason(*place[:2], group.error) for place, group in self._groups.items()}
        first = next(iter(groups.values()))
        lines = [
            f"Not written to Kafka: {format_count(self._count, 'record')}, by the task of partition "
            f"{self._task.partition_id} (attempt {self._task.attempt_number}, stage {self._task.stage_id}). {first}"
        ]
        for place, reason in groups.items():
            topic, partition, _ = place
            group = self._groups[place]
            where = "no topic" if topic is None else f"topic '{topic}'"
            where += "" if partition is None else f", partition {partition}"
            why = "" if reason == first else f" {reason}"
            lines.append(f"- {where}: {format_count(group.count, 'record')}, for example with {group.sample_key}.{why}")
        shown = sum(group.count for group in self._groups.values())
        if shown < self._count:
            lines.append(f"- and {self._count - shown:,} more, at other places or for other reasons.")
        lines += _advice([group.error for group in self._groups.values()], options)
        error = DeliveryError("\n".join(lines))
        error.__cause__ = next(iter(self._groups.values())).error
        return error


def _reason(topic: str | None, partition: int | None, error: KafkaSinkError) -> str:
    """Why, without the place, which has been named."""
    words = add_kafka_prefix(str(error))
    for place in (format_partition(topic, partition), format_partition(topic)) if topic is not None else ():
        words = words.removeprefix(f"{place}: ")
    return f"{type(error).__name__}: {words}"


def _advice(errors: list[KafkaSinkError], options: SinkOptions) -> list[str]:
    if options.dead_letter_topic is None and all(
        is_record_error(error) or isinstance(error, BatchRefusedError) for error in errors
    ):
        return [
            "What to do: mend these records, or let the others pass with "
            '.option("onRecordError", "deadLetter").option("deadLetterTopic", "<a topic>").'
        ]
    return []


def _sample_key(rows: RecordColumns) -> str:
    if rows.key is None:
        return "no key"
    first = combine_chunks(rows.key.slice(0, 1))
    key = first.cast(pa.large_binary())[0].as_py()
    if key is None:
        return "no key"
    text = repr(key.decode("utf-8", "backslashreplace"))
    return "key " + (text if len(text) <= _KEY_CHARACTERS_MAX else text[:_KEY_CHARACTERS_MAX] + "... (cut)")


def is_record_error(error: KafkaSinkError) -> bool:
    """Whether this record alone is at fault, so that others like it may well pass."""
    return isinstance(error, (RecordTooLargeError, InvalidRecordError))
