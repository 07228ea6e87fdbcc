"""Checks of brokers' certificates, with OpenSSL and an embedded broker on the loopback interface."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from integration.support.certificates import write_certificates
from spark_kafka_sink.client.cluster import Node
from spark_kafka_sink.client.options import parse_client_config
from spark_kafka_sink.network.security.peer_certificate import PeerCertificate
from spark_kafka_sink.network.system import OperatingSystem, SocketAddress
from spark_kafka_sink.preflight import INTERACTIVE_TIMEOUTS, CheckResult, Outcome, Target, preflight
from spark_kafka_sink.preflight.certificate_checks import build_certificate_check, check_certificates
from spark_kafka_sink.preflight.connectivity_checks import check_name_resolution
from spark_kafka_sink.testing import ListenerSecurity, embedded_broker

DAY_S = 86_400
CERTIFICATE = PeerCertificate("CN=node", "CN=authority", ("localhost",), 100 * DAY_S, tls_version="TLSv1.3")


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("certificates")
    write_certificates(directory)
    return directory


@pytest.fixture(scope="module")
def port(certificates: Path) -> Iterator[str]:
    with TlsBroker(certificates, "node.pem") as port:
        yield port


class TlsBroker:
    """Runs a TLS broker with this certificate and yields its port."""

    def __init__(self, certificates: Path, identity: str) -> None:
        security = ListenerSecurity("SSL", certificate=certificates / identity)
        self._broker = embedded_broker({"t": 1}, security=security, advertised_host="localhost")

    def __enter__(self) -> str:
        return self._broker.__enter__().bootstrap_servers.rpartition(":")[2]

    def __exit__(self, *_: object) -> None:
        self._broker.close()


def run_checks(servers: str, authority: Path) -> dict[str, CheckResult]:
    options = {
        "bootstrap.servers": servers,
        "security.protocol": "SSL",
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(authority),
    }
    checks = preflight(parse_client_config(options), Target(["t"]), timeouts=INTERACTIVE_TIMEOUTS, thorough=True)
    return {check.name: check for check in checks}


def test_shows_issuer_and_expiry_of_valid_certificate(port: str, certificates: Path) -> None:
    check = run_checks(f"localhost:{port}", certificates / "ca.pem")[f"certificate of localhost:{port}"]
    assert check.outcome in (Outcome.PASSED, Outcome.WARNING)
    assert check.detail.startswith("CN=node for localhost; issued by CN=test authority; valid until ")
    assert check.detail.endswith("TLSv1.3")


@pytest.mark.parametrize(
    ("host", "authority", "message"),
    [
        ("localhost", "stranger-ca.pem", "an authority that is not trusted"),
        ("127.0.0.1", "ca.pem", "not valid for '127.0.0.1'"),
    ],
)
def test_shows_untrusted_certificate_with_reason(
    port: str, certificates: Path, host: str, authority: str, message: str
) -> None:
    checks = run_checks(f"{host}:{port}", certificates / authority)
    check = checks[f"certificate of {host}:{port}"]
    assert check.outcome is Outcome.FAILED
    assert check.detail.startswith("CN=node for localhost; issued by CN=test authority")
    assert message in check.remedy
    assert checks["security"].outcome is Outcome.FAILED
    assert message in checks["security"].detail
    assert not checks["security"].remedy, "the detail contains the remedy, and no other option is the cause"


def test_shows_expiry_date_of_expired_certificate(certificates: Path) -> None:
    with TlsBroker(certificates, "expired.pem") as port:
        check = run_checks(f"localhost:{port}", certificates / "ca.pem")[f"certificate of localhost:{port}"]
    assert check.outcome is Outcome.FAILED
    assert "has expired: renew it on the broker" in check.remedy
    assert "CN=expired" in check.detail
    assert "expired on " in check.detail


def test_skips_certificate_of_listener_without_tls(certificates: Path) -> None:
    with embedded_broker({"t": 1}) as broker:
        servers = broker.bootstrap_servers
        checks = run_checks(servers, certificates / "ca.pem")
    assert checks[f"certificate of {servers}"].outcome is Outcome.SKIPPED
    assert checks["bootstrap servers"].outcome is Outcome.FAILED


@pytest.mark.parametrize(
    ("days_left", "outcome", "message"),
    [
        (31, Outcome.PASSED, "31 days"),
        (29, Outcome.WARNING, "29 days"),
        (0, Outcome.WARNING, "0 days"),
    ],
)
def test_warns_of_certificate_that_expires_soon(days_left: int, outcome: Outcome, message: str) -> None:
    check = build_certificate_check("certificate of b:1", CERTIFICATE, (100 - days_left) * DAY_S)
    assert check.outcome is outcome
    assert message in check.detail


@pytest.mark.parametrize(
    ("hours_ago", "age"),
    [(0.5, "less than 1 hour"), (1, "1 hour"), (25, "25 hours"), (47.5, "47 hours"), (48, "2 days"), (73, "3 days")],
)
def test_shows_time_since_expiry(hours_ago: float, age: str) -> None:
    check = build_certificate_check("certificate of b:1", CERTIFICATE, CERTIFICATE.not_after_s + hours_ago * 3_600)
    assert f", {age} ago; " in check.detail


class NoResolver(OperatingSystem):
    def resolve(self, host: str, port: int) -> list[SocketAddress]:
        raise AssertionError(f"{host!r} was looked up")


def test_neither_resolves_nor_shows_invalid_advertised_host(
    certificates: Path,
) -> None:
    options = {"bootstrap.servers": "localhost:9092", "security.protocol": "SSL", "ssl.truststore.type": "PEM"}
    config = parse_client_config(options | {"ssl.truststore.location": str(certificates / "ca.pem")})
    nodes = [Node(1, "\x1b[31mred", 9092)]
    checks = [*check_certificates(config, nodes, NoResolver(), 1_000), check_name_resolution(nodes, NoResolver())]
    assert [check.name for check in checks] == ["certificate of ?[31mred:9092", "names"]
    assert "is not a valid host name" in checks[0].detail
    assert not any("\x1b" in text for check in checks for text in (check.name, check.detail))
