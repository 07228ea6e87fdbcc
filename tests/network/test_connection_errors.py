"""Errors that close a connection."""

from __future__ import annotations

import socket

from spark_kafka_sink.errors import DisconnectedError, NetworkError
from spark_kafka_sink.network.connection_errors import to_connection_error
from spark_kafka_sink.network.system import SocketAddress

BROKER = SocketAddress("broker", 9092, socket.AF_INET, ("127.0.0.1", 9092))


def test_operating_system_error_becomes_disconnection() -> None:
    error = to_connection_error(BROKER, ConnectionResetError(104, "Connection reset by peer"))
    assert isinstance(error, DisconnectedError)
    assert str(error) == f"{BROKER}: Connection reset by peer"


def test_error_of_another_server_keeps_its_address() -> None:
    token_error = NetworkError("connection refused", address="tokens:443")
    error = to_connection_error(BROKER, token_error)
    assert str(error) == f"{BROKER}: tokens:443: connection refused"
    assert token_error.address == "tokens:443"
