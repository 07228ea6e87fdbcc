"""A record's future acts like any Future, although it is initialized as one only at the first access."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future, as_completed, wait
from types import FrameType
from typing import Any

import numpy as np
import pytest

from spark_kafka_sink.errors import DeliveryError, KafkaSinkError
from spark_kafka_sink.producer.calls import FailedRows, StoredRange
from spark_kafka_sink.producer.futures import ColumnsFuture, RecordFutures, SendFuture
from spark_kafka_sink.producer.results import RecordMetadata
from tests.waiting import WAIT_TIMEOUT_SECONDS, wait_until

STORED = RecordMetadata("t", 3, 17, 1_000, 4, -1)


BASE_EXCEPTIONS = [SystemExit, KeyboardInterrupt, GeneratorExit, asyncio.CancelledError]


class FutureWithCall(SendFuture):
    """A future that gives tests access to its call."""

    def __init__(self, call: RecordFutures) -> None:
        super().__init__(call, 0)
        self.call = call


def create_future(*callbacks: object) -> FutureWithCall:
    """Create the future of one record with a timestamp, a key of 4 bytes and a null value."""
    call = RecordFutures("t")
    if callbacks:
        call.callbacks[0] = callbacks  # type: ignore[assignment]
    call.set_record_fields(np.array([1_000]), np.array([4], np.int32), np.array([-1], np.int32))
    return FutureWithCall(call)


def store(future: FutureWithCall, offset: int = 17, log_append_time: int = -1) -> None:
    """Complete the future as if a broker had stored the record."""
    future.call.complete_rows(np.zeros(1, np.int64), [StoredRange(0, 1, 3, offset, log_append_time)], 1)


def fail(future: FutureWithCall, error: KafkaSinkError) -> None:
    future.call.fail_rows(FailedRows(np.zeros(1, np.int64), error, "t", 3))


def test_returns_outcome_stored_before_first_access() -> None:
    future, other = create_future(), create_future()
    store(future)
    fail(other, DeliveryError("no"))
    assert future.done()
    assert future.result(0) == STORED
    assert future.exception(0) is None
    assert isinstance(other.exception(0), DeliveryError)
    with pytest.raises(DeliveryError, match="no"):
        other.result(0)


def test_reports_outcome_stored_after_first_access() -> None:
    called: list[Future[RecordMetadata]] = []
    future = create_future()
    assert not future.done()
    with pytest.raises(concurrent.futures.TimeoutError):  # the built-in TimeoutError only since Python 3.11
        future.result(0)
    future.add_done_callback(called.append)
    store(future, 17, 2_000)
    assert called == [future]
    assert future.result(0) == STORED._replace(timestamp_ms=2_000)


def test_futures_of_one_batch_raise_separate_copies_of_the_error() -> None:
    """The records of a batch share one error object. If it was raised repeatedly, it would keep all frames."""
    error = DeliveryError("no")
    error.__cause__ = OSError("gone")
    future, other, late = create_future(), create_future(), create_future()
    assert not late.done()
    for send_future in (future, other, late):
        fail(send_future, error)
        with pytest.raises(DeliveryError, match="no") as raised:
            send_future.result(0)
        assert raised.value.__cause__ is error.__cause__
    assert error.__traceback__ is None


def test_standard_functions_wait_for_send_futures() -> None:
    futures = [create_future() for _ in range(4)]
    store(futures[0])
    assert wait(futures, 0).done == {futures[0]}
    for future in futures[1:]:
        store(future)
    assert set(as_completed(futures, 0)) == set(futures)
    assert asyncio.run(_awaited(futures[0])) == STORED


async def _awaited(future: SendFuture) -> RecordMetadata:
    return await asyncio.wrap_future(future)


def test_send_future_cannot_be_cancelled() -> None:
    future = create_future()
    assert not future.cancel()
    assert not future.cancelled()
    store(future)
    assert not future.cancel()
    assert future.result(0) == STORED


def test_callback_runs_before_its_future_is_done() -> None:
    calls: list[tuple[object, object, bool]] = []
    future: FutureWithCall = create_future(lambda metadata, error: calls.append((metadata, error, future.done())))
    store(future)
    assert calls == [(STORED, None, False)]
    assert future.done()


def test_callback_of_failed_record_gets_only_topic_and_partition() -> None:
    calls: list[tuple[object, object]] = []
    error = DeliveryError("no")
    future: FutureWithCall = create_future(lambda metadata, error: calls.append((metadata, error)))
    fail(future, error)
    assert calls == [(RecordMetadata("t", 3, -1, -1, -1, -1), error)]


@pytest.mark.parametrize("raised", [ValueError, *BASE_EXCEPTIONS])
@pytest.mark.parametrize("outcome", ["stored", "failed"])
def test_raising_callback_prevents_neither_outcome_nor_next_callback(
    raised: type[BaseException], outcome: str, caplog: pytest.LogCaptureFixture
) -> None:
    calls: list[str] = []

    def raise_error(metadata: RecordMetadata, error: Exception | None) -> None:
        raise raised("a user's way out")

    def record_call(name: str) -> Callable[..., None]:
        return lambda *_: calls.append(name)

    def raise_error_when_done(_: object) -> None:
        raise raised("a user's way out")

    future = create_future(raise_error, record_call("callback"))
    future.add_done_callback(raise_error_when_done)
    future.add_done_callback(record_call("done-callback"))
    if outcome == "stored":
        store(future)
    else:
        fail(future, DeliveryError("no"))
    assert calls == ["callback", "done-callback"]
    assert (future.exception(0) is None) == (outcome == "stored")
    assert caplog.text.count("a user's way out") >= 2


@pytest.mark.parametrize("raised", [ValueError, *BASE_EXCEPTIONS])
def test_callback_of_rejected_record_raises_base_exception_in_caller(
    raised: type[BaseException],
) -> None:
    def raise_error(metadata: RecordMetadata, error: Exception | None) -> None:
        raise raised("a user's way out")

    def reject_record() -> SendFuture:
        return RecordFutures("t").reject(None, DeliveryError("no"), (raise_error,))

    if raised is ValueError:
        assert isinstance(reject_record().exception(0), DeliveryError)
    else:
        with pytest.raises(raised):
            reject_record()


def test_records_get_offsets_and_errors_by_position_in_outcome() -> None:
    call, record_error, error_for_all = RecordFutures("t"), DeliveryError("gone"), DeliveryError("no")
    call.set_record_fields(np.arange(6) + 100, np.arange(6, dtype=np.int32), np.full(6, -1, np.int32))
    futures = [SendFuture(call, row) for row in range(6)]
    assert not futures[4].done()
    call.complete_rows(np.array([3, 1, 4]), [StoredRange(1, 3, 7, 50, -1)], 2)
    call.fail_rows(FailedRows(np.array([0, 5]), error_for_all, "t"), {1: record_error})
    assert futures[4].result(0) == RecordMetadata("t", 7, 51, 104, 4, -1)
    assert futures[1].result(0).offset == 50
    assert [str(futures[row].exception(0)) for row in (0, 5)] == ["no", "gone"]
    call.complete_rows(np.array([2, 3]), np.array([(0, 1, 8, -1, 9), (1, 2, 8, -1, 9)]), 2)
    assert [futures[row].result(0) for row in (2, 3)] == [RecordMetadata("t", 8, -1, 9, row, -1) for row in (2, 3)]


@pytest.mark.parametrize("raised", BASE_EXCEPTIONS)
def test_columns_future_is_done_when_a_callback_raises(raised: type[BaseException]) -> None:
    call = ColumnsFuture("t", 3)
    calls: list[object] = []

    def raise_error(_: object) -> None:
        raise raised("a user's way out")

    call.add_done_callback(raise_error)
    call.add_done_callback(calls.append)
    call.fail_rows(FailedRows(np.arange(3), DeliveryError("no"), "t", 0))
    assert calls == [call]
    assert call.result(0).rows_failed == 3


def interrupt_set_result_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Raise KeyboardInterrupt the next time that a future is completed."""
    set_result = Future.set_result

    def interrupted(self: Future[object], result: object) -> None:
        monkeypatch.setattr(Future, "set_result", set_result)
        raise KeyboardInterrupt

    monkeypatch.setattr(Future, "set_result", interrupted)


