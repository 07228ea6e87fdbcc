"""Futures: what callers of send get back. What they resolve to is in results.py.

A future is made per call: one for a record of send(), one for all the columns of a send_columns(). Batches cut across
calls, so the rows of one call are acknowledged or fail in pieces. ColumnsFuture and RecordFutures are the two kinds of
`Call` (calls.py) that get these pieces, on the sender's thread, in the order of the batches.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Generator, Mapping
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import replace
from functools import partial
from inspect import isroutine
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from spark_kafka_sink.errors import KafkaSinkError, copy_error
from spark_kafka_sink.producer.calls import FailedRows, Shares
from spark_kafka_sink.producer.method_suggestions import FUTURE_METHODS, suggests
from spark_kafka_sink.producer.results import ColumnsResult, RecordMetadata

_log = logging.getLogger(__name__)

FUTURE_BYTES = 256
"""What a record of send() takes, besides its own bytes, until it is acknowledged: its future, and Python's objects for
its key and value. Measured with tracemalloc: 326 bytes for a record that is encoded to 113, in the stage."""

NONE_NAMED: Mapping[int, KafkaSinkError] = {}
"""No record of a batch has an error of its own."""
_NOTHING: NDArray[Any] = np.empty(0, np.int64)
T = TypeVar("T")


Callback = Callable[[RecordMetadata, "Exception | None"], None]
"""(metadata, error). With an error, the metadata has the topic, the partition if it is known, and -1 for the rest."""


@suggests(FUTURE_METHODS)
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

    Most futures of records are dropped without a look, and what Future.__init__ makes (a condition, two lists, 1.5 kB)
    costs as much as all the rest of send(). So it is left out on purpose: outcomes are kept for all records of a call
    together, and the first look makes an ordinary Future, whose attributes this one gets.

    No lock is needed between the two. The sender notes the outcome, then looks for a future that is watched; the first
    look has the future watched, then looks for an outcome. So one of them finds what the other has left.
    """

    def __init__(self, call: RecordFutures, row: int) -> None:
        self._call = call
        self._row = row

    def _make(self) -> Future[RecordMetadata]:
        """Make the Future of the first look. All threads that look get the same one: setdefault is one step."""
        outcome = self._call.outcome(self._row)
        if outcome is None:
            self._call.watched[self._row] = self
            outcome = self._call.outcome(self._row)
        made = Future[RecordMetadata]()
        if outcome is not None:
            _complete(made, outcome)
        return cast("Future[RecordMetadata]", self.__dict__.setdefault("_made", made))

    def end(self, outcome: RecordMetadata | Exception) -> None:
        """Hand the outcome, which the call has already, to those that wait for it."""
        with suppress(InvalidStateError):  # the first look has found it
            _complete(self, outcome)


