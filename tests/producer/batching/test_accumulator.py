"""RecordAccumulator: what is ready when, what is drained in which order, and that nothing is ever left behind."""

from __future__ import annotations

import threading
from collections.abc import Iterable

import numpy as np
import pyarrow as pa
import pytest

from spark_kafka_sink.errors import BufferExhaustedError, DeliveryTimeoutError, ProducerClosedError, RecordTooLargeError
from spark_kafka_sink.producer.batching.batch import BatchState, ProducerBatch
from spark_kafka_sink.producer.batching.staging import StagedRecord
from spark_kafka_sink.records.columns import RecordColumns
from spark_kafka_sink.records.decoder import decode_batches
from spark_kafka_sink.records.encoder import encode
from spark_kafka_sink.records.sizes import record_size_bounds
from tests.producer.batching.accumulator_harness import (
    FOREVER,
    RECORD_BYTES,
    TOPIC,
    VALUE,
    WALL_MS,
    Harness,
    cluster,
    tp,
)

BATCH_ROWS = (1024 - 61) // RECORD_BYTES
ERROR = DeliveryTimeoutError("too late")


def values_of(batch: ProducerBatch) -> list[bytes | None]:
    decoded = list(decode_batches(b"".join(batch.wire_segments()), bytes_max=1 << 24))
    values: list[bytes | None] = decoded[0].columns["value"].to_pylist()
    return values


# -- ready ------------------------------------------------------------------------------------------------------------


def test_a_full_batch_is_ready_at_once_and_an_open_one_when_it_has_lingered() -> None:
    h = Harness()
    h.append(0, BATCH_ROWS + 1)
    assert h.ready_nodes() == {0}
    assert [b.record_count for b in h.drain()] == [BATCH_ROWS]
    assert h.ready_nodes() == set()
    h.clock.now += 10
    assert h.ready_nodes() == {0}
    assert [b.record_count for b in h.drain()] == [1]


def test_rows_that_fill_no_batch_wait_for_linger_from_the_time_they_were_given() -> None:
    h = Harness()
    h.append(2)
    check = h.ready()
    assert (check.ready_node_ids, check.next_check_delay_ms) == (frozenset(), 10)
    h.clock.now += 9
    assert h.ready().next_check_delay_ms == 1
    h.clock.now += 1
    assert h.ready_nodes() == {1}


def test_an_open_batch_lingers_no_longer_than_its_oldest_row() -> None:
    h = Harness()
    h.append(0, BATCH_ROWS + 1)  # grouped at once: one full, one open with one row
    h.drain()
    h.clock.now += 6
    assert h.ready().next_check_delay_ms == 4


def test_without_linger_everything_is_ready_in_the_next_round() -> None:
    h = Harness(linger_ms=0)
    h.append(0)
    assert h.ready_nodes() == {0}


def test_nothing_to_send_means_nothing_to_wait_for() -> None:
    assert Harness().ready().next_check_delay_ms == FOREVER


def test_a_partition_without_a_leader_asks_for_metadata_and_goes_when_there_is_one() -> None:
    h = Harness(leaders=(None, None, 1), linger_ms=0)
    h.append(0)
    check = h.ready()
    assert check.ready_node_ids == frozenset()
    assert check.unknown_leader_topics == {TOPIC}
    assert h.drain() == []
    h.snapshot = cluster((1, 0, 1), epoch=2)
    check = h.ready()
    assert check.ready_node_ids == {1}
    assert check.unknown_leader_topics == set()


def test_a_leader_that_metadata_names_without_its_address_is_no_leader() -> None:
    h = Harness(leaders=(9,), linger_ms=0)
    h.append(0)
    assert h.ready().unknown_leader_topics == {TOPIC}


def test_a_flush_makes_everything_ready_at_once() -> None:
    h = Harness(linger_ms=1000)
    h.append(0)
    h.append(2)
    flush = h.begin_flush()
    assert h.ready_nodes() == {0, 1}
    batches = h.drain()
    h.append(1)
    assert h.ready_nodes() == {0}  # as long as the flush goes on, nothing lingers
    assert not h.flushed(flush)
    h.append(2)
    assert h.ready_nodes() == {0}  # it is over: what comes now lingers
    for batch in batches:
        h.acknowledge(batch)


def test_a_flush_ends_when_all_batches_of_before_have_an_outcome_good_or_bad() -> None:
    h = Harness(linger_ms=1000)
    h.append(0)
    h.append(2)
    flush = h.begin_flush()
    first, second = h.take()
    h.append(1)  # after the flush began: not its business
    h.acknowledge(first)
    assert not flush.is_set()
    second.off_wire()
    second.fail(ERROR)
    h.accumulator.finish(second)
    assert h.flushed(flush)
    assert h.accumulator.has_incomplete()