def interrupted(*_: object) -> None:
    raise KeyboardInterrupt


class InterruptAtLine:
    """Trace function that raises KeyboardInterrupt before one line, counted from 1, of the first access to a future."""

    def __init__(self, line_number: int) -> None:
        self._remaining_lines = line_number

    def __call__(self, frame: FrameType, event: str, _: object) -> Any:
        return self._line if frame.f_code.co_name in ("__get__", "_create_future") else None

    def _line(self, frame: FrameType, event: str, _: object) -> Any:
        if event == "line":
            self._remaining_lines -= 1
            if self._remaining_lines == 0:
                raise KeyboardInterrupt
        return self._line


@pytest.mark.parametrize("line", range(1, 25))
@pytest.mark.parametrize("stored_when", ["before", "after"])
def test_second_access_finds_result_after_interrupt_at_any_line_of_first(line: int, stored_when: str) -> None:
    future = create_future()
    if stored_when == "before":
        store(future)
    previous_trace = sys.gettrace()
    sys.settrace(InterruptAtLine(line))
    try:
        with contextlib.suppress(KeyboardInterrupt):
            future.done()
    finally:
        sys.settrace(previous_trace)
    if stored_when == "after":
        store(future)
    assert future.result(0) == STORED


@pytest.mark.parametrize("moment", ["before second lookup", "after second lookup"])
def test_finds_outcome_stored_during_first_access(monkeypatch: pytest.MonkeyPatch, moment: str) -> None:
    """The sender stores the outcome between two steps of the first access."""
    future = create_future()

    class StoringDict(dict[int, SendFuture]):
        def __setitem__(self, row: int, watched: SendFuture) -> None:
            super().__setitem__(row, watched)
            store(future)

    if moment == "before second lookup":
        future.call.watched_futures = StoringDict()
    else:
        find_record_outcome = future.call.find_record_outcome
        early_results = [None, None]

        def find_no_outcome_yet(row: int) -> RecordMetadata | Exception | None:
            if not early_results:
                return find_record_outcome(row)
            early_results.pop()
            if not early_results:
                store(future)
            return None

        monkeypatch.setattr(future.call, "find_record_outcome", find_no_outcome_yet)
    assert future.done()
    assert future.result(0) == STORED