class _FutureAttribute:
    """An attribute that Future.__init__ sets, and SendFuture has from the first look on.

    Every method of Future, and every function that works on futures, begins with one of them. Where it is set it is
    read without this descriptor, which has no __set__.
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, future: SendFuture | None, owner: type) -> object:
        if future is None:
            return self
        attributes = vars(future)
        for name, value in vars(attributes.get("_made") or future._make()).items():
            attributes.setdefault(name, value)  # the sender may have ended this future meanwhile
        return attributes[self._name]


for _name in vars(Future()):
    setattr(SendFuture, _name, _FutureAttribute(_name))


def _complete(future: Future[RecordMetadata], outcome: RecordMetadata | Exception) -> None:
    if isinstance(outcome, Exception):
        future.set_exception(copy_error(outcome))  # all records of a batch share one
    else:
        future.set_result(outcome)


class _Ended(NamedTuple):
    """Rows with one result: stored from `offset` on, or failed with `error`."""

    row_indices: NDArray[np.int64]
    partition: int
    offset: int
    log_append_time: int
    error: KafkaSinkError | None = None
    named: Mapping[int, KafkaSinkError] = NONE_NAMED


class RecordFutures:
    """The outcomes of single records of one topic that waited together, as a Call whose rows are numbered from 0 on.

    Results are stored unread, and indexed when a future is first read.
    """

    bytes_per_row = FUTURE_BYTES

    def __init__(self, topic: str) -> None:
        self.callbacks: dict[int, tuple[Callback, ...]] = {}
        """By row; only of rows that have some."""
        self.watched: dict[int, SendFuture] = {}
        """By row; only those that were looked at before they had an outcome."""
        self._topic = topic
        self._ended: list[_Ended] = []  # in which the rows are found by _places, up to number _known
        self._known = 0
        self._places: dict[int, tuple[_Ended, int]] = {}
        self._timestamps = self._key_sizes = self._value_sizes = _NOTHING

    def describe(
        self, timestamps: NDArray[np.int64], key_sizes: NDArray[np.int32], value_sizes: NDArray[np.int32]
    ) -> None:
        """What the metadata of each record says besides its place; the sizes are -1 for null."""
        self._timestamps, self._key_sizes, self._value_sizes = timestamps, key_sizes, value_sizes

    def stored(self, row_indices: NDArray[np.int64], shares: Shares, count: int) -> None:
        for start, stop, *place in np.asarray(shares).tolist():
            self._end(_Ended(row_indices[start:stop], *place))

    def failed(self, failed: FailedRows, named: Mapping[int, KafkaSinkError] = NONE_NAMED) -> None:
        partition = -1 if failed.partition is None else failed.partition
        self._end(_Ended(failed.rows, partition, -1, -1, failed.error, named))

    def refused(self, partition: int | None, error: KafkaSinkError, callbacks: tuple[Callback, ...]) -> SendFuture:
        """The future of one record that is not taken. A callback of it that raises more than an Exception raises it
        here, in the thread of the caller."""
        self.callbacks[0] = callbacks
        raised = self._end(_Ended(np.zeros(1, np.int64), -1 if partition is None else partition, -1, -1, error))
        if raised is not None:
            raise raised from None
        return SendFuture(self, 0)

    def outcome(self, row: int) -> RecordMetadata | Exception | None:
        """Return the row's outcome, or None. Safe from any thread: two threads that index one result write the same
        entries."""
        if row not in self._places:
            known = self._known  # read once: another thread may set it to less
            ended = self._ended[known:]
            for one in ended:
                self._places.update((each, (one, number)) for number, each in enumerate(one.row_indices.tolist()))
            self._known = known + len(ended)
        found = self._places.get(row)
        if found is None:
            return None
        one, number = found
        return self._metadata(one, number, row) if one.error is None else one.named.get(number, one.error)

    def _metadata(self, ended: _Ended, number: int, row: int) -> RecordMetadata:
        if ended.error is not None:
            return RecordMetadata(self._topic, ended.partition, -1, -1)
        return RecordMetadata(
            self._topic,
            ended.partition,
            ended.offset + number if ended.offset >= 0 else -1,
            ended.log_append_time if ended.log_append_time >= 0 else self._timestamps.item(row),
            self._key_sizes.item(row),
            self._value_sizes.item(row),
        )

    def _end(self, ended: _Ended) -> BaseException | None:
        """Call callbacks, then complete futures. Return a raised BaseException that is no Exception."""
        try:
            return self._call_back(ended) if self.callbacks else None
        finally:
            self._ended.append(ended)
            if self.watched:
                for row in ended.row_indices.tolist():
                    future = self.watched.pop(row, None)
                    outcome = None if future is None else self.outcome(row)
                    if future is not None and outcome is not None:
                        by_itself(future.end, outcome)

    def _call_back(self, ended: _Ended) -> BaseException | None:
        raised: BaseException | None = None
        for number, row in enumerate(ended.row_indices.tolist()):
            error = None if ended.error is None else ended.named.get(number, ended.error)
            for callback in self.callbacks.pop(row, ()):
                raised = _call(callback, self._metadata(ended, number, row), error) or raised
        return raised


def _call(callback: Callback, metadata: RecordMetadata, error: Exception | None) -> BaseException | None:
    """Whatever it raises is logged: on the sender's thread it would end all other records. Returns what is more than
    an Exception."""
    try:
        callback(metadata, error)
    except BaseException as raised:
        with suppress(BaseException):  # a log handler is a user's code, too
            name = callback.__qualname__ if isroutine(callback) else type(callback).__qualname__
            _log.exception("%s failed for a record of topic %s; the others go on.", name, metadata.topic)
        return None if isinstance(raised, Exception) else raised
    return None


class ColumnsFuture(_ProducerFuture[ColumnsResult]):
    """The future of all rows of one call. The caller and the sender complete it; _lock guards the fields.

    What was stored is kept as it comes, answer by answer, and added up when somebody looks.
    """

    bytes_per_row = 0

    def __init__(self, topic: str, rows: int) -> None:
        super().__init__()
        self._topic = topic
        self._lock = threading.Lock()
        self._pending = rows
        self._written = 0
        self._stored: list[Shares] = []
        self._failures: list[FailedRows] = []
        if not rows:
            self.set_result(ColumnsResult(topic, (), 0, ()))

    def stored(self, row_indices: NDArray[np.int64], shares: Shares, count: int) -> None:
        with self._lock:
            self._stored.append(shares)
            self._written += count
            self._pending -= count
            over = not self._pending
        if over:
            self._resolve()

    def failed(self, failed: FailedRows, named: Mapping[int, KafkaSinkError] = NONE_NAMED) -> None:
        rows = failed.rows
        others = np.ones(len(rows), np.bool_)
        others[list(named)] = False
        failures = [replace(failed, rows=rows[number : number + 1], error=error) for number, error in named.items()]
        if others.any():
            failures.append(replace(failed, rows=rows[others]))
        with self._lock:
            self._failures += failures
            self._pending -= len(rows)
            over = len(rows) > 0 and not self._pending
        if over:
            self._resolve()

    def _resolve(self) -> None:
        """Complete the future: all rows have their result, so the fields do not change any more."""
        self.set_result(ColumnsResult(self._topic, tuple(self._failures), self._written, self._stored))


def by_itself(complete: Callable[..., object], *arguments: Any) -> None:
    """Complete one future on the sender's thread. Whatever a user's code raises there, its log handlers included, the
    futures of all other records are still completed."""
    try:
        complete(*arguments)
    except BaseException:
        with suppress(BaseException):
            _log.exception("A callback or a future raised; the other records go on.")
