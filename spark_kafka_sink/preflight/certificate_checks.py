"""Checks of the certificates that brokers present: host names, issuer, expiry, and the reason for a rejection."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from spark_kafka_sink.client.cluster import Node
from spark_kafka_sink.client.config import ClientConfig
from spark_kafka_sink.client.host_lookups import resolve_advertised
from spark_kafka_sink.diagnostics.text import format_count
from spark_kafka_sink.errors import ConfigurationError, NetworkError, TlsError
from spark_kafka_sink.network.system import System
from spark_kafka_sink.preflight.checks import MAX_LISTED_RESULTS, CheckResult, Outcome, end_sentence

if TYPE_CHECKING:
    from spark_kafka_sink.network.security.peer_certificate import PeerCertificate

MIN_DAYS_LEFT = 30
"""If a certificate expires in fewer days than this, the check gives a warning."""
_HOUR_S = 3_600
_DAY_S = 86_400


def check_certificates(
    config: ClientConfig, nodes: Iterable[Node], system: System, timeout_ms: float
) -> Iterator[CheckResult]:
    """Connect to the first MAX_LISTED_RESULTS nodes, at one address each, and check their certificates.

    If a certificate cannot be fetched, its check is skipped. Without TLS, yield nothing.
    """
    tls = config.security.tls
    if tls is None:
        return
    from spark_kafka_sink.network.security.peer_certificate import fetch_peer_certificate  # only for TLS

    nodes_by_address = {(node.host, node.port): node for node in nodes}
    for (host, port), node in list(nodes_by_address.items())[:MAX_LISTED_RESULTS]:
        name = f"certificate of {node.address}"
        try:
            addresses = resolve_advertised(system, host, port)
            certificate = fetch_peer_certificate(tls, addresses[0], system, system.now() + timeout_ms)
        except (NetworkError, TlsError, ConfigurationError) as error:
            yield CheckResult(name, Outcome.SKIPPED, str(error))
            continue
        yield build_certificate_check(name, certificate, system.wall_ms() / 1000)


def build_certificate_check(name: str, certificate: PeerCertificate, wall_time_s: float) -> CheckResult:
    """Build the check for a certificate. `wall_time_s`: the current time as a Unix timestamp, in seconds."""
    days_left = int((certificate.not_after_s - wall_time_s) // _DAY_S)
    expiry_date = f"{datetime.fromtimestamp(certificate.not_after_s, timezone.utc):%Y-%m-%d}"
    expired_for_s = wall_time_s - certificate.not_after_s
    validity = (
        f"expired on {expiry_date}, {_format_age(expired_for_s)} ago"
        if expired_for_s > 0
        else f"valid until {expiry_date}, {days_left} days"
    )
    subject = certificate.subject or "no subject"
    if certificate.subject_alt_names:
        subject += f" for {', '.join(certificate.subject_alt_names)}"
    detail = f"{subject}; issued by {certificate.issuer}; {validity}; {certificate.tls_version}"
    error = certificate.verification_error
    if error:
        return CheckResult(name, Outcome.FAILED, detail, end_sentence(error[0].upper() + error[1:]))
    if days_left < MIN_DAYS_LEFT:
        remedy = "Renew the certificate soon. Clients cannot connect after it expires."
        return CheckResult(name, Outcome.WARNING, detail, remedy)
    return CheckResult(name, Outcome.PASSED, detail)


def _format_age(age_s: float) -> str:
    """Format an age in whole hours or, if it is two days or more, in whole days."""
    if age_s < _HOUR_S:
        return "less than 1 hour"
    if age_s < 2 * _DAY_S:
        return format_count(int(age_s // _HOUR_S), "hour")
    return format_count(int(age_s // _DAY_S), "day")
