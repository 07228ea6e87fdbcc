"""Both sides of OAUTHBEARER, tested with each other and with the client of kafka-python."""

from __future__ import annotations

from typing import Any

import pytest
from kafka.net.sasl.oauth import AbstractTokenProvider, SaslMechanismOAuth

from spark_kafka_sink.errors import AuthenticationError
from spark_kafka_sink.sasl.oauthbearer import (
    AcceptedToken,
    OauthBearerClient,
    OauthBearerServer,
    build_unsecured_token,
    find_extension_error,
    validate_unsecured_token,
)

NOW_S = 1_800_000_000.0


def validate_token(token: str) -> AcceptedToken:
    return validate_unsecured_token(token, now_s=NOW_S)


def build_token(**claims: Any) -> str:
    return build_unsecured_token({"sub": "alice", "exp": NOW_S + 60} | claims)


def test_oauthbearer_client_sends_token_and_extensions() -> None:
    client = OauthBearerClient("abc.def.ghi", {"logicalCluster": "lkc-1"})
    assert client.start() == b"n,,\x01auth=Bearer abc.def.ghi\x01logicalCluster=lkc-1\x01\x01"
    assert not client.is_complete
    assert client.step(b"") is None
    assert client.is_complete


def test_oauthbearer_server_accepts_our_client() -> None:
    client, server = OauthBearerClient(build_token(), {"pool": "p"}), OauthBearerServer(validate_token)
    assert client.step(server.step(client.start())) is None
    assert client.is_complete
    assert server.is_complete
    assert server.principal == "alice"
    assert server.credential_lifetime_ms == 60_000


def test_oauthbearer_server_accepts_kafka_python_client() -> None:
    class Provider(AbstractTokenProvider):  # type: ignore[misc]
        def token(self) -> str:
            return build_token()

        def extensions(self) -> dict[str, str]:
            return {"a": "b"}

    reference_client, server = (
        SaslMechanismOAuth(sasl_oauth_token_provider=Provider()),
        OauthBearerServer(validate_token),
    )
    reference_client.receive(server.step(reference_client.auth_bytes()))
    assert reference_client.is_authenticated()
    assert server.is_complete


def test_rejected_token_ends_authentication_on_both_sides(caplog: pytest.LogCaptureFixture) -> None:
    client, server = OauthBearerClient(build_token(exp=NOW_S - 1)), OauthBearerServer(validate_token)
    error_response = server.step(client.start())
    assert error_response == b'{"status":"invalid_token"}'
    last = client.step(error_response)
    assert last == b"\x01"
    assert not client.is_complete
    assert "the token has expired" in caplog.text
    with pytest.raises(AuthenticationError) as caught:
        server.step(last)
    assert str(caught.value) == '{"status":"invalid_token"}'
    assert not server.is_complete
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
        b"n,a=bob,\x01auth=Bearer " + build_token().encode() + b"\x01\x01",
        b"p=x,,\x01auth=Bearer abc\x01\x01",
        b"\xff",
        b"n,,\x01auth=Bearer " + b"x" * 100_000 + b"\x01\x01",
    ],
)
def test_oauthbearer_server_rejects_invalid_first_message(message: bytes) -> None:
    server = OauthBearerServer(validate_token)
    with pytest.raises(AuthenticationError):
        server.step(message)
    assert not server.is_complete


@pytest.mark.parametrize(
    "invalid_token",
    [
        build_token(exp=NOW_S),
        build_token(exp=None),
        build_token(exp="tomorrow"),
        build_token(exp=True),
        build_token(exp=float("nan")),
        build_token(exp=float("inf")),
        build_token(sub=""),
        build_token(sub=7),
        build_token() + "signature",
        "eyJhbGciOiJIUzI1NiJ9.e30.",
        "a.b.c",
        "a",
        "W10.W10.",
        "",
    ],
)
def test_rejects_invalid_unsecured_token(invalid_token: str) -> None:
    with pytest.raises(AuthenticationError):
        validate_token(invalid_token)


@pytest.mark.parametrize("invalid_token", ["", "two words", "a\x01b", "line\nbreak", "ä"])
def test_client_rejects_token_with_invalid_characters(invalid_token: str) -> None:
    with pytest.raises(AuthenticationError) as caught:
        OauthBearerClient(invalid_token)
    assert not invalid_token or invalid_token not in str(caught.value)


def test_validates_names_and_values_of_extensions() -> None:
    assert find_extension_error("logicalCluster", "lkc-1 x") is None
    assert find_extension_error("auth", "x")
    assert find_extension_error("with-dash", "x")
    assert find_extension_error("a", "")
    assert find_extension_error("a", "x\x01y")


def test_repr_omits_secrets() -> None:
    assert "hush" not in repr(OauthBearerClient("hush"))
