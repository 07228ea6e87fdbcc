"""SCRAM: the RFC's own conversation, both sides against kafka-python's and each other, and every way to be refused."""

from __future__ import annotations

import base64
import hashlib
import hmac

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka.net.sasl.scram import SaslMechanismScram

from spark_kafka_sink.errors import AuthenticationError
from spark_kafka_sink.sasl.scram import ScramClient, ScramCredential, scram_credential
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
    credential = scram_credential("SCRAM-SHA-256", "pencil", salt=SALT)
    return ScramServer("SCRAM-SHA-256", {user: credential}.get, nonce=NONCE.removeprefix(CLIENT_NONCE))


def talk(client: ScramClient, server: ScramServer) -> None:
    token: bytes | None = client.start()
    while token is not None:
        token = client.step(server.step(token))


def test_the_client_speaks_as_in_rfc_7677() -> None:
    client = rfc_client()
    assert client.step(SERVER_FIRST) == CLIENT_FINAL
    assert not client.complete
    assert client.step(SERVER_FINAL) is None
    assert client.complete


def test_the_server_speaks_as_in_rfc_7677() -> None:
    server = rfc_server()
    assert server.step(b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO") == SERVER_FIRST
    assert server.step(CLIENT_FINAL) == SERVER_FINAL
    assert server.complete
    assert server.principal == "user"


def test_keys_are_those_of_rfc_5802() -> None:
    """The definitions of section 3, computed one by one."""
    salted = hashlib.pbkdf2_hmac("sha512", b"pencil", SALT, 4096)
    stored = hashlib.sha512(hmac.digest(salted, b"Client Key", "sha512")).digest()
    server = hmac.digest(salted, b"Server Key", "sha512")
    assert scram_credential("SCRAM-SHA-512", "pencil", salt=SALT) == ScramCredential(SALT, 4096, stored, server)


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_our_server_accepts_kafka_pythons_client(mechanism: str) -> None:
    witness = SaslMechanismScram(sasl_mechanism=mechanism, sasl_plain_username="alice", sasl_plain_password="sécret")
    credential = scram_credential(mechanism, "sécret", salt=b"some salt", iterations=5000)
    server = ScramServer(mechanism, {"alice": credential}.get)
    while not witness.is_done():
        witness.receive(server.step(witness.auth_bytes()))
    assert server.complete
    assert server.principal == "alice"


@settings(max_examples=20, deadline=None)
@given(
    mechanism=st.sampled_from(MECHANISMS),
    user=st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20),
    password=st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20),
)
def test_both_sides_agree_for_any_name_and_password(mechanism: str, user: str, password: str) -> None:
    server = ScramServer(mechanism, {user: scram_credential(mechanism, password, salt=b"x")}.get)
    talk(ScramClient(mechanism, user, password), server)
    assert server.principal == user


def test_commas_and_equals_signs_in_names_are_escaped() -> None:
    client = ScramClient("SCRAM-SHA-256", "a,b=c", "p", nonce="N")
    assert client.start() == b"n,,n=a=2Cb=3Dc,r=N"


def test_a_delegation_token_says_that_it_is_one() -> None:
    client = ScramClient("SCRAM-SHA-256", "tokenId", "hmac", token_auth=True, nonce="N")
    assert client.start() == b"n,,n=tokenId,r=N,tokenauth=true"
    server = ScramServer("SCRAM-SHA-256", {"tokenId": scram_credential("SCRAM-SHA-256", "hmac", salt=b"s")}.get)
    talk(ScramClient("SCRAM-SHA-256", "tokenId", "hmac", token_auth=True), server)
    assert server.complete


def test_nonces_are_long_and_never_the_same() -> None:
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
        (SERVER_FIRST.replace(b"i=4096", b"i=16385"), "16385 iterations are outside of 4096 to 16384"),
        (SERVER_FIRST.replace(b"i=4096", b"i=" + b"9" * 5000), "malformed"),
        (SERVER_FIRST.replace(b"i=4096", b"i=-4096"), "malformed"),
        (SERVER_FIRST.replace(b"i=4096", b"i="), "malformed"),
        (SERVER_FIRST.replace(b"s=W22", b"s=!W22"), "base64"),
        (f"r={NONCE},s=,i=4096".encode(), "malformed"),
        (b"m=extension," + SERVER_FIRST, "malformed"),
        (b"e=unknown-user", "refused user user: unknown-user"),
        (b"", "malformed"),
        (b"\xff\xfe", "UTF-8"),
        (b"r=" + b"x" * 20_000, "20002 bytes"),
    ],
)
def test_a_first_answer_that_could_be_an_attack_is_refused(message: bytes, reason: str) -> None:
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
def test_a_broker_that_does_not_know_the_password_is_refused(message: bytes, reason: str) -> None:
    client = rfc_client()
    client.step(SERVER_FIRST)
    with pytest.raises(AuthenticationError, match=reason):
        client.step(message)
    assert not client.complete


def test_nothing_comes_after_the_end() -> None:
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
def test_the_server_refuses_first_messages_that_it_must(message: bytes) -> None:
    with pytest.raises(AuthenticationError) as caught:
        rfc_server().step(message)
    assert "pencil" not in str(caught.value)


@pytest.mark.parametrize(
    "message",
    [
        CLIENT_FINAL.replace(b"hNlF$k0", b"hNlF$k1"),  # another nonce (CVE-2024-56128)
        CLIENT_FINAL.replace(b"c=biws", b"c=eSws"),  # "y,,": somebody changed the header on the way
        CLIENT_FINAL.replace(b"p=dHzb", b"p=AAAA"),
        CLIENT_FINAL.partition(b"p=")[0] + b"p=AAAA",
        CLIENT_FINAL.partition(b",p=")[0],
        b"",
    ],
)
def test_the_server_refuses_last_messages_that_prove_nothing(message: bytes) -> None:
    server = rfc_server()
    server.step(b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO")
    with pytest.raises(AuthenticationError):
        server.step(message)
    with pytest.raises(AuthenticationError, match="over"):
        server.step(CLIENT_FINAL)
    assert not server.complete
    assert server.principal == ""


def test_no_secret_is_in_a_repr() -> None:
    client = rfc_client()
    client.step(SERVER_FIRST)
    credential = scram_credential("SCRAM-SHA-256", "pencil", salt=SALT)
    assert "pencil" not in repr(client) + repr(rfc_server()) + repr(credential)
    assert repr(credential.stored_key) not in repr(credential)
