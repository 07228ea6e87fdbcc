"""The sender: records whose time is up before they left, in flight, or between two attempts, and what then becomes of
the sequences behind them. Cases of Kafka's SenderTest.
"""

from __future__ import annotations

import pytest

from spark_kafka_sink.errors import DeliveryTimeoutError
from spark_kafka_sink.producer.record import ProducerRecord
from spark_kafka_sink.protocol import error_codes as codes
from spark_kafka_sink.protocol.message import ApiKey
from spark_kafka_sink.protocol.messages.produce import ProduceRequest
from tests.producer.sending.sender_cases import (
    established,
    in_flight_count,
    pass_time,
    requests_of,
    send,
    simulated,
    stamps,
    state_of,
    step_until,
    wait,
)
from tests.producer.virtual_time import memory_used, outcome, run_until, sender_of

RECORDS = [ProducerRecord("t", b"1"), ProducerRecord("t", b"2")]
IN_THREE_PARTITIONS = [ProducerRecord("t", b"v", partition=partition) for partition in range(3)]


def test_expiry_of_unsent_records_does_not_change_sequences() -> None:
    cluster, producer = simulated(request_timeout_ms=1000, delivery_timeout_ms=1500)
    established(producer)
    cluster.control.stop_node(0)
    run_until(producer, lambda: not sender_of(producer).client.is_ready(0, cluster.system.now()))
    future = send(producer, b"unsent")
    wait(producer, future)
    assert isinstance(future.exception(0), DeliveryTimeoutError)
    assert "may have been stored" not in str(future.exception(0))
    state = state_of(producer)
    assert (state.has_unresolved_sequence, state.gap_start, state.next_sequence) == (False, None, 1)
    cluster.control.start_node(0)
    assert outcome(producer, send(producer, b"1")).offset == 1
    assert stamps(cluster) == [(0, 0, 1), (0, 1, 1)]


def test_new_batch_waits_until_expired_batch_is_resolved() -> None:
    cluster, producer = simulated(request_timeout_ms=1000, delivery_timeout_ms=1000)
    established(producer)
    cluster.control.when(api=ApiKey.PRODUCE).drop(applied=True)
    cluster.control.when(api=ApiKey.PRODUCE, nth=2).delay(990)
    expired = send(producer, b"1")
    step_until(producer, expired.done)
    assert isinstance(expired.exception(0), DeliveryTimeoutError)
    assert (state_of(producer).has_unresolved_sequence, in_flight_count(producer)) == (True, 1)
    waiting = send(producer, b"2")
    sent = len(requests_of(cluster, ProduceRequest))
    pass_time(producer, 1)
    assert len(requests_of(cluster, ProduceRequest)) == sent
    assert outcome(producer, waiting).offset == 2
    assert not state_of(producer).has_unresolved_sequence
    assert stamps(cluster) == [(0, 0, 1), (0, 1, 1), (0, 2, 1)]


@pytest.mark.parametrize("late", [codes.NOT_LEADER_OR_FOLLOWER, codes.MESSAGE_TOO_LARGE, codes.POLICY_VIOLATION])
def test_late_response_to_expired_batch_causes_no_retry(late: int) -> None:
    cluster, producer = simulated(request_timeout_ms=990, delivery_timeout_ms=1000, linger_ms=5)
    established(producer)
    cluster.control.when(api=ApiKey.PRODUCE).drop()
    cluster.control.when(api=ApiKey.PRODUCE, nth=2).delay(960, before_applying=True)
    cluster.control.when(api=ApiKey.PRODUCE, nth=2).fail(late)
    futures = [producer.send(record) for record in RECORDS]
    started = cluster.system.now()
    wait(producer, *futures)
    assert cluster.system.now() - started <= 1001
    assert all(isinstance(future.exception(0), DeliveryTimeoutError) for future in futures)
    run_until(producer, lambda: in_flight_count(producer) == 0)
    # It was an answer that came, not the connection's end.
    assert sender_of(producer).client.is_ready(0, cluster.system.now())
    sent = len(requests_of(cluster, ProduceRequest))
    pass_time(producer, 5000)
    assert len(requests_of(cluster, ProduceRequest)) == sent
    assert memory_used(producer) == 0
    assert outcome(producer, send(producer, b"3")).offset == 1
    assert cluster.values("t") == [b"0", b"3"]


