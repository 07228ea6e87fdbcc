"""GSSAPI with a fake of the package `gssapi`, so without Kerberos."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from spark_kafka_sink.errors import AuthenticationError, MissingDependencyError
from spark_kafka_sink.sasl.gssapi import GssapiClient


class GSSError(Exception):
    pass


class ScriptedContext:
    """Fake context that is established after one token of the broker. Wrapped messages begin with `wrapped`."""

    def __init__(self, *, name: str, usage: str, mech: str) -> None:
        assert (name, usage, mech) == ("kafka@broker-1", "initiate", "kerberos")
        self.complete = False

    def step(self, token: bytes | None) -> bytes:
        if token is None:
            return b"ticket"
        if token != b"mutual":
            raise GSSError("token is bad")
        self.complete = True
        return b""

    def unwrap(self, message: bytes) -> Any:
        return SimpleNamespace(message=message.removeprefix(b"wrapped "))

    def wrap(self, message: bytes, encrypt: bool) -> Any:
        assert not encrypt
        return SimpleNamespace(message=b"wrapped " + message)


class Name:
    def __init__(self, text: str, kind: str) -> None:
        assert kind == "hostbased"
        self.text = text

    def canonicalize(self, mech: str) -> str:
        return self.text


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> GssapiClient:
    fake_gssapi = SimpleNamespace(
        Name=Name,
        NameType=SimpleNamespace(hostbased_service="hostbased"),
        MechType=SimpleNamespace(kerberos="kerberos"),
        SecurityContext=ScriptedContext,
        exceptions=SimpleNamespace(GSSError=GSSError),
    )
    monkeypatch.setitem(sys.modules, "gssapi", fake_gssapi)
    return GssapiClient("kafka", "broker-1")


def test_sends_ticket_first_and_selects_no_security_layer(client: GssapiClient) -> None:
    assert client.start() == b"ticket"
    assert client.step(b"mutual") == b""
    assert client.step(b"wrapped \x07\x00\x10\x00") == b"wrapped \x01\x00\x00\x00"
    assert client.is_complete
    with pytest.raises(AuthenticationError):
        client.step(b"more")


def test_kerberos_error_becomes_authentication_error_with_remedy(client: GssapiClient) -> None:
    client.start()
    with pytest.raises(AuthenticationError, match="kinit"):
        client.step(b"nonsense")


@pytest.mark.parametrize("offer", [b"\x06\x00\x10\x00", b"", b"\x01"])
def test_rejects_broker_that_requires_a_security_layer(client: GssapiClient, offer: bytes) -> None:
    client.start()
    client.step(b"mutual")
    with pytest.raises(AuthenticationError, match="security layer"):
        client.step(b"wrapped " + offer)


def test_missing_package_error_names_the_install_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gssapi", None)
    with pytest.raises(MissingDependencyError, match=r'pip install "spark-kafka-sink\[gssapi\]"'):
        GssapiClient("kafka", "broker-1")
