"""ListenerConfig: the host name that a broker advertises."""

from __future__ import annotations

import socket

import pytest

from spark_kafka_sink.broker.listener_config import ListenerConfig
from spark_kafka_sink.broker.listener_security import ListenerSecurity
from spark_kafka_sink.protocol.messages.metadata import MetadataRequest
from spark_kafka_sink.testing import embedded_broker
from tests.broker.loopback_client import LoopbackClient


@pytest.mark.parametrize("host", ["0.0.0.0", "::", ""])
def test_listening_on_all_interfaces_advertises_hostname_and_warns(
    host: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "this-machine")
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_: [])
    assert ListenerConfig(host).resolve_advertised_host() == "this-machine"
    (warning,) = caplog.messages
    assert "anyone who can reach this machine can read and write" in warning
    assert "this-machine; set advertised_host if clients cannot resolve that name" in warning


def test_does_not_advertise_unresolvable_hostname(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*_: object) -> None:
        raise socket.gaierror("unknown")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    assert ListenerConfig("0.0.0.0").resolve_advertised_host() == "localhost"


def test_advertised_host_wins_and_users_silence_access_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    security = ListenerSecurity("SASL_PLAINTEXT", users={"alice": "secret"})
    assert ListenerConfig("0.0.0.0", "broker.example", security=security).resolve_advertised_host() == "broker.example"
    assert "read and write" not in caplog.text


def test_advertises_host_of_single_interface_without_warning(caplog: pytest.LogCaptureFixture) -> None:
    assert ListenerConfig("127.0.0.1").resolve_advertised_host() == "127.0.0.1"
    assert caplog.messages == []


def test_client_can_connect_to_advertised_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "localhost")
    with embedded_broker({"t": 1}, host="0.0.0.0") as broker:
        with LoopbackClient(broker.bootstrap_servers) as client:
            (node,) = client.request(MetadataRequest(topics=None), 9).brokers
        with LoopbackClient(f"{node.host}:{node.port}") as client:
            assert client.request(MetadataRequest(topics=None), 9) is not None
