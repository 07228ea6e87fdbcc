"""PeerCertificate: the subject, names, issuer and expiry of a broker's TLS certificate. For diagnosis only.

The certificate is fetched by a TLS handshake on a separate connection, over which nothing else is sent.

Python's ssl parses only verified certificates. If the certificate is not trusted, two more handshakes are therefore
needed to describe it: the first fetches the certificate without verification, and the second trusts exactly this
certificate, regardless of its expiry and host name. Each connection is closed right after its handshake, so no
credentials are sent.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from spark_kafka_sink.diagnostics.text import sanitize
from spark_kafka_sink.errors import DisconnectedError, NetworkError, TlsError
from spark_kafka_sink.network.security.tls_context import TlsConfig, build_client_ssl_context
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
from spark_kafka_sink.network.transport import raise_if_connect_failed

_NO_CHECK_TIME_FLAG = 0x200000
"""Flag that lets an expired certificate pass verification: X509_V_FLAG_NO_CHECK_TIME in OpenSSL's x509_vfy.h."""

MAX_SUBJECT_ALT_NAMES = 5
_SHORT_NAMES = {
    "commonName": "CN",
    "organizationName": "O",
    "organizationalUnitName": "OU",
    "countryName": "C",
}


@dataclass(frozen=True)
class PeerCertificate:
    """The parts of a certificate that explain why a connection succeeds or fails."""

    subject: str
    issuer: str
    subject_alt_names: tuple[str, ...]
    """At most MAX_SUBJECT_ALT_NAMES of the host names and addresses for which the certificate is valid."""
    not_after_s: float
    """Expiry in seconds since the epoch."""
    verification_error: str = ""
    """The reason why the certificate is not trusted; empty if it is trusted."""
    tls_version: str = ""
    """The negotiated version: TLSv1.2 or TLSv1.3."""


def fetch_peer_certificate(
    config: TlsConfig, address: SocketAddress, system: System, deadline_ms: float
) -> PeerCertificate:
    """Fetch the certificate of the listener at an address.

    Raise TlsError or NetworkError if the listener does not speak TLS, and NetworkError if it does not respond before
    `deadline_ms`, a time of the monotonic clock.
    """
    try:
        return _fetch_certificate(build_client_ssl_context(config), address, system, deadline_ms, verification_error="")
    except TlsError as error:
        if not isinstance(error.__cause__, ssl.SSLCertVerificationError):
            raise
        verification_error = str(error)
    # Fetch the certificate without verification, and then trust exactly this certificate, so that Python parses it.
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    certificate = _connect_and_handshake(context, address, system, deadline_ms).peer_certificate(as_der=True)
    context.verify_mode = ssl.CERT_REQUIRED
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN | _NO_CHECK_TIME_FLAG
    context.load_verify_locations(cadata=certificate)
    return _fetch_certificate(context, address, system, deadline_ms, verification_error)


def _fetch_certificate(
    context: ssl.SSLContext, address: SocketAddress, system: System, deadline_ms: float, verification_error: str
) -> PeerCertificate:
    """Fetch the certificate. `context` must trust it, because Python parses only a certificate that it has verified.

    `verification_error`: why the client's own configuration does not trust the certificate, or an empty string.
    """
    transport = _connect_and_handshake(context, address, system, deadline_ms)
    fields = transport.peer_certificate()
    alt_names = fields.get("subjectAltName", ())[:MAX_SUBJECT_ALT_NAMES]
    return PeerCertificate(
        subject=_format_distinguished_name(fields, "subject"),
        issuer=_format_distinguished_name(fields, "issuer"),
        subject_alt_names=tuple(sanitize(str(name)) for _, name in alt_names),
        not_after_s=ssl.cert_time_to_seconds(fields["notAfter"]),
        verification_error=verification_error,
        tls_version=transport.version or "",
    )


def _format_distinguished_name(fields: Mapping[str, Any], field: str) -> str:
    attributes = [attribute for relative_name in fields.get(field, ()) for attribute in relative_name]
    return sanitize(", ".join(f"{_SHORT_NAMES.get(name, name)}={value}" for name, value in attributes))


def _connect_and_handshake(
    context: ssl.SSLContext, address: SocketAddress, system: System, deadline_ms: float
) -> TlsTransport:
    """Connect, complete a TLS handshake and close the connection.

    Return the closed transport, whose certificate and TLS version can still be read.
    """
    try:
        sock = system.connect(address, OS_DEFAULT_BUFFER, OS_DEFAULT_BUFFER)
    except OSError as error:
        raise DisconnectedError(f"{address}: {error.strerror}") from error
    poller = system.create_poller()
    transport = TlsTransport(sock, context, server_hostname=address.host)
    try:
        poller.register(sock, EVENT_WRITE)
        _wait_for_socket(poller, system, address, deadline_ms)
        raise_if_connect_failed(sock)
        while not transport.is_ready:
            transport.handshake()
            if not transport.is_ready:
                poller.modify(sock, EVENT_READ | (EVENT_WRITE if transport.has_buffered_output else 0))
                _wait_for_socket(poller, system, address, deadline_ms)
    except OSError as error:
        raise DisconnectedError(f"{address}: {error.strerror or error}") from error
    finally:
        _close(poller, sock, transport)
    return transport


def _wait_for_socket(poller: Poller, system: System, address: SocketAddress, deadline_ms: float) -> None:
    """Wait until the poller reports the socket. Raise NetworkError if the deadline passes first."""
    remaining_ms = deadline_ms - system.now()
    if remaining_ms <= 0 or not poller.select(remaining_ms / 1000):
        raise NetworkError(f"{address}: no response before the deadline")


def _close(poller: Poller, sock: ByteSocket, transport: TlsTransport) -> None:
    poller.unregister(sock)
    transport.close()
    poller.close()
