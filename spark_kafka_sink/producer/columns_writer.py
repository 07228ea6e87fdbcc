"""ColumnsWriter: writes record batches through send_columns() for Spark tasks and send_table().

    batch  ->  rows by topic  ->  send_columns()  ->  pending calls  ->  results, in the order of the calls

A *call* is one call of send_columns(), with rows of one topic. It is pending until its result has been collected. With
each call, the user of the writer passes a context, an object that is returned with the result. A Spark task passes the
rows, which it needs for errors and dead letters. send_table() passes the positions of the rows in the table.

Pending calls and their contexts may occupy up to buffer.memory, in addition to the memory of the producer itself. Above
that limit, the writer waits for the oldest results, so that memory stays bounded even if a stream is endless or the
calls are small.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

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

PENDING_CALL_BYTES = 2_048
"""Memory of a pending call without its context: its future and its stored ranges.

According to tracemalloc, it is 2,000 bytes before the first response, and 2,300 with the response for one partition.
"""

ContextT = TypeVar("ContextT")


class ColumnsProducer(Protocol):
    """The part of a KafkaProducer that a ColumnsWriter uses."""

    config: ProducerConfig

    def send_columns(
        self,
        topic: str,
        columns: RecordColumns,
        partition: int | pa.Array | None = None,
        *,
        keep_row_indices: bool = False,
        ignored_key_bytes: int = 0,
    ) -> ColumnsFuture: ...

    def prefetch_topics(self, topics: Iterable[str]) -> set[str]: ...

    def without_linger(self) -> AbstractContextManager[None]: ...


@dataclass(frozen=True, slots=True)
class _PendingCall(Generic[ContextT]):
    future: ColumnsFuture
    context: ContextT
    nbytes: int
    """Memory of the call, including its context."""


class ColumnsWriter(Generic[ContextT]):
    """Writes rows through one producer, and returns the result of each call together with its context.

    To keep memory bounded, iterate over collect_results() at least once per batch. At the end, iterate over
    collect_all_results(). Not thread-safe.
    """

    def __init__(
        self,
        producer: ColumnsProducer,
        plan: ColumnPlan,
        *,
        keep_row_indices: bool = False,
        system: System | None = None,
    ) -> None:
        self.blocked_ms = 0.0
        """The total time that collect_results() has waited for memory."""
        self.pending_bytes = 0
        """The memory of all pending calls, including their contexts."""
        self._system = system if system is not None else OperatingSystem()
        self._producer = producer
        self._plan = plan
        # Only arguments that differ from the defaults of send_columns() are passed to it.
        self._send_arguments: dict[str, Any] = {"keep_row_indices": True} if keep_row_indices else {}
        if plan.ignored_key_bytes:
            self._send_arguments["ignored_key_bytes"] = plan.ignored_key_bytes
        self._pending_calls: deque[_PendingCall[ContextT]] = deque()
        self._has_warned_about_seconds = False
        config = producer.config
        self._max_pending_bytes = config.buffer_memory
        # A safety net against waiting forever: within this time, every record has been acknowledged or has failed.
        self._max_result_seconds = lock_timeout_seconds(config.max_block_ms + 2 * config.delivery_timeout_ms)

    @property
    def pending_call_count(self) -> int:
        """Number of calls whose results have not been collected yet."""
        return len(self._pending_calls)

    @property
    def has_result(self) -> bool:
        """Whether the result of the oldest pending call is available."""
        return bool(self._pending_calls) and self._pending_calls[0].future.done()

    def split(self, batch: pa.RecordBatch) -> Iterable[TopicRows]:
        """Split the rows of a batch by topic. Raise a DataError if the batch does not fit the plan.

        There are two side effects. If there are several topics, all missing metadata is requested at once, because that
        takes less time than a request for each topic. If the timestamps look like seconds instead of milliseconds, a
        warning is logged, at most once.
        """
        topics, topic_rows = self._plan.split(batch)
        if self._plan.timestamp is not None:
            self._warn_about_seconds(batch.column(self._plan.timestamp))
        if len(topics) > 1:
            self._producer.prefetch_topics(topic for topic in topics if topic is not None)
        return topic_rows

    def _warn_about_seconds(self, timestamp: pa.Array) -> None:
        """Log a warning if the timestamps look like seconds, unless a warning was logged before."""
        if self._has_warned_about_seconds:
            return
        seconds = find_likely_seconds(timestamp, self._system.wall_ms())
        if seconds is not None:
            self._has_warned_about_seconds = True
            _log.warning(LIKELY_SECONDS_MESSAGE, seconds)

    def send(self, rows: TopicRows, context: ContextT, context_bytes: int) -> None:
        """Send the rows and add the call to the pending calls. Raise the errors of send_columns().

        `context`: an object that is returned with the result.
        `context_bytes`: the memory that the context keeps alive until the result is collected.
        """
        assert rows.topic is not None, "the caller rejects rows without a topic"
        future = self._producer.send_columns(rows.topic, rows.columns, rows.partition, **self._send_arguments)
        self._add_pending_call(future, context, context_bytes)

    def fail(self, rows: TopicRows, error: KafkaSinkError, context: ContextT, context_bytes: int) -> None:
        """Add a call that has already failed, for rows that are not sent.

        Its result is returned in its turn, after the results of all earlier calls, as if the rows had been sent.
        """
        future = ColumnsFuture(rows.topic or "", rows.columns.num_rows)
        future.fail_rows(FailedRows(np.arange(rows.columns.num_rows), error, rows.topic))
        self._add_pending_call(future, context, context_bytes)

    def _add_pending_call(self, future: ColumnsFuture, context: ContextT, context_bytes: int) -> None:
        nbytes = PENDING_CALL_BYTES + context_bytes
        self._pending_calls.append(_PendingCall(future, context, nbytes))
        self.pending_bytes += nbytes

    def collect_results(self) -> Iterator[tuple[ContextT, ColumnsResult]]:
        """Yield the contexts and results of all completed calls, oldest first.

        If the pending calls exceed their memory limit, wait for more results until half of this memory is free, so that
        there is room for batches of a useful size.
        """
        while self.has_result:
            yield self._await_oldest()
        if self.pending_bytes <= self._max_pending_bytes:
            return
        # The caller adds no rows while it waits, so lingering would only delay the results.
        with self._producer.without_linger():
            while self._pending_calls and self.pending_bytes > self._max_pending_bytes // 2:
                started_ms = self._system.now()
                collected_result = self._await_oldest()
                self.blocked_ms += self._system.now() - started_ms
                yield collected_result

    def collect_all_results(self) -> Iterator[tuple[ContextT, ColumnsResult]]:
        """Wait for all calls that are pending now. Yield their contexts and results, oldest first.

        Calls that are added during the iteration stay pending.
        """
        for _ in range(len(self._pending_calls)):
            # Suspending linger also wakes the sender. Avoid that if the result is already available.
            with nullcontext() if self.has_result else self._producer.without_linger():
                collected_result = self._await_oldest()
            yield collected_result

    def _await_oldest(self) -> tuple[ContextT, ColumnsResult]:
        """Wait for the oldest pending call, remove it, and return its context and its result."""
        call = self._pending_calls[0]
        result = call.future.result(self._max_result_seconds)
        # Remove the call only after the wait. If a signal handler raises an exception during the wait, the call must
        # stay pending, because its rows were sent and its result still counts.
        self._pending_calls.popleft()
        self.pending_bytes -= call.nbytes
        return call.context, result
