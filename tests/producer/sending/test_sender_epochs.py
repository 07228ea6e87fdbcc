"""The sender: when the epoch is bumped, and which partitions restart their sequences (KIP-360)."""

from __future__ import annotations

import pyarrow as pa
import pytest

from spark_kafka_sink.client.producer_ids import MAX_EPOCH
from spark_kafka_sink.errors import DeliveryError, ProducerClosedError
from spark_kafka_sink.producer.producer import KafkaProducer
from spark_kafka_sink.protocol import error_codes as codes
from spark_kafka_sink.protocol.message import ApiKey
from spark_kafka_sink.records.columns import RecordColumns
from tests.producer.sending.sender_cases import (
    at_last_epoch,
    established,
    get_state,
    in_flight_count,
    pass_time,
    read_batch_stamps,
    send,
    simulated,
    wait,
)
from tests.producer.virtual_time import get_reserved_bytes, get_sender, run_until, wait_for_result
from tests.simulated_cluster import SimulatedCluster


def rows(count: int) -> RecordColumns:
    return RecordColumns(pa.array([b"v"] * count))


def reject_batches(cluster: SimulatedCluster, partition: int, code: int, times: int = 1) -> None:
    cluster.control.when(api=ApiKey.PRODUCE, topic="t", partition=partition, times=times).fail(code)


def epoch(producer: KafkaProducer) -> int:
    return get_sender(producer).idempotence.id_and_epoch.epoch


def test_out_of_order_error_at_head_starts_new_epoch_at_sequence_0() -> None:
    cluster, producer = simulated(linger_ms=1)
    first = [producer.send_columns("t", rows(2), 0)]
    run_until(producer, first[0].done)
    reject_batches(cluster, 0, codes.OUT_OF_ORDER_SEQUENCE_NUMBER)
    assert wait_for_result(producer, send(producer, b"1")).offset == 2
    assert wait_for_result(producer, send(producer, b"2")).offset == 3
    assert read_batch_stamps(cluster) == [(0, 0, 2), (1, 0, 1), (1, 1, 1)]
    assert epoch(producer) == 1


def test_out_of_order_error_of_first_batch_starts_new_epoch() -> None:
    cluster, producer = simulated()
    reject_batches(cluster, 0, codes.OUT_OF_ORDER_SEQUENCE_NUMBER)
    assert wait_for_result(producer, send(producer, b"1")).offset == 0
    assert read_batch_stamps(cluster) == [(1, 0, 1)]


def test_idle_partition_uses_new_epoch_with_its_next_batch() -> None:
    cluster, producer = simulated(partitions=2)
    established(producer, 0, 1)
    reject_batches(cluster, 0, codes.OUT_OF_ORDER_SEQUENCE_NUMBER)
    wait_for_result(producer, send(producer, b"1", 0))
    assert epoch(producer) == 1
    assert get_state(producer, 1).id_and_epoch.epoch == 0
    assert (get_state(producer, 1).next_sequence, get_state(producer, 1).last_acked_sequence) == (1, 0)
    wait_for_result(producer, send(producer, b"1", 1))
    assert read_batch_stamps(cluster, 0) == [(0, 0, 1), (1, 0, 1)]
    assert read_batch_stamps(cluster, 1) == [(0, 0, 1), (1, 0, 1)]
    assert (get_state(producer, 1).next_sequence, get_state(producer, 1).last_acked_sequence) == (1, 0)


def test_partition_completes_requests_in_flight_under_previous_epoch() -> None:
    cluster, producer = simulated(partitions=2, nodes=2)
    for partition in (0, 1):
        cluster.control.move_leader("t", partition, partition)
    established(producer, 0, 1)
    reject_batches(cluster, 0, codes.OUT_OF_ORDER_SEQUENCE_NUMBER)
    cluster.control.when(api=ApiKey.PRODUCE, topic="t", partition=1).delay(300)
    beside = send(producer, b"1", 1)
    behind = send(producer, b"1", 0)
    run_until(producer, lambda: epoch(producer) == 1)
    held = send(producer, b"2", 1)  # new batches wait until no request of the old epoch is in flight
    assert (in_flight_count(producer, 1), beside.done()) == (1, False)
    wait(producer, beside, behind, held)
    assert read_batch_stamps(cluster, 1) == [(0, 0, 1), (0, 1, 1), (1, 0, 1)]
    assert read_batch_stamps(cluster, 0) == [(0, 0, 1), (1, 0, 1)]


