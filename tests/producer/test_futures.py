"""The future of one record acts like any Future, although it becomes an ordinary one only when it is first used."""

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


MORE_THAN_EXCEPTIONS = [SystemExit, KeyboardInterrupt, GeneratorExit, asyncio.CancelledError]


class Sent(SendFuture):
    """With the call that it is of."""

    def __init__(self, call: RecordFutures) -> None:
        super().__init__(call, 0)
        self.call = call


def future(*callbacks: object) -> Sent:
    """Of one record, with a time, and the sizes of its key and value."""
    call = RecordFutures("t")
    if callbacks:
        call.callbacks[0] = callbacks  # type: ignore[assignment]
    call.set_record_fields(np.array([1_000]), np.array([4], np.int32), np.array([-1], np.int32))
    return Sent(call)


def stored(one: Sent, offset: int = 17, log_append_time: int = -1) -> None:
    """A broker has the record."""
    one.call.complete_rows(np.zeros(1, np.int64), [StoredRange(0, 1, 3, offset, log_append_time)], 1)


def failed(one: Sent, error: KafkaSinkError) -> None:
    one.call.fail_rows(FailedRows(np.zeros(1, np.int64), error, "t", 3))


def test_an_outcome_that_came_before_the_first_look_is_there() -> None:
    one, other = future(), future()
    stored(one)
    failed(other, DeliveryError("no"))
    assert one.done()
    assert one.result(0) == STORED
    assert one.exception(0) is None
    assert isinstance(other.exception(0), DeliveryError)
    with pytest.raises(DeliveryError, match="no"):
        other.result(0)


def test_an_outcome_that_comes_after_the_first_look_is_reported() -> None:
    called: list[Future[RecordMetadata]] = []
    one = future()
    assert not one.done()
    with pytest.raises(concurrent.futures.TimeoutError):  # the built-in one only since Python 3.11
        one.result(0)
    one.add_done_callback(called.append)
    stored(one, 17, 2_000)
    assert called == [one]
    assert one.result(0) == STORED._replace(timestamp_ms=2_000)


def test_what_the_futures_of_a_batch_raise_holds_nothing_of_the_others() -> None:
    """Its records have one error. Raised again and again, it would keep all frames that it came through."""
    error = DeliveryError("no")
    error.__cause__ = OSError("gone")
    one, other, late = future(), future(), future()
    assert not late.done()
    for each in (one, other, late):
        failed(each, error)
        with pytest.raises(DeliveryError, match="no") as raised:
            each.result(0)
        assert raised.value.__cause__ is error.__cause__
    assert error.__traceback__ is None


def test_it_can_be_waited_for_as_any_future() -> None:
    futures = [future() for _ in range(4)]
    stored(futures[0])
    assert wait(futures, 0).done == {futures[0]}
    for one in futures[1:]:
        stored(one)
    assert set(as_completed(futures, 0)) == set(futures)
    assert asyncio.run(_awaited(futures[0])) == STORED


async def _awaited(one: SendFuture) -> RecordMetadata:
    return await asyncio.wrap_future(one)


def test_it_cannot_be_cancelled_and_cancel_returns_false() -> None:
    one = future()
    assert not one.cancel()
    assert not one.cancelled()
    stored(one)
    assert not one.cancel()
    assert one.result(0) == STORED


def test_callbacks_come_before_the_future_is_done_and_may_look_at_it() -> None:
    seen: list[tuple[object, object, bool]] = []
    one: Sent = future(lambda metadata, error: seen.append((metadata, error, one.done())))
    stored(one)
    assert seen == [(STORED, None, False)]
    assert one.done()


def test_the_callback_of_a_failure_gets_topic_and_partition_and_nothing_else_as_in_java() -> None:
    seen: list[tuple[object, object]] = []
    error = DeliveryError("no")
    one: Sent = future(lambda metadata, error: seen.append((metadata, error)))
    failed(one, error)
    assert seen == [(RecordMetadata("t", 3, -1, -1, -1, -1), error)]