def test_two_threads_with_concurrent_first_access_get_same_outcome(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The other thread accesses the future between two steps of the first access."""
    future = create_future()
    waiting_threads: list[threading.Thread] = []
    results: list[RecordMetadata] = []

    def create_condition() -> threading.Condition:
        monkeypatch.undo()
        waiting_threads.append(threading.Thread(target=lambda: results.append(future.result(WAIT_TIMEOUT_SECONDS))))
        waiting_threads[0].start()
        wait_until(lambda: "_future" in vars(future))
        return threading.Condition()

    monkeypatch.setattr(threading, "Condition", create_condition)
    assert not future.done()
    store(future)
    waiting_threads[0].join()
    assert results == [STORED]


def test_interrupt_while_failing_rows_reaches_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    call = ColumnsFuture("t", 3)
    interrupt_set_result_once(monkeypatch)
    with pytest.raises(KeyboardInterrupt):
        call.fail_rows(FailedRows(np.arange(3), DeliveryError("no"), "t", 0))


@pytest.mark.parametrize("raised", BASE_EXCEPTIONS)
def test_callback_added_to_done_future_raises_in_adding_thread(
    raised: type[BaseException],
) -> None:
    future = create_future()
    store(future)

    def raise_error(_: object) -> None:
        raise raised

    with pytest.raises(raised):
        future.add_done_callback(raise_error)


def test_columns_future_without_rows_is_done_immediately() -> None:
    result = ColumnsFuture("t", 0).result(0)
    assert (result.topic, result.rows_written, result.failures, result.partitions) == ("t", 0, (), {})


def test_unknown_attribute_raises_attribute_error() -> None:
    future = create_future()
    assert not hasattr(future, "offset")
    assert not future.done()


def test_threads_get_outcomes_stored_during_their_first_access() -> None:
    futures = [create_future() for _ in range(2_000)]
    start_barrier = threading.Barrier(3)
    results: list[list[RecordMetadata]] = []

    def read_results() -> None:
        start_barrier.wait()
        results.append([future.result(WAIT_TIMEOUT_SECONDS) for future in futures])

    threads = [threading.Thread(target=read_results) for _ in range(2)]
    for thread in threads:
        thread.start()
    start_barrier.wait()
    for future in futures:
        store(future)
    for thread in threads:
        thread.join()
    assert results == [[STORED] * len(futures)] * 2


def test_callback_runs_after_one_that_raises_and_has_no_repr() -> None:
    class CallbackWithoutRepr:
        def __call__(self, metadata: RecordMetadata, error: Exception | None) -> None:
            raise ValueError("from a user's code")

        def __repr__(self) -> str:
            raise RuntimeError("from a user's code")

    calls: list[RecordMetadata] = []
    future = create_future(CallbackWithoutRepr(), lambda metadata, error: calls.append(metadata))
    store(future)
    assert calls == [STORED]
    assert future.result(0) == STORED