def test_partition_retries_under_previous_epoch_while_another_restarts() -> None:
    cluster, producer = simulated(partitions=2)
    established(producer, 0, 1)
    reject_batches(cluster, 0, codes.OUT_OF_ORDER_SEQUENCE_NUMBER)
    reject_batches(cluster, 1, codes.NOT_LEADER_OR_FOLLOWER, times=3)
    futures = [send(producer, b"%d" % i, partition) for i in (1, 2, 3) for partition in (0, 1)]
    wait(producer, *futures)
    assert read_batch_stamps(cluster, 0) == [(0, 0, 1), (1, 0, 1), (1, 1, 1), (1, 2, 1)]
    assert read_batch_stamps(cluster, 1) == [(0, 0, 1), (0, 1, 1), (0, 2, 1), (0, 3, 1)]
    wait_for_result(producer, send(producer, b"4", 1))
    assert read_batch_stamps(cluster, 1)[-1] == (1, 0, 1)


def test_partition_restarts_at_sequence_0_after_last_batch_of_previous_epoch_fails() -> None:
    cluster, producer = simulated(partitions=2, retries=1)
    established(producer, 0, 1)
    reject_batches(cluster, 0, codes.OUT_OF_ORDER_SEQUENCE_NUMBER)
    reject_batches(cluster, 1, codes.NOT_LEADER_OR_FOLLOWER, times=2)
    outcome_0, failing = send(producer, b"1", 0), send(producer, b"lost", 1)
    wait(producer, outcome_0, failing)
    assert isinstance(failing.exception(0), DeliveryError)
    for value in (b"2", b"3"):
        wait_for_result(producer, send(producer, value, 1))
    wait_for_result(producer, send(producer, b"2", 0))
    new = epoch(producer)
    assert read_batch_stamps(cluster, 1) == [(0, 0, 1), (new, 0, 1), (new, 1, 1)]
    assert cluster.values("t", 1) == [b"0", b"2", b"3"]


@pytest.mark.parametrize("ending", ["goes on", "close", "close at once"])
@pytest.mark.parametrize("last_epoch", [False, True])
def test_retries_other_partition_under_previous_identity_when_one_restarts(ending: str, last_epoch: bool) -> None:
    cluster, producer = simulated(partitions=2)
    if last_epoch:
        at_last_epoch(producer)
    established(producer, 0, 1)
    before = get_sender(producer).idempotence.id_and_epoch
    reject_batches(cluster, 0, codes.OUT_OF_ORDER_SEQUENCE_NUMBER)
    reject_batches(cluster, 1, codes.NOT_LEADER_OR_FOLLOWER, times=2)
    if last_epoch:
        cluster.control.when(api=ApiKey.INIT_PRODUCER_ID).delay(300)
    futures = [send(producer, b"1", 0), send(producer, b"1", 1)]
    run_until(producer, lambda: get_sender(producer).idempotence.id_and_epoch != before)
    if ending == "close at once":
        producer.close(timeout=0)
        assert all(isinstance(future.exception(0), ProducerClosedError) for future in futures)
        assert get_reserved_bytes(producer) == 0
        return
    if ending == "close":
        producer.close()
    wait(producer, *futures)
    assert [future.exception(0) for future in futures] == [None, None]
    old = MAX_EPOCH if last_epoch else 0
    assert read_batch_stamps(cluster, 1) == [(old, 0, 1), (old, 1, 1)]
    assert read_batch_stamps(cluster, 0) == [(old, 0, 1), (0 if last_epoch else 1, 0, 1)]
    assert (get_sender(producer).idempotence.id_and_epoch.producer_id == before.producer_id) == (not last_epoch)


def test_sends_queued_rows_in_order_when_their_partition_restarts() -> None:
    cluster, producer = simulated(batch_size=0)
    established(producer)
    reject_batches(cluster, 0, codes.OUT_OF_ORDER_SEQUENCE_NUMBER)
    futures = [send(producer, b"%02d" % i) for i in range(1, 20)]
    wait(producer, *futures)
    assert [future.exception(0) for future in futures] == [None] * 19
    assert cluster.values("t") == [b"0", *(b"%02d" % i for i in range(1, 20))]
    assert [first for _, first, _ in read_batch_stamps(cluster)[1:]] == list(range(19))
    pass_time(producer, 10)
    assert get_state(producer).pending_batches == []
