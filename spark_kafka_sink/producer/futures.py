"""What callers of send get back: futures, and what they resolve to.

A future is made per call: one for a record of send(), one for all the columns of a send_columns(). Batches cut across
calls, so the rows of one call are acknowledged or fail in pieces: `complete_futures` and `fail_futures` pass the result
of a batch on to the futures of its rows. Both run on the sender's thread, partition by partition in the order of the
batches.

Columns resolve even when rows fail: the failures are part of the result, with the rows' positions.
"""

from __future__ import annotations

import logging
import threading
from collections import defaultdict
from collections.abc import Callable, Generator, Iterable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from inspect import isroutine
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from spark_kafka_sink.errors import DeliveryError, KafkaSinkError
from spark_kafka_sink.producer.batching.batch import ProducerBatch

_log = logging.getLogger(__name__)

T = TypeVar("T")


class RecordMetadata(NamedTuple):
    """Where a record is. `offset` is -1 if the broker did not send it: acks=0, or a duplicate of a lost answer."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    serialized_key_size: int = -1
    serialized_value_size: int = -1


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """Rows written to one partition. Other writers' records may lie between the first and the last offset.

    An offset of -1 is one that the broker did not send (acks=0, or a retry whose first attempt was stored).
    """

    first_offset: int
    last_offset: int
    rows: int

    def __add__(self, other: OffsetRange) -> OffsetRange:
        known = [offset for offset in (self.first_offset, other.first_offset) if offset >= 0]
        return OffsetRange(min(known, default=-1), max(self.last_offset, other.last_offset), self.rows + other.rows)


@dataclass(frozen=True, slots=True, eq=False)
class RowFailures:
    """Rows that were not written, by their positions in the columns that were given, and why."""

    rows: NDArray[np.int64]
    partition: int | None
    error: KafkaSinkError


@dataclass(frozen=True, slots=True, eq=False)
class ColumnsResult:
    """What became of the rows of one send_columns()."""

    topic: str
    failures: tuple[RowFailures, ...]
    _stored: list[int] = field(repr=False)

    @property
    def partitions(self) -> dict[int, OffsetRange]:
        """What was written, by partition; summed up here, since many never look."""
        written: dict[int, OffsetRange] = {}
        numbers = iter(self._stored)
        for partition, first, rows in zip(numbers, numbers, numbers, strict=True):
            added = OffsetRange(first, first + rows - 1 if first >= 0 else -1, rows)
            before = written.get(partition)
            written[partition] = added if before is None else before + added
        return written

    @property
    def rows_written(self) -> int:
        return sum(self._stored[2::3])

    @property
    def rows_failed(self) -> int:
        return sum(len(failure.rows) for failure in self.failures)

    def raise_for_failures(self) -> None:
        """Raise DeliveryError, with the first failure as its cause, if any row was not written."""
        if self.failures:
            first = self.failures[0]
            raise DeliveryError(
                f"{self.rows_failed} of {self.rows_written + self.rows_failed} rows were not written to topic "
                f"{self.topic}. The first of them is row {int(first.rows[0])}: {first.error}"
            ) from first.error


Callback = Callable[[RecordMetadata, "Exception | None"], None]
"""(metadata, error). With an error, the metadata has the topic, the partition if it is known, and -1 for the rest."""


class _ProducerFuture(Future[T]):
    """A future that the sender resolves, one of many that it resolves in a row.

    It can be awaited: `await` waits on the event loop of the task, and the outcome comes from the sender's thread.

    It cannot be cancelled: its records may be on their way. A done-callback cannot harm the records behind it: whatever
    it raises is logged. (Future itself does so for an Exception only; a SystemExit would end the sender's thread.)
    """

    def __await__(self) -> Generator[Any, None, T]:
        from asyncio import wrap_future

        return wrap_future(self).__await__()

    def cancel(self) -> bool:
        return False

    def add_done_callback(self, fn: Callable[[Future[T]], object]) -> None:
        if self.done():
            super().add_done_callback(fn)  # called here and now: what it raises is the caller's own
        else:
            super().add_done_callback(partial(_call_when_done, fn))


def _call_when_done(callback: Callable[[Future[T]], object], future: Future[T]) -> None:
    try:
        callback(future)
    except BaseException:
        _log.exception("A callback of a future failed; the other records go on.")


class SendFuture(_ProducerFuture[RecordMetadata]):
    """The future of one record.

    It becomes an ordinary Future when something first looks at it; until then it keeps the outcome alone. Most futures
    of records are dropped without a look, and what Future makes for the look (a condition, two lists, 1.5 kB) costs
    half as much again as all the rest of send(), so that kafka-python would be faster.
    """

    def __init__(
        self,
        topic: str,
        partition: int,
        timestamp_ms: int,
        serialized_sizes: tuple[int, int],
        callbacks: tuple[Callback, ...],
    ) -> None:
        """`serialized_sizes` are those of the key and the value. Future.__init__ is left out on purpose."""
        self._topic = topic
        self._partition = partition
        self._timestamp_ms = timestamp_ms
        self._sizes = serialized_sizes
        self._callbacks = callbacks
        self._lock = threading.RLock()  # guards the two below: either the outcome comes first, or the first look
        self._outcome: RecordMetadata | Exception | None = None
        self._is_ordinary = False

    def __getattr__(self, name: str) -> Any:
        """Called for what is not there yet: all that an ordinary Future has appears at once, with the outcome."""
        ordinary: Future[RecordMetadata] = Future()
        with self._lock:
            if not self._is_ordinary:
                if self._outcome is not None:
                    _resolve(ordinary, self._outcome)
                self.__dict__.update(ordinary.__dict__)
                self._is_ordinary = True
        try:
            return self.__dict__[name]
        except KeyError:
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}") from None

    def stored(self, offset: int, log_append_time: int) -> None:
        timestamp_ms = log_append_time if log_append_time >= 0 else self._timestamp_ms
        metadata = RecordMetadata(self._topic, self._partition, offset, timestamp_ms, *self._sizes)
        try:
            self._call_back(metadata, None)
        finally:
            self._end(metadata)

    def failed(self, error: Exception) -> BaseException | None:
        """Returns what a callback has raised that is more than an Exception, for a caller whose own thread this is."""
        try:
            return self._call_back(RecordMetadata(self._topic, self._partition, -1, -1), error)
        finally:
            self._end(error)

    def _call_back(self, metadata: RecordMetadata, error: Exception | None) -> BaseException | None:
        raised = [_call(callback, metadata, error) for callback in self._callbacks]
        return next((one for one in raised if one is not None), None)

    def _end(self, outcome: RecordMetadata | Exception) -> None:
        with self._lock:
            self._outcome = outcome
            if not self._is_ordinary:
                return
        _resolve(self, outcome)


def _resolve(future: Future[RecordMetadata], outcome: RecordMetadata | Exception) -> None:
    if isinstance(outcome, Exception):
        future.set_exception(outcome)
    else:
        future.set_result(outcome)


def _call(callback: Callback, metadata: RecordMetadata, error: Exception | None) -> BaseException | None:
    """Whatever it raises is logged: on the sender's thread it would end all other records. Returns what is more than
    an Exception."""
    try:
        callback(metadata, error)
    except BaseException as raised:
        name = callback.__qualname__ if isroutine(callback) else type(callback).__qualname__
        _log.exception("%s failed for a record of topic %s; the others go on.", name, metadata.topic)
        return None if isinstance(raised, Exception) else raised
    return None


class ColumnsFuture(_ProducerFuture[ColumnsResult]):
    """The future of all rows of one call. The caller and the sender complete it; _lock guards the fields.

    What was stored is kept as plain numbers in one list, three for each batch. A call may have rows in a thousand
    batches, and the garbage collector would visit an object for each.
    """

    def __init__(self, topic: str, rows: int) -> None:
        super().__init__()
        self._topic = topic
        self._lock = threading.Lock()
        self._pending = rows
        self._stored: list[int] = []
        self._failures: list[RowFailures] = []
        if not rows:
            self.set_result(ColumnsResult(topic, (), []))

    def stored(self, batches: list[int]) -> None:
        """Note for each batch that is acknowledged its partition, first offset (-1 if unknown) and number of rows."""
        rows = sum(batches[2::3])
        with self._lock:
            self._stored += batches
            self._pending -= rows
            over = not self._pending
        if over:
            self._resolve()

    def failed(self, rows: NDArray[np.int64], partition: int | None, error: KafkaSinkError) -> None:
        if not len(rows):
            return
        failures = RowFailures(rows, partition, error)
        with self._lock:
            self._failures.append(failures)
            self._pending -= len(rows)
            over = not self._pending
        if over:
            self._resolve()

    def _resolve(self) -> None:
        """Complete the future: all rows have their result, so the fields do not change any more."""
        self.set_result(ColumnsResult(self._topic, tuple(self._failures), self._stored))


def complete_futures(batches: Iterable[ProducerBatch]) -> None:
    """Complete the futures of acknowledged batches; those of columns once, however many of the batches are theirs."""
    stored: defaultdict[ColumnsFuture, list[int]] = defaultdict(list)
    for batch in batches:
        _complete_records(batch, stored)
    for call, numbers in stored.items():
        _by_itself(call.stored, numbers)


def _complete_records(batch: ProducerBatch, stored: defaultdict[ColumnsFuture, list[int]]) -> None:
    """Complete the futures of single records, and note in `stored` what each call has in the batch."""
    _, partition = batch.topic_partition
    base_offset = batch.base_offset
    for origins, start, stop, first_index in batch.rows:
        if isinstance(origins.only_call, ColumnsFuture):  # of many rows, mostly
            offset = base_offset + first_index if base_offset >= 0 else -1
            stored[origins.only_call] += (partition, offset, stop - start)
            continue
        shift = first_index - start
        for call, first, last in origins.shares(start, stop):
            if isinstance(call, ColumnsFuture):
                stored[call] += (partition, base_offset + first + shift if base_offset >= 0 else -1, last - first)
            elif isinstance(call, list):
                for index, row in enumerate(origins.rows[first:last].tolist(), first + shift):
                    _by_itself(call[row].stored, batch.offset_of(index), batch.log_append_time)


def fail_futures(
    batch: ProducerBatch, error: KafkaSinkError, by_record: Mapping[int, KafkaSinkError] | None = None
) -> None:
    """Fail the futures of a batch, record by record where the broker named some (rule 6)."""
    named = by_record or {}
    for call, rows, first_index in batch.rows_by_call():
        if isinstance(call, ColumnsFuture):
            _by_itself(_columns_failed, call, batch.topic_partition.partition, rows, first_index, error, named)
        elif isinstance(call, list):
            for index, row in enumerate(rows.tolist(), first_index):
                _by_itself(call[row].failed, named.get(index, error))


def _by_itself(complete: Callable[..., object], *arguments: Any) -> None:
    """Complete one future on the sender's thread. Whatever a user's code raises there, its log handlers included, the
    futures of all other records are still completed."""
    try:
        complete(*arguments)
    except BaseException:
        with suppress(BaseException):
            _log.exception("A callback or a future raised; the other records go on.")


def _columns_failed(
    call: ColumnsFuture,
    partition: int,
    rows: NDArray[np.int64],
    first_index: int,
    error: KafkaSinkError,
    named: Mapping[int, KafkaSinkError],
) -> None:
    others = np.ones(len(rows), np.bool_)
    for index, reason in named.items():
        place = index - first_index
        if 0 <= place < len(rows):
            others[place] = False
            call.failed(rows[place : place + 1], partition, reason)
    call.failed(rows[others], partition, error)
