"""Which name a broker gives to its clients."""

from __future__ import annotations

import socket

import pytest

from spark_kafka_sink.broker.listener_config import ListenerConfig
from spark_kafka_sink.broker.listener_security import ListenerSecurity
from spark_kafka_sink.protocol.messages.metadata import MetadataRequest
from spark_kafka_sink.testing import embedded_broker
from tests.broker.loopback import LoopbackClient


@pytest.mark.parametrize("host", ["0.0.0.0", "::", ""])
def test_all_interfaces_are_no_address_and_a_warning_says_who_may_write(
    host: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "this-machine")
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_: [])
    assert ListenerConfig(host).resolve_advertised_host() == "this-machine"
    (warning,) = caplog.messages
    assert "anyone who can reach this machine can read and write" in warning
    assert "this-machine; set advertised_host if clients cannot resolve that name" in warning


def test_a_host_name_that_does_not_resolve_is_not_advertised(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*_: object) -> None:
        raise socket.gaierror("unknown")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    assert ListenerConfig("0.0.0.0").resolve_advertised_host() == "localhost"


def test_the_advertised_host_is_given_and_with_users_there_is_no_warning_about_access(
    caplog: pytest.LogCaptureFixture,
) -> None:
    security = ListenerSecurity("SASL_PLAINTEXT", users={"alice": "secret"})
    assert ListenerConfig("0.0.0.0", "broker.example", security=security).resolve_advertised_host() == "broker.example"
    assert "read and write" not in caplog.text


def test_one_interface_is_its_own_name_and_needs_no_warning(caplog: pytest.LogCaptureFixture) -> None:
    assert ListenerConfig("127.0.0.1").resolve_advertised_host() == "127.0.0.1"
    assert caplog.messages == []


def test_a_client_can_connect_to_what_metadata_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "localhost")
    with embedded_broker({"t": 1}, host="0.0.0.0") as broker:
        with LoopbackClient(broker.bootstrap_servers) as client:
            (node,) = client.ask(MetadataRequest(topics=None), 9).brokers
        with LoopbackClient(f"{node.host}:{node.port}") as client:
            assert client.ask(MetadataRequest(topics=None), 9) is not None
