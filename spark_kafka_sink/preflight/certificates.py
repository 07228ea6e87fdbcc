"""What brokers show of themselves by TLS, as checks: names, issuer, until when, and why they are not trusted."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from spark_kafka_sink.client.cluster import Node
from spark_kafka_sink.client.config import ClientConfig
from spark_kafka_sink.client.connections import resolve_advertised
from spark_kafka_sink.diagnostics.text import format_count
from spark_kafka_sink.errors import ConfigurationError, NetworkError, TlsError
from spark_kafka_sink.network.system import System
from spark_kafka_sink.preflight.checks import FAULTS_SHOWN_MAX, Check, Outcome, sentence

if TYPE_CHECKING:
    from spark_kafka_sink.network.security.peer_certificate import PeerCertificate

DAYS_LEFT_MIN = 30
_HOUR_S = 3_600
_DAY_S = 86_400


def certificate_checks(
    config: ClientConfig, nodes: Iterable[Node], system: System, timeout_ms: float
) -> Iterator[Check]:
    """One for each address, of a bounded number of them; none without TLS."""
    tls = config.security.tls
    if tls is None:
        return
    from spark_kafka_sink.network.security.peer_certificate import look

    places = {(node.host, node.port): node for node in nodes}
    for (host, port), node in list(places.items())[:FAULTS_SHOWN_MAX]:
        name = f"certificate of {node.address}"
        try:
            addresses = resolve_advertised(system, host, port)
            shown = look(tls, addresses[0], system, system.now() + timeout_ms)
        except (NetworkError, TlsError, ConfigurationError) as error:
            yield Check(name, Outcome.SKIPPED, str(error))
            continue
        yield certificate_check(name, shown, system.wall_ms() / 1000)


def certificate_check(name: str, shown: PeerCertificate, now_s: float) -> Check:
    days = int((shown.not_after_s - now_s) // _DAY_S)
    until = f"{datetime.fromtimestamp(shown.not_after_s, timezone.utc):%Y-%m-%d}"
    expired_s = now_s - shown.not_after_s
    validity = (
        f"expired on {until}, {_format_age(expired_s)} ago" if expired_s > 0 else f"valid until {until}, {days} days"
    )
    names = f" for {', '.join(shown.names)}" if shown.names else ""
    detail = f"{shown.subject or 'no subject'}{names}; issued by {shown.issuer}; {validity}; {shown.version}"
    if shown.refusal:
        return Check(name, Outcome.FAILED, detail, sentence(shown.refusal[0].upper() + shown.refusal[1:]))
    if days < DAYS_LEFT_MIN:
        return Check(name, Outcome.WARNING, detail, "Renew it soon: when it has expired no client connects.")
    return Check(name, Outcome.PASSED, detail)


def _format_age(age_s: float) -> str:
    """Format an age in full hours below two days and in full days from then on."""
    if age_s < _HOUR_S:
        return "less than 1 hour"
    if age_s < 2 * _DAY_S:
        return format_count(int(age_s // _HOUR_S), "hour")
    return format_count(int(age_s // _DAY_S), "day")
