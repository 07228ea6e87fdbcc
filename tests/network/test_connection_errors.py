"""Errors that close a connection."""

from __future__ import annotations

import socket

from spark_kafka_sink.errors import DisconnectedError, NetworkError
from spark_kafka_sink.network.connection_errors import with_peer_address
from spark_kafka_sink.network.system import SocketAddress

BROKER = SocketAddress("broker", 9092, socket.AF_INET, ("127.0.0.1", 9092))


def test_operating_system_error_becomes_disconnection() -> None:
    error = with_peer_address(ConnectionResetError(104, "Connection reset by peer"), BROKER)
    assert isinstance(error, DisconnectedError)
    assert str(error) == f"{BROKER}: Connection reset by peer"


def test_error_of_another_server_keeps_its_address() -> None:
    token_error = NetworkError("connection refused", address="tokens:443")
    error = with_peer_address(token_error, BROKER)
    assert str(error) == f"{BROKER}: tokens:443: connection refused"
    assert token_error.address == "tokens:443"