def test_a_flush_of_nothing_is_over_at_once() -> None:
    h = Harness()
    assert h.flushed(h.begin_flush())


def test_a_flush_waits_for_what_a_batch_was_split_into() -> None:
    h = Harness(linger_ms=1000, batch_size=4096)
    h.append(0, 20)
    flush = h.begin_flush()
    (batch,) = h.take()
    batch.off_wire()
    h.accumulator.split_and_reenqueue(batch, h.clock.now)
    left = h.accumulator.has_undrained()
    assert left
    assert not flush.is_set()
    while not flush.is_set():
        for child in h.take():
            h.acknowledge(child)
    assert h.flushed(flush)


def test_memory_that_others_wait_for_makes_everything_ready() -> None:
    h = Harness(linger_ms=100_000, buffer_memory=4096, batch_size=4096, max_block_ms=60_000)
    h.append(0, 3)
    done = threading.Event()

    def call() -> None:
        h.append(1, 30)
        done.set()

    threading.Thread(target=call).start()
    drained = 0
    while not done.is_set() or h.accumulator.has_incomplete():
        for batch in h.take():
            drained += batch.record_count
            h.acknowledge(batch)
        if done.is_set() and not h.pool.waiters:
            h.clock.now += 100_000
    assert drained == 33
    assert h.pool.free_bytes == 4096


def test_closing_makes_everything_ready_and_refuses_more() -> None:
    h = Harness(linger_ms=1000)
    h.append(0)
    h.accumulator.close()
    assert h.ready_nodes() == {0}
    taken, error = h.append(0)
    assert taken == 0
    assert isinstance(error, ProducerClosedError)
    with pytest.raises(ProducerClosedError):
        h.append_record(0)
    for batch in h.drain():
        h.acknowledge(batch)
    assert h.pool.free_bytes == h.pool.bytes_max


def test_an_append_wakes_the_sender_for_a_new_linger_and_for_a_full_batch_only() -> None:
    h = Harness()
    h.append(0)
    assert h.wakeups == 1
    h.append(0)
    assert h.wakeups == 1
    h.append(0, BATCH_ROWS)
    assert h.wakeups == 2


# -- what is in the batches -------------------------------------------------------------------------------------------


def test_rows_keep_their_order_within_a_partition_and_calls_are_told_row_by_row() -> None:
    h = Harness(linger_ms=0)
    h.append_rows([b"a0", b"b0", b"a1", None], [0, 1, 0, 0], call="first")
    h.append_rows([b"a2", b"b1"], [0, 1], call="second")
    batches = {batch.topic_partition.partition: batch for batch in h.take()}
    assert values_of(batches[0]) == [b"a0", b"a1", None, b"a2"]
    assert values_of(batches[1]) == [b"b0", b"b1"]
    assert [(call, rows.tolist(), first) for call, rows, first in batches[0].rows_by_call()] == [
        ("first", [0, 2, 3], 0),
        ("second", [0], 3),
    ]
    assert [(call, rows.tolist(), first) for call, rows, first in batches[1].rows_by_call()] == [
        ("first", [1], 0),
        ("second", [1], 1),
    ]


def test_single_records_and_columns_keep_the_order_in_which_they_were_given() -> None:
    h = Harness(linger_ms=0)
    h.append_record(0, b"1", call="one")
    h.append_record(0, b"2", call="two")
    h.append_rows([b"3"], [0], call="three")
    h.append_record(0, b"4", call="four")
    (batch,) = h.take()
    assert values_of(batch) == [b"1", b"2", b"3", b"4"]
    parts = [(call, rows.tolist(), first) for call, rows, first in batch.rows_by_call()]
    assert parts == [(["one", "two"], [0, 1], 0), ("three", [0], 2), (["four"], [0], 3)]


def test_an_open_batch_is_filled_up_before_the_next_one_begins() -> None:
    h = Harness()
    h.append(0, BATCH_ROWS + 2, call=1)
    h.append(0, BATCH_ROWS, call=2)
    counts: list[int] = []
    for _ in range(3):
        h.clock.now += 10
        counts += [batch.record_count for batch in h.take()]
    assert sum(counts) == 2 * BATCH_ROWS + 2
    assert len(counts) == 3


