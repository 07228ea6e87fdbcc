"""The futures that send() and send_columns() return. results.py defines their results.

send() returns a future for its record, and send_columns() returns one future for all of its rows. The *outcome* of a
row is either the metadata of the stored record or an error. The rows of one call may be spread over many batches, so
their outcomes arrive in groups.

ColumnsFuture and RecordFutures implement `SendCall` (calls.py): they receive these groups of outcomes on the sender
thread, in the order of the batches.
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
from spark_kafka_sink.producer.calls import FailedRows, StoredRanges
from spark_kafka_sink.producer.method_suggestions import FUTURE_METHODS, suggest_counterparts
from spark_kafka_sink.producer.results import ColumnsResult, RecordMetadata

_log = logging.getLogger(__name__)

FUTURE_BYTES = 256
"""Number of bytes of buffer.memory that are reserved for the Python objects of each record passed to send().

These objects are its future, its key and its value. The encoded size of the record is reserved in addition. According
to tracemalloc, a staged record takes 326 bytes if its encoded size is 113 bytes.
"""

NO_RECORD_ERRORS: Mapping[int, KafkaSinkError] = {}
"""An empty `errors_by_position`: no row was rejected individually."""
_NO_NUMBERS: NDArray[Any] = np.empty(0, np.int64)
T = TypeVar("T")


Callback = Callable[[RecordMetadata, "Exception | None"], None]
"""A callback passed to send(). It is called with (metadata, error).

If the record was written, the error is None. If not, the metadata contains the topic, the partition if it is known, and
-1 in all other fields.
"""


@suggest_counterparts(FUTURE_METHODS)
class _ProducerFuture(Future[T]):
    """A future that the sender thread completes.

    Coroutines can await the future without blocking the event loop.

    The future cannot be cancelled, because its records may have been sent already. If a done-callback raises an
    exception, it is only logged, so that the futures of other records still complete. The base class does not suffice
    for this: it logs only subclasses of Exception, so a SystemExit would end the sender thread.
    """

    def __await__(self) -> Generator[Any, None, T]:
        from asyncio import wrap_future

        return wrap_future(self).__await__()

    def cancel(self) -> bool:
        """Return False, because a record that may have been sent already cannot be taken back."""
        return False

    def add_done_callback(self, fn: Callable[[Future[T]], object]) -> None:
        if self.done():
            super().add_done_callback(fn)  # runs `fn` now, on this thread, so a SystemExit reaches the caller
        else:
            super().add_done_callback(partial(_run_done_callback, fn))


def _run_done_callback(callback: Callable[[Future[T]], object], future: Future[T]) -> None:
    """Run a done-callback on the sender thread, and log any exception."""
    try:
        callback(future)
    except BaseException:
        _log.exception("A callback of a future raised an exception. Other records are not affected.")


class SendFuture(_ProducerFuture[RecordMetadata]):
    """The future of one record.

    Most callers never look at the futures of their records, but Future.__init__ creates a condition and two lists
    (1.5 kB), which takes as long as the rest of send(). So SendFuture.__init__ does not call Future.__init__, and
    RecordFutures stores the outcomes of many records together. Only the first access to an attribute of Future creates
    an ordinary Future, whose attributes are then copied to this object.

    The sender thread and the thread of this first access need no common lock:

        sender thread       1. stores the outcome                    2. completes the future if it is watched
        first access        1. adds the future to watched_futures    2. completes the future if it has an outcome

    Each thread stores before it reads, so at least one of them sees what the other has stored.
    """

    def __init__(self, call: RecordFutures, row_index: int) -> None:
        self._call = call
        self._row_index = row_index

    def _create_future(self) -> Future[RecordMetadata]:
        """Return the ordinary Future behind this object. The first call creates it.

        All threads get the same Future, because dict.setdefault() is atomic.
        """
        outcome = self._call.find_record_outcome(self._row_index)
        if outcome is None:
            # Look again after adding the future, because the sender thread may have stored the outcome in between.
            self._call.watched_futures[self._row_index] = self
            outcome = self._call.find_record_outcome(self._row_index)
        future = Future[RecordMetadata]()
        if outcome is not None:
            _complete_future(future, outcome)
        return cast("Future[RecordMetadata]", self.__dict__.setdefault("_future", future))

    def complete(self, outcome: RecordMetadata | Exception) -> None:
        """Complete the future on the sender thread, after RecordFutures has stored the outcome."""
        with suppress(InvalidStateError):  # raised if the thread of the first access has already completed the future
            _complete_future(self, outcome)


class _FutureAttribute:
    """Descriptor for an attribute that Future.__init__ sets, but SendFuture only when it is first accessed.

    Every method of Future, and every function that works on futures, begins by reading such an attribute. The
    descriptor has no __set__, so Python bypasses it once the attribute is in the instance's __dict__.
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, future: SendFuture | None, owner: type) -> object:
        if future is None:
            return self
        attributes = vars(future)
        for name, value in vars(attributes.get("_future") or future._create_future()).items():
            # setdefault() keeps an attribute that another thread has already set, for example by completing this
            # future.
            attributes.setdefault(name, value)
        return attributes[self._name]


