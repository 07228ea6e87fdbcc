"""BatchFiller: rows that cannot be grouped, split or encoded fail, all others are sent, and no memory leaks."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import pytest

from spark_kafka_sink.producer.batching.batch import ProducerBatch
from spark_kafka_sink.producer.batching.partition_queues import PartitionQueue
from spark_kafka_sink.records.compression import Codec
from spark_kafka_sink.records.encoder import encode_records
from tests.producer.batching.accumulator_harness import ERROR, RECORD_BYTES, VALUE, Harness
from tests.producer.batching.named_call import get_name

BATCH_ROWS = (1024 - 61) // RECORD_BYTES
FAULTS = [MemoryError, ValueError]


def fail_nth_call(real: Callable[..., Any], fault: type[BaseException], failing_call: int = 1) -> Callable[..., Any]:
    """Wrap a function so that one call of it, counted from 1, raises without any effect."""
    calls = [0]

    def call(*arguments: Any, **named: Any) -> Any:
        calls[0] += 1
        if calls[0] == failing_call:
            raise fault("at a bad moment")
        return real(*arguments, **named)

    return call


def list_rows(batches: list[ProducerBatch]) -> list[tuple[object, int]]:
    return sorted(
        (get_name(call), int(row)) for batch in batches for call, rows, _ in batch.split_rows_by_call() for row in rows
    )


def sent_and_failed(h: Harness) -> tuple[list[ProducerBatch], list[ProducerBatch]]:
    """Send or fail all batches and check that none is left. Return the sent batches and the failed batches."""
    sent, failed = [], []
    for _ in range(60):
        h.clock.now += 10
        for batch in h.take():
            sent.append(batch)
            h.acknowledge(batch)
        for batch in h.accumulator.take_failed_batches():
            failed.append(batch)
            h.accumulator.remove_completed(batch)
    assert not h.accumulator.has_incomplete_rows()
    assert h.pool.free_bytes == h.pool.total_bytes
    assert h.flushed(h.begin_flush())
    return sent, failed


@pytest.mark.parametrize("fault", FAULTS)
def test_unpins_open_batches_when_pinning_them_fails(fault: type[Exception], monkeypatch: pytest.MonkeyPatch) -> None:
    h = Harness()
    h.append_rows([VALUE] * (2 * BATCH_ROWS + 2), [0, 1] * (BATCH_ROWS + 1), call="before")  # two open batches
    monkeypatch.setattr(PartitionQueue, "pin_open_batch", fail_nth_call(PartitionQueue.pin_open_batch, fault, 2))
    h.append_rows([VALUE] * 24, [0, 1] * 12, call="failing")
    monkeypatch.undo()
    sent, failed = sent_and_failed(h)
    assert list_rows(failed) == [("failing", row) for row in range(24)]
    assert list_rows(sent) == [("before", row) for row in range(2 * BATCH_ROWS + 2)]


def with_open_batches(*partitions: int) -> Harness:
    """Return a harness with an open batch of five rows for each of these partitions."""
    h = Harness(compression_type="gzip", leaders=(0, 0))
    h.append_rows([VALUE] * (5 * len(partitions)), list(partitions) * 5, call="before")
    h.clock.now += 10
    h.ready()
    return h


def test_fails_appended_rows_once_when_compression_is_interrupted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    h = with_open_batches(0, 1)
    interrupted = fail_nth_call(lambda *_: b"packed", KeyboardInterrupt, 2)
    monkeypatch.setattr("spark_kafka_sink.producer.batching.batch.compress", interrupted)
    with pytest.raises(KeyboardInterrupt):
        h.append_rows([VALUE] * 20, [0, 1] * 10, call="failing")
    failed = h.accumulator.abort_incomplete_batches(ERROR)
    assert list_rows(failed) == [("before", row) for row in range(10)] + [("failing", row) for row in range(20)]


def test_sends_appended_rows_when_later_rows_cannot_be_encoded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    h = with_open_batches(0)
    monkeypatch.setattr("spark_kafka_sink.producer.batching.grouping.MAX_GROUPED_BYTES", 6 * RECORD_BYTES)
    monkeypatch.setattr(
        "spark_kafka_sink.producer.batching.batch_filler.encode_records", fail_nth_call(encode_records, MemoryError, 2)
    )
    h.append(0, 5, call="encoded")
    h.append(0, 5, call="failing")
    sent, failed = sent_and_failed(h)
    assert list_rows(sent) == [("before", row) for row in range(5)] + [("encoded", row) for row in range(5)]
    assert list_rows(failed) == [("failing", row) for row in range(5)]


@pytest.mark.parametrize("fault", FAULTS)
def test_fails_single_records_that_cannot_be_converted_to_columns(
    fault: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    h = Harness(linger_ms=0)
    h.append_record(0, call="a")
    h.append_record(0, call="b")
    monkeypatch.setattr(
        "spark_kafka_sink.producer.batching.grouping.bytes_to_arrow", fail_nth_call(lambda values: None, fault)
    )
    h.ready()
    monkeypatch.undo()
    sent, (failed,) = sent_and_failed(h)
    assert sent == []
    assert [(get_name(call), rows.tolist()) for call, rows, _ in failed.split_rows_by_call()] == [(["a", "b"], [0, 1])]


def test_abort_reports_single_records_that_cannot_be_converted_to_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    h = Harness()
    h.append_record(0, call="a")
    monkeypatch.setattr(
        "spark_kafka_sink.producer.batching.grouping.bytes_to_arrow", fail_nth_call(lambda values: None, MemoryError)
    )
    (aborted,) = h.accumulator.abort_incomplete_batches(ValueError("closed"))
    assert [get_name(call) for call, _, _ in aborted.split_rows_by_call()] == [["a"]]
    assert h.pool.free_bytes == h.pool.total_bytes


@pytest.mark.parametrize("fault", [MemoryError, ValueError, RuntimeError])
@pytest.mark.parametrize("when", ["drained", "full"])
def test_sends_batch_uncompressed_when_compression_fails(
    fault: type[Exception], when: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    h = Harness(compression_type="gzip", leaders=(0, 0))
    monkeypatch.setattr("spark_kafka_sink.producer.batching.batch.compress", fail_nth_call(lambda *_: b"packed", fault))
    rows = 3 if when == "drained" else 300
    h.append_rows([VALUE] * rows, [0, 1] * (rows // 2) + [0] * (rows % 2), call="x")
    sent, failed = sent_and_failed(h)
    assert failed == []
    assert list_rows(sent) == [("x", row) for row in range(rows)]
    assert [batch.codec for batch in sent].count(Codec.NONE) == 1
    assert "sent uncompressed" in caplog.text
    assert "at a bad moment" in caplog.text


def test_small_batches_create_few_objects_for_the_garbage_collector(monkeypatch: pytest.MonkeyPatch) -> None:
    """The collector visits all objects repeatedly. With twice as many, it took a third of the CPU time."""
    partitions = 1_000
    h = Harness([0] * partitions, linger_ms=0)
    counts: list[int] = []

    def fill() -> None:
        h.append_rows([VALUE for _ in range(2 * partitions)], [*range(partitions)] * 2)
        gc.collect()
        counts.append(len(gc.get_objects()))
        h.ready()
        counts.append(len(gc.get_objects()))

    def count_and_append(*arguments: Any) -> None:
        if len(counts) == 1:  # the first of the batches
            counts.append(len(gc.get_objects()))
        append(*arguments)

    append = ProducerBatch.append
    monkeypatch.setattr(ProducerBatch, "append", count_and_append)
    fill()
    h.drain(0)
    counts.clear()  # permanent objects, such as queues, exist from now on
    fill()
    before, encoded, filled = counts
    assert encoded - before < 3.5 * partitions, "batch, segment, rows"
    assert filled - before < 5.5 * partitions, "and two tuples"
