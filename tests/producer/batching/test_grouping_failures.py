"""Staging, grouping or compressing raises (no memory, Ctrl-C, a fault of ours): every row is told, nothing leaks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from spark_kafka_sink.producer.batching.batch import ProducerBatch
from spark_kafka_sink.producer.batching.buffer_pool import MemoryLease
from spark_kafka_sink.producer.batching.incomplete import IncompleteBatches
from spark_kafka_sink.producer.batching.partition_queues import PartitionQueue
from spark_kafka_sink.producer.batching.staging import Stage
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
    return sorted((part.call, int(row)) for batch in batches for part in batch.parts for row in part.rows)


def sent_and_failed(h: Harness) -> tuple[list[ProducerBatch], list[ProducerBatch]]:
    """Everything goes to its end; afterwards nothing may be left."""
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
    assert h.accumulator.await_flush(h.accumulator.begin_flush(), 0)
    return sent, failed


def attempt(fault: type[BaseException], action: Callable[[], object]) -> None:
    """What no code can go on after comes out; the rest is told by the batches."""
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
def test_a_fault_while_rows_are_put_into_batches_leaves_no_row_untold_and_no_batch_held(
    fault: type[BaseException], owner: type, step: str, nth: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    h = Harness()
    h.append(0, BATCH_ROWS + 1, call="before")  # leaves an open batch, which the next grouping goes on filling
    monkeypatch.setattr(owner, step, failing(getattr(owner, step), fault, nth))
    attempt(fault, lambda: h.append_rows([VALUE] * 24, [0, 1] * 12, call="struck"))
    monkeypatch.undo()
    h.append(1, 1, call="later")
    sent, failed = sent_and_failed(h)
    told = sorted(rows_of(sent) + rows_of(failed))
    assert told == sorted(
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
def test_single_records_that_cannot_become_columns_are_told(
    fault: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    h = Harness(linger_ms=0)
    h.append_record(0, call="a")
    h.append_record(0, call="b")
    monkeypatch.setattr("spark_kafka_sink.producer.batching.staging.bytes_array", failing(lambda values: None, fault))
    attempt(fault, h.ready)
    monkeypatch.undo()
    sent, (failed,) = sent_and_failed(h)
    assert sent == []
    assert [(part.call, part.rows.tolist()) for part in failed.parts] == [(["a", "b"], [0, 1])]


def test_an_abort_tells_single_records_that_cannot_become_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    h = Harness()
    h.append_record(0, call="a")
    monkeypatch.setattr(
        "spark_kafka_sink.producer.batching.staging.bytes_array", failing(lambda values: None, MemoryError)
    )
    (aborted,) = h.accumulator.abort_incomplete(ValueError("closed"))
    assert [part.call for part in aborted.parts] == [["a"]]
    assert h.pool.free_bytes == h.pool.bytes_max


@pytest.mark.parametrize("fault", FAULTS)
def test_memory_for_rows_that_cannot_be_staged_returns(
    fault: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    h = Harness()
    h.append(0, 1, call="before")
    free = h.pool.free_bytes
    monkeypatch.setattr(Stage, "add_run", failing(Stage.add_run, fault))
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