@pytest.mark.parametrize("idempotent", [True, False])
def test_next_request_waits_for_response_to_expired_one_when_one_may_be_in_flight(idempotent: bool) -> None:
    cluster, producer = simulated(
        request_timeout_ms=1000,
        delivery_timeout_ms=1000,
        max_in_flight_requests_per_connection=1,
        enable_idempotence=idempotent,
    )
    established(producer)
    cluster.control.when(api=ApiKey.PRODUCE).drop()
    cluster.control.when(api=ApiKey.PRODUCE, nth=2).delay(980)
    first = send(producer, b"1")
    pass_time(producer, 500)
    second = send(producer, b"2")
    step_until(producer, first.done)
    assert isinstance(first.exception(0), DeliveryTimeoutError)
    assert in_flight_count(producer) == 1
    sent = len(requests_of(cluster, ProduceRequest))
    run_until(producer, lambda: in_flight_count(producer) == 0 or second.done())
    assert len(requests_of(cluster, ProduceRequest)) == sent
    assert outcome(producer, second).offset == 2
    assert cluster.values("t") == [b"0", b"1", b"2"]


def test_batches_of_several_partitions_expire_together_once() -> None:
    cluster, producer = simulated(partitions=3, request_timeout_ms=1000, delivery_timeout_ms=1000)
    established(producer, 0, 1, 2)
    cluster.control.when(api=ApiKey.PRODUCE, times=None).never_answer()
    reported: list[int] = []
    started = cluster.system.now()
    futures = [
        producer.send(record, lambda metadata, error, at=at: reported.append(at))
        for at, record in enumerate(IN_THREE_PARTITIONS)
    ]
    wait(producer, *futures)
    assert cluster.system.now() - started <= 1001
    assert all(isinstance(future.exception(0), DeliveryTimeoutError) for future in futures)
    cluster.control.clear()
    for partition in range(3):
        outcome(producer, send(producer, b"later", partition))
    assert sorted(reported) == [0, 1, 2]
    producer.close()
    assert memory_used(producer) == 0


def test_expired_batch_is_not_mistaken_for_first_batch_of_new_epoch() -> None:
    cluster, producer = simulated(request_timeout_ms=1000, delivery_timeout_ms=1500)
    cluster.control.when(api=ApiKey.PRODUCE, times=None).never_answer(applied=True)
    first = send(producer, b"1")
    wait(producer, first)
    assert isinstance(first.exception(0), DeliveryTimeoutError)
    cluster.control.clear()
    cluster.control.when(api=ApiKey.PRODUCE).drop(applied=True)
    assert outcome(producer, send(producer, b"2")).offset in (-1, 1)
    assert cluster.values("t") == [b"1", b"2"]
    assert stamps(cluster) == [(0, 0, 1), (1, 0, 1)]


def test_sender_wakes_when_a_batch_expires() -> None:
    cluster, producer = simulated(request_timeout_ms=1000, delivery_timeout_ms=1500)
    established(producer)
    cluster.control.when(node=0).throttle(60_000)
    outcome(producer, send(producer, b"throttled"))
    started = cluster.system.now()
    reported: list[float] = []
    record = ProducerRecord("t", b"waits", partition=0)
    future = producer.send(record, lambda metadata, error: reported.append(cluster.system.now() - started))
    wait(producer, future)
    assert isinstance(future.exception(0), DeliveryTimeoutError)
    assert "Never sent." in str(future.exception(0))
    assert reported == [1500]
