"""BatchFiller: whatever raises, wherever (MemoryError, Ctrl-C), each row is sent or fails, and no memory leaks."""

from __future__ import annotations

import linecache
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import pytest

from spark_kafka_sink.producer.batching.accumulator import RecordAccumulator
from spark_kafka_sink.producer.batching.batch import ProducerBatch
from spark_kafka_sink.producer.batching.batch_filler import BatchFiller
from spark_kafka_sink.producer.batching.buffer_pool import BufferPool, MemoryLease
from spark_kafka_sink.producer.batching.incomplete import IncompleteBatches
from spark_kafka_sink.producer.batching.partition_queues import PartitionQueue
from spark_kafka_sink.producer.batching.staging import Stage, StagedRows
from spark_kafka_sink.records.compression import Codec
from tests.producer.batching.accumulator_harness import RECORD_BYTES, VALUE, Harness

BATCH_ROWS = (1024 - 61) // RECORD_BYTES
FAULTS = [MemoryError, ValueError, KeyboardInterrupt]


def failing(real: Callable[..., Any], fault: type[BaseException], nth: int = 1) -> Callable[..., Any]:
    """Raises at the nth call, before or after it has done its work; all others go through."""
    calls = [0]

    def call(*arguments: Any, **named: Any) -> Any:
        calls[0] += 1
        if calls[0] == nth:
            raise fault("at a bad moment")
        return real(*arguments, **named)

    return call


def rows_of(batches: list[ProducerBatch]) -> list[tuple[object, int]]:
    return sorted((call, int(row)) for batch in batches for call, rows, _ in batch.rows_by_call() for row in rows)


def sent_and_failed(h: Harness) -> tuple[list[ProducerBatch], list[ProducerBatch]]:
    """Send or fail all batches. Checks that nothing is left. Returns the batches that were sent and that failed."""
    sent, failed = [], []
    for _ in range(60):
        h.clock.now += 10
        for batch in h.take():
            sent.append(batch)
            h.acknowledge(batch)
        for batch in h.accumulator.failed_batches():
            failed.append(batch)
            h.accumulator.finish(batch)
    assert not h.accumulator.has_incomplete()
    assert h.pool.free_bytes == h.pool.bytes_max
    assert h.flushed(h.begin_flush())
    return sent, failed


