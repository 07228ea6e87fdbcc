"""Client side of the SASL mechanism GSSAPI (Kerberos, RFC 4752). Requires the optional `gssapi` package.

    client and server   exchange tokens until both have established the security context
    server              sends the security layers that it offers and the maximum message size (wrapped)
    client              sends the layer that it selects and the authorization id (wrapped)

Kafka uses no security layer; TLS provides encryption. The `gssapi` package contacts the key distribution center itself.

Some errors pass without a change of the configuration: cron renews the tickets, and the key distribution center or the
clock recovers. They are raised as DisconnectedError, so that the client connects again after its backoff. Java's client
retries for the same reasons (KerberosError.java).
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterator
from typing import Any

from spark_kafka_sink.diagnostics.text import sanitize
from spark_kafka_sink.errors import (
    AuthenticationError,
    DisconnectedError,
    KafkaSinkError,
    MissingDependencyError,
    OptionProblem,
)

_NO_SECURITY_LAYER = 1
"""The bit for "no security layer" in the byte that lists security layers (RFC 4752, section 3.3)."""
_TICKET_REMEDY = "Run `kinit` and check with `klist` that the ticket is valid."
_NO_CRED, _CREDENTIALS_EXPIRED, _FAILURE = 7, 11, 13
"""Routine errors of GSS-API (RFC 2744, section 3.9.1). After _FAILURE, the minor status has the cause."""
_KERBEROS_ERROR_BASE = 2529638912
"""The minor status of Kerberos' error 0. The other errors follow it, in MIT Kerberos and in Heimdal."""
_TEMPORARY_KERBEROS_ERRORS = frozenset(
    {
        21,  # KDC_ERR_CLIENT_NOTYET
        22,  # KDC_ERR_SERVICE_NOTYET
        29,  # KDC_ERR_SVC_UNAVAILABLE
        32,  # KRB_AP_ERR_TKT_EXPIRED
        33,  # KRB_AP_ERR_TKT_NYV: not yet valid
        34,  # KRB_AP_ERR_REPEAT: another process has sent the same authenticator
        37,  # KRB_AP_ERR_SKEW
        141,  # KRB5_CC_NOTFOUND: while the ticket cache is being rewritten, as the next four errors
        142,  # KRB5_CC_END
        193,  # KRB5_CC_IO
        195,  # KRB5_FCC_NOFILE
        199,  # KRB5_CC_FORMAT
        148,  # KRB5_KDCREP_SKEW
        154,  # KRB5_REALM_UNKNOWN: DNS has no address of a key distribution center
        156,  # KRB5_KDC_UNREACH
        220,  # KRB5_REALM_CANT_RESOLVE
    }
)
"""Temporary errors: those of Kerberos (RFC 4120, section 7.5.9) and, from 128 on, of its libraries."""


class GssapiClient:
    """Client side of GSSAPI for the Kerberos service `service` on `host`."""

    name = "GSSAPI"

    def __init__(self, service: str, host: str) -> None:
        self._gssapi = import_gssapi()
        self._service = service
        self._host = host
        self._context: Any = None
        self._has_established_context = False
        self.is_complete = False

    def __repr__(self) -> str:
        return f"<GssapiClient {self._service}@{self._host}>"

    def start(self) -> bytes:
        gssapi = self._gssapi
        with _translate_errors(self._gssapi):
            target = gssapi.Name(f"{self._service}@{self._host}", gssapi.NameType.hostbased_service)
            self._context = gssapi.SecurityContext(
                name=target.canonicalize(gssapi.MechType.kerberos), usage="initiate", mech=gssapi.MechType.kerberos
            )
        return self._advance_context(token=None)  # the client sends the first token

    def step(self, challenge: bytes) -> bytes | None:
        if self.is_complete:
            raise AuthenticationError("GSSAPI: the broker sent a message after authentication had ended")
        if not self._has_established_context:
            return self._advance_context(challenge)
        return self._negotiate_security_layer(challenge)

    def _advance_context(self, token: bytes | None) -> bytes:
        """Pass the broker's token to the security context, and return the token to send to the broker."""
        with _translate_errors(self._gssapi):
            response: bytes | None = self._context.step(token)
            self._has_established_context = bool(self._context.complete)
        return response or b""

    def _negotiate_security_layer(self, challenge: bytes) -> bytes:
        """Tell the broker to use no security layer. Raise AuthenticationError if the broker requires one."""
        with _translate_errors(self._gssapi):
            # The offer has one byte with a bit for each offered layer, and three bytes with the maximum message size.
            offer: bytes = self._context.unwrap(challenge).message
            if len(offer) != 4 or not offer[0] & _NO_SECURITY_LAYER:
                raise AuthenticationError(
                    "GSSAPI: the broker requires a SASL security layer, which Kafka does not support"
                )
            # Without a security layer, the maximum message size must be 0. The authorization id after it is empty, so
            # the broker uses the Kerberos principal.
            selection = bytes([_NO_SECURITY_LAYER, 0, 0, 0])
            response: bytes = self._context.wrap(selection, encrypt=False).message
        self.is_complete = True
        return response


def import_gssapi() -> Any:
    """Import the `gssapi` package. Raise MissingDependencyError if it cannot be imported."""
    try:
        return importlib.import_module("gssapi")
    except ImportError as error:
        raise MissingDependencyError(
            OptionProblem(
                "sasl.mechanism",
                "is GSSAPI, which requires MIT Kerberos or Heimdal on the machine, and the gssapi package: "
                'pip install "spark-kafka-sink[gssapi]".',
            )
        ) from error


@contextlib.contextmanager
def _translate_errors(gssapi: Any) -> Iterator[None]:
    """Convert errors of the `gssapi` package: temporary ones to DisconnectedError, others to AuthenticationError."""
    try:
        yield
    except gssapi.exceptions.GSSError as error:
        error_type: type[KafkaSinkError] = DisconnectedError if _is_temporary(error) else AuthenticationError
        raise error_type(f"GSSAPI: {sanitize(str(error))}", remedy=_TICKET_REMEDY) from error


def _is_temporary(error: Any) -> bool:
    """Return whether an error of the `gssapi` package may pass without a change of the configuration."""
    routine_error = error.maj_code >> 16 & 0xFF
    if routine_error == _FAILURE:
        return error.min_code - _KERBEROS_ERROR_BASE in _TEMPORARY_KERBEROS_ERRORS
    return routine_error in (_NO_CRED, _CREDENTIALS_EXPIRED)
