"""ColumnsWriter: the limit of pending rows, its waits, and the order of results."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from spark_kafka_sink.errors import InvalidRecordError, MetadataTimeoutError
from spark_kafka_sink.producer.calls import StoredRange
from spark_kafka_sink.producer.column_plan import ColumnPlan
from spark_kafka_sink.producer.columns_writer import PENDING_CALL_BYTES, ColumnsWriter
from spark_kafka_sink.producer.futures import ColumnsFuture
from spark_kafka_sink.producer.results import ColumnsResult
from spark_kafka_sink.records.columns import RecordColumns
from spark_kafka_sink.records.topic_rows import TopicRows

ROWS = TopicRows("t", RecordColumns(pa.array([b"v" * 100] * 10)), None)
CONTEXT_BYTES = 1_000
PLAN = ColumnPlan(value=0, topic=1, timestamp=2)


class ScriptedFuture(ColumnsFuture):
    """A future that is completed when the writer waits for it, like that of a partition without a leader."""

    def __init__(self, producer: ScriptedProducer) -> None:
        super().__init__("t", 10)
        self._producer = producer

    def complete(self) -> None:
        self.complete_rows(np.arange(10), [StoredRange(0, 10, 0, 0, -1)], 10)

    def result(self, timeout: float | None = None) -> ColumnsResult:
        if not self.done():
            self._producer.lingered_in_waits.append(self._producer.lingers)
            self.complete()
        return super().result(timeout)


class ScriptedProducer:
    """A producer with memory for four calls. `slow`: numbers of the calls that are not completed immediately."""

    config: Any = SimpleNamespace(
        buffer_memory=4 * (PENDING_CALL_BYTES + CONTEXT_BYTES), max_block_ms=1, delivery_timeout_ms=60_000
    )

    def __init__(self, slow: range) -> None:
        self.futures: list[ScriptedFuture] = []
        self.lingers = True
        self.lingered_in_waits: list[bool] = []
        self.prefetched: list[list[str]] = []
        self._slow = slow

    @contextmanager
    def without_linger(self) -> Iterator[None]:
        self.lingers = False
        yield
        self.lingers = True

    def prefetch_topics(self, topics: Any) -> set[str]:
        self.prefetched.append([*topics])
        return set()

    def send_columns(self, *_: object, keep_row_indices: bool = False, ignored_key_bytes: int = 0) -> ScriptedFuture:
        future = ScriptedFuture(self)
        if len(self.futures) not in self._slow:
            future.complete()
        self.futures.append(future)
        return future


def scripted(slow: range) -> tuple[ScriptedProducer, ColumnsWriter[int]]:
    producer = ScriptedProducer(slow)
    return producer, ColumnsWriter(producer, PLAN)


def send(writer: ColumnsWriter[int], number: int) -> list[int]:
    """Send the call with this number. Return the numbers of the calls with results."""
    writer.send(ROWS, number, CONTEXT_BYTES)
    return [completed for completed, _ in writer.collect_results()]


def test_rows_behind_a_stalled_partition_do_not_pile_up() -> None:
    producer, writer = scripted(range(1))
    assert [send(writer, number) for number in range(4)] == [[], [], [], []], "results come in the order of the calls"
    assert not producer.futures[0].done()
    assert send(writer, 4) == [0, 1, 2]
    assert writer.pending_bytes <= producer.config.buffer_memory


def test_rows_do_not_linger_while_the_writer_waits_for_their_results() -> None:
    producer, writer = scripted(range(5))
    for number in range(5):
        send(writer, number)
    assert (producer.lingered_in_waits, producer.lingers) == ([False] * 3, True)
    assert [number for number, _ in writer.collect_all_results()] == [3, 4]
    assert (producer.lingered_in_waits, producer.lingers) == ([False] * 5, True)


def test_waits_until_half_of_the_memory_is_free() -> None:
    """If it waited for single calls, a thousand partitions would get only a few rows at a time."""
    producer, writer = scripted(range(10))
    waits: dict[int, list[int]] = {}
    for number in range(10):
        completed = send(writer, number)
        if completed:
            waits[number] = completed
            assert writer.pending_bytes == producer.config.buffer_memory // 2
    assert waits == {4: [0, 1, 2], 7: [3, 4, 5]}
    assert writer.blocked_ms > 0


def test_many_small_calls_are_bounded_by_the_memory_of_a_call() -> None:
    producer, writer = scripted(range(1_000))
    for number in range(100):
        writer.send(ROWS, number, 0)
        list(writer.collect_results())
        assert writer.pending_call_count * PENDING_CALL_BYTES == writer.pending_bytes <= producer.config.buffer_memory


def test_drain_excludes_calls_added_during_it() -> None:
    _, writer = scripted(range(10))
    writer.send(ROWS, 0, 0)
    for number, _ in writer.collect_all_results():
        writer.send(ROWS, number + 1, 0)
    assert [number for number, _ in writer.collect_all_results()] == [1]
    assert (writer.pending_call_count, writer.pending_bytes) == (0, 0)


def test_rows_that_were_not_sent_fail_behind_the_results_of_earlier_calls() -> None:
    _, writer = scripted(range(1))
    writer.send(ROWS, 0, 0)
    error = InvalidRecordError("no topic")
    writer.fail(ROWS._replace(topic=None), error, 1, 0)
    assert list(writer.collect_results()) == []
    (first, written), (second, failed) = writer.collect_all_results()
    assert (first, written.rows_written, written.failures) == (0, 10, ())
    assert (second, failed.rows_written) == (1, 0)
    (failure,) = failed.failures
    assert (failure.row_indices.tolist(), failure.partition, failure.error) == (list(range(10)), None, error)


def test_raises_error_of_producer_and_keeps_no_pending_call(monkeypatch: pytest.MonkeyPatch) -> None:
    producer, writer = scripted(range(0))

    def reject(*_: object) -> ScriptedFuture:
        raise MetadataTimeoutError("unknown")

    monkeypatch.setattr(producer, "send_columns", reject)
    with pytest.raises(MetadataTimeoutError):
        send(writer, 0)
    assert (writer.pending_call_count, writer.pending_bytes) == (0, 0)


def test_all_topics_of_a_batch_are_prefetched_before_its_first_rows() -> None:
    producer, writer = scripted(range(0))
    batch = pa.record_batch({"value": ["1", "2", "3", "4"], "topic": ["a", None, "b", "a"], "timestamp": [None] * 4})
    writer.split(batch)
    assert producer.prefetched == [["a", "b"]]
    writer.split(batch.slice(3))
    assert producer.prefetched == [["a", "b"]], "a single topic is requested when its rows are sent"


@pytest.mark.parametrize(("factor", "warnings"), [(1, 1), (1_000, 0)])
def test_warns_once_of_timestamps_in_seconds(caplog: pytest.LogCaptureFixture, factor: int, warnings: int) -> None:
    _, writer = scripted(range(0))
    batch = pa.record_batch({"value": [b"v"], "topic": ["t"], "timestamp": [1_764_000_000 * factor]})
    for _ in range(2):
        writer.split(batch)
    assert caplog.text.count("multiply it by 1000") == warnings


def test_keeps_call_pending_when_signal_handler_raises_during_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    producer, writer = scripted(range(1))
    writer.send(ROWS, 0, CONTEXT_BYTES)

    def raise_in_handler(timeout: float | None = None) -> ColumnsResult:
        monkeypatch.undo()
        raise LookupError("raised by a signal handler")

    monkeypatch.setattr(producer.futures[0], "result", raise_in_handler)
    with pytest.raises(LookupError):
        list(writer.collect_all_results())
    assert (writer.pending_call_count, writer.pending_bytes) == (1, PENDING_CALL_BYTES + CONTEXT_BYTES)
    assert [(number, result.rows_written) for number, result in writer.collect_all_results()] == [(0, 10)]
    assert (writer.pending_call_count, writer.pending_bytes) == (0, 0)
