"""What was written: reported by each task, added up by the driver, shown as a line in the log and a line of JSON.

Only what brokers have acknowledged is counted. A TaskReport is the commit message that a task hands to Spark; the
driver's `commit` gets one from every task and makes one WriteReport of them.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from pyspark.sql.datasource import WriterCommitMessage

_TOPICS_NAMED_MAX = 5
"""In the line of a commit; reportPath has all of them."""
_BYTE_UNITS = ("B", "KB", "MB", "GB", "TB")


@dataclass(frozen=True)
class OffsetRange:
    """The rows of one partition. Other writers' records may lie between the first and the last offset.

    An offset of -1 is one that the broker did not send (acks=0, or a retry whose first attempt was stored).
    """

    first_offset: int
    last_offset: int
    rows: int

    def __add__(self, other: OffsetRange) -> OffsetRange:
        known = [offset for offset in (self.first_offset, other.first_offset) if offset >= 0]
        return OffsetRange(min(known, default=-1), max(self.last_offset, other.last_offset), self.rows + other.rows)


Partitions = dict[str, dict[int, OffsetRange]]
"""topic -> partition -> what was written there"""


def add_range(partitions: Partitions, topic: str, partition: int, written: OffsetRange) -> None:
    of_topic = partitions.setdefault(topic, {})
    known = of_topic.get(partition)
    of_topic[partition] = written if known is None else known + written


@dataclass(frozen=True)
class TaskIdentity:
    """Which attempt of which task. `query_id` and `batch_id` are set in streams only."""

    partition_id: int
    attempt_number: int
    task_attempt_id: int
    stage_id: int
    application_id: str | None = None
    query_id: str | None = None
    batch_id: str | None = None

    @property
    def batch(self) -> str:
        """What the rows belong to: a micro-batch, or a stage of a batch job."""
        if self.query_id is not None:
            return f"{self.query_id}/{self.batch_id}"
        return f"{self.application_id}/stage-{self.stage_id}"


@dataclass
class TaskReport(WriterCommitMessage):
    """The commit message of one task: all of its records are acknowledged, or in the dead-letter topic."""

    task: TaskIdentity
    partitions: Partitions = field(default_factory=dict)
    rows: int = 0
    bytes: int = 0
    """of keys, values and headers, as Spark handed them over"""
    retries: int = 0
    dead_letters: int = 0
    dead_letters_cut: int = 0
    """of these, how many had to be cut to fit"""
    duration_ms: int = 0


@dataclass(frozen=True)
class WriteReport:
    """The sum over the tasks of a batch job or of a micro-batch."""

    batch: str
    tasks: int
    partitions: Partitions
    rows: int
    bytes: int
    retries: int
    dead_letters: int
    dead_letters_cut: int
    longest_task_ms: int

    def line(self) -> str:
        named = [
            f"{topic} ({counted(len(of_topic), 'partition')})" for topic, of_topic in sorted(self.partitions.items())
        ]
        if len(named) > _TOPICS_NAMED_MAX:
            named[_TOPICS_NAMED_MAX:] = [counted(len(named) - _TOPICS_NAMED_MAX, "other topic")]
        where = ", ".join(named)
        words = (
            f"wrote {counted(self.rows, 'row')} ({_size(self.bytes)}) to {where or 'no topic'}; "
            f"{counted(self.tasks, 'task')}, the longest {self.longest_task_ms} ms; "
            f"{counted(self.retries, 'record')} retried; {counted(self.dead_letters, 'dead letter')}"
        )
        if self.dead_letters_cut:
            words += f", {self.dead_letters_cut} of them cut to fit"
        return f"{words} [{self.batch}]"

    def to_json(self) -> str:
        plain = dataclasses.asdict(self)
        plain["partitions"] = [
            {"topic": topic, "partition": partition, **dataclasses.asdict(written)}
            for topic, of_topic in sorted(self.partitions.items())
            for partition, written in sorted(of_topic.items())
        ]
        return json.dumps(plain, ensure_ascii=False)

    def append_to(self, path: str) -> None:
        with open(path, "a", encoding="utf-8") as lines:
            lines.write(self.to_json() + "\n")


def ranges_of(reports: Iterable[TaskReport | WriteReport]) -> Partitions:
    """The partitions of several tasks, or of several commits such as a stream's micro-batches, added up."""
    partitions: Partitions = {}
    for report in reports:
        for topic, of_topic in report.partitions.items():
            for partition, written in of_topic.items():
                add_range(partitions, topic, partition, written)
    return partitions


def add_up(reports: Sequence[TaskReport], batch: str | None = None) -> WriteReport:
    return WriteReport(
        batch=batch or (reports[0].task.batch if reports else "no tasks"),
        tasks=len(reports),
        partitions=ranges_of(reports),
        rows=sum(report.rows for report in reports),
        bytes=sum(report.bytes for report in reports),
        retries=sum(report.retries for report in reports),
        dead_letters=sum(report.dead_letters for report in reports),
        dead_letters_cut=sum(report.dead_letters_cut for report in reports),
        longest_task_ms=max((report.duration_ms for report in reports), default=0),
    )


def read_reports(path: str) -> list[WriteReport]:
    """What `reportPath` has collected."""
    with open(path, encoding="utf-8") as lines:
        return [_from_json(line) for line in lines if line.strip()]


def _from_json(line: str) -> WriteReport:
    plain = json.loads(line)
    partitions: Partitions = {}
    for row in plain["partitions"]:
        written = OffsetRange(row["first_offset"], row["last_offset"], row["rows"])
        partitions.setdefault(row["topic"], {})[row["partition"]] = written
    return WriteReport(**(plain | {"partitions": partitions}))


def counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def _size(count: float) -> str:
    units = iter(_BYTE_UNITS)
    unit = next(units)
    while count >= 1000 and (larger := next(units, None)):
        count, unit = count / 1000, larger
    return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
