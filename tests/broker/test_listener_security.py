"""ListenerSecurity: validation of its settings, and logins at a listener."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from spark_kafka_sink.errors import ConfigurationError
from spark_kafka_sink.protocol.headers import encode_request
from spark_kafka_sink.protocol.message import Message
from spark_kafka_sink.protocol.messages.api_versions import ApiVersionsRequest
from spark_kafka_sink.protocol.messages.metadata import MetadataRequest
from spark_kafka_sink.protocol.messages.sasl_authenticate import SaslAuthenticateRequest
from spark_kafka_sink.protocol.messages.sasl_handshake import SaslHandshakeRequest
from spark_kafka_sink.testing import ListenerSecurity, embedded_broker
from tests.waiting import WAIT_TIMEOUT_SECONDS

SECRET = "a secret that must not show"
USERS = {"alice": SECRET}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"protocol": "TLS"}, "not TLS"),
        ({"protocol": "SSL"}, "requires a certificate"),
        ({"protocol": "SASL_PLAINTEXT"}, "requires users"),
        ({"mechanisms": ["GSSAPI"]}, "not GSSAPI"),
    ],
)
def test_rejects_inconsistent_security_options(fields: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        ListenerSecurity(**fields)  # type: ignore[arg-type]


def test_rejects_invalid_certificate_file(tmp_path: Path) -> None:
    path = tmp_path / "wrong.pem"
    path.write_text("no certificate")
    with pytest.raises(ConfigurationError, match="cannot be read"):
        embedded_broker(security=ListenerSecurity("SSL", certificate=path))


def test_repr_hides_passwords() -> None:
    assert SECRET not in repr(ListenerSecurity("SASL_PLAINTEXT", users=USERS))


PIPELINED: list[tuple[Message, int]] = [
    (ApiVersionsRequest(), 0),
    (ApiVersionsRequest(), 0),
    (SaslHandshakeRequest(mechanism="PLAIN"), 1),
    (SaslAuthenticateRequest(auth_bytes=f"\0alice\0{SECRET}".encode()), 2),
    (MetadataRequest(topics=None), 9),
    (ApiVersionsRequest(), 0),
]


@pytest.mark.parametrize("count", [2, 4, 6])
def test_responds_in_order_to_requests_pipelined_around_login(count: int) -> None:
    with embedded_broker(security=ListenerSecurity("SASL_PLAINTEXT", users=USERS)) as broker:
        host, _, port = broker.bootstrap_servers.rpartition(":")
        requests = PIPELINED[:count]
        with socket.create_connection((host, int(port)), WAIT_TIMEOUT_SECONDS) as sock:
            frames = [
                b"".join(bytes(segment) for segment in encode_request(message, version, number, "pipelining"))
                for number, (message, version) in enumerate(requests, 1)
            ]
            sock.sendall(b"".join(len(frame).to_bytes(4, "big") + frame for frame in frames))
            assert [receive_correlation_id(sock) for _ in requests] == list(range(1, count + 1))


def receive_correlation_id(sock: socket.socket) -> int:
    """Receive a response and return its correlation id."""
    length = int.from_bytes(receive_exactly(sock, 4), "big")
    return int.from_bytes(receive_exactly(sock, length)[:4], "big")


def receive_exactly(sock: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count and (chunk := sock.recv(count - len(data))):
        data += chunk
    return data
