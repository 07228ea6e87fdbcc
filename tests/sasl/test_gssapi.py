"""GSSAPI against a scripted stand-in for the package `gssapi`: no Kerberos is needed, and none is proved."""

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
    """Two tokens of ours for one of the broker's, then wrapped messages: `wrapped(...)` around their text."""

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
    stand_in = SimpleNamespace(
        Name=Name,
        NameType=SimpleNamespace(hostbased_service="hostbased"),
        MechType=SimpleNamespace(kerberos="kerberos"),
        SecurityContext=ScriptedContext,
        exceptions=SimpleNamespace(GSSError=GSSError),
    )
    monkeypatch.setitem(sys.modules, "gssapi", stand_in)
    return GssapiClient("kafka", "broker-1")


def test_the_ticket_goes_first_and_no_security_layer_is_chosen(client: GssapiClient) -> None:
    assert client.start() == b"ticket"
    assert client.step(b"mutual") == b""
    assert client.step(b"wrapped \x07\x00\x10\x00") == b"wrapped \x01\x00\x00\x00"
    assert client.complete
    with pytest.raises(AuthenticationError):
        client.step(b"more")


def test_kerberos_errors_are_ours_and_say_what_to_look_at(client: GssapiClient) -> None:
    client.start()
    with pytest.raises(AuthenticationError, match="kinit"):
        client.step(b"nonsense")


@pytest.mark.parametrize("offer", [b"\x06\x00\x10\x00", b"", b"\x01"])
def test_a_broker_that_demands_a_security_layer_is_refused(client: GssapiClient, offer: bytes) -> None:
    client.start()
    client.step(b"mutual")
    with pytest.raises(AuthenticationError, match="security layer"):
        client.step(b"wrapped " + offer)


def test_without_the_package_the_error_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gssapi", None)
    with pytest.raises(MissingDependencyError, match=r"pip install 'spark-kafka-sink\[gssapi\]'"):
        GssapiClient("kafka", "broker-1")