for _name in vars(Future()):
    setattr(SendFuture, _name, _FutureAttribute(_name))


def _complete_future(future: Future[RecordMetadata], outcome: RecordMetadata | Exception) -> None:
    """Set the result or the exception of a future."""
    if isinstance(outcome, Exception):
        future.set_exception(copy_error(outcome))  # the records of a batch share one error object
    else:
        future.set_result(outcome)


class _SharedOutcome(NamedTuple):
    """The outcome that several rows of a call have in common: all of them are stored, or all of them have failed."""

    row_indices: NDArray[np.int64]
    """The indices of the rows in their call."""
    partition: int
    """The partition of the rows; -1 if they failed before they were assigned to a partition."""
    base_offset: int = -1
    """The offset of the first row; the other rows follow. -1 if the broker did not return it."""
    log_append_time: int = -1
    """The timestamp that the broker assigned to the records; -1 if the records keep their own timestamps."""
    error: KafkaSinkError | None = None
    """The error of the rows, except those with an entry in `errors_by_position`; None if the rows are stored."""
    errors_by_position: Mapping[int, KafkaSinkError] = NO_RECORD_ERRORS
    """The errors of rows that the broker rejected individually, keyed by position in `row_indices`."""

    def find_error(self, position: int) -> KafkaSinkError | None:
        """Return the error of the row at this position in `row_indices`, or None if the row was stored."""
        return None if self.error is None else self.errors_by_position.get(position, self.error)


