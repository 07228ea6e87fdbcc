"""Waits of send_table(): for acknowledgements of pending calls, and for a topic without metadata."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from spark_kafka_sink.errors import MetadataTimeoutError
from spark_kafka_sink.producer import columns_writer, tables
from spark_kafka_sink.producer.calls import StoredRange
from spark_kafka_sink.producer.config import ProducerConfig
from spark_kafka_sink.producer.futures import ColumnsFuture
from spark_kafka_sink.producer.results import ColumnsResult
from spark_kafka_sink.producer.table_plan import ColumnMapping, plan_table


class Scripted:
    """Stand-in for a producer whose send_columns() is defined by the test."""

    config = ProducerConfig.parse({"bootstrap.servers": "a:1"})

    def __init__(self, send_columns: Callable[..., Any]) -> None:
        self.send_columns = send_columns
        self.lingers = True

    def prefetch_topics(self, topics: Iterable[str]) -> set[str]:
        return {topic for topic in topics if topic == "nowhere"}

    @contextmanager
    def without_linger(self) -> Iterator[None]:
        self.lingers = False
        yield
        self.lingers = True


def test_waits_once_for_unreachable_topic(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "MAX_BATCH_ROWS", 1)
    requested_topics: list[str] = []

    def send_columns(topic: str, columns: object, partition: object = None) -> Any:
        requested_topics.append(topic)
        raise MetadataTimeoutError("it took max.block.ms")

    table = pa.table({"topic": ["nowhere"] * 3, "value": ["1", "2", "3"]})
    sender = tables.TableSender(Scripted(send_columns), plan_table(None, table.schema, ColumnMapping(), {}), 100)
    assert list(sender.send_batches(table.to_reader())) == [0, 0, 0]
    assert requested_topics == ["nowhere"]
    assert sender.result.rows_failed == 3


def test_sends_later_rows_of_topic_that_has_become_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "MAX_BATCH_ROWS", 1)
    unknown_topics = {"late"}

    def send_columns(topic: str, columns: Any, partition: object = None) -> ColumnsFuture:
        if unknown_topics:
            raise MetadataTimeoutError("it took max.block.ms")
        future = ColumnsFuture(topic, 1)
        future.complete_rows(np.arange(1), [StoredRange(0, 1, 0, 0, -1)], 1)
        return future

    table = pa.table({"topic": ["late"] * 4, "value": ["1", "2", "3", "4"]})
    producer = Scripted(send_columns)
    monkeypatch.setattr(producer, "prefetch_topics", lambda topics: unknown_topics & set(topics))
    sender = tables.TableSender(producer, plan_table(None, table.schema, ColumnMapping(), {}), 100)
    completed_counts = sender.send_batches(table.to_reader())
    next(completed_counts), next(completed_counts)
    unknown_topics.clear()
    list(completed_counts)
    assert (sender.result.rows_failed, sender.result.rows_written) == (2, 2)


def test_table_rows_do_not_linger_while_waiting_for_half_of_the_calls(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tables, "MAX_BATCH_ROWS", 1)
    monkeypatch.setattr(columns_writer, "PENDING_CALL_BYTES", Scripted.config.buffer_memory // 4)
    lingered: list[bool] = []

    class Slow(ColumnsFuture):
        def result(self, timeout: float | None = None) -> ColumnsResult:
            lingered.append(scripted.lingers)
            self.complete_rows(np.arange(1), [StoredRange(0, 1, 0, 0, -1)], 1)
            return super().result(timeout)

    scripted = Scripted(lambda topic, columns, partition: Slow(topic, len(columns)))
    table = pa.table({"value": ["1", "2", "3", "4", "5", "6"]})
    sender = tables.TableSender(scripted, plan_table("t", table.schema, ColumnMapping(), {}), 100)
    assert list(sender.send_batches(table.to_reader())) == [0, 0, 0, 0, 3, 0, 1, 1, 1]
    assert (lingered, scripted.lingers) == ([False] * 6, True)