def test_the_parts_of_a_continued_batch_count_on() -> None:
    h = Harness(batch_size=512)
    h.append(0, 4, call="a")  # 3 in a full batch, 1 in an open one
    h.append(0, 4, call="b")
    got = []
    for _ in range(3):
        h.clock.now += 10
        got += h.take()
    told: dict[str, list[int]] = {"a": [], "b": []}
    for batch in got:
        index = 0
        for call, rows, first_index in batch.rows_by_call():
            assert first_index == index
            index += len(rows)
            told[str(call)] += rows.tolist()
        assert index == batch.record_count
    assert told == {"a": [0, 1, 2, 3], "b": [0, 1, 2, 3]}


@pytest.mark.parametrize("compression", ["none", "gzip", "lz4"])
def test_a_record_larger_than_a_batch_gets_one_of_its_own(compression: str) -> None:
    h = Harness(compression_type=compression, linger_ms=0)
    large = np.random.default_rng(1).bytes(5000)
    h.append_rows([b"small", large, b"small"], [0, 0, 0])
    batches: list[ProducerBatch] = []
    while len(batches) < 3:
        batches += h.take()
    assert [values_of(batch) for batch in batches] == [[b"small"], [large], [b"small"]]
    assert h.ready_nodes() == set()


def test_batch_size_zero_means_one_record_per_batch() -> None:
    h = Harness(batch_size=0)
    h.append(0, 3)
    assert [batch.record_count for _ in range(3) for batch in h.take()] == [1, 1, 1]


def test_a_topic_whose_header_columns_have_different_types_is_grouped_in_order() -> None:
    h = Harness(linger_ms=0)
    h.append_record(0, b"1")
    headers = pa.array([[("k", b"v")]], pa.map_(pa.string(), pa.binary()))
    columns = RecordColumns(pa.array([b"2"]), headers=headers)
    partitions = np.zeros(1, np.int32)
    h.accumulator.append_columns(TOPIC, columns, record_size_bounds(columns), partitions, np.arange(1), "c")
    h.accumulator.append_record(TOPIC, StagedRecord(0, None, b"3", [("x", None)], WALL_MS, 60, "s"))
    (batch,) = h.take()
    assert values_of(batch) == [b"1", b"2", b"3"]


def test_compressed_batches_are_filled_by_what_they_are_expected_to_become() -> None:
    h = Harness(compression_type="gzip", batch_size=4096)
    first: list[int] = []
    for _ in range(60):
        h.append(0, 300)
        for _ in range(30):
            for batch in h.take():
                first.append(batch.record_count)
                h.acknowledge(batch)
    assert first[-2] > 2 * first[0]


def test_rows_that_cannot_be_encoded_are_told_and_their_memory_returns(monkeypatch: pytest.MonkeyPatch) -> None:
    def out_of_memory(*_: object) -> None:
        raise MemoryError("none left")

    h = Harness(linger_ms=0)
    h.append(0, 2, call="x")
    monkeypatch.setattr("spark_kafka_sink.producer.batching.batch_filler.encode", out_of_memory)
    assert h.ready_nodes() == set()
    (failed,) = h.accumulator.failed_batches()
    assert failed.done
    assert isinstance(failed.error, MemoryError)
    assert [(call, rows.tolist()) for call, rows, _ in failed.rows_by_call()] == [("x", [0, 1])]
    assert h.accumulator.failed_batches() == []
    h.accumulator.finish(failed)
    assert not h.accumulator.has_incomplete()
    assert h.pool.free_bytes == h.pool.bytes_max


