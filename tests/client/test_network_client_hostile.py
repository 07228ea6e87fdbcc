"""Misbehaving brokers: early responses, demands to rebootstrap, throttling and missing responses."""

from __future__ import annotations

import pytest

from spark_kafka_sink.errors import InvalidRecordError
from spark_kafka_sink.protocol import error_codes
from spark_kafka_sink.protocol.headers import encode_response
from spark_kafka_sink.protocol.message import ApiKey
from spark_kafka_sink.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from tests.client.metadata_responses import metadata_response, topic
from tests.client.rig import Rig, ready_rig

PID = InitProducerIdResponse(producer_id=7)


def send_partially(rig: Rig) -> int:
    """Send a request of which the socket accepts only the first bytes. Return its correlation id."""
    connection = rig.broker.last_request(ApiKey.API_VERSIONS).connection
    connection.stall()
    message = InitProducerIdRequest(transactional_id="x" * 30_000, transaction_timeout_ms=1)
    connection.socket.max_write_bytes = 10_000
    request = rig.send(message=message)
    rig.poll()
    connection.socket.max_write_bytes = 0
    return request.correlation_id


def test_response_to_partially_written_request_closes_connection() -> None:
    """If it stayed open, the request's memory would be released while the socket reads it."""
    rig = ready_rig()
    correlation_id = send_partially(rig)
    payload = b"".join(encode_response(PID, 5, correlation_id))
    rig.broker.last_request(ApiKey.API_VERSIONS).respond_bytes(payload)
    rig.poll_until(lambda: bool(rig.responses), limit_ms=1_000)
    [response] = rig.responses
    assert response.disconnected
    assert "had been fully written" in response.reason
    assert rig.client.has_connection_failed(0)


def test_api_versions_response_can_require_rebootstrap() -> None:
    rig = Rig(brokers=2).bootstrap()
    rig.broker.api_versions.error_code = error_codes.REBOOTSTRAP_REQUIRED
    rig.brokers[1].api_versions.error_code = error_codes.REBOOTSTRAP_REQUIRED
    node = rig.node(1)
    rig.poll_until(lambda: rig.client.ready(node, rig.now) or rig.metadata.snapshot.is_bootstrap, limit_ms=1_000)
    assert rig.metadata.snapshot.is_bootstrap
    polls, begin = 0, rig.now
    before = len(rig.system.connects)
    while rig.now < begin + 10_000:
        rig.poll(1_000)
        polls += 1
    assert polls < 1_000, "repeated rebootstraps do not spin"
    assert len(rig.system.connects) - before < 40, "repeated rebootstraps back off"
    for broker in rig.brokers:
        broker.api_versions.error_code = error_codes.NONE
    rig.bootstrap()


def test_never_rebootstraps_without_recovery_strategy() -> None:
    rig = Rig(brokers=2, metadata_recovery_strategy="none").bootstrap()
    rig.brokers[1].api_versions.error_code = error_codes.REBOOTSTRAP_REQUIRED
    node = rig.node(1)
    rig.poll_until(lambda: rig.client.ready(node, rig.now) or rig.client.has_connection_failed(1), limit_ms=1_000)
    rig.pass_time(1_000)
    assert not rig.metadata.snapshot.is_bootstrap


def test_throttled_broker_does_not_cause_rebootstrap() -> None:
    """The only broker is throttled while metadata is due. The known metadata must stay."""
    rig = ready_rig(brokers=1)
    rig.broker.metadata = metadata_response(topic("t"), nodes=1)
    rig.metadata.add_topic("t", rig.now)
    rig.poll_until(lambda: rig.metadata.snapshot.partition_count("t") == 1)
    # The bootstrap connection would respond otherwise. Only the connection to the broker's advertised address is left.
    rig.end_connection(-1)
    rig.make_ready()
    rig.send()
    rig.deliver()
    throttling = InitProducerIdResponse(producer_id=7, throttle_time_ms=5_000)
    rig.broker.last_request(ApiKey.INIT_PRODUCER_ID).respond(throttling)
    rig.poll_until(lambda: bool(rig.responses))
    connects = len(rig.system.connects)
    rig.metadata.request_update()
    request_count = len(rig.broker.find_requests(ApiKey.METADATA))
    polls, begin = 0, rig.now
    while rig.now < begin + 4_900:
        rig.poll(1_000)
        polls += 1
        assert not rig.metadata.snapshot.is_bootstrap
    assert polls < 500, "waiting for the end of the throttling does not spin"
    assert len(rig.system.connects) == connects, "no second connection circumvents the throttling"
    assert len(rig.broker.find_requests(ApiKey.METADATA)) == request_count
    rig.poll_until(lambda: len(rig.broker.find_requests(ApiKey.METADATA)) > request_count, limit_ms=1_000)


@pytest.mark.parametrize("name", ["\udc80", "x" * 40_000])
def test_rejects_invalid_topic_name_and_serves_others(name: str) -> None:
    rig = ready_rig(brokers=1)
    with pytest.raises(InvalidRecordError, match="topic name must be"):
        rig.metadata.add_topic(name, rig.now)
    rig.broker.metadata = metadata_response(topic("t"), nodes=1)
    rig.metadata.add_topic("t", rig.now)
    rig.poll_until(lambda: rig.metadata.snapshot.partition_count("t") == 1, limit_ms=5_000)


@pytest.mark.parametrize("backoff_ms", [0, 50])
@pytest.mark.parametrize("behaviour", ["swallows", "is silent", "refuses", "throttles"])
def test_poll_never_spins_while_waiting_for_broker(behaviour: str, backoff_ms: int) -> None:
    rig = Rig(brokers=1, reconnect_backoff_ms=backoff_ms, reconnect_backoff_max_ms=backoff_ms)
    if behaviour == "swallows":
        rig.system.swallow("b0", 9092)
    elif behaviour == "refuses":
        rig.system.refuse("b0", 9092)
    elif behaviour == "is silent":
        rig.broker.on_request = lambda received: True
    else:
        rig.broker.api_versions.throttle_time_ms = 9_000
    polls, begin = 0, rig.now
    while rig.now < begin + 8_000 and polls < 1_000:
        rig.poll(1_000)
        polls += 1
    assert polls < 60
