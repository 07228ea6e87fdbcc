"""The example of RFC 7677, and a client and a server that use it."""

from __future__ import annotations

import base64

from spark_kafka_sink.sasl.scram import ScramClient, build_scram_credential
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