def test_rows_that_are_being_grouped_are_not_forgotten_by_a_close(monkeypatch: pytest.MonkeyPatch) -> None:
    h = Harness(linger_ms=0)
    seen: list[tuple[bool, bool]] = []

    def looked_at(*arguments: object) -> object:
        seen.append((h.accumulator.has_incomplete(), h.accumulator.has_undrained()))
        return encode(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr("spark_kafka_sink.producer.batching.batch_filler.encode", looked_at)
    h.append(0)
    h.ready()
    assert seen == [(True, True)]


def test_an_interrupted_grouping_tells_also_the_rows_behind_it(monkeypatch: pytest.MonkeyPatch) -> None:
    h = Harness(linger_ms=0)
    texts = [{"key": "k", "value": "v"}]
    bytes_ = [{"key": "k", "value": b"v"}]
    for headers, kind in ((texts, pa.string()), (bytes_, pa.large_binary())):
        listed = pa.array([headers], pa.list_(pa.struct([("key", pa.string()), ("value", kind)])))
        columns = RecordColumns(pa.array([VALUE]), headers=listed)
        sizes = record_size_bounds(columns)
        h.accumulator.append_columns(TOPIC, columns, sizes, np.zeros(1, np.int32), np.arange(1), None)

    def interrupted(*arguments: object) -> object:
        raise KeyboardInterrupt

    monkeypatch.setattr("spark_kafka_sink.producer.batching.batch_filler.encode", interrupted)
    with pytest.raises(KeyboardInterrupt):
        h.ready()
    assert sum(batch.record_count for batch in h.accumulator.failed_batches()) == 2
    assert h.pool.free_bytes == h.pool.bytes_max


def test_an_interrupted_grouping_tells_its_rows_and_blocks_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    h = Harness()
    h.append(0, BATCH_ROWS + 1, call="before")  # leaves an open batch, which the next grouping pins
    with monkeypatch.context() as patch:
        patch.setattr("spark_kafka_sink.producer.batching.batch_filler.encode", interrupted)
        with pytest.raises(KeyboardInterrupt):
            h.append(0, 20, call="interrupted")
    (failed,) = h.accumulator.failed_batches()
    assert [(call, len(rows)) for call, rows, _ in failed.rows_by_call()] == [("interrupted", 20)]
    h.accumulator.finish(failed)
    h.clock.now += 10
    assert sum(batch.record_count for _ in range(2) for batch in h.take()) == BATCH_ROWS + 1


def test_a_batch_for_whose_compression_there_is_no_memory_is_sent_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    def out_of_memory(*_: object) -> None:
        raise MemoryError

    h = Harness(compression_type="gzip", linger_ms=0)
    h.append(0, 3)
    monkeypatch.setattr("spark_kafka_sink.producer.batching.batch.compress", out_of_memory)
    (batch,) = h.take()
    assert values_of(batch) == [b"v" * 100] * 3
    h.acknowledge(batch)
    assert h.pool.free_bytes == h.pool.bytes_max


# -- drain ------------------------------------------------------------------------------------------------------------


def test_drain_takes_one_batch_of_each_partition_of_the_node() -> None:
    h = Harness()
    for partition in (0, 1, 2):
        h.append(partition, 2 * BATCH_ROWS)
    h.ready()
    assert sorted(batch.topic_partition.partition for batch in h.drain(0)) == [0, 1]
    assert [batch.topic_partition.partition for batch in h.drain(1)] == [2]


def test_a_node_that_hosts_nothing_gives_nothing() -> None:
    h = Harness(linger_ms=0)
    h.append(0)
    h.ready()
    assert h.drain(1) == []
    assert h.drain(77) == []


def test_drain_stops_at_the_request_size_and_goes_on_where_it_stopped() -> None:
    h = Harness(leaders=(0,) * 4)
    for _ in range(3):
        for partition in range(4):
            h.append(partition, BATCH_ROWS)
    h.clock.now += 10
    served: list[int] = []
    for _ in range(6):
        h.ready()
        served += [batch.topic_partition.partition for batch in h.drain(0, max_request_size=2200)]
    assert served == [0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3]


def test_a_single_batch_above_the_request_size_goes_alone() -> None:
    h = Harness(leaders=(0, 0), linger_ms=0)
    h.append(0, 1, b"x" * 5000)
    h.append(1)
    h.ready()
    assert [batch.topic_partition.partition for batch in h.drain(0, max_request_size=1000)] == [0]
    assert [batch.topic_partition.partition for batch in h.drain(0, max_request_size=1000)] == [1]


def test_a_partition_that_may_not_be_drained_neither_stalls_its_node_nor_makes_the_sender_spin() -> None:
    h = Harness(leaders=(0, 0, 0), linger_ms=0)
    h.gate.refused = {0}
    for partition in (0, 1, 2):
        h.append(partition)
    assert sorted(batch.topic_partition.partition for batch in h.take()) == [1, 2]
    asked = h.gate.asked
    check = h.ready()
    assert (check.ready_node_ids, check.next_check_delay_ms) == (frozenset(), FOREVER)
    assert h.gate.asked == asked
    h.gate.refused.clear()
    h.accumulator.recheck(tp(0))
    assert [batch.topic_partition.partition for batch in h.take()] == [0]


def test_an_answer_of_the_same_partition_brings_a_refused_one_back() -> None:
    h = Harness(leaders=(0,))
    h.append(0, 2 * BATCH_ROWS)
    (first,) = h.take()
    h.gate.refused = {0}
    assert h.take() == []
    h.gate.refused.clear()
    assert h.ready_nodes() == set()
    h.acknowledge(first)
    assert len(h.take()) == 1


def test_recheck_of_all_brings_every_refused_partition_back() -> None:
    h = Harness(linger_ms=0)
    h.gate.refused = {0, 1, 2}
    for partition in (0, 1, 2):
        h.append(partition)
    assert h.take() == []
    h.gate.refused.clear()
    h.accumulator.recheck()
    assert len(h.take()) == 3


def test_a_partition_set_aside_is_neither_ready_nor_drained_until_it_is_looked_at_again() -> None:
    h = Harness(linger_ms=0)
    h.append(0)
    h.gate.refused = {0}
    assert h.take() == []
    h.gate.refused.clear()
    assert h.ready_nodes() == set()
    assert h.drain(0) == []
    h.append(0)  # more rows do not bring it back
    assert h.ready_nodes() == set()
    h.accumulator.recheck(tp(0))
    assert h.ready_nodes() == {0}
    assert len(h.drain(0)) == 1


def test_a_partition_follows_its_leader_to_another_node() -> None:
    h = Harness(linger_ms=0)
    h.append(0)
    assert h.ready_nodes() == {0}
    h.snapshot = cluster((1, 0, 1), epoch=2)
    assert h.drain(0) == []
    assert [batch.topic_partition.partition for batch in h.drain(1)] == [0]


# -- retries ----------------------------------------------------------------------------------------------------------


def test_a_retried_batch_waits_its_backoff_in_front_of_all_others() -> None:
    h = Harness(retry_backoff_ms=100, retry_backoff_max_ms=100)
    h.append(0, 3 * BATCH_ROWS)
    (first,) = h.take()
    first.off_wire()
    h.reenqueue(first)
    check = h.ready()
    assert (check.ready_node_ids, check.next_check_delay_ms) == (frozenset(), 100)
    h.clock.now += 100
    assert h.take() == [first]
    assert first.attempts == 1


def test_the_backoff_of_one_partition_does_not_hold_another() -> None:
    h = Harness(leaders=(0, 0), linger_ms=0)
    h.append(0)
    (batch,) = h.take()
    batch.off_wire()
    h.reenqueue(batch)
    h.append(1)
    assert [other.topic_partition.partition for other in h.take()] == [1]


def test_backoff_grows_with_the_attempts_up_to_its_maximum() -> None:
    h = Harness(linger_ms=0, retry_backoff_ms=100, retry_backoff_max_ms=1000)
    h.append(0)
    (batch,) = h.take()
    waits: list[float] = []
    for _ in range(7):
        batch.off_wire()
        h.reenqueue(batch)
        waits.append(h.ready().next_check_delay_ms)
        h.clock.now += waits[-1]
        assert h.take() == [batch]
    for attempt, wait in enumerate(waits):
        usual = min(100 * 2**attempt, 1000)
        assert 0.8 * usual - 1e-6 <= wait <= min(1.2 * usual, 1000) + 1e-6


def test_a_new_leader_ends_the_backoff_of_the_ongoing_retry_but_not_of_the_next() -> None:
    h = Harness(linger_ms=0, retry_backoff_ms=100, retry_backoff_max_ms=100)
    h.append(0)
    (batch,) = h.take()
    batch.off_wire()
    h.reenqueue(batch)
    assert h.ready_nodes() == set()
    h.snapshot = cluster((1, 0, 1), epoch=2)
    assert h.ready_nodes() == {1}
    assert h.take() == [batch]
    batch.off_wire()
    h.reenqueue(batch)
    assert h.ready_nodes() == set()


def test_a_leader_that_changed_while_the_batch_was_in_flight_needs_no_backoff() -> None:
    h = Harness(leaders=(0,), retry_backoff_ms=100, retry_backoff_max_ms=100)
    h.append(0, 3 * BATCH_ROWS)
    sent = [h.take()[0] for _ in range(2)]
    h.snapshot = cluster((1,), epoch=2)
    h.ready()
    for batch in reversed(sent):
        batch.off_wire()
        h.reenqueue(batch)
    assert [h.take()[0] for _ in range(2)] == sent


def test_retried_batches_return_in_the_order_of_their_sequences() -> None:
    h = Harness(retry_backoff_ms=0, retry_backoff_max_ms=0)
    h.append(0, 5 * BATCH_ROWS)
    sent = [h.take()[0] for _ in range(4)]
    for batch in (sent[2], sent[0], sent[3], sent[1]):
        batch.off_wire()
        h.reenqueue(batch)
    again = [h.take()[0] for _ in range(4)]
    assert again == sent


def test_retried_batches_return_in_order_across_the_wrap_of_sequences() -> None:
    h = Harness(retry_backoff_ms=0, retry_backoff_max_ms=0)
    h.gate.next_sequence[tp(0)] = 2**31 - 5
    h.append(0, 5 * BATCH_ROWS)
    sent = [h.take()[0] for _ in range(3)]
    assert sent[0].base_sequence == 2**31 - 5
    assert sent[1].base_sequence == BATCH_ROWS - 5
    for batch in (sent[1], sent[2], sent[0]):
        batch.off_wire()
        h.reenqueue(batch)
    assert [h.take()[0] for _ in range(3)] == sent


def test_without_sequences_a_retried_batch_goes_to_the_front() -> None:
    h = Harness(retry_backoff_ms=0, retry_backoff_max_ms=0)
    h.gate.admit = lambda *_: True  # type: ignore[method-assign]
    h.append(0, 3 * BATCH_ROWS)
    (first,) = h.take()
    first.off_wire()
    h.reenqueue(first)
    assert h.take() == [first]


# -- split ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_a_batch_that_is_too_large_is_split_with_its_sequences_and_its_age(compression: str) -> None:
    h = Harness(batch_size=8192, linger_ms=0, compression_type=compression)
    h.append_rows([b"%03d" % i * 20 for i in range(60)], [0] * 60, call="call")
    (batch,) = h.take()
    assert batch.record_count == 60
    batch.off_wire()
    h.clock.now += 5
    children = h.accumulator.split_and_reenqueue(batch, h.clock.now)
    assert len(children) >= 2
    assert batch.done
    sequence = batch.base_sequence
    for child in children:
        assert (child.producer_id, child.base_sequence) == (batch.producer_id, sequence)
        assert (child.created_ms, child.deadline_ms, child.attempts) == (batch.created_ms, batch.deadline_ms, 0)
        assert child.codec is batch.codec
        sequence += child.record_count
    sent: list[ProducerBatch] = []
    while h.accumulator.has_undrained():
        sent += h.take()
    assert sent == children
    assert [v for child in sent for v in values_of(child)] == [b"%03d" % i * 20 for i in range(60)]
    rows = [row for child in sent for _, its_rows, _ in child.rows_by_call() for row in its_rows.tolist()]
    assert rows == list(range(60))
    for child in sent:
        h.acknowledge(child)
    assert h.pool.free_bytes == h.pool.bytes_max
    assert not h.accumulator.has_incomplete()


def test_splitting_again_and_again_ends_with_single_records() -> None:
    h = Harness(batch_size=8192, linger_ms=0, retry_backoff_ms=0, retry_backoff_max_ms=0)
    h.append(0, 13)
    singles = 0
    for _ in range(100):
        for batch in h.take():
            if batch.record_count == 1:
                singles += 1
                h.acknowledge(batch)
            else:
                batch.off_wire()
                h.accumulator.split_and_reenqueue(batch, h.clock.now)
    assert singles == 13
    assert h.pool.free_bytes == h.pool.bytes_max


def test_after_a_split_batches_are_filled_carefully_again() -> None:
    h = Harness(compression_type="gzip", batch_size=4096)

    def first_full_batch() -> ProducerBatch:
        while True:
            h.append(0, 300)
            batches = h.take()
            for batch in batches[1:]:
                h.acknowledge(batch)
            if batches:
                return batches[0]

    for _ in range(60):
        h.acknowledge(first_full_batch())
    roomy = first_full_batch()
    roomy.off_wire()
    h.accumulator.split_and_reenqueue(roomy, h.clock.now)
    while h.accumulator.has_undrained():
        for batch in h.take():
            h.acknowledge(batch)
        h.clock.now += 1000
    assert first_full_batch().record_count < roomy.record_count


# -- expiry -----------------------------------------------------------------------------------------------------------


def expiring(leaders: Iterable[int | None] = (0, 0, 1), linger_ms: int = 10) -> Harness:
    return Harness(leaders, delivery_timeout_ms=100, request_timeout_ms=50, linger_ms=linger_ms)


def test_queued_batches_expire_when_delivery_timeout_has_passed_each_told_once() -> None:
    h = expiring()
    h.append(0, BATCH_ROWS + 1)
    h.ready()
    assert h.accumulator.next_expiry_ms() == h.clock.now + 100
    h.clock.now += 99
    assert h.accumulator.expired_batches(h.clock.now) == []
    h.clock.now += 1
    expired = h.accumulator.expired_batches(h.clock.now)
    assert sum(batch.record_count for batch in expired) == BATCH_ROWS + 1
    assert h.accumulator.expired_batches(h.clock.now) == []
    assert h.ready_nodes() == set()
    for batch in expired:
        batch.fail(ERROR)
        h.accumulator.finish(batch)
    assert h.pool.free_bytes == h.pool.bytes_max
    assert h.accumulator.next_expiry_ms() == FOREVER


def test_age_counts_from_the_call_not_from_the_grouping() -> None:
    h = expiring(linger_ms=50)
    h.append(0)
    h.clock.now += 50
    h.ready()
    h.clock.now += 50
    assert len(h.accumulator.expired_batches(h.clock.now)) == 1


def test_a_partition_set_aside_or_without_a_leader_expires_all_the_same() -> None:
    h = expiring(leaders=(None, 0), linger_ms=0)
    h.append(0)
    h.append(1)
    h.gate.refused = {1}
    assert h.take() == []
    h.clock.now += 100
    assert len(h.accumulator.expired_batches(h.clock.now)) == 2


def test_a_batch_that_expired_in_flight_keeps_its_memory_until_the_answer() -> None:
    h = expiring(linger_ms=0)
    h.append(0, 3)
    (batch,) = h.take()
    held = h.pool.bytes_max - h.pool.free_bytes
    h.clock.now += 100
    assert h.accumulator.expired_batches(h.clock.now) == [batch]
    batch.fail(ERROR)
    h.accumulator.finish(batch)
    assert h.pool.bytes_max - h.pool.free_bytes == held > 0
    assert batch.segments
    batch.off_wire()
    assert h.pool.free_bytes == h.pool.bytes_max
    assert batch.error is ERROR


def test_a_retried_batch_expires_by_its_first_age() -> None:
    h = expiring(linger_ms=0)
    h.append(0)
    (batch,) = h.take()
    h.clock.now += 60
    batch.off_wire()
    h.reenqueue(batch)
    h.clock.now += 40
    assert h.accumulator.expired_batches(h.clock.now) == [batch]
    assert batch.attempts == 1
    assert not h.accumulator.has_undrained()


def test_the_largest_timeout_does_not_overflow() -> None:
    h = Harness(delivery_timeout_ms=2**31 - 1, linger_ms=0)
    h.append(0)
    h.ready()
    assert h.accumulator.expired_batches(h.clock.now + 2**31 - 2) == []
    assert len(h.accumulator.expired_batches(h.clock.now + 2**31 - 1)) == 1


def test_deadlines_of_settled_batches_are_forgotten() -> None:
    h = Harness(batch_size=0, linger_ms=0)
    for _ in range(40):
        h.append(0, 100)
        for _ in range(100):
            for batch in h.take():
                h.acknowledge(batch)
    assert not h.accumulator._incomplete._deadlines
    assert h.accumulator.next_expiry_ms() == FOREVER


# -- abort ------------------------------------------------------------------------------------------------------------


def test_abort_fails_what_is_staged_queued_and_in_flight_and_loses_no_row() -> None:
    h = Harness()
    h.append(0, 2 * BATCH_ROWS + 1, call="a")
    (in_flight,) = h.take()
    h.append(1, 2, call="b")
    aborted = h.accumulator.abort_incomplete(ERROR)
    assert in_flight in aborted
    assert all(batch.error is ERROR for batch in aborted)
    told = sum(len(rows) for batch in aborted for _, rows, _ in batch.rows_by_call())
    assert told == 2 * BATCH_ROWS + 3
    for batch in aborted:
        h.accumulator.finish(batch)
    assert not h.accumulator.has_incomplete()
    assert not h.accumulator.has_undrained()
    assert h.pool.free_bytes < h.pool.bytes_max  # the one on the wire
    in_flight.off_wire()
    assert h.pool.free_bytes == h.pool.bytes_max


def test_abort_of_the_undrained_leaves_what_is_in_flight() -> None:
    h = Harness()
    h.append(0, 2 * BATCH_ROWS)
    (in_flight,) = h.take()
    aborted = h.accumulator.abort_undrained(ERROR)
    assert in_flight not in aborted
    assert in_flight.state is BatchState.IN_FLIGHT
    h.acknowledge(in_flight)
    for batch in aborted:
        h.accumulator.finish(batch)
    assert h.pool.free_bytes == h.pool.bytes_max


# -- memory -----------------------------------------------------------------------------------------------------------


def test_a_call_larger_than_the_memory_is_taken_in_chunks() -> None:
    h = Harness(buffer_memory=20_000, batch_size=1000, linger_ms=0)
    result: list[object] = []
    caller = threading.Thread(target=lambda: result.append(h.append(0, 1000)))
    caller.start()
    got = 0
    while caller.is_alive() or h.accumulator.has_incomplete():
        for batch in h.take():
            got += batch.record_count
            assert h.pool.free_bytes >= 0
            h.acknowledge(batch)
    caller.join()
    assert got == 1000
    assert h.pool.free_bytes == 20_000


def test_rows_for_which_no_memory_comes_are_reported_and_those_before_them_stay() -> None:
    h = Harness(buffer_memory=16_000, max_block_ms=0, linger_ms=10_000, batch_size=16_000)
    taken, error = h.append(0, 1000)
    assert isinstance(error, BufferExhaustedError)
    assert 0 < taken < 1000
    assert "buffer.memory" in str(error)
    h.clock.now += 10_000
    got = sum(batch.record_count for _ in range(50) for batch in h.take())
    assert got == taken


def test_one_record_may_take_the_whole_memory_but_not_more() -> None:
    h = Harness(buffer_memory=10_000, batch_size=20_000, linger_ms=0)
    h.append(0, 1, b"x" * 9000)
    assert h.pool.bytes_max - h.pool.free_bytes > 9000
    (batch,) = h.take()
    h.acknowledge(batch)
    assert h.pool.free_bytes == 10_000
    _, error = h.append(0, 1, b"x" * 10_000)
    assert isinstance(error, RecordTooLargeError)


@pytest.mark.parametrize("compression", ["none", "lz4"])
def test_all_memory_returns_when_all_is_acknowledged(compression: str) -> None:
    h = Harness(compression_type=compression, leaders=(0, 1, 0, 1, 0), batch_size=3000)
    rng = np.random.default_rng(3)
    for step in range(30):
        partitions = rng.integers(0, 5, 50).astype(np.int32).tolist()
        h.append_rows([rng.bytes(int(n)) for n in rng.integers(0, 300, 50)], partitions)
        h.clock.now += 7
        for batch in h.take():
            if step % 3 == 0 and batch.attempts == 0:
                batch.off_wire()
                h.reenqueue(batch)
            else:
                h.acknowledge(batch)
    while h.accumulator.has_incomplete():
        h.clock.now += 1000
        for batch in h.take():
            h.acknowledge(batch)
    assert h.pool.free_bytes == h.pool.bytes_max


def test_threads_that_append_and_one_that_sends_lose_and_reorder_nothing() -> None:
    h = Harness(buffer_memory=60_000, batch_size=2000, linger_ms=0, leaders=(0, 1, 0, 1))
    threads = [
        threading.Thread(
            target=lambda n=n: [h.append_rows([b"%d-%04d" % (n, row)], [row % 4], call=n) for row in range(400)]
        )
        for n in range(3)
    ]
    for thread in threads:
        thread.start()
    seen: dict[tuple[int, int], list[int]] = {}
    while any(thread.is_alive() for thread in threads) or h.accumulator.has_incomplete():
        for batch in h.take():
            for value in values_of(batch):
                task, row = (value or b"").split(b"-")
                seen.setdefault((batch.topic_partition.partition, int(task)), []).append(int(row))
            h.acknowledge(batch)
    assert sum(map(len, seen.values())) == 1200
    assert all(rows == sorted(rows) for rows in seen.values())
    assert h.pool.free_bytes == 60_000


# -- what the adaptive partitioner asks -------------------------------------------------------------------------------


def test_loads_are_known_when_all_partitions_have_been_written_to() -> None:
    h = Harness(linger_ms=0)
    h.append(0, 3 * BATCH_ROWS)
    assert h.accumulator.partition_loads(TOPIC, h.snapshot) is None
    h.append(1)
    h.append(2)
    h.ready()
    loads = h.accumulator.partition_loads(TOPIC, h.snapshot)
    assert loads is not None
    assert (loads.partitions, loads.queue_lengths) == ([0, 1, 2], [3, 1, 1])


def test_partitions_of_a_node_that_takes_nothing_are_left_out() -> None:
    h = Harness(linger_ms=0, partitioner_availability_timeout_ms=50)
    for partition in (0, 1, 2):
        h.append(partition)
    h.ready()
    for _ in range(3):
        h.accumulator.node_latency(0, h.clock.now, can_drain=False)
        h.accumulator.node_latency(1, h.clock.now, can_drain=True)
        h.clock.now += 30
    loads = h.accumulator.partition_loads(TOPIC, h.snapshot)
    assert loads is not None
    assert (loads.partitions, loads.partition_count) == ([2], 3)
    h.accumulator.node_latency(0, h.clock.now, can_drain=True)
    again = h.accumulator.partition_loads(TOPIC, h.snapshot)
    assert again is not None
    assert again.partitions == [0, 1, 2]


def test_partitions_without_a_leader_are_left_out() -> None:
    h = Harness(linger_ms=0)
    for partition in (0, 1, 2):
        h.append(partition)
    h.ready()
    loads = h.accumulator.partition_loads(TOPIC, cluster((None, 0, 1)))
    assert loads is not None
    assert loads.partitions == [1, 2]