def attempt(fault: type[BaseException], action: Callable[[], object]) -> None:
    """Runs the action. A fault that is no Exception must be raised; the batches report all others."""
    if issubclass(fault, Exception):
        action()
    else:
        with pytest.raises(fault):
            action()


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize(
    ("owner", "step", "nth"),
    [
        (MemoryLease, "hold", 1),
        (ProducerBatch, "append", 1),
        (ProducerBatch, "__init__", 1),
        (ProducerBatch, "__init__", 2),
        (ProducerBatch, "__init__", 3),
        (IncompleteBatches, "add", 1),
        (IncompleteBatches, "add", 2),
    ],
)
def test_a_fault_while_rows_are_put_into_batches_reports_every_row_and_holds_no_batch(
    fault: type[BaseException], owner: type, step: str, nth: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    h = Harness()
    h.append(0, BATCH_ROWS + 1, call="before")  # leaves an open batch, which the next grouping goes on filling
    monkeypatch.setattr(owner, step, failing(getattr(owner, step), fault, nth))
    attempt(fault, lambda: h.append_rows([VALUE] * 24, [0, 1] * 12, call="struck"))
    monkeypatch.undo()
    h.append(1, 1, call="later")
    sent, failed = sent_and_failed(h)
    reported = sorted(rows_of(sent) + rows_of(failed))
    assert reported == sorted(
        [("before", row) for row in range(BATCH_ROWS + 1)] + [("struck", row) for row in range(24)] + [("later", 0)]
    )
    assert all(batch.error is not None for batch in failed)
    assert ("later", 0) in rows_of(sent)


def test_a_full_batch_leaves_at_once_although_the_next_one_could_not_be_made(monkeypatch: pytest.MonkeyPatch) -> None:
    h = Harness()
    h.ready()  # the leaders are known: nothing else will look at all queues
    monkeypatch.setattr(ProducerBatch, "__init__", failing(ProducerBatch.__init__, MemoryError, 2))
    h.append(0, 2 * BATCH_ROWS, call="struck")
    monkeypatch.undo()
    assert rows_of(h.take()) == [("struck", row) for row in range(BATCH_ROWS)]


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_while_open_batches_are_looked_up_holds_none_of_them(
    fault: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    h = Harness()
    h.append_rows([VALUE] * (2 * BATCH_ROWS + 2), [0, 1] * (BATCH_ROWS + 1), call="before")  # two open batches
    monkeypatch.setattr(PartitionQueue, "pin_open_batch", failing(PartitionQueue.pin_open_batch, fault, 2))
    attempt(fault, lambda: h.append_rows([VALUE] * 24, [0, 1] * 12, call="struck"))
    monkeypatch.undo()
    sent, failed = sent_and_failed(h)
    assert rows_of(failed) == [("struck", row) for row in range(24)]
    assert rows_of(sent) == [("before", row) for row in range(2 * BATCH_ROWS + 2)]


@pytest.mark.parametrize("fault", FAULTS)
def test_single_records_that_cannot_become_columns_fail(
    fault: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    h = Harness(linger_ms=0)
    h.append_record(0, call="a")
    h.append_record(0, call="b")
    monkeypatch.setattr("spark_kafka_sink.producer.batching.grouping.bytes_array", failing(lambda values: None, fault))
    attempt(fault, h.ready)
    monkeypatch.undo()
    sent, (failed,) = sent_and_failed(h)
    assert sent == []
    assert [(call, rows.tolist()) for call, rows, _ in failed.rows_by_call()] == [(["a", "b"], [0, 1])]


def test_an_abort_reports_single_records_that_cannot_become_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    h = Harness()
    h.append_record(0, call="a")
    monkeypatch.setattr(
        "spark_kafka_sink.producer.batching.grouping.bytes_array", failing(lambda values: None, MemoryError)
    )
    (aborted,) = h.accumulator.abort_incomplete(ValueError("closed"))
    assert [call for call, _, _ in aborted.rows_by_call()] == [["a"]]
    assert h.pool.free_bytes == h.pool.bytes_max


@pytest.mark.parametrize("action", [lambda h: h.append(0, 30, call="struck"), lambda h: h.begin_flush()])
def test_an_interruption_of_the_filling_wakes_the_sender_which_reports_the_rows_of_other_calls(
    action: Callable[[Harness], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    h = Harness()
    h.append(0, 1, call="before")
    wakeups = h.wakeups
    monkeypatch.setattr(
        "spark_kafka_sink.producer.batching.batch_filler.encode", failing(lambda *_: None, KeyboardInterrupt)
    )
    with pytest.raises(KeyboardInterrupt):
        action(h)
    assert h.wakeups > wakeups
    assert ("before", 0) in rows_of(h.accumulator.failed_batches())


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("step", ["add", "is_full"])
def test_rows_of_a_call_that_raises_before_or_after_they_are_staged_are_not_sent_and_their_memory_returns(
    fault: type[BaseException], step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    h = Harness()
    h.append(0, 1, call="before")
    free = h.pool.free_bytes
    monkeypatch.setattr(Stage, step, failing(getattr(Stage, step), fault))
    with pytest.raises(fault):
        h.append(0, 5, call="struck")
    assert h.pool.free_bytes == free
    monkeypatch.undo()
    sent, failed = sent_and_failed(h)
    assert (rows_of(sent), failed) == ([("before", 0)], [])


@pytest.mark.parametrize("fault", [MemoryError, ValueError, RuntimeError])
@pytest.mark.parametrize("when", ["drained", "full"])
def test_a_batch_that_cannot_be_compressed_is_sent_as_it_is(
    fault: type[Exception], when: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    h = Harness(compression_type="gzip", leaders=(0, 0))
    monkeypatch.setattr("spark_kafka_sink.producer.batching.batch.compress", failing(lambda *_: b"packed", fault))
    rows = 3 if when == "drained" else 300
    h.append_rows([VALUE] * rows, [0, 1] * (rows // 2) + [0] * (rows % 2), call="x")
    sent, failed = sent_and_failed(h)
    assert failed == []
    assert rows_of(sent) == [("x", row) for row in range(rows)]
    assert [batch.codec for batch in sent].count(Codec.NONE) == 1
    assert "sent as it is" in caplog.text
    assert "at a bad moment" in caplog.text


LINGER_MS = 1_000
INTERRUPTED = [
    RecordAccumulator._stage,
    RecordAccumulator._reserve,
    RecordAccumulator._begin_flush,
    BufferPool.try_reserve,
    Stage.add,
    Stage._count_rows,
    Stage._count_record,
    Stage.remove,
    Stage.split,
    Stage.extend,
    StagedRows.split,
    BatchFiller.fill,
    BatchFiller._take,
    BatchFiller._return_thin,
    BatchFiller._fill,
    BatchFiller._fill_rows,
    BatchFiller._leases_of,
    BatchFiller._append,
    BatchFiller._unpin,
    BatchFiller._place,
    BatchFiller._end,
    ProducerBatch.append,
    MemoryLease.hold,
    MemoryLease.move,
]
NOT_INTERRUPTED = ("try:", "with ", "finally:", "if locked:", "lock.release()", "self._lock.release()", "return locked")
"""Lines on which Python takes or releases a lock, or does nothing: no exception comes between a lock and its block."""


class Interrupting:
    """Raises before the nth line that these functions are about to execute, as Ctrl-C does."""

    def __init__(self, functions: list[Any], nth: int) -> None:
        self._codes = {function.__code__ for function in functions}
        self._left = nth
        self.where = ""

    def __call__(self, frame: FrameType, event: str, argument: object) -> Any:
        if frame.f_code not in self._codes:
            return None
        return self._line

    def _line(self, frame: FrameType, event: str, argument: object) -> Any:
        text = linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip()
        if event == "line" and not text.startswith(NOT_INTERRUPTED):
            self._left -= 1
            if self._left == 0:
                self.where = f"{frame.f_code.co_name}: {text}"
                raise KeyboardInterrupt(self.where)
        return self._line


def interrupted(action: Callable[[], object], nth: int) -> str:
    """Where it was interrupted; empty if it ended before."""
    interrupting = Interrupting(INTERRUPTED, nth)
    before = sys.gettrace()
    sys.settrace(interrupting)
    try:
        action()
    except KeyboardInterrupt:
        pass
    finally:
        sys.settrace(before)
    return interrupting.where


def every_interruption(prepare: Callable[[Harness], Callable[[], object]]) -> Iterator[tuple[Harness, str]]:
    for nth in range(1, 1_000):
        h = Harness(linger_ms=LINGER_MS)
        where = interrupted(prepare(h), nth)
        if not where:
            assert nth > 10, "nothing was interrupted"
            return
        yield h, where
    raise AssertionError("there is no end")


def append_that_fills(h: Harness) -> Callable[[], object]:
    h.append(0, 3, call="before")
    h.append_record(1, call="single")
    return lambda: h.append_rows([VALUE] * 24, [0, 1] * 12, call="struck")


def skewed_append_that_fills(h: Harness) -> Callable[[], object]:
    h.append(1, 3, call="before")
    h.append_record(0, call="single")
    return lambda: h.append_rows([VALUE] * 24, [2, *[0] * 22, 1], call="struck")


def single_that_fills(h: Harness) -> Callable[[], object]:
    h.append(0, 3, call="before")
    for _ in range(BATCH_ROWS - 1):
        h.append_record(1, call="single")

    def action() -> None:
        for _ in range(3):
            h.append_record(1, call="struck")

    return action


def flush_that_fills(h: Harness) -> Callable[[], object]:
    h.append_rows([VALUE] * 4, [0, 1] * 2, call="before")
    h.append_record(1, call="single")
    return lambda: h.accumulator.flush(lambda done: done.is_set())


def labels(batches: list[ProducerBatch]) -> Counter[object]:
    """How often each row is there: by call and place, single records by what stands for their futures."""
    shares = [share for batch in batches for share in batch.rows_by_call()]
    return Counter(
        call[row] if isinstance(call, list) else (call, row) for call, rows, _ in shares for row in rows.tolist()
    )


@pytest.mark.parametrize("action", [append_that_fills, skewed_append_that_fills, single_that_fills, flush_that_fills])
def test_an_interruption_at_any_line_loses_no_row_of_another_call_and_no_byte(
    action: Callable[[Harness], Callable[[], object]],
) -> None:
    undisturbed = Harness(linger_ms=LINGER_MS)
    action(undisturbed)
    undisturbed.clock.now += LINGER_MS
    wanted = labels(sent_and_failed(undisturbed)[0])
    for h, where in every_interruption(action):
        print(where)  # which one it was, if the test fails
        assert not h.accumulator._incomplete.flushing
        h.append(2, 1, call="later")
        h.clock.now += LINGER_MS
        sent, failed = sent_and_failed(h)
        found = labels(sent) + labels(failed)
        assert {label: found[label] for label in wanted} == dict(wanted)
        struck = {label: times for label, times in found.items() if label not in wanted and label != ("later", 0)}
        assert struck.pop("struck", 0) <= 3
        assert set(struck.values()) <= {1}
        assert labels(sent)["later", 0] == 1
