"""PLAIN and OAUTHBEARER: both sides, against kafka-python's clients and each other."""

from __future__ import annotations

from typing import Any

import pytest
from kafka.net.sasl.oauth import AbstractTokenProvider, SaslMechanismOAuth
from kafka.net.sasl.plain import SaslMechanismPlain

from spark_kafka_sink.errors import AuthenticationError
from spark_kafka_sink.sasl.oauthbearer import (
    AcceptedToken,
    OauthBearerClient,
    OauthBearerServer,
    accept_unsecured,
    extension_fault,
    unsecured_token,
)
from spark_kafka_sink.sasl.plain import PlainClient, PlainServer

NOW_S = 1_800_000_000.0


def accept(token: str) -> AcceptedToken:
    return accept_unsecured(token, now_s=NOW_S)


def token(**claims: Any) -> str:
    return unsecured_token({"sub": "alice", "exp": NOW_S + 60} | claims)


def test_plain_is_one_message() -> None:
    client, server = PlainClient("alice", "sécret"), PlainServer({"alice": "sécret"})
    first = client.start()
    assert first == b"\0alice\0s\xc3\xa9cret"
    assert client.complete
    assert server.step(first) == b""
    assert server.complete
    assert server.principal == "alice"
    with pytest.raises(AuthenticationError):
        client.step(b"more")


def test_our_plain_server_accepts_kafka_pythons_client() -> None:
    witness = SaslMechanismPlain(sasl_plain_username="alice", sasl_plain_password="secret")
    server = PlainServer({"alice": "secret"})
    witness.receive(server.step(witness.auth_bytes()))
    assert witness.is_authenticated()
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
def test_plain_refuses_what_is_not_a_user_with_his_password(message: bytes) -> None:
    server = PlainServer({"alice": "secret"})
    with pytest.raises(AuthenticationError) as caught:
        server.step(message)
    assert not server.complete
    assert "secret" not in str(caught.value)


def test_plain_has_no_second_message() -> None:
    server = PlainServer({"alice": "secret"})
    server.step(b"\0alice\0secret")
    with pytest.raises(AuthenticationError):
        server.step(b"\0alice\0secret")


def test_a_token_is_shown_with_its_extensions() -> None:
    client = OauthBearerClient("abc.def.ghi", {"logicalCluster": "lkc-1"})
    assert client.start() == b"n,,\x01auth=Bearer abc.def.ghi\x01logicalCluster=lkc-1\x01\x01"
    assert not client.complete
    assert client.step(b"") is None
    assert client.complete


def test_both_sides_of_oauthbearer_agree() -> None:
    client, server = OauthBearerClient(token(), {"pool": "p"}), OauthBearerServer(accept)
    assert client.step(server.step(client.start())) is None
    assert client.complete
    assert server.complete
    assert server.principal == "alice"
    assert server.credential_lifetime_ms == 60_000


def test_our_oauthbearer_server_accepts_kafka_pythons_client() -> None:
    class Provider(AbstractTokenProvider):  # type: ignore[misc]
        def token(self) -> str:
            return token()

        def extensions(self) -> dict[str, str]:
            return {"a": "b"}

    witness, server = SaslMechanismOAuth(sasl_oauth_token_provider=Provider()), OauthBearerServer(accept)
    witness.receive(server.step(witness.auth_bytes()))
    assert witness.is_authenticated()
    assert server.complete


def test_a_refused_token_ends_the_conversation_on_both_sides(caplog: pytest.LogCaptureFixture) -> None:
    client, server = OauthBearerClient(token(exp=NOW_S - 1)), OauthBearerServer(accept)
    refusal = server.step(client.start())
    assert refusal == b'{"status":"invalid_token"}'
    last = client.step(refusal)
    assert last == b"\x01"
    assert not client.complete
    assert "the token has expired" in caplog.text
    with pytest.raises(AuthenticationError) as caught:
        server.step(last)
    assert str(caught.value) == '{"status":"invalid_token"}'
    assert not server.complete
    with pytest.raises(AuthenticationError, match="invalid_token"):
        client.step(b"")


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"n,,\x01\x01",
        b"n,,\x01auth=Basic abc\x01\x01",
        b"n,,\x01auth=Bearer \x01\x01",
        b"n,,\x01auth=Bearer a b\x01\x01",
        b"n,a=bob,\x01auth=Bearer " + token().encode() + b"\x01\x01",
        b"p=x,,\x01auth=Bearer abc\x01\x01",
        b"\xff",
        b"n,,\x01auth=Bearer " + b"x" * 100_000 + b"\x01\x01",
    ],
)
def test_the_server_refuses_first_messages_that_it_must(message: bytes) -> None:
    server = OauthBearerServer(accept)
    with pytest.raises(AuthenticationError):
        server.step(message)
    assert not server.complete


@pytest.mark.parametrize(
    "wrong",
    [
        token(exp=NOW_S),
        token(exp=None),
        token(exp="tomorrow"),
        token(exp=True),
        token(exp=float("nan")),
        token(exp=float("inf")),
        token(sub=""),
        token(sub=7),
        token() + "signature",
        "eyJhbGciOiJIUzI1NiJ9.e30.",
        "a.b.c",
        "a",
        "W10.W10.",
        "",
    ],
)
def test_an_unsecured_token_that_is_no_good_is_refused(wrong: str) -> None:
    with pytest.raises(AuthenticationError):
        accept(wrong)


@pytest.mark.parametrize("wrong", ["", "two words", "a\x01b", "line\nbreak", "ä"])
def test_a_token_that_would_break_out_of_its_field_is_not_sent(wrong: str) -> None:
    with pytest.raises(AuthenticationError) as caught:
        OauthBearerClient(wrong)
    assert not wrong or wrong not in str(caught.value)


def test_extensions_are_letters_and_printable() -> None:
    assert extension_fault("logicalCluster", "lkc-1 x") is None
    assert extension_fault("auth", "x")
    assert extension_fault("with-dash", "x")
    assert extension_fault("a", "")
    assert extension_fault("a", "x\x01y")


def test_no_secret_is_in_a_repr() -> None:
    conversations = (PlainClient("a", "hush"), OauthBearerClient("hush"), PlainServer({"a": "hush"}))
    assert "hush" not in repr(conversations)
