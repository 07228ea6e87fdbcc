"""A task that waits or fails: rows behind a stalled partition are bounded, and a failure ends it at once."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from spark_kafka_sink.errors import DeliveryError, InvalidRecordError
from spark_kafka_sink.producer.calls import Share
from spark_kafka_sink.producer.results import ColumnsResult
from spark_kafka_sink.records.columns import RecordColumns
from spark_kafka_sink.records.topic_rows import TopicRows
from spark_kafka_sink.spark.options.parse import parse_options
from spark_kafka_sink.spark.report import TaskIdentity, TaskReport
from spark_kafka_sink.spark.write_task import Writing

OPTIONS = parse_options({"kafka.bootstrap.servers": "host:1", "topic": "t"})
ROWS = TopicRows("t", RecordColumns(pa.array([b"v" * 100] * 10)), None)


class SlowFuture(Future[ColumnsResult]):
    """Its answer comes only when the task waits for it, as that of a partition without a leader."""

    def __init__(self, producer: FirstIsSlow) -> None:
        super().__init__()
        self._producer = producer

    def result(self, timeout: float | None = None) -> ColumnsResult:
        if not self.done():
            self._producer.lingered_in_a_wait = self._producer.lingers
            self.set_result(ColumnsResult("t", (), 10, [[Share(0, 10, 0, 0, -1)]]))
        return super().result(timeout)


class FirstIsSlow:
    """A producer whose first call stays without an answer, while all others are answered at once."""

    config = SimpleNamespace(buffer_memory=4 * ROWS.columns.nbytes, max_block_ms=1, delivery_timeout_ms=1)

    def __init__(self) -> None:
        self.first: SlowFuture | None = None
        self.lingers = True
        self.lingered_in_a_wait: bool | None = None

    def totals(self) -> None:
        return None

    @contextmanager
    def without_linger(self) -> Iterator[None]:
        self.lingers = False
        yield
        self.lingers = True

    def send_columns(self, *_: object) -> Future[ColumnsResult]:
        if self.first is None:
            self.first = SlowFuture(self)
            return self.first
        future: Future[ColumnsResult] = Future()
        future.set_result(ColumnsResult("t", (), 10, [[Share(0, 10, 1, 0, -1)]]))
        return future


def test_rows_behind_a_stalled_partition_do_not_pile_up_in_the_task() -> None:
    producer: Any = FirstIsSlow()
    writing = Writing(producer, OPTIONS, TaskReport(TaskIdentity(0, 0, 0, 0)))
    for _ in range(4):
        writing.send(ROWS)
    assert not producer.first.done()
    writing.send(ROWS)
    assert producer.first.done()
    assert writing.waiting_bytes <= producer.config.buffer_memory


def test_rows_do_not_linger_while_the_task_waits_for_their_answers_and_gives_no_others() -> None:
    producer: Any = FirstIsSlow()
    writing = Writing(producer, OPTIONS, TaskReport(TaskIdentity(0, 0, 0, 0)))
    for _ in range(5):
        writing.send(ROWS)
    assert (producer.lingered_in_a_wait, producer.lingers) == (False, True)


class Slow(FirstIsSlow):
    """Each answer comes only when the task waits for it."""

    def send_columns(self, *_: object) -> Future[ColumnsResult]:
        return SlowFuture(self)


def test_a_task_that_has_waited_goes_on_with_room_for_half_of_its_rows_and_not_for_one_call() -> None:
    """Else each call would be awaited by itself, and a thousand partitions get a few rows each time."""
    producer: Any = Slow()
    writing = Writing(producer, OPTIONS, TaskReport(TaskIdentity(0, 0, 0, 0)))
    waits: list[int] = []
    for number in range(10):
        before = writing.waiting_bytes
        writing.send(ROWS)
        if writing.waiting_bytes <= before:
            waits.append(number)
            assert writing.waiting_bytes == producer.config.buffer_memory // 2
    assert waits == [4, 7]


class Refusing(FirstIsSlow):
    def send_columns(self, *_: object) -> Future[ColumnsResult]:
        raise InvalidRecordError("refused")


def test_a_record_that_failed_ends_the_task_at_once_and_not_after_all_of_its_rows() -> None:
    producer: Any = Refusing()
    writing = Writing(producer, OPTIONS, TaskReport(TaskIdentity(0, 0, 0, 0)))
    with pytest.raises(DeliveryError, match=r"10 records.*refused"):
        writing.send(ROWS)
