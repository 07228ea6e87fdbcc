"""The error of a failed task, which groups the failed records by destination and reason, and names a remedy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import pyarrow as pa

from spark_kafka_sink.diagnostics.text import format_count
from spark_kafka_sink.errors import (
    BatchRejectedError,
    DeliveryError,
    InvalidRecordError,
    KafkaSinkError,
    RecordTooLargeError,
)
from spark_kafka_sink.records.columns import RecordColumns, combine_chunks
from spark_kafka_sink.spark.options.names import add_kafka_prefix
from spark_kafka_sink.spark.options.sink_options import SinkOptions
from spark_kafka_sink.spark.task_report import TaskIdentity

_MAX_GROUPS = 10
"""Maximum number of groups in an error. The records of all further groups are only counted."""
_MAX_KEY_CHARACTERS = 60


class _GroupKey(NamedTuple):
    """The common properties of the records of a group. `topic` and `partition` are None if they are unknown."""

    topic: str | None
    partition: int | None
    reason: str


@dataclass
class _FailureGroup:
    """The records that failed for the same reason in the same topic and partition."""

    error: KafkaSinkError
    sample_key: str
    """Text that describes the key of the group's first record."""
    count: int = 0


class Failures:
    """The failed records of one task, counted by topic, partition and reason."""

    def __init__(self, task: TaskIdentity) -> None:
        self._task = task
        self._groups: dict[_GroupKey, _FailureGroup] = {}
        self._record_count = 0

    def __bool__(self) -> bool:
        return self._record_count > 0

    def add(self, topic: str | None, partition: int | None, error: KafkaSinkError, rows: RecordColumns) -> None:
        """Add failed rows. Only the first few groups are kept, so that the error stays short."""
        self._record_count += rows.num_rows
        # Batches that failed for the same cause may have different messages, for example with "never sent", so group by
        # the cause.
        key = _GroupKey(topic, partition, str(error.__cause__ or error))
        if key not in self._groups and len(self._groups) >= _MAX_GROUPS:
            return
        group = self._groups.setdefault(key, _FailureGroup(error, _describe_first_key(rows)))
        group.count += rows.num_rows
        if error.possibly_stored:
            # The message of this error warns that records of the group may have been stored.
            group.error = error

    def build_error(self, options: SinkOptions) -> DeliveryError:
        """Build the task's error. Its first line gives the first reason, and each group follows on a line of its own.

        There must be at least one failed record.
        """
        errors = [group.error for group in self._groups.values()]
        first_reason = _format_reason(errors[0])
        lines = [
            f"The task for Spark partition {self._task.partition_id} (stage {self._task.stage_id}, attempt "
            f"{self._task.attempt_number}) failed to write {format_count(self._record_count, 'record')} to Kafka. "
            f"{first_reason}"
        ]
        lines += [_describe_group(key, group, first_reason) for key, group in self._groups.items()]
        other_count = self._record_count - sum(group.count for group in self._groups.values())
        if other_count:
            lines.append(f"- and {format_count(other_count, 'more record')} (other topics, partitions or reasons).")
        lines += _suggest_remedies(errors, options)
        error = DeliveryError("\n".join(lines))
        error.__cause__ = errors[0]
        return error


def _format_reason(error: KafkaSinkError) -> str:
    """Format the error without its topic and partition, because the line of its group already names them."""
    return f"{type(error).__name__}: {add_kafka_prefix(error.reason)}"


def _describe_group(key: _GroupKey, group: _FailureGroup, first_reason: str) -> str:
    """Describe the group on one line, with its reason unless the first line of the task's error already gives it."""
    topic_text = "no topic" if key.topic is None else f"topic '{key.topic}'"
    partition_text = "" if key.partition is None else f", partition {key.partition}"
    reason = _format_reason(group.error)
    reason_text = "" if reason == first_reason else f" {reason}"
    count_text = format_count(group.count, "record")
    return f"- {topic_text}{partition_text}: {count_text}, for example with {group.sample_key}.{reason_text}"


def _suggest_remedies(errors: list[KafkaSinkError], options: SinkOptions) -> list[str]:
    """Suggest a dead-letter topic if the job could use one but has none, and all errors were caused by records.

    Exactly-once delivery does not support dead letters, because a rejected record aborts the transaction.
    """
    can_add_dead_letters = options.exactly_once_options is None and options.dead_letter_topic is None
    # A BatchRejectedError is also due to a record: a different record of the same batch.
    are_due_to_records = all(is_record_error(error) or isinstance(error, BatchRejectedError) for error in errors)
    if can_add_dead_letters and are_due_to_records:
        return [
            "What to do: fix these records, or write them to a dead-letter topic: "
            '.option("onRecordError", "deadLetter").option("deadLetterTopic", "<a topic>").'
        ]
    return []


def _describe_first_key(rows: RecordColumns) -> str:
    """Return text such as "key 'a'" for the key of the first row, or "no key". A long key is truncated."""
    if rows.key is None:
        return "no key"
    first_key_column = combine_chunks(rows.key.slice(0, 1))
    key = first_key_column.cast(pa.large_binary())[0].as_py()
    if key is None:
        return "no key"
    text = repr(key.decode("utf-8", "backslashreplace"))
    return "key " + (text if len(text) <= _MAX_KEY_CHARACTERS else text[:_MAX_KEY_CHARACTERS] + "... (truncated)")


def is_record_error(error: KafkaSinkError) -> bool:
    """Return whether the record itself caused the error. The broker may then accept other records."""
    return isinstance(error, (RecordTooLargeError, InvalidRecordError))
