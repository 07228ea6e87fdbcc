"""GSSAPI with a fake of the package `gssapi`, so without Kerberos."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from spark_kafka_sink.errors import AuthenticationError, DisconnectedError, KafkaSinkError, MissingDependencyError
from spark_kafka_sink.sasl.gssapi import GssapiClient

KERBEROS = 2529638912
"""The minor status of Kerberos' error 0."""
FAILURE = 13


class GSSError(Exception):
    def __init__(self, message: str, routine_error: int = FAILURE, min_code: int = 0) -> None:
        super().__init__(message)
        self.maj_code = routine_error << 16
        self.min_code = min_code


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
    with pytest.raises(AuthenticationError, match=r"token is bad\. Run `kinit`"):
        client.step(b"nonsense")


@pytest.mark.parametrize(
    ("routine_error", "min_code", "is_temporary"),
    [
        pytest.param(7, KERBEROS + 141, True, id="the ticket cache is missing"),
        pytest.param(7, 39756044, True, id="the ticket cache is empty"),
        pytest.param(11, 0, True, id="the credentials have expired"),
        pytest.param(FAILURE, KERBEROS + 32, True, id="the ticket has expired"),
        pytest.param(FAILURE, KERBEROS + 33, True, id="the ticket is not valid yet"),
        pytest.param(FAILURE, KERBEROS + 34, True, id="replay"),
        pytest.param(FAILURE, KERBEROS + 37, True, id="clock skew"),
        pytest.param(FAILURE, KERBEROS + 156, True, id="no key distribution center can be reached"),
        pytest.param(FAILURE, KERBEROS + 7, False, id="unknown service principal"),
        pytest.param(FAILURE, KERBEROS + 31, False, id="wrong key"),
        pytest.param(FAILURE, 37, False, id="an error of another library"),
        pytest.param(9, KERBEROS + 37, False, id="invalid token"),
    ],
)
def test_temporary_kerberos_errors_are_disconnections(
    client: GssapiClient, monkeypatch: pytest.MonkeyPatch, routine_error: int, min_code: int, is_temporary: bool
) -> None:
    def fail(*_: object) -> bytes:
        raise GSSError("no ticket", routine_error, min_code)

    monkeypatch.setattr(ScriptedContext, "step", fail)
    with pytest.raises(KafkaSinkError) as raised:
        client.start()
    assert type(raised.value) is (DisconnectedError if is_temporary else AuthenticationError)
    assert str(raised.value) == "GSSAPI: no ticket. Run `kinit` and check with `klist` that the ticket is valid."


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
