"""Runs of all checks before a write: their order, and checks that end early because an option is unusable."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark_kafka_sink.client.options import parse_client_config
from spark_kafka_sink.preflight import (
    Outcome,
    Target,
    build_preflight_error,
    preflight,
)
from spark_kafka_sink.testing import ListenerSecurity, embedded_broker
from tests.preflight.preflight_cases import (
    SECRET,
    build_error_message,
    build_secured_options,
    collect_outcomes,
    create_cluster,
    run_checks,
)


def test_healthy_cluster_passes_within_a_second() -> None:
    cluster = create_cluster()
    started = cluster.system.now()
    checks = run_checks(cluster, "t")
    assert set(collect_outcomes(checks).values()) == {"passed"}
    assert [*checks] == [
        "bootstrap servers",
        "security",
        "metadata",
        "versions",
        "topic t",
        "broker 0 (broker0:9092)",
        "broker 1 (broker1:9093)",
    ]
    assert checks["topic t"].detail == "2 partitions"
    assert build_preflight_error(checks.values()) is None
    assert cluster.system.now() - started < 1_000


def test_unresolvable_bootstrap_server_ends_checks() -> None:
    cluster = create_cluster()
    cluster.system.names["nowhere"] = []
    started = cluster.system.now()
    checks = run_checks(cluster, "t", servers="nowhere:9092")
    assert cluster.system.now() == started
    assert collect_outcomes(checks) == {
        "bootstrap servers": "failed",
        "security": "skipped",
        "metadata": "skipped",
        "topic t": "skipped",
    }
    assert "nowhere:9092: the name cannot be resolved" in build_error_message(checks)
    assert "Correct the host names in bootstrap.servers" in build_error_message(checks)


def test_waits_for_unresolvable_bootstrap_server_until_resolve_timeout() -> None:
    cluster = create_cluster()
    cluster.system.names["nowhere"] = []
    started = cluster.system.now()
    checks = run_checks(cluster, "t", servers="nowhere:9092", bootstrap_resolve_timeout_ms=20_000)
    assert cluster.system.now() == pytest.approx(started + 20_000, abs=200)
    assert collect_outcomes(checks)["bootstrap servers"] == "failed"
    assert "could not be resolved within 20000 ms (bootstrap.resolve.timeout.ms)" in build_error_message(checks)


def test_uses_credentials_of_the_job_and_hides_them() -> None:
    security = ListenerSecurity("SASL_PLAINTEXT", users={"alice": SECRET})
    with embedded_broker(topics={"t": 1}, security=security) as broker:
        passed = preflight(parse_client_config(build_secured_options(broker.bootstrap_servers)), Target(["t"]))
        checks_after_rejection = preflight(
            parse_client_config(build_secured_options(broker.bootstrap_servers, f"{SECRET}-wrong")), Target(["t"])
        )
    assert build_preflight_error(passed) is None
    by_name = {check.name: check for check in checks_after_rejection}
    assert by_name["bootstrap servers"].outcome is Outcome.PASSED
    assert by_name["security"].outcome is Outcome.FAILED
    assert by_name["security"].detail.startswith("SASL_PLAINTEXT with SCRAM-SHA-256: ")
    assert by_name["security"].remedy.startswith("Check the user name and password in sasl.jaas.config")
    assert SECRET not in repr(checks_after_rejection)


def test_missing_truststore_fails_security_check() -> None:
    options = {"bootstrap.servers": "127.0.0.1:1", "security.protocol": "SSL"}
    options["ssl.truststore.location"] = str(Path("/no/such/file.pem"))
    checks = {check.name: check for check in preflight(parse_client_config(options), Target(["t"]))}
    assert checks["security"].outcome is Outcome.FAILED
    assert "/no/such/file.pem" in checks["security"].detail
    assert checks["security"].remedy
    assert checks["bootstrap servers"].outcome is Outcome.SKIPPED
