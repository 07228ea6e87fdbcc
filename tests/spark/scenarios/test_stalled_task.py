"""A task that waits or fails: rows behind a stalled partition are bounded, and a failure ends it at once."""

from __future__ import annotations

from concurrent.futures import Future
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

    def result(self, timeout: float | None = None) -> ColumnsResult:
        if not self.done():
            self.set_result(ColumnsResult("t", (), 10, [[Share(0, 10, 0, 0, -1)]]))
        return super().result(timeout)


class FirstIsSlow:
    """A producer whose first call stays without an answer, while all others are answered at once."""

    config = SimpleNamespace(buffer_memory=4 * ROWS.columns.nbytes, max_block_ms=1, delivery_timeout_ms=1)

    def __init__(self) -> None:
        self.first: SlowFuture | None = None

    def totals(self) -> None:
        return None

    def send_columns(self, *_: object) -> Future[ColumnsResult]:
        if self.first is None:
            self.first = SlowFuture()
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


class Refusing(FirstIsSlow):
    def send_columns(self, *_: object) -> Future[ColumnsResult]:
        raise InvalidRecordError("refused")


def test_a_record_that_failed_ends_the_task_at_once_and_not_after_all_of_its_rows() -> None:
    producer: Any = Refusing()
    writing = Writing(producer, OPTIONS, TaskReport(TaskIdentity(0, 0, 0, 0)))
    with pytest.raises(DeliveryError, match=r"10 records.*refused"):
        writing.send(ROWS)
