"""The certificate that a broker shows by TLS: its names, its issuer and its end. For diagnosis only.

A handshake on a connection of its own, over which nothing else is sent. The certificate of a broker that is not trusted
is of interest, too; then a second handshake looks at it without any belief: it trusts that very certificate, at any
time and under any name. That connection is closed at once, so no credentials travel over it.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from spark_kafka_sink.diagnostics.text import sanitize
from spark_kafka_sink.errors import DisconnectedError, NetworkError, TlsError
from spark_kafka_sink.network.security.tls_context import TlsConfig, client_context
from spark_kafka_sink.network.system import (
    EVENT_READ,
    EVENT_WRITE,
    OS_DEFAULT_BUFFER,
    ByteSocket,
    Poller,
    SocketAddress,
    System,
)
from spark_kafka_sink.network.tls import TlsTransport
from spark_kafka_sink.network.transport import connect_result

_NO_CHECK_TIME = 0x200000
"""X509_V_FLAG_NO_CHECK_TIME of OpenSSL's x509_vfy.h."""

NAMES_SHOWN_MAX = 5


@dataclass(frozen=True)
class PeerCertificate:
    subject: str
    issuer: str
    names: tuple[str, ...]
    """The host names that the certificate is for."""
    not_after_s: float
    """Seconds since 1970."""
    refusal: str = ""
    """Why it is not trusted; empty if it is."""
    version: str = ""
    """TLSv1.2 or TLSv1.3."""


def look(config: TlsConfig, address: SocketAddress, system: System, deadline_ms: float) -> PeerCertificate:
    """NetworkError if there is no TLS at this address, or no answer in time."""
    try:
        return _shown(client_context(config), address, system, deadline_ms, "")
    except TlsError as error:
        if not isinstance(error.__cause__, ssl.SSLCertVerificationError):
            raise
        refusal = str(error)
    credulous = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    credulous.check_hostname = False
    credulous.verify_mode = ssl.CERT_NONE
    encoded = _handshake(credulous, address, system, deadline_ms).certificate(encoded=True)
    credulous.verify_mode = ssl.CERT_REQUIRED
    credulous.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN | _NO_CHECK_TIME
    credulous.load_verify_locations(cadata=encoded)
    return _shown(credulous, address, system, deadline_ms, refusal)


def _shown(
    context: ssl.SSLContext, address: SocketAddress, system: System, deadline_ms: float, refusal: str
) -> PeerCertificate:
    transport = _handshake(context, address, system, deadline_ms)
    fields = transport.certificate()
    names = tuple(sanitize(str(name)) for _, name in fields.get("subjectAltName", ())[:NAMES_SHOWN_MAX])
    return PeerCertificate(
        subject=_name(fields, "subject"),
        issuer=_name(fields, "issuer"),
        names=names,
        not_after_s=ssl.cert_time_to_seconds(fields["notAfter"]),
        refusal=refusal,
        version=transport.version or "",
    )


def _name(fields: Mapping[str, Any], which: str) -> str:
    parts = [f"{key}={value}" for part in fields.get(which, ()) for key, value in part]
    short = {"commonName": "CN", "organizationName": "O", "organizationalUnitName": "OU", "countryName": "C"}
    return sanitize(", ".join(f"{short.get(key, key)}={value}" for key, value in (p.split("=", 1) for p in parts)))


def _handshake(context: ssl.SSLContext, address: SocketAddress, system: System, deadline_ms: float) -> TlsTransport:
    """A connection whose handshake is done, already closed again."""
    try:
        sock = system.connect(address, OS_DEFAULT_BUFFER, OS_DEFAULT_BUFFER)
    except OSError as error:
        raise DisconnectedError(f"{address}: {error.strerror}") from error
    poller = system.poller()
    transport = TlsTransport(sock, context, server_hostname=address.host)
    try:
        poller.register(sock, EVENT_WRITE)
        _wait(poller, system, address, deadline_ms)
        connect_result(sock)
        while not transport.ready:
            transport.handshake()
            if not transport.ready:
                poller.modify(sock, EVENT_READ | (EVENT_WRITE if transport.has_output else 0))
                _wait(poller, system, address, deadline_ms)
    except OSError as error:
        raise DisconnectedError(f"{address}: {error.strerror or error}") from error
    finally:
        _close(poller, sock, transport)
    return transport


def _wait(poller: Poller, system: System, address: SocketAddress, deadline_ms: float) -> None:
    left_ms = deadline_ms - system.now()
    if left_ms <= 0 or not poller.select(left_ms / 1000):
        raise NetworkError(f"{address}: no answer in time")


def _close(poller: Poller, sock: ByteSocket, transport: TlsTransport) -> None:
    poller.unregister(sock)
    transport.close()
    poller.close()
