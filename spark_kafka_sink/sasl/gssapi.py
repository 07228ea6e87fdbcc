"""GSSAPI (RFC 4752): Kerberos, by way of the optional package `gssapi`.

    client and server   tokens of the Kerberos exchange, until both are satisfied
    server              wrapped: which security layers it offers, and the largest message
    client              wrapped: the layer chosen, and on whose behalf

Kafka uses no security layer: it leaves encryption to TLS. The package speaks to the key distribution centre by itself.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterator
from typing import Any

from spark_kafka_sink.errors import AuthenticationError, MissingDependencyError
from spark_kafka_sink.words import cleaned

_NO_LAYER = 1


class GssapiClient:
    name = "GSSAPI"

    def __init__(self, service: str, host: str) -> None:
        self._gssapi = load_gssapi()
        self._service = service
        self._host = host
        self._context: Any = None
        self._exchanged = False
        self.complete = False

    def __repr__(self) -> str:
        return f"<GssapiClient {self._service}@{self._host}>"

    def start(self) -> bytes:
        gssapi = self._gssapi
        with _translated(self._gssapi):
            target = gssapi.Name(f"{self._service}@{self._host}", gssapi.NameType.hostbased_service)
            self._context = gssapi.SecurityContext(
                name=target.canonicalize(gssapi.MechType.kerberos), usage="initiate", mech=gssapi.MechType.kerberos
            )
        return self._exchange(None)

    def step(self, challenge: bytes) -> bytes | None:
        if self.complete:
            raise AuthenticationError("GSSAPI: the broker goes on after the end of the conversation")
        if not self._exchanged:
            return self._exchange(challenge)
        return self._choose_layer(challenge)

    def _exchange(self, token: bytes | None) -> bytes:
        with _translated(self._gssapi):
            answer: bytes | None = self._context.step(token)
            self._exchanged = bool(self._context.complete)
        return answer or b""

    def _choose_layer(self, challenge: bytes) -> bytes:
        with _translated(self._gssapi):
            offer: bytes = self._context.unwrap(challenge).message
            if len(offer) != 4 or not offer[0] & _NO_LAYER:
                raise AuthenticationError("GSSAPI: the broker demands a security layer inside of SASL; Kafka has none")
            answer: bytes = self._context.wrap(bytes([_NO_LAYER, 0, 0, 0]), False).message
        self.complete = True
        return answer


def load_gssapi() -> Any:
    try:
        return importlib.import_module("gssapi")
    except ImportError as error:
        raise MissingDependencyError(
            "sasl.mechanism=GSSAPI needs the package gssapi: pip install 'spark-kafka-sink[gssapi]' "
            "(and MIT Kerberos or Heimdal on the machine)"
        ) from error


@contextlib.contextmanager
def _translated(gssapi: Any) -> Iterator[None]:
    """Translates errors of the package gssapi into AuthenticationError."""
    try:
        yield
    except gssapi.exceptions.GSSError as error:
        raise AuthenticationError(
            f"GSSAPI: {cleaned(str(error))}; has `kinit` been run, and is the ticket still valid?"
        ) from error