class RecordFutures:
    """The outcomes of consecutive records of one topic that were passed to send() and staged together.

    This is a SendCall (calls.py). A row index is the position of a record among these records. Outcomes arrive for
    whole groups of rows. They are indexed by row only when a caller first accesses a future, because most callers never
    do.
    """

    future_bytes_per_row = FUTURE_BYTES

    def __init__(self, topic: str) -> None:
        self.callbacks: dict[int, tuple[Callback, ...]] = {}
        """Callbacks by row index, for rows that have no outcome yet."""
        self.watched_futures: dict[int, SendFuture] = {}
        """Futures by row index, for rows whose future a caller accessed before the row had an outcome."""
        self._topic = topic
        self._shared_outcomes: list[_SharedOutcome] = []
        self._indexed_outcome_count = 0
        """Number of items at the beginning of _shared_outcomes whose rows are in _outcome_by_row."""
        self._outcome_by_row: dict[int, tuple[_SharedOutcome, int]] = {}
        """The outcome of each row and the row's position in the outcome's `row_indices`, by row index."""
        self._timestamps = self._key_sizes = self._value_sizes = _NO_NUMBERS

    def set_record_fields(
        self, timestamps: NDArray[np.int64], key_sizes: NDArray[np.int32], value_sizes: NDArray[np.int32]
    ) -> None:
        """Set those fields of RecordMetadata that brokers do not return. Each array has one element per row index.

        The size of a null key or value is -1.
        """
        self._timestamps, self._key_sizes, self._value_sizes = timestamps, key_sizes, value_sizes

    def complete_rows(self, row_indices: NDArray[np.int64], stored_ranges: StoredRanges, row_count: int) -> None:
        """Deliver the outcome of the rows in each range. SendCall documents the arguments."""
        for start, stop, partition, base_offset, log_append_time in np.asarray(stored_ranges).tolist():
            self._deliver_outcome(_SharedOutcome(row_indices[start:stop], partition, base_offset, log_append_time))

    def fail_rows(
        self, failure: FailedRows, errors_by_position: Mapping[int, KafkaSinkError] = NO_RECORD_ERRORS
    ) -> None:
        """Deliver the outcome of the failed rows. SendCall documents the arguments."""
        partition = -1 if failure.partition is None else failure.partition
        self._deliver_outcome(
            _SharedOutcome(failure.row_indices, partition, error=failure.error, errors_by_position=errors_by_position)
        )

    def reject(self, partition: int | None, error: KafkaSinkError, callbacks: tuple[Callback, ...]) -> SendFuture:
        """Run the callbacks of one record that was not accepted. Return a future that has failed with `error`.

        Call this on the thread that calls send(), and only on an object without any records. If a callback raises an
        Exception, it is only logged. Any other BaseException, such as a KeyboardInterrupt, is raised again.
        """
        row_index = 0  # the record is the only one of this object
        self.callbacks[row_index] = callbacks
        row_indices = np.array([row_index], np.int64)
        interruption = self._deliver_outcome(
            _SharedOutcome(row_indices, partition=-1 if partition is None else partition, error=error)
        )
        if interruption is not None:
            raise interruption from interruption.__cause__
        return SendFuture(self, row_index)

    def find_record_outcome(self, row_index: int) -> RecordMetadata | Exception | None:
        """Return a record's metadata or its error, or None if the record is neither stored nor failed yet.

        Thread-safe.
        """
        outcome_and_position = self._outcome_by_row.get(row_index)
        if outcome_and_position is None:
            self._index_new_outcomes()
            outcome_and_position = self._outcome_by_row.get(row_index)
        if outcome_and_position is None:
            return None
        shared_outcome, position = outcome_and_position
        error = shared_outcome.find_error(position)
        return self._build_metadata(shared_outcome, position, row_index) if error is None else error

    def _index_new_outcomes(self) -> None:
        """Index the rows of the outcomes that were added since the last call.

        Thread-safe without a lock: if two threads index the same outcome, they write the same entries. The slower one
        may set _indexed_outcome_count back to a smaller number, but then a later call only writes some entries again.
        """
        # Read once, because another thread may change it during this call.
        indexed_outcome_count = self._indexed_outcome_count
        new_outcomes = self._shared_outcomes[indexed_outcome_count:]
        for shared_outcome in new_outcomes:
            for position, row_index in enumerate(shared_outcome.row_indices.tolist()):
                self._outcome_by_row[row_index] = shared_outcome, position
        self._indexed_outcome_count = indexed_outcome_count + len(new_outcomes)

    def _build_metadata(self, shared_outcome: _SharedOutcome, position: int, row_index: int) -> RecordMetadata:
        """Build the metadata of one row, with -1 in unknown fields.

        `position`: the position of the row in the outcome.
        `row_index`: the index of the row in the call.
        """
        if shared_outcome.error is not None:  # nothing is known but the topic and perhaps the partition
            return RecordMetadata(self._topic, shared_outcome.partition, offset=-1, timestamp_ms=-1)
        has_log_append_time = shared_outcome.log_append_time >= 0
        # The arguments are positional, because keyword arguments would take longer for every record.
        return RecordMetadata(
            self._topic,
            shared_outcome.partition,
            shared_outcome.base_offset + position if shared_outcome.base_offset >= 0 else -1,
            shared_outcome.log_append_time if has_log_append_time else self._timestamps.item(row_index),
            self._key_sizes.item(row_index),
            self._value_sizes.item(row_index),
        )

    def _deliver_outcome(self, shared_outcome: _SharedOutcome) -> BaseException | None:
        """Run the callbacks of the rows, store the outcome, and complete the watched futures of the rows.

        Return the result of `_run_callbacks`: an exception that `reject` raises again on the caller's thread, or None.
        """
        try:
            return self._run_callbacks(shared_outcome) if self.callbacks else None
        finally:  # the rows must get their outcome even if an interrupt between two callbacks ends `_run_callbacks`
            self._shared_outcomes.append(shared_outcome)
            if self.watched_futures:
                self._complete_watched_futures(shared_outcome)

    def _complete_watched_futures(self, shared_outcome: _SharedOutcome) -> None:
        """Complete the watched futures of the rows, whose outcome has just been stored."""
        for row_index in shared_outcome.row_indices.tolist():
            future = self.watched_futures.pop(row_index, None)
            if future is None:
                continue
            record_outcome = self.find_record_outcome(row_index)
            if record_outcome is not None:
                complete_safely(future.complete, record_outcome)

    def _run_callbacks(self, shared_outcome: _SharedOutcome) -> BaseException | None:
        """Run each callback of the rows once.

        If a callback raised a BaseException that is not an Exception, such as a KeyboardInterrupt, return that
        exception (the last one, if there are several). Otherwise return None.
        """
        interruption: BaseException | None = None
        for position, row_index in enumerate(shared_outcome.row_indices.tolist()):
            error = shared_outcome.find_error(position)
            for callback in self.callbacks.pop(row_index, ()):
                metadata = self._build_metadata(shared_outcome, position, row_index)
                interruption = _run_callback(callback, metadata, error) or interruption
        return interruption


