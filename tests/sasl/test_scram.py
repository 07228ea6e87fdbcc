"""Both sides of SCRAM, tested with the RFC's example, with kafka-python and with each other, and all rejections."""

from __future__ import annotations

import base64
import hashlib
import hmac

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka.net.sasl.scram import SaslMechanismScram

from spark_kafka_sink.errors import AuthenticationError
from spark_kafka_sink.sasl.scram import ScramClient, ScramCredential, build_scram_credential
from spark_kafka_sink.sasl.scram_server import ScramServer

MECHANISMS = ["SCRAM-SHA-256", "SCRAM-SHA-512"]
SALT = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")

# RFC 7677, section 3.
CLIENT_NONCE = "rOprNGfwEbeRWgbNEkqO"
NONCE = CLIENT_NONCE + "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
SERVER_FIRST = f"r={NONCE},s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096".encode()
CLIENT_FINAL = f"c=biws,r={NONCE},p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=".encode()
SERVER_FINAL = b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="


def rfc_client() -> ScramClient:
    client = ScramClient("SCRAM-SHA-256", "user", "pencil", nonce=CLIENT_NONCE)
    assert client.start() == b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
    return client


def rfc_server(user: str = "user") -> ScramServer:
    credential = build_scram_credential("SCRAM-SHA-256", "pencil", salt=SALT)
    return ScramServer("SCRAM-SHA-256", {user: credential}.get, nonce=NONCE.removeprefix(CLIENT_NONCE))


def authenticate(client: ScramClient, server: ScramServer) -> None:
    token: bytes | None = client.start()
    while token is not None:
        token = client.step(server.step(token))


def test_client_messages_equal_those_of_rfc_7677() -> None:
    client = rfc_client()
    assert client.step(SERVER_FIRST) == CLIENT_FINAL
    assert not client.is_complete
    assert client.step(SERVER_FINAL) is None
    assert client.is_complete


def test_server_messages_equal_those_of_rfc_7677() -> None:
    server = rfc_server()
    assert server.step(b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO") == SERVER_FIRST
    assert server.step(CLIENT_FINAL) == SERVER_FINAL
    assert server.is_complete
    assert server.principal == "user"


def test_credential_has_keys_of_rfc_5802() -> None:
    """Compute each definition of RFC 5802, section 3, separately."""
    salted = hashlib.pbkdf2_hmac("sha512", b"pencil", SALT, 4096)
    stored = hashlib.sha512(hmac.digest(salted, b"Client Key", "sha512")).digest()
    server = hmac.digest(salted, b"Server Key", "sha512")
    assert build_scram_credential("SCRAM-SHA-512", "pencil", salt=SALT) == ScramCredential(SALT, 4096, stored, server)


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_server_accepts_kafka_python_client(mechanism: str) -> None:
    reference_client = SaslMechanismScram(
        sasl_mechanism=mechanism, sasl_plain_username="alice", sasl_plain_password="sécret"
    )
    credential = build_scram_credential(mechanism, "sécret", salt=b"some salt", iterations=5000)
    server = ScramServer(mechanism, {"alice": credential}.get)
    while not reference_client.is_done():
        reference_client.receive(server.step(reference_client.auth_bytes()))
    assert server.is_complete
    assert server.principal == "alice"


@settings(max_examples=20, deadline=None)
@given(
    mechanism=st.sampled_from(MECHANISMS),
    user=st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20),
    password=st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20),
)
def test_server_accepts_our_client_for_any_name_and_password(mechanism: str, user: str, password: str) -> None:
    server = ScramServer(mechanism, {user: build_scram_credential(mechanism, password, salt=b"x")}.get)
    authenticate(ScramClient(mechanism, user, password), server)
    assert server.principal == user


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


@pytest.mark.parametrize(
    "message",
    [
        b"n,,n=stranger,r=abc",
        b"n,a=admin,n=user,r=abc",
        b"p=tls-unique,,n=user,r=abc",
        b"n,,n=us=er,r=abc",
        b"n,,n=user",
        b"n,,r=abc",
        b"",
        b"\xff",
    ],
)
def test_server_rejects_invalid_first_message(message: bytes) -> None:
    with pytest.raises(AuthenticationError) as caught:
        rfc_server().step(message)
    assert "pencil" not in str(caught.value)


@pytest.mark.parametrize(
    "message",
    [
        CLIENT_FINAL.replace(b"hNlF$k0", b"hNlF$k1"),  # different nonce (CVE-2024-56128)
        CLIENT_FINAL.replace(b"c=biws", b"c=eSws"),  # "y,,": the header was changed in transit
        CLIENT_FINAL.replace(b"p=dHzb", b"p=AAAA"),
        CLIENT_FINAL.partition(b"p=")[0] + b"p=AAAA",
        CLIENT_FINAL.partition(b",p=")[0],
        b"",
    ],
)
def test_server_rejects_final_message_without_valid_proof(message: bytes) -> None:
    server = rfc_server()
    server.step(b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO")
    with pytest.raises(AuthenticationError):
        server.step(message)
    with pytest.raises(AuthenticationError, match="after authentication had ended"):
        server.step(CLIENT_FINAL)
    assert not server.is_complete
    assert server.principal == ""


def test_repr_omits_secrets() -> None:
    client = rfc_client()
    client.step(SERVER_FIRST)
    credential = build_scram_credential("SCRAM-SHA-256", "pencil", salt=SALT)
    assert "pencil" not in repr(client) + repr(rfc_server()) + repr(credential)
    assert repr(credential.stored_key) not in repr(credential)
