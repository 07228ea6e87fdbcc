"""The server side of SCRAM, tested with the example of RFC 7677, with kafka-python and with ScramClient."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka.net.sasl.scram import SaslMechanismScram

from spark_kafka_sink.errors import AuthenticationError
from spark_kafka_sink.sasl.scram import ScramClient, build_scram_credential
from spark_kafka_sink.sasl.scram_server import ScramServer
from tests.sasl.scram_cases import (
    CLIENT_FINAL,
    MECHANISMS,
    SERVER_FINAL,
    SERVER_FIRST,
    authenticate,
    rfc_server,
)


def test_server_messages_equal_those_of_rfc_7677() -> None:
    server = rfc_server()
    assert server.step(b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO") == SERVER_FIRST
    assert server.step(CLIENT_FINAL) == SERVER_FINAL
    assert server.is_complete
    assert server.principal == "user"


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
