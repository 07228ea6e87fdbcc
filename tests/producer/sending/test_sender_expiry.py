"""The sender: records that expire before they are sent, in flight, or between two attempts, and the later sequences.

These are cases of Kafka's SenderTest.
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
    find_requests,
    get_state,
    in_flight_count,
    pass_time,
    read_batch_stamps,
    send,
    simulated,
    step_until,
    wait,
)
from tests.producer.virtual_time import get_reserved_bytes, get_sender, run_until, wait_for_result

RECORDS = [ProducerRecord("t", b"1"), ProducerRecord("t", b"2")]
IN_THREE_PARTITIONS = [ProducerRecord("t", b"v", partition=partition) for partition in range(3)]


def test_expiry_of_unsent_records_does_not_change_sequences() -> None:
    cluster, producer = simulated(request_timeout_ms=1000, delivery_timeout_ms=1500)
    established(producer)
    cluster.control.stop_node(0)
    run_until(producer, lambda: not get_sender(producer).client.is_ready(0, cluster.system.now()))
    future = send(producer, b"unsent")
    wait(producer, future)
    assert isinstance(future.exception(0), DeliveryTimeoutError)
    assert "may have been stored" not in str(future.exception(0))
    state = get_state(producer)
    assert (state.has_unresolved_sequence, state.gap_start, state.next_sequence) == (False, None, 1)
    cluster.control.start_node(0)
    assert wait_for_result(producer, send(producer, b"1")).offset == 1
    assert read_batch_stamps(cluster) == [(0, 0, 1), (0, 1, 1)]


def test_new_batch_waits_until_expired_batch_is_resolved() -> None:
    cluster, producer = simulated(request_timeout_ms=1000, delivery_timeout_ms=1000)
    established(producer)
    cluster.control.when(api=ApiKey.PRODUCE).drop(execute_first=True)
    cluster.control.when(api=ApiKey.PRODUCE, nth=2).delay(990)
    expired = send(producer, b"1")
    step_until(producer, expired.done)
    assert isinstance(expired.exception(0), DeliveryTimeoutError)
    assert (get_state(producer).has_unresolved_sequence, in_flight_count(producer)) == (True, 1)
    waiting = send(producer, b"2")
    sent = len(find_requests(cluster, ProduceRequest))
    pass_time(producer, 1)
    assert len(find_requests(cluster, ProduceRequest)) == sent
    assert wait_for_result(producer, waiting).offset == 2
    assert not get_state(producer).has_unresolved_sequence
    assert read_batch_stamps(cluster) == [(0, 0, 1), (0, 1, 1), (0, 2, 1)]


@pytest.mark.parametrize("late", [codes.NOT_LEADER_OR_FOLLOWER, codes.MESSAGE_TOO_LARGE, codes.POLICY_VIOLATION])
def test_late_response_to_expired_batch_causes_no_retry(late: int) -> None:
    cluster, producer = simulated(request_timeout_ms=990, delivery_timeout_ms=1000, linger_ms=5)
    established(producer)
    cluster.control.when(api=ApiKey.PRODUCE).drop()
    cluster.control.when(api=ApiKey.PRODUCE, nth=2).delay(960, execute_first=False)
    cluster.control.when(api=ApiKey.PRODUCE, nth=2).fail(late)
    futures = [producer.send(record) for record in RECORDS]
    started = cluster.system.now()
    wait(producer, *futures)
    assert cluster.system.now() - started <= 1001
    assert all(isinstance(future.exception(0), DeliveryTimeoutError) for future in futures)
    run_until(producer, lambda: in_flight_count(producer) == 0)
    # The request ended with a response, not with the connection.
    assert get_sender(producer).client.is_ready(0, cluster.system.now())
    sent = len(find_requests(cluster, ProduceRequest))
    pass_time(producer, 5000)
    assert len(find_requests(cluster, ProduceRequest)) == sent
    assert get_reserved_bytes(producer) == 0
    assert wait_for_result(producer, send(producer, b"3")).offset == 1
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
    sent = len(find_requests(cluster, ProduceRequest))
    run_until(producer, lambda: in_flight_count(producer) == 0 or second.done())
    assert len(find_requests(cluster, ProduceRequest)) == sent
    assert wait_for_result(producer, second).offset == 2
    assert cluster.values("t") == [b"0", b"1", b"2"]


def test_batches_of_several_partitions_expire_together_once() -> None:
    cluster, producer = simulated(partitions=3, request_timeout_ms=1000, delivery_timeout_ms=1000)
    established(producer, 0, 1, 2)
    cluster.control.when(api=ApiKey.PRODUCE, times=None).never_respond()
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
        wait_for_result(producer, send(producer, b"later", partition))
    assert sorted(reported) == [0, 1, 2]
    producer.close()
    assert get_reserved_bytes(producer) == 0


def test_expired_batch_is_not_mistaken_for_first_batch_of_new_epoch() -> None:
    cluster, producer = simulated(request_timeout_ms=1000, delivery_timeout_ms=1500)
    cluster.control.when(api=ApiKey.PRODUCE, times=None).never_respond(execute_first=True)
    first = send(producer, b"1")
    wait(producer, first)
    assert isinstance(first.exception(0), DeliveryTimeoutError)
    cluster.control.clear()
    cluster.control.when(api=ApiKey.PRODUCE).drop(execute_first=True)
    assert wait_for_result(producer, send(producer, b"2")).offset in (-1, 1)
    assert cluster.values("t") == [b"1", b"2"]
    assert read_batch_stamps(cluster) == [(0, 0, 1), (1, 0, 1)]


def test_sender_wakes_when_a_batch_expires() -> None:
    cluster, producer = simulated(request_timeout_ms=1000, delivery_timeout_ms=1500)
    established(producer)
    cluster.control.when(node=0).throttle(60_000)
    wait_for_result(producer, send(producer, b"throttled"))
    started = cluster.system.now()
    reported: list[float] = []
    record = ProducerRecord("t", b"waits", partition=0)
    future = producer.send(record, lambda metadata, error: reported.append(cluster.system.now() - started))
    wait(producer, future)
    assert isinstance(future.exception(0), DeliveryTimeoutError)
    assert ", and never sent." in str(future.exception(0))
    assert reported == [1500]