@pytest.mark.parametrize("raised", [ValueError, *MORE_THAN_EXCEPTIONS])
@pytest.mark.parametrize("ends", ["stored", "failed"])
def test_a_callback_that_raises_whatever_it_is_keeps_neither_the_outcome_nor_the_next_callback(
    raised: type[BaseException], ends: str, caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[str] = []

    def end_all(metadata: RecordMetadata, error: Exception | None) -> None:
        raise raised("a user's way out")

    def note(name: str) -> Callable[..., None]:
        return lambda *_: seen.append(name)

    def end_all_when_done(_: object) -> None:
        raise raised("a user's way out")

    one = future(end_all, note("callback"))
    one.add_done_callback(end_all_when_done)
    one.add_done_callback(note("done-callback"))
    if ends == "stored":
        stored(one)
    else:
        failed(one, DeliveryError("no"))
    assert seen == ["callback", "done-callback"]
    assert (one.exception(0) is None) == (ends == "stored")
    assert caplog.text.count("a user's way out") >= 2


@pytest.mark.parametrize("raised", [ValueError, *MORE_THAN_EXCEPTIONS])
def test_the_callback_of_a_record_that_is_refused_raises_in_its_caller_s_thread_what_is_more_than_an_exception(
    raised: type[BaseException],
) -> None:
    def leave(metadata: RecordMetadata, error: Exception | None) -> None:
        raise raised("a user's way out")

    def refuse() -> SendFuture:
        return RecordFutures("t").reject(None, DeliveryError("no"), (leave,))

    if raised is ValueError:
        assert isinstance(refuse().exception(0), DeliveryError)
    else:
        with pytest.raises(raised):
            refuse()


def test_the_records_of_a_call_get_their_offsets_and_errors_by_their_places_in_what_is_said_of_many() -> None:
    call, gone, no = RecordFutures("t"), DeliveryError("gone"), DeliveryError("no")
    call.set_record_fields(np.arange(6) + 100, np.arange(6, dtype=np.int32), np.full(6, -1, np.int32))
    futures = [SendFuture(call, row) for row in range(6)]
    assert not futures[4].done()
    call.complete_rows(np.array([3, 1, 4]), [StoredRange(1, 3, 7, 50, -1)], 2)
    call.fail_rows(FailedRows(np.array([0, 5]), no, "t"), {1: gone})
    assert futures[4].result(0) == RecordMetadata("t", 7, 51, 104, 4, -1)
    assert futures[1].result(0).offset == 50
    assert [str(futures[row].exception(0)) for row in (0, 5)] == ["no", "gone"]
    call.complete_rows(np.array([2, 3]), np.array([(0, 1, 8, -1, 9), (1, 2, 8, -1, 9)]), 2)
    assert [futures[row].result(0) for row in (2, 3)] == [RecordMetadata("t", 8, -1, 9, row, -1) for row in (2, 3)]


@pytest.mark.parametrize("raised", MORE_THAN_EXCEPTIONS)
def test_a_call_s_future_is_done_and_its_other_callbacks_run_when_one_raises(raised: type[BaseException]) -> None:
    call = ColumnsFuture("t", 3)
    seen: list[object] = []

    def end_all(_: object) -> None:
        raise raised("a user's way out")

    call.add_done_callback(end_all)
    call.add_done_callback(seen.append)
    call.fail_rows(FailedRows(np.arange(3), DeliveryError("no"), "t", 0))
    assert seen == [call]
    assert call.result(0).rows_failed == 3


def interrupted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C in the moment in which a future is completed."""
    set_result = Future.set_result

    def interrupted(self: Future[object], result: object) -> None:
        monkeypatch.setattr(Future, "set_result", set_result)
        raise KeyboardInterrupt

    monkeypatch.setattr(Future, "set_result", interrupted)


def interrupted(*_: object) -> None:
    raise KeyboardInterrupt


class InterruptedLook:
    """Ctrl-C before the nth line of the first look at a future."""

    def __init__(self, nth: int) -> None:
        self._lines = nth

    def __call__(self, frame: FrameType, event: str, _: object) -> Any:
        return self._line if frame.f_code.co_name in ("__get__", "_create_future") else None

    def _line(self, frame: FrameType, event: str, _: object) -> Any:
        if event == "line":
            self._lines -= 1
            if self._lines == 0:
                raise KeyboardInterrupt
        return self._line


@pytest.mark.parametrize("line", range(1, 25))
@pytest.mark.parametrize("comes", ["before", "after"])
def test_after_ctrl_c_at_any_line_of_the_first_look_at_a_future_the_second_look_finds_its_result(
    line: int, comes: str
) -> None:
    one = future()
    if comes == "before":
        stored(one)
    before = sys.gettrace()
    sys.settrace(InterruptedLook(line))
    try:
        with contextlib.suppress(KeyboardInterrupt):
            one.done()
    finally:
        sys.settrace(before)
    if comes == "after":
        stored(one)
    assert one.result(0) == STORED


@pytest.mark.parametrize("at", ["watched", "made"])
def test_an_outcome_that_comes_during_the_first_look_is_found(monkeypatch: pytest.MonkeyPatch, at: str) -> None:
    """The sender does all its part between two steps of the look."""
    one = future()

    class Watched(dict[int, SendFuture]):
        def __setitem__(self, row: int, watched: SendFuture) -> None:
            super().__setitem__(row, watched)
            stored(one)

    if at == "watched":
        one.call.watched_futures = Watched()
    else:
        find_outcome = one.call.find_outcome
        answers = [None, None]

        def not_yet(row: int) -> RecordMetadata | Exception | None:
            if not answers:
                return find_outcome(row)
            answers.pop()
            if not answers:
                stored(one)
            return None

        monkeypatch.setattr(one.call, "find_outcome", not_yet)
    assert one.done()
    assert one.result(0) == STORED


def test_two_threads_that_look_first_at_the_same_time_wait_for_the_same_outcome(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The other thread looks between two steps of the first look."""
    one = future()
    waiting: list[threading.Thread] = []
    found: list[RecordMetadata] = []

    def condition() -> threading.Condition:
        monkeypatch.undo()
        waiting.append(threading.Thread(target=lambda: found.append(one.result(WAIT_TIMEOUT_SECONDS))))
        waiting[0].start()
        wait_until(lambda: "_future" in vars(one))
        return threading.Condition()

    monkeypatch.setattr(threading, "Condition", condition)
    assert not one.done()
    stored(one)
    waiting[0].join()
    assert found == [STORED]


def test_ctrl_c_while_a_call_refuses_its_rows_reaches_the_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    call = ColumnsFuture("t", 3)
    interrupted_once(monkeypatch)
    with pytest.raises(KeyboardInterrupt):
        call.fail_rows(FailedRows(np.arange(3), DeliveryError("no"), "t", 0))


@pytest.mark.parametrize("raised", MORE_THAN_EXCEPTIONS)
def test_what_a_callback_raises_in_the_thread_that_adds_it_to_a_done_future_is_that_thread_s(
    raised: type[BaseException],
) -> None:
    one = future()
    stored(one)

    def leave(_: object) -> None:
        raise raised

    with pytest.raises(raised):
        one.add_done_callback(leave)


def test_a_call_without_rows_is_done_at_once() -> None:
    result = ColumnsFuture("t", 0).result(0)
    assert (result.topic, result.rows_written, result.failures, result.partitions) == ("t", 0, (), {})


def test_what_a_future_does_not_have_is_an_attribute_error() -> None:
    one = future()
    assert not hasattr(one, "offset")
    assert not one.done()


def test_threads_that_look_while_the_outcome_comes_get_it() -> None:
    futures = [future() for _ in range(2_000)]
    begin = threading.Barrier(3)
    results: list[list[RecordMetadata]] = []

    def look() -> None:
        begin.wait()
        results.append([one.result(WAIT_TIMEOUT_SECONDS) for one in futures])

    threads = [threading.Thread(target=look) for _ in range(2)]
    for thread in threads:
        thread.start()
    begin.wait()
    for one in futures:
        stored(one)
    for thread in threads:
        thread.join()
    assert results == [[STORED] * len(futures)] * 2


def test_callbacks_behind_one_that_raises_and_cannot_be_named_are_called() -> None:
    class CannotBeShown:
        def __call__(self, metadata: RecordMetadata, error: Exception | None) -> None:
            raise ValueError("from a user's code")

        def __repr__(self) -> str:
            raise RuntimeError("from a user's code")

    seen: list[RecordMetadata] = []
    one = future(CannotBeShown(), lambda metadata, error: seen.append(metadata))
    stored(one)
    assert seen == [STORED]
    assert one.result(0) == STORED
