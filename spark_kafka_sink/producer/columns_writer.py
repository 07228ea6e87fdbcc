"""ColumnsWriter: the rows of batches, written with send_columns(). Spark's tasks and send_table() use it.

    batch  ->  rows by topic  ->  send_columns()  ->  pending calls  ->  results, in the order of the calls

The caller keeps something of each call until its result is there: a Spark task its rows, for errors and dead letters,
send_table() the positions of its rows in the table. This memory is bounded by buffer.memory, as that of the producer
is: with more the writer waits for the oldest results. So a stream may be endless, and its calls may be small.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import numpy as np
import pyarrow as pa

from spark_kafka_sink.client.backoff import lock_timeout_seconds
from spark_kafka_sink.errors import KafkaSinkError
from spark_kafka_sink.network.system import OperatingSystem, System
from spark_kafka_sink.producer.calls import FailedRows
from spark_kafka_sink.producer.column_plan import ColumnPlan
from spark_kafka_sink.producer.config import ProducerConfig
from spark_kafka_sink.producer.futures import ColumnsFuture
from spark_kafka_sink.producer.results import ColumnsResult
from spark_kafka_sink.records.columns import LIKELY_SECONDS_MESSAGE, RecordColumns, find_likely_seconds
from spark_kafka_sink.records.topic_rows import TopicRows

_log = logging.getLogger(__name__)

CALL_BYTES = 2_048
"""The memory of a pending call without what the caller keeps of it: its future, and what brokers have stored of it.
Measured with tracemalloc: 2,000 bytes before the first answer, 2,300 with the answer of one partition."""

ContextT = TypeVar("ContextT")


class ColumnsProducer(Protocol):
    """The part of a KafkaProducer that a ColumnsWriter uses."""

    config: ProducerConfig

    def send_columns(
        self, topic: str, columns: RecordColumns, partition: int | pa.Array | None = None
    ) -> ColumnsFuture: ...

    def prefetch_topics(self, topics: Iterable[str]) -> set[str]: ...

    def without_linger(self) -> AbstractContextManager[None]: ...


@dataclass(frozen=True, slots=True)
class _PendingCall(Generic[ContextT]):
    future: ColumnsFuture
    context: ContextT
    nbytes: int


class ColumnsWriter(Generic[ContextT]):
    """Writes rows through one producer. `context` is what the caller gets back with the result of a call.

    The caller takes the results with settle() after each batch at least, and at the end with drain(). Used by one
    thread at a time.
    """

    def __init__(self, producer: ColumnsProducer, plan: ColumnPlan, *, system: System | None = None) -> None:
        self.blocked_ms = 0.0
        """How long settle() has waited for memory."""
        self.pending_bytes = 0
        """The memory of all pending calls, with what the caller keeps of them."""
        self._system = system if system is not None else OperatingSystem()
        self._producer = producer
        self._plan = plan
        self._pending: deque[_PendingCall[ContextT]] = deque()
        self._has_warned_of_seconds = False
        config = producer.config
        self._max_pending_bytes = config.buffer_memory
        self._max_result_seconds = lock_timeout_seconds(config.max_block_ms + 2 * config.delivery_timeout_ms)

    @property
    def pending_calls(self) -> int:
        """The calls whose results the caller has not taken."""
        return len(self._pending)

    @property
    def has_result(self) -> bool:
        """Return whether the oldest pending call has its result."""
        return bool(self._pending) and self._pending[0].future.done()

    def split(self, batch: pa.RecordBatch) -> Iterable[TopicRows]:
        """Split the rows of a batch by topic, and request the metadata of all its topics at once.

        Logs a warning, once, if numbers in the column of timestamps are likely seconds.
        """
        topics, parts = self._plan.split(batch)
        if self._plan.timestamp is not None:
            self._warn_of_seconds(batch.column(self._plan.timestamp))
        if len(topics) > 1:
            self._producer.prefetch_topics(topic for topic in topics if topic is not None)
        return parts

    def _warn_of_seconds(self, timestamp: pa.Array) -> None:
        if not self._has_warned_of_seconds:
            seconds = find_likely_seconds(timestamp, self._system.wall_ms())
            if seconds is not None:
                self._has_warned_of_seconds = True
                _log.warning(LIKELY_SECONDS_MESSAGE, seconds)

    def send(self, rows: TopicRows, context: ContextT, context_bytes: int) -> None:
        """Hand rows to the producer. Raises what send_columns() raises.

        `context_bytes`: the memory that `context` keeps alive until the result is taken.
        """
        assert rows.topic is not None, "the caller rejects rows without a topic"
        self._add(self._producer.send_columns(rows.topic, rows.columns, rows.partition), context, context_bytes)

    def fail(self, rows: TopicRows, error: KafkaSinkError, context: ContextT, context_bytes: int) -> None:
        """Add a failed result for rows that were not sent, behind those of all earlier calls."""
        future = ColumnsFuture(rows.topic or "", rows.columns.num_rows)
        future.failed(FailedRows(np.arange(rows.columns.num_rows), error, rows.topic))
        self._add(future, context, context_bytes)

    def _add(self, future: ColumnsFuture, context: ContextT, context_bytes: int) -> None:
        nbytes = CALL_BYTES + context_bytes
        self._pending.append(_PendingCall(future, context, nbytes))
        self.pending_bytes += nbytes

    def settle(self) -> Iterator[tuple[ContextT, ColumnsResult]]:
        """Yield the results that are there. Wait for more if pending calls take more memory than they may.

        It then waits until half of the memory is free, which is enough for batches that are worth sending.
        """
        while self.has_result:
            yield self._take_oldest()
        if self.pending_bytes <= self._max_pending_bytes:
            return
        with self._producer.without_linger():
            while self._pending and self.pending_bytes > self._max_pending_bytes // 2:
                started_ms = self._system.now()
                settled = self._take_oldest()
                self.blocked_ms += self._system.now() - started_ms
                yield settled

    def drain(self) -> Iterator[tuple[ContextT, ColumnsResult]]:
        """Wait for all calls that are pending now, and yield their results. Calls that are added meanwhile stay."""
        for _ in range(len(self._pending)):
            with nullcontext() if self.has_result else self._producer.without_linger():
                settled = self._take_oldest()
            yield settled

    def _take_oldest(self) -> tuple[ContextT, ColumnsResult]:
        call = self._pending.popleft()
        self.pending_bytes -= call.nbytes
        return call.context, call.future.result(self._max_result_seconds)
