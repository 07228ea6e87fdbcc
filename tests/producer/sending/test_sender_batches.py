"""When batches are sent: full ones immediately, others after linger.ms, and none ahead of a transaction's requests."""

from __future__ import annotations

import struct

import pytest

from spark_kafka_sink.producer.record import ProducerRecord
from spark_kafka_sink.protocol.message import ApiKey
from tests.producer.sending.sender_cases import established, pass_time, simulated
from tests.producer.transactional_cases import create_producer_in_transaction, send, send_and_flush
from tests.producer.virtual_time import get_loop


@pytest.mark.parametrize("record_count", [160, 450, 700])
def test_sends_full_batches_of_single_records_before_linger_ends(record_count: int) -> None:
    _, producer = simulated(linger_ms=3_000)
    established(producer)
    futures = [producer.send(ProducerRecord("t", bytes(100), partition=0)) for _ in range(record_count)]
    pass_time(producer, 50)
    acknowledged = sum(future.done() for future in futures)
    # Rows of a batch that is not full linger, and so do staged records that may not fill another batch.
    assert record_count - 2 * 150 < acknowledged < record_count
    assert futures[0].done()
    pass_time(producer, 3_000)
    assert all(future.done() for future in futures)


def test_single_records_linger_when_no_partition_fills_a_batch() -> None:
    _, producer = simulated(partitions=10, linger_ms=3_000)
    established(producer)
    rounds = get_loop(producer).rounds
    futures = [producer.send(ProducerRecord("t", bytes(100), partition=number % 10)) for number in range(300)]
    pass_time(producer, 2_900)
    assert not any(future.done() for future in futures)
    assert get_loop(producer).rounds - rounds < 20
    pass_time(producer, 200)
    assert all(future.done() for future in futures)


def test_adds_partition_to_transaction_before_backlog_of_another() -> None:
    """The coordinator is also the leader here, and accepts one request at a time."""
    cluster, producer = create_producer_in_transaction(
        1, max_in_flight_requests_per_connection=1, batch_size=1_000, max_request_size=1_100
    )
    send_and_flush(producer, b"0", partition=0)
    cluster.requests.clear()
    for _ in range(5):
        send(producer, bytes(800), 0)
    send(producer, b"1", 1)
    producer.flush()
    apis = [ApiKey(*struct.unpack_from(">h", frame)) for _, _, frame in cluster.requests]
    assert apis.count(ApiKey.PRODUCE) == 5
    assert apis.index(ApiKey.ADD_PARTITIONS_TO_TXN) <= 1


def test_metrics_count_each_request_and_its_records() -> None:
    _, producer = simulated(partitions=2)
    established(producer, 0, 1)
    assert producer.metric("record-send-total") == 2
    assert producer.metric("records-per-request-avg") == 1
