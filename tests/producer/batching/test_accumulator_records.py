"""RecordAccumulator with single records that may fill a batch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from spark_kafka_sink.producer.batching.staging import ASSIGNMENT_DELAY_MS, Stage
from tests.producer.batching.accumulator_harness import BATCH_ROWS, VALUE, Harness


def test_assigns_records_added_during_an_assignment_when_they_fill_a_batch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    h = Harness(linger_ms=3_000)
    for partition in [0, 1] * 4 + [0] + [1] * 4:
        h.append_record(partition)
    split = Stage.split

    def append_meanwhile(stage: Stage, leaving: NDArray[np.bool_]) -> tuple[Stage, Stage]:
        for _ in range(3):
            h.append_record(1)
        monkeypatch.setattr(Stage, "split", split)
        return split(stage, leaving)

    monkeypatch.setattr(Stage, "split", append_meanwhile)
    assert h.ready().next_ready_check_delay_ms == ASSIGNMENT_DELAY_MS
    h.clock.now += ASSIGNMENT_DELAY_MS
    check = h.ready()
    assert (check.ready_node_ids, check.next_ready_check_delay_ms) == (frozenset(), ASSIGNMENT_DELAY_MS)
    h.clock.now += ASSIGNMENT_DELAY_MS
    assert [(batch.topic_partition.partition, batch.record_count) for batch in h.take()] == [(1, BATCH_ROWS)]


def test_assigns_records_when_rows_of_columns_complete_a_batch() -> None:
    h = Harness(linger_ms=3_000)
    for _ in range(BATCH_ROWS // 2):
        h.append_record(0)
    assert h.ready().next_ready_check_delay_ms > ASSIGNMENT_DELAY_MS
    h.append(0, count=BATCH_ROWS - 1)  # these rows alone fill no batch
    h.clock.now += ASSIGNMENT_DELAY_MS
    assert [batch.record_count for batch in h.take()] == [BATCH_ROWS]


def test_assigns_records_that_may_fill_a_batch_after_delay_and_wakes_sender_once() -> None:
    """The delay must be short, because full batches are to be sent immediately."""
    assert ASSIGNMENT_DELAY_MS <= 5
    h = Harness(linger_ms=3_000)
    h.append(0, count=BATCH_ROWS // 2)
    before = h.wakeups
    for number in range(BATCH_ROWS):
        h.append_record(number % 2 + 1)
    assert h.wakeups - before == 1


def test_does_not_wake_sender_for_assignment_when_linger_ends_first() -> None:
    h = Harness(linger_ms=int(ASSIGNMENT_DELAY_MS))
    h.append(0, count=BATCH_ROWS // 2)
    before = h.wakeups
    for number in range(BATCH_ROWS):
        h.append_record(number % 2 + 1)
    assert h.wakeups == before


def test_does_not_assign_records_while_full_batch_waits_for_sparse_partitions() -> None:
    """Repeated assignments would be wasted, because they free no batch while many partitions have one row each."""
    h = Harness(leaders=[0] * 500, linger_ms=600_000, buffer_memory=1 << 20, batch_size=1024)
    placed = 0
    place = Stage.assign_partitions

    def count(stage: Stage, rows_of: Any) -> None:
        nonlocal placed
        placed += 1
        place(stage, rows_of)

    h.append_rows([VALUE] * 500, list(range(500)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Stage, "assign_partitions", count)
        for _ in range(300):
            h.append_record(7)
            h.clock.now += ASSIGNMENT_DELAY_MS
            h.ready()
            h.drain()
    assert placed < 100


def test_fills_batch_completed_by_rows_staged_while_others_are_returned(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    h = Harness(linger_ms=60_000)
    split = Stage.split

    def append_meanwhile(stage: Stage, leaving: NDArray[np.bool_]) -> tuple[Stage, Stage]:
        monkeypatch.setattr(Stage, "split", split)
        h.append(1, count=BATCH_ROWS // 2 + 1)
        return split(stage, leaving)

    monkeypatch.setattr(Stage, "split", append_meanwhile)
    h.append_rows([VALUE] * (BATCH_ROWS + 2 + BATCH_ROWS // 2), [0] * (BATCH_ROWS + 2) + [1] * (BATCH_ROWS // 2))
    sizes = [(batch.topic_partition.partition, batch.record_count) for batch in h.take()]
    assert (1, BATCH_ROWS) in sizes
