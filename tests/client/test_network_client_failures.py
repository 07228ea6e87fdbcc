"""Requests whose connection is lost, refused, too slow or closed."""

from __future__ import annotations

from itertools import pairwise

import pytest

from spark_kafka_sink.client.cluster import Node
from spark_kafka_sink.errors import MetadataTimeoutError
from spark_kafka_sink.protocol.message import ApiKey
from spark_kafka_sink.protocol.messages.init_producer_id import InitProducerIdResponse
from tests.client.rig import Rig, all_failed_in_order, ready_rig, rig_with_requests
from tests.client.scripted_broker import ReceivedRequest

PID = InitProducerIdResponse(producer_id=7)


def test_timeout_closes_connection_and_fails_all_its_requests() -> None:
    rig = rig_with_requests(3, request_timeout_ms=1_000)
    sent_ms = rig.now
    rig.poll_until(lambda: bool(rig.responses))
    assert rig.now == sent_ms + 1_000, "neither early nor late"
    assert all_failed_in_order(rig, 3)
    assert all(response.timed_out for response in rig.responses)
    assert "broker 0 (b0:9092) did not respond within 1 s (request.timeout.ms)" in rig.responses[0].reason
    assert rig.client.has_connection_failed(0)
    assert rig.client.connection_losses[0].has_responded, "to ApiVersions"
    rig.broker.last_request(ApiKey.INIT_PRODUCER_ID).respond(PID)
    rig.pass_time(100)
    assert len(rig.responses) == 3, "the late response belongs to no request"


def test_request_can_have_its_own_timeout() -> None:
    rig = ready_rig(request_timeout_ms=30_000)
    sent_ms = rig.now
    rig.send(timeout_ms=200)
    rig.poll_until(lambda: bool(rig.responses))
    assert rig.now == sent_ms + 200
    assert rig.responses[0].reason == "broker 0 (b0:9092) did not respond within 0.2 s"


def test_lost_connection_fails_requests_in_order_and_refreshes_metadata() -> None:
    rig = rig_with_requests(3)
    version = rig.metadata.version
    rig.system.connections[-1].reset()
    rig.poll_until(lambda: bool(rig.responses))
    assert all_failed_in_order(rig, 3)
    assert not any(response.timed_out for response in rig.responses)
    assert "b0:9092" in rig.responses[0].reason
    rig.poll_until(lambda: rig.metadata.version > version, limit_ms=1_000)


def test_returns_responses_received_before_connection_loss() -> None:
    rig = rig_with_requests(3)
    first = rig.broker.find_requests(ApiKey.INIT_PRODUCER_ID)[0]
    first.respond(PID)
    first.connection.close()
    rig.poll_until(lambda: len(rig.responses) == 3)
    assert [response.message is not None for response in rig.responses] == [True, False, False]


def test_closes_connection_during_setup() -> None:
    rig = Rig().bootstrap()
    rig.system.swallow("b1", 9092)
    rig.client.ready(rig.node(1), rig.now)
    rig.end_connection(1)
    rig.pass_time(100)
    rig.system.listen("b1", 9092, rig.brokers[1])
    rig.make_ready(1)


@pytest.mark.parametrize("by_us", [False, True])
def test_reconnects_after_loss_during_api_versions(by_us: bool) -> None:
    rig = Rig().bootstrap()
    rig.brokers[1].on_request = lambda received: True
    rig.client.ready(rig.node(1), rig.now)
    rig.poll_until(lambda: len(rig.brokers[1].find_requests(ApiKey.API_VERSIONS)) == 1, step_ms=1)
    if by_us:
        rig.end_connection(1)
    else:
        rig.brokers[1].requests[0].connection.close()
    rig.pass_time(100)
    assert rig.client.has_connection_failed(1)
    assert not rig.client.in_flight_request_count(1)
    rig.brokers[1].on_request = lambda received: False
    rig.make_ready(1)
    assert rig.responses == []


def test_retries_lost_metadata_request_at_another_node() -> None:
    rig = Rig(2, bootstrap=(Node(-1, "b0", 9092), Node(-2, "b1", 9092)))

    def disconnect(received: ReceivedRequest) -> bool:
        if received.api_key is ApiKey.METADATA:
            received.connection.close()
        return received.api_key is ApiKey.METADATA

    rig.brokers[0].on_request = disconnect
    rig.bootstrap()
    assert len(rig.brokers[1].find_requests(ApiKey.METADATA)) == 1


def test_refused_connection_is_retried_with_backoff() -> None:
    rig = Rig(1)
    rig.system.refuse("b0", 9092)
    rig.pass_time(20_000)
    times = [time for time, _ in rig.system.connects]
    pauses = [after - before for before, after in pairwise(times)]
    assert pauses[0] <= 300
    assert all(pause <= 2_000 for pause in pauses)
    assert sum(pauses[-5:]) >= 5 * 800
    assert len(times) < 40, "no tight loop"
    rig.system.listen("b0", 9092, rig.broker)
    rig.bootstrap()


