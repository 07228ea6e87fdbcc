"""Invalid responses: malformed bytes, another protocol, a wrong correlation id, or a response without a request."""

from __future__ import annotations

import struct
from collections.abc import Callable
from unittest.mock import Mock

import pytest

from spark_kafka_sink.client.cluster import Node
from spark_kafka_sink.client.in_flight import InFlightRequest
from spark_kafka_sink.errors import IllegalStateError
from spark_kafka_sink.protocol.message import ApiKey
from spark_kafka_sink.protocol.messages.init_producer_id import InitProducerIdResponse
from tests.client.rig import Rig, all_failed_in_order, ready_rig, rig_with_requests
from tests.fake_system import FakeConnection, Peer

PID = InitProducerIdResponse(producer_id=7)


class ClosingPeer(Peer):
    def on_bytes(self, connection: FakeConnection, data: bytes) -> None:
        connection.close()


def test_suggests_another_protocol_when_listener_disconnects() -> None:
    rig = Rig(1)
    rig.system.listen("b0", 9092, ClosingPeer())
    rig.pass_time(3_000)
    assert "security.protocol" in rig.metadata.describe_connection_failures()


def send_http(connection: FakeConnection, data: bytes) -> None:
    connection.send(b"HTTP/1.1 400 Bad Request\r\n\r\n")


def send_negative_size(connection: FakeConnection, data: bytes) -> None:
    connection.send(struct.pack(">i", -1))


def send_huge_size(connection: FakeConnection, data: bytes) -> None:
    connection.send(struct.pack(">i", 2**31 - 1))


def send_short_frame(connection: FakeConnection, data: bytes) -> None:
    connection.send(struct.pack(">i", 2) + b"ab")


class MalformedPeer(Peer):
    def __init__(self, send: Callable[[FakeConnection, bytes], None]) -> None:
        self._send = send

    def on_bytes(self, connection: FakeConnection, data: bytes) -> None:
        self._send(connection, data)


def test_does_not_suggest_another_protocol_when_peer_speaks_http() -> None:
    rig = Rig(1)
    rig.system.listen("b0", 9092, MalformedPeer(send_http))
    rig.pass_time(3_000)
    failure = rig.metadata.describe_connection_failures()
    assert "not Kafka's protocol: an HTTP server responded: this is not the port of a Kafka listener" in failure
    assert "security.protocol" not in failure


@pytest.mark.parametrize("send_malformed", [send_http, send_negative_size, send_huge_size, send_short_frame])
def test_malformed_bytes_only_close_connection(
    send_malformed: Callable[[FakeConnection, bytes], None],
) -> None:
    rig = Rig(2, bootstrap=(Node(-1, "b0", 9092), Node(-2, "b1", 9092)))
    rig.system.listen("b0", 9092, MalformedPeer(send_malformed))
    rig.bootstrap()
    assert len(rig.system.open_sockets) <= 2


def test_wrong_correlation_id_closes_connection() -> None:
    rig = rig_with_requests(3)
    received = rig.broker.find_requests(ApiKey.INIT_PRODUCER_ID)[0]
    received.respond(PID, correlation_id=received.header.correlation_id + 1)
    rig.poll_until(lambda: bool(rig.responses))
    assert all_failed_in_order(rig, 3)
    assert "it is for request" in rig.responses[0].reason
    rig.make_ready()


def test_unexpected_error_while_decoding_closes_the_connection_and_is_logged_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    rig = rig_with_requests(3)

    def fail(*_: object) -> None:
        raise ValueError("not expected")

    with monkeypatch.context() as patch:
        patch.setattr(InFlightRequest, "decode", fail)
        rig.broker.find_requests(ApiKey.INIT_PRODUCER_ID)[0].respond(PID)
        rig.poll_until(lambda: bool(rig.responses))
    assert all_failed_in_order(rig, 3)
    assert "unexpected error: ValueError: not expected" in rig.responses[0].reason
    assert [record.message for record in caplog.records if record.exc_info] == [
        "broker 0 (b0:9092): closed the connection after an unexpected error"
    ]
    rig.make_ready()


@pytest.mark.parametrize("error", [IllegalStateError, AssertionError])
def test_poll_raises_internal_errors_during_decoding(monkeypatch: pytest.MonkeyPatch, error: type[Exception]) -> None:
    rig = rig_with_requests(1)
    monkeypatch.setattr(InFlightRequest, "decode", Mock(side_effect=error("inconsistent")))
    rig.broker.find_requests(ApiKey.INIT_PRODUCER_ID)[0].respond(PID)
    with pytest.raises(error, match="inconsistent"):
        rig.poll_until(lambda: bool(rig.responses))


def test_undecodable_response_fails_its_and_all_later_requests() -> None:
    rig = rig_with_requests(3)
    received = rig.broker.find_requests(ApiKey.INIT_PRODUCER_ID)[0]
    received.respond_bytes(struct.pack(">i", received.header.correlation_id) + b"\xff\xff")
    rig.poll_until(lambda: bool(rig.responses))
    assert all_failed_in_order(rig, 3)
    assert "sent an invalid response" in rig.responses[0].reason


def test_response_without_request_closes_connection() -> None:
    rig = ready_rig()
    received = rig.broker.requests[-1]
    received.respond_bytes(struct.pack(">i", 5))
    received.connection.system.connections[-1].send(struct.pack(">ii", 4, 5))
    rig.pass_time(10)
    assert rig.client.has_connection_failed(0)
    rig.make_ready()
