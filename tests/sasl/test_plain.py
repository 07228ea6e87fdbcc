"""Both sides of PLAIN, tested with each other and with the client of kafka-python."""

from __future__ import annotations

import pytest
from kafka.net.sasl.plain import SaslMechanismPlain

from spark_kafka_sink.errors import AuthenticationError
from spark_kafka_sink.sasl.plain import PlainClient, PlainServer


def test_plain_client_sends_one_message() -> None:
    client, server = PlainClient("alice", "sécret"), PlainServer({"alice": "sécret"})
    first = client.start()
    assert first == b"\0alice\0s\xc3\xa9cret"
    assert client.is_complete
    assert server.step(first) == b""
    assert server.is_complete
    assert server.principal == "alice"
    with pytest.raises(AuthenticationError):
        client.step(b"more")


def test_plain_server_accepts_kafka_python_client() -> None:
    reference_client = SaslMechanismPlain(sasl_plain_username="alice", sasl_plain_password="secret")
    server = PlainServer({"alice": "secret"})
    reference_client.receive(server.step(reference_client.auth_bytes()))
    assert reference_client.is_authenticated()
    assert server.principal == "alice"


@pytest.mark.parametrize(
    "message",
    [
        b"\0alice\0wrong",
        b"\0alice\0",
        b"\0stranger\0secret",
        b"\0stranger\0",
        b"bob\0alice\0secret",
        b"alice\0secret",
        b"\0alice\0secret\0",
        b"",
        b"\xff\xfe\0\xff\0\xff",
        b"\0alice\0" + b"x" * 100_000,
    ],
)
def test_plain_server_rejects_invalid_message(message: bytes) -> None:
    server = PlainServer({"alice": "secret"})
    with pytest.raises(AuthenticationError) as caught:
        server.step(message)
    assert not server.is_complete
    assert "secret" not in str(caught.value)


def test_plain_server_rejects_second_message() -> None:
    server = PlainServer({"alice": "secret"})
    server.step(b"\0alice\0secret")
    with pytest.raises(AuthenticationError):
        server.step(b"\0alice\0secret")


def test_repr_omits_secrets() -> None:
    assert "hush" not in repr((PlainClient("a", "hush"), PlainServer({"a": "hush"})))