def test_connection_setup_times_out_with_growing_timeout(caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig(1, socket_connection_setup_timeout_ms=1_000, socket_connection_setup_timeout_max_ms=4_000)
    rig.system.swallow("b0", 9092)
    rig.pass_time(30_000)
    times = [time for time, _ in rig.system.connects]
    pauses = [after - before for before, after in pairwise(times)]
    assert 800 <= pauses[0] <= 1_400
    assert all(3_000 <= pause <= 6_000 for pause in pauses[3:])
    assert "no connection within" in rig.metadata.describe_connection_failures()
    assert caplog.messages[0].startswith("Connection failed: b0:9092: no connection within")
    assert caplog.messages[0].endswith(" ms (socket.connection.setup.timeout.ms)")


def test_channel_that_never_becomes_ready_times_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig = Rig().bootstrap()
    monkeypatch.setattr(type(rig.selector), "is_channel_ready", lambda self, channel_id: channel_id != "1")
    rig.client.ready(rig.node(1), rig.now)
    began = rig.now
    rig.poll_until(lambda: rig.client.has_connection_failed(1), step_ms=100_000)
    assert 8_000 <= rig.now - began <= 12_000
    assert rig.brokers[1].requests == []


def test_tries_all_addresses_of_host() -> None:
    rig = Rig(1)
    rig.system.names["b0"] = ["10.0.0.1", "10.0.0.2", "10.0.0.3"]
    rig.system.listen("10.0.0.3", 9092, rig.broker)
    rig.bootstrap()
    assert [address.sockaddr[0] for _, address in rig.system.connects] == ["10.0.0.1", "10.0.0.2", "10.0.0.3"]


def test_reconnects_to_new_address_of_node() -> None:
    rig = Rig(1)
    rig.system.names["b0"] = ["10.0.0.1"]
    rig.system.listen("10.0.0.1", 9092, rig.broker)
    rig.bootstrap()
    rig.make_ready()
    rig.system.names["b0"] = ["10.0.0.2"]
    rig.system.refuse("10.0.0.1", 9092)
    rig.system.listen("10.0.0.2", 9092, rig.broker)
    for connection in rig.system.connections:
        connection.reset()
    rig.pass_time(10)
    rig.make_ready()
    assert rig.system.connects[-1][1].sockaddr[0] == "10.0.0.2"


def test_resolves_failed_host_again() -> None:
    rig = Rig().bootstrap()
    rig.system.names["b1"] = []
    assert not rig.client.ready(rig.node(1), rig.now)
    assert rig.client.has_connection_failed(1)
    assert "b1:9092: the name cannot be resolved" in rig.metadata.describe_connection_failures()
    del rig.system.names["b1"]
    rig.make_ready(1)


def test_metadata_timeout_names_every_tried_address() -> None:
    rig = Rig(2, bootstrap=(Node(-1, "b0", 9092), Node(-2, "b1", 9092)))
    rig.system.names["b0"] = ["10.0.0.9"]
    rig.system.refuse("b1", 9092)
    rig.pass_time(5_000)
    with pytest.raises(MetadataTimeoutError) as failure:
        rig.metadata.await_update(rig.metadata.version, 0)
    assert "b0:9092 (10.0.0.9): " in str(failure.value)
    assert "b1:9092: " in str(failure.value)
    assert "refused" in str(failure.value)


def test_closing_idle_connection_is_no_failure() -> None:
    rig = ready_rig(connections_max_idle_ms=5_000)
    rig.pass_time(6_000)
    rig.pass_time(1_000)
    assert rig.broker.closed > 0
    assert "idle" not in rig.metadata.describe_connection_failures()
    rig.make_ready()


def test_returns_every_request_exactly_once_when_connections_fail() -> None:
    """Requests end with a response, a reset, invalid bytes or a timeout, and are returned once and in order."""
    rig = ready_rig(request_timeout_ms=500)
    sent = []
    for turn in range(60):
        rig.make_ready()
        for _ in range(turn % 5 + 1):
            if rig.client.is_ready(0, rig.now):
                sent.append(rig.send().correlation_id)
                rig.deliver()
        waiting = rig.broker.find_requests(ApiKey.INIT_PRODUCER_ID)[-3:]
        if turn % 4 == 0 and rig.client.in_flight_request_count(0) == 1:
            waiting[-1].respond(PID)
        elif turn % 4 == 1:
            waiting[-1].connection.reset()
        elif turn % 4 == 2:
            waiting[-1].respond_bytes(b"junk")
        rig.poll_until(lambda: not rig.client.in_flight_request_count(0))
    assert [response.request.correlation_id for response in rig.responses] == sent
