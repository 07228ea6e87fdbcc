"""Contents of the accumulator's batches: every row once, in order, with its call."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from spark_kafka_sink.producer.batching.batch import ProducerBatch
from spark_kafka_sink.records.columns import RecordColumns
from spark_kafka_sink.records.encoder import encode_records
from tests.producer.batching.accumulator_harness import (
    BATCH_ROWS,
    TOPIC,
    VALUE,
    WALL_MS,
    Harness,
    decode_values,
)
from tests.producer.batching.assigned_rows import assigned_rows
from tests.producer.batching.named_call import get_name


def test_rows_keep_partition_order_and_are_reported_to_their_calls() -> None:
    h = Harness(linger_ms=0)
    h.append_rows([b"a0", b"b0", b"a1", None], [0, 1, 0, 0], call="first")
    h.append_rows([b"a2", b"b1"], [0, 1], call="second")
    batches = {batch.topic_partition.partition: batch for batch in h.take()}
    assert decode_values(batches[0]) == [b"a0", b"a1", None, b"a2"]
    assert decode_values(batches[1]) == [b"b0", b"b1"]
    assert [(get_name(call), rows.tolist(), first) for call, rows, first in batches[0].split_rows_by_call()] == [
        ("first", [0, 2, 3], 0),
        ("second", [0], 3),
    ]
    assert [(get_name(call), rows.tolist(), first) for call, rows, first in batches[1].split_rows_by_call()] == [
        ("first", [1], 0),
        ("second", [1], 1),
    ]


def test_single_records_and_columns_keep_append_order() -> None:
    h = Harness(linger_ms=0)
    h.append_record(0, b"1", call="one")
    h.append_record(0, b"2", call="two")
    h.append_rows([b"3"], [0], call="three")
    h.append_record(0, b"4", call="four")
    (batch,) = h.take()
    assert decode_values(batch) == [b"1", b"2", b"3", b"4"]
    parts = [(get_name(call), rows.tolist(), first) for call, rows, first in batch.split_rows_by_call()]
    assert parts == [(["one", "two"], [0, 1], 0), ("three", [0], 2), (["four"], [0], 3)]


def test_fills_open_batch_before_creating_the_next() -> None:
    h = Harness()
    h.append(0, BATCH_ROWS + 2, call=1)
    h.append(0, BATCH_ROWS, call=2)
    counts: list[int] = []
    for _ in range(3):
        h.clock.now += 10
        counts += [batch.record_count for batch in h.take()]
    assert sum(counts) == 2 * BATCH_ROWS + 2
    assert len(counts) == 3


def test_appended_pieces_continue_offset_deltas_of_batch() -> None:
    h = Harness(batch_size=512)
    h.append(0, 4, call="a")  # three rows fill a batch, and one is in an open batch
    h.append(0, 4, call="b")
    got = []
    for _ in range(3):
        h.clock.now += 10
        got += h.take()
    build_batch_rows: dict[str, list[int]] = {"a": [], "b": []}
    for batch in got:
        index = 0
        for call, rows, first_delta in batch.split_rows_by_call():
            assert first_delta == index
            index += len(rows)
            build_batch_rows[str(get_name(call))] += rows.tolist()
        assert index == batch.record_count
    assert build_batch_rows == {"a": [0, 1, 2, 3], "b": [0, 1, 2, 3]}


@pytest.mark.parametrize("compression", ["none", "gzip", "lz4"])
def test_record_above_limit_gets_its_own_batch(compression: str) -> None:
    h = Harness(compression_type=compression, linger_ms=0)
    large = np.random.default_rng(1).bytes(5000)
    h.append_rows([b"small", large, b"small"], [0, 0, 0])
    batches: list[ProducerBatch] = []
    while len(batches) < 3:
        batches += h.take()
    assert [decode_values(batch) for batch in batches] == [[b"small"], [large], [b"small"]]
    assert h.ready_nodes() == set()


def test_batch_size_zero_means_one_record_per_batch() -> None:
    h = Harness(batch_size=0)
    h.append(0, 3)
    assert [batch.record_count for _ in range(3) for batch in h.take()] == [1, 1, 1]


def test_groups_rows_with_different_header_types_in_order() -> None:
    h = Harness(linger_ms=0)
    h.append_record(0, b"1")
    headers = pa.array([[("k", b"v")]], pa.map_(pa.string(), pa.binary()))
    columns = RecordColumns(pa.array([b"2"]), headers=headers)
    h.accumulator.append_columns(TOPIC, assigned_rows(columns, [0], "c"))
    h.accumulator.append_record(TOPIC, (b"3", None, [("x", None)], 0, WALL_MS), 60, h.snapshot)
    (batch,) = h.take()
    assert decode_values(batch) == [b"1", b"2", b"3"]


def test_fills_compressed_batches_to_estimated_size() -> None:
    h = Harness(compression_type="gzip", batch_size=4096)
    first: list[int] = []
    for _ in range(60):
        h.append(0, 300)
        for _ in range(30):
            for batch in h.take():
                first.append(batch.record_count)
                h.acknowledge(batch)
    assert first[-2] > 2 * first[0]


def test_unencodable_rows_fail_with_their_error_and_release_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def raise_memory_error(*_: object) -> None:
        raise MemoryError("none left")

    h = Harness(linger_ms=0)
    h.append(0, 2, call="x")
    monkeypatch.setattr("spark_kafka_sink.producer.batching.batch_filler.encode_records", raise_memory_error)
    assert h.ready_nodes() == set()
    (failed,) = h.accumulator.take_failed_batches()
    assert failed.is_done
    assert isinstance(failed.error, MemoryError)
    assert [(get_name(call), rows.tolist()) for call, rows, _ in failed.split_rows_by_call()] == [("x", [0, 1])]
    assert h.accumulator.take_failed_batches() == []
    h.accumulator.remove_completed(failed)
    assert not h.accumulator.has_incomplete_rows()
    assert h.pool.free_bytes == h.pool.total_bytes


def test_close_includes_rows_that_are_being_grouped(monkeypatch: pytest.MonkeyPatch) -> None:
    h = Harness(linger_ms=0)
    seen: list[tuple[bool, bool]] = []

    def record_flags(*arguments: object) -> object:
        seen.append((h.accumulator.has_incomplete_rows(), h.accumulator.has_undrained_rows()))
        return encode_records(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr("spark_kafka_sink.producer.batching.batch_filler.encode_records", record_flags)
    h.append(0)
    h.ready()
    assert seen == [(True, True)]


def test_unencodable_rows_fail_later_rows_of_their_stage(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    h = Harness(linger_ms=0)
    texts = [{"key": "k", "value": "v"}]
    bytes_ = [{"key": "k", "value": b"v"}]
    for headers, kind in ((texts, pa.string()), (bytes_, pa.large_binary())):
        header_column = pa.array([headers], pa.list_(pa.struct([("key", pa.string()), ("value", kind)])))
        columns = RecordColumns(pa.array([VALUE]), headers=header_column)
        h.accumulator.append_columns(TOPIC, assigned_rows(columns, [0], None))

    def raise_memory_error(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr("spark_kafka_sink.producer.batching.batch_filler.encode_records", raise_memory_error)
    h.ready()
    assert sum(batch.record_count for batch in h.accumulator.take_failed_batches()) == 2
    assert h.pool.free_bytes == h.pool.total_bytes


def test_unencodable_rows_do_not_block_later_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    def raise_memory_error(*_: object) -> None:
        raise MemoryError

    h = Harness()
    h.append(0, BATCH_ROWS + 1, call="before")  # leaves an open batch, which the next grouping pins
    with monkeypatch.context() as patch:
        patch.setattr("spark_kafka_sink.producer.batching.batch_filler.encode_records", raise_memory_error)
        h.append(0, 20, call="failed")
    (failed,) = h.accumulator.take_failed_batches()
    assert [(get_name(call), len(rows)) for call, rows, _ in failed.split_rows_by_call()] == [("failed", 20)]
    h.accumulator.remove_completed(failed)
    h.clock.now += 10
    assert sum(batch.record_count for _ in range(2) for batch in h.take()) == BATCH_ROWS + 1


def test_sends_batch_uncompressed_when_memory_for_compression_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    def raise_memory_error(*_: object) -> None:
        raise MemoryError

    h = Harness(compression_type="gzip", linger_ms=0)
    h.append(0, 3)
    monkeypatch.setattr("spark_kafka_sink.producer.batching.batch.compress", raise_memory_error)
    (batch,) = h.take()
    assert decode_values(batch) == [b"v" * 100] * 3
    h.acknowledge(batch)
    assert h.pool.free_bytes == h.pool.total_bytes
