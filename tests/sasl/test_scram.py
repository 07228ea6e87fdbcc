"""The client side of SCRAM, credentials, and rules that hold for both sides."""

from __future__ import annotations

import base64
import hashlib
import hmac

import pytest

from spark_kafka_sink.errors import AuthenticationError
from spark_kafka_sink.sasl.scram import ScramClient, ScramCredential, build_scram_credential
from spark_kafka_sink.sasl.scram_server import ScramServer
from tests.sasl.scram_cases import (
    CLIENT_FINAL,
    CLIENT_NONCE,
    NONCE,
    SALT,
    SERVER_FINAL,
    SERVER_FIRST,
    authenticate,
    rfc_client,
    rfc_server,
)


def test_client_messages_equal_those_of_rfc_7677() -> None:
    client = rfc_client()
    assert client.step(SERVER_FIRST) == CLIENT_FINAL
    assert not client.is_complete
    assert client.step(SERVER_FINAL) is None
    assert client.is_complete


def test_credential_has_keys_of_rfc_5802() -> None:
    """Compute each definition of RFC 5802, section 3, separately."""
    salted = hashlib.pbkdf2_hmac("sha512", b"pencil", SALT, 4096)
    stored = hashlib.sha512(hmac.digest(salted, b"Client Key", "sha512")).digest()
    server = hmac.digest(salted, b"Server Key", "sha512")
    assert build_scram_credential("SCRAM-SHA-512", "pencil", salt=SALT) == ScramCredential(SALT, 4096, stored, server)


def test_escapes_commas_and_equals_signs_in_names() -> None:
    client = ScramClient("SCRAM-SHA-256", "a,b=c", "p", nonce="N")
    assert client.start() == b"n,,n=a=2Cb=3Dc,r=N"


def test_delegation_token_sets_tokenauth() -> None:
    client = ScramClient("SCRAM-SHA-256", "tokenId", "hmac", token_auth=True, nonce="N")
    assert client.start() == b"n,,n=tokenId,r=N,tokenauth=true"
    server = ScramServer("SCRAM-SHA-256", {"tokenId": build_scram_credential("SCRAM-SHA-256", "hmac", salt=b"s")}.get)
    authenticate(ScramClient("SCRAM-SHA-256", "tokenId", "hmac", token_auth=True), server)
    assert server.is_complete


def test_nonces_are_long_and_unique() -> None:
    nonces = {ScramClient("SCRAM-SHA-256", "u", "p").start().partition(b"r=")[2] for _ in range(100)}
    assert len(nonces) == 100
    assert all(len(base64.urlsafe_b64decode(nonce)) * 8 >= 128 for nonce in nonces)


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (SERVER_FIRST.replace(CLIENT_NONCE.encode(), b"another"), "nonce"),
        (f"r={CLIENT_NONCE},s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096".encode(), "nonce"),
        (SERVER_FIRST.replace(b"i=4096", b"i=4095"), "4095 iterations"),
        (SERVER_FIRST.replace(b"i=4096", b"i=1"), "1 iterations"),
        (SERVER_FIRST.replace(b"i=4096", b"i=16385"), "16385 iterations; 4096 to 16384 are allowed"),
        (SERVER_FIRST.replace(b"i=4096", b"i=" + b"9" * 5000), "malformed"),
        (SERVER_FIRST.replace(b"i=4096", b"i=-4096"), "malformed"),
        (SERVER_FIRST.replace(b"i=4096", b"i="), "malformed"),
        (SERVER_FIRST.replace(b"s=W22", b"s=!W22"), "base64"),
        (f"r={NONCE},s=,i=4096".encode(), "malformed"),
        (b"m=extension," + SERVER_FIRST, "malformed"),
        (b"e=unknown-user", "rejected user user: unknown-user"),
        (b"", "malformed"),
        (b"\xff\xfe", "UTF-8"),
        (b"r=" + b"x" * 20_000, "20002 bytes is too long"),
    ],
)
def test_client_rejects_invalid_first_message_of_broker(message: bytes, reason: str) -> None:
    with pytest.raises(AuthenticationError, match=reason) as caught:
        rfc_client().step(message)
    assert "pencil" not in str(caught.value)


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (b"v=AAAATRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=", "signature is wrong"),
        (b"v=", "signature is wrong"),
        (b"e=invalid-proof", "invalid-proof"),
        (b"", "malformed"),
        (b"x=1", "malformed"),
    ],
)
def test_client_rejects_broker_that_does_not_know_the_credential(message: bytes, reason: str) -> None:
    client = rfc_client()
    client.step(SERVER_FIRST)
    with pytest.raises(AuthenticationError, match=reason):
        client.step(message)
    assert not client.is_complete


def test_rejects_messages_after_the_end() -> None:
    client, server = rfc_client(), rfc_server()
    client.step(SERVER_FIRST)
    client.step(SERVER_FINAL)
    with pytest.raises(AuthenticationError):
        client.step(SERVER_FINAL)
    server.step(b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO")
    server.step(CLIENT_FINAL)
    with pytest.raises(AuthenticationError):
        server.step(CLIENT_FINAL)


def test_repr_omits_secrets() -> None:
    client = rfc_client()
    client.step(SERVER_FIRST)
    credential = build_scram_credential("SCRAM-SHA-256", "pencil", salt=SALT)
    assert "pencil" not in repr(client) + repr(rfc_server()) + repr(credential)
    assert repr(credential.stored_key) not in repr(credential)