def _run_callback(callback: Callback, metadata: RecordMetadata, error: Exception | None) -> BaseException | None:
    """Run a callback passed to send(), and log any exception, which would otherwise end the sender thread.

    If the callback raised a BaseException that is not an Exception, such as a KeyboardInterrupt, return it. Otherwise
    return None.
    """
    try:
        callback(metadata, error)
    except BaseException as raised:
        with suppress(BaseException):  # a log handler is user code, too, and may raise an exception
            name = callback.__qualname__ if isroutine(callback) else type(callback).__qualname__
            _log.exception(
                "%s raised an exception for a record of topic %s. Other records are not affected.", name, metadata.topic
            )
        return None if isinstance(raised, Exception) else raised
    return None


class ColumnsFuture(_ProducerFuture[ColumnsResult]):
    """The future of all rows of one send_columns() call.

    Both the calling thread and the sender thread add outcomes, so _lock guards the fields. The stored ranges are kept
    as they arrive. They are merged only when the property `partitions` of the result is read.
    """

    future_bytes_per_row = 0

    def __init__(self, topic: str, row_count: int, *, keep_row_indices: bool = False) -> None:
        super().__init__()
        self._topic = topic
        self._lock = threading.Lock()
        self._pending_row_count = row_count
        self._rows_written = 0
        self._stored_ranges: list[StoredRanges] = []
        self._row_indices: list[NDArray[np.int64]] | None = [] if keep_row_indices else None
        self._failures: list[FailedRows] = []
        if not row_count:
            self.set_result(ColumnsResult(topic, failures=(), rows_written=0, stored=()))

    def complete_rows(self, row_indices: NDArray[np.int64], stored_ranges: StoredRanges, row_count: int) -> None:
        """Record that brokers have stored `row_count` rows, and complete the future if no row is pending.

        `row_indices`, `stored_ranges`: see SendCall.complete_rows.
        """
        with self._lock:
            self._stored_ranges.append(stored_ranges)
            if self._row_indices is not None:
                self._row_indices.append(row_indices)
            self._rows_written += row_count
            self._pending_row_count -= row_count
            is_complete = self._pending_row_count == 0
        if is_complete:
            self._complete()

    def fail_rows(
        self, failure: FailedRows, errors_by_position: Mapping[int, KafkaSinkError] = NO_RECORD_ERRORS
    ) -> None:
        """Record that the rows in `failure` have failed, and complete the future if no row is pending.

        `errors_by_position`: errors of individual rows, keyed by position in `failure.row_indices`. All other rows
        have failed with `failure.error`.
        """
        failures = _split_by_error(failure, errors_by_position)
        row_count = len(failure.row_indices)
        with self._lock:
            self._failures += failures
            self._pending_row_count -= row_count
            # Without rows, the future must not be completed here, because __init__ has already completed it.
            is_complete = row_count > 0 and self._pending_row_count == 0
        if is_complete:
            self._complete()

    def _complete(self) -> None:
        """Set the future's result. Call this only when no row is pending: the fields do not change anymore then."""
        result = ColumnsResult(
            self._topic, tuple(self._failures), self._rows_written, self._stored_ranges, self._row_indices or ()
        )
        self.set_result(result)


def _split_by_error(failure: FailedRows, errors_by_position: Mapping[int, KafkaSinkError]) -> list[FailedRows]:
    """Return a failure for each row with an error of its own, then one for all rows that share `failure.error`."""
    failures = [
        replace(failure, row_indices=failure.row_indices[position : position + 1], error=error)
        for position, error in errors_by_position.items()
    ]
    shares_error = np.ones(len(failure.row_indices), np.bool_)
    shares_error[list(errors_by_position)] = False
    if shares_error.any():
        failures.append(replace(failure, row_indices=failure.row_indices[shares_error]))
    return failures


def complete_safely(complete: Callable[..., object], *arguments: Any) -> None:
    """Call `complete`, a function that completes futures on the sender thread, and log any exception.

    Such an exception comes from user code, for example from a callback or a log handler, and must not keep the futures
    of other records from being completed.
    """
    try:
        complete(*arguments)
    except BaseException:
        with suppress(BaseException):
            _log.exception("A callback or a future raised an exception. Other records are not affected.")
