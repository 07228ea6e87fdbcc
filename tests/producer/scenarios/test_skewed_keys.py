"""Skewed keys: full partitions are sent immediately, sparse ones stay staged instead of becoming small batches."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from random import Random
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from spark_kafka_sink.producer.batching.buffer_pool import BufferPool
from spark_kafka_sink.producer.batching.staging import Stage
from tests.producer.batching.accumulator_harness import BATCH_ROWS, VALUE, Harness, tp
from tests.producer.batching.named_call import get_name

LINGER_MS = 1_000
PARTITIONS = 40


def skewed() -> Harness:
    return Harness(leaders=[0] * PARTITIONS, linger_ms=LINGER_MS)


def test_sends_full_partition_while_sparse_partitions_linger() -> None:
    h = skewed()
    partitions = [0] * (2 * BATCH_ROWS) + list(range(1, PARTITIONS))
    h.append_rows([VALUE] * len(partitions), partitions, call="skewed")
    assert [batch.topic_partition.partition for batch in h.take() + h.take()] == [0, 0]
    h.clock.now += LINGER_MS - 1
    assert h.take() == []
    h.clock.now += 1
    assert {batch.topic_partition.partition for batch in h.take()} == set(range(1, PARTITIONS))


def test_sparse_partitions_collect_rows_of_many_calls_in_one_batch() -> None:
    h = skewed()
    for call in range(BATCH_ROWS // 2):
        h.append_rows([VALUE] * (BATCH_ROWS + PARTITIONS - 1), [0] * BATCH_ROWS + list(range(1, PARTITIONS)), call=call)
    h.clock.now += LINGER_MS
    sparse = [batch for _ in range(BATCH_ROWS) for batch in h.take() if batch.topic_partition.partition]
    assert [batch.record_count for batch in sparse] == [BATCH_ROWS // 2] * (PARTITIONS - 1)
    assert {len(batch.rows) for batch in sparse} == {1}  # each batch was filled once


@pytest.mark.parametrize("compression", ["none", "gzip"])
def test_rows_of_sparse_partitions_become_batches_before_memory_is_full(compression: str) -> None:
    options = {"compression_type": compression, "buffer_memory": 100_000, "batch_size": 16_384, "max_block_ms": 0}
    h = Harness(leaders=[0] * PARTITIONS, linger_ms=LINGER_MS, **options)
    calls = 0
    while not h.accumulator.list_queued_batches(tp(0)):
        appended = h.append_rows([VALUE] * PARTITIONS, list(range(PARTITIONS)), call=(calls := calls + 1))
        assert appended == (PARTITIONS, None)
    (batch,) = h.accumulator.list_queued_batches(tp(0))
    assert batch.record_count == calls
    assert calls == {"none": 11, "gzip": 8}[compression]


@pytest.mark.parametrize("compression", ["none", "gzip"])
def test_single_records_become_batches_before_memory_is_full(compression: str) -> None:
    options = {"compression_type": compression, "buffer_memory": 100_000, "batch_size": 16_384, "max_block_ms": 0}
    h = Harness(leaders=(0, 0, 0), linger_ms=LINGER_MS, **options)
    records = 0
    while not h.accumulator.list_queued_batches(tp(0)):
        h.append_record(records % 3)
        records += 1
    assert sum(h.accumulator.list_queued_batches(tp(partition))[0].record_count for partition in range(3)) == records
    assert records == {"none": 203, "gzip": 155}[compression]


def skewed_and_half_full() -> Harness:
    """Fill half of a stage: partition 0 has full batches, and each other partition one row."""
    h = Harness(leaders=[0] * PARTITIONS, linger_ms=LINGER_MS, buffer_memory=20_000)
    partitions = list(range(1, PARTITIONS)) + [0] * (2 * BATCH_ROWS)
    h.append_rows([VALUE] * len(partitions), partitions)
    return h


def linger(h: Harness) -> None:
    h.clock.now += LINGER_MS


@pytest.mark.parametrize("end", [linger, Harness.begin_flush, lambda h: h.accumulator.close(), None])
def test_full_partition_of_half_full_stage_waits_for_linger_or_flush(
    end: Callable[[Harness], object] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    h = skewed_and_half_full()
    assert h.take() == []
    assert h.ready().next_ready_check_delay_ms == LINGER_MS
    if end is None:
        monkeypatch.setattr(BufferPool, "waiter_count", 1)
    else:
        end(h)
    assert {batch.topic_partition.partition for batch in h.take()} == set(range(PARTITIONS))


def test_rows_staged_during_a_split_follow_the_remaining_rows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    h, split = skewed(), Stage.split

    def split_and_stage(stage: Stage, leaving: NDArray[np.bool_]) -> Any:
        parts = split(stage, leaving)
        h.append(1, 2, call="meanwhile")  # as another thread could
        return parts

    monkeypatch.setattr(Stage, "split", split_and_stage)
    h.append_rows([VALUE] * (2 * BATCH_ROWS + 1), [0] * (2 * BATCH_ROWS) + [1], call="skewed")
    h.clock.now += LINGER_MS
    (sparse,) = [batch for batch in h.take() if batch.topic_partition.partition == 1]
    runs = [(get_name(call), rows.tolist()) for call, rows, _ in sparse.split_rows_by_call()]
    assert runs == [("skewed", [2 * BATCH_ROWS]), ("meanwhile", [0, 1])]


def test_fills_nothing_when_another_thread_has_filled_the_full_batches(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    h = Harness(linger_ms=LINGER_MS, batch_size=1 << 20)
    with monkeypatch.context() as another_fills:
        full = [True, False]  # checked after the call has added its rows, and again before it fills batches
        another_fills.setattr(Stage, "is_full", lambda *_: full.pop(0))
        h.append(0, 1_000)
    assert not full
    h.append(0, 1_000)
    h.clock.now += LINGER_MS
    (batch,) = h.take()
    assert batch.record_count == 2_000
    assert len({id(rows.row_group) for rows in batch.rows}) == 1  # all rows were grouped by one fill


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("compression", ["none", "gzip"])
def test_each_partition_keeps_row_order_and_all_memory_is_released(seed: int, compression: str) -> None:
    chance, h = Random(seed), Harness(leaders=[0] * PARTITIONS, linger_ms=LINGER_MS, compression_type=compression)
    given: dict[int, list[object]] = defaultdict(list)
    sent: dict[int, list[object]] = defaultdict(list)
    for call in range(60):
        if chance.random() < 0.5:
            partition = int(PARTITIONS ** chance.random()) - 1
            h.append_record(partition, call=call)
            given[partition].append(call)
            continue
        partitions = [int(PARTITIONS ** (2 * chance.random() - 1)) for _ in range(chance.randrange(1, 40))]
        h.append_rows([VALUE] * len(partitions), partitions, call=call)
        for row, partition in enumerate(partitions):
            given[partition].append((call, row))
    h.clock.now += LINGER_MS
    while h.accumulator.has_incomplete_rows():
        for batch in h.take():
            for source, rows, _ in batch.split_rows_by_call():
                name = get_name(source)
                names = [name[row] if isinstance(name, list) else (name, row) for row in rows.tolist()]
                sent[batch.topic_partition.partition] += names
            h.acknowledge(batch)
    assert sent == given
    assert h.pool.free_bytes == h.pool.total_bytes
