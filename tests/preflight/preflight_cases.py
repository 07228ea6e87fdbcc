"""Preflight runs against a simulated cluster in virtual time, and the options of a secured one."""

from __future__ import annotations

from typing import Any

from spark_kafka_sink.client.options import parse_client_config
from spark_kafka_sink.preflight import (
    INTERACTIVE_TIMEOUTS,
    CheckResult,
    Target,
    build_preflight_error,
    preflight,
)
from tests.fake_system import FakeSystem
from tests.simulated_cluster import SimulatedCluster

SECRET = "hush-hush"


def create_cluster(nodes: int = 2, **options: Any) -> SimulatedCluster:
    """Create a cluster whose topic t has one partition on each of the first two brokers."""
    return SimulatedCluster(FakeSystem(latency_ms=20), nodes=nodes, topics={"t": 2}, **options)


def run_checks(
    cluster: SimulatedCluster, *topics: str, servers: str | None = None, create: bool = True, **options: object
) -> dict[str, CheckResult]:
    kafka_options = {name.replace("_", "."): value for name, value in options.items()}
    config = parse_client_config({"bootstrap.servers": servers or cluster.bootstrap_servers, **kafka_options})
    target = Target(topics, connect_all_brokers=not topics, allow_auto_topic_creation=create)
    results = preflight(config, target, system=cluster.system)
    assert not cluster.system.open_sockets, "checks close their connections"
    return {check.name: check for check in results}


def collect_outcomes(checks: dict[str, CheckResult]) -> dict[str, str]:
    return {name: check.outcome.value for name, check in checks.items()}


def build_error_message(checks: dict[str, CheckResult]) -> str:
    error = build_preflight_error(checks.values())
    assert error is not None
    return str(error)


def build_secured_options(servers: str, password: str = SECRET, protocol: str = "SASL_PLAINTEXT") -> dict[str, object]:
    login = "org.apache.kafka.common.security.scram.ScramLoginModule required"
    return {
        "bootstrap.servers": servers,
        "security.protocol": protocol,
        "sasl.mechanism": "SCRAM-SHA-256",
        "sasl.jaas.config": f'{login} username="alice" password="{password}";',
    }


def run_interactive_checks(
    cluster: SimulatedCluster, target: Target, *, thorough: bool = False
) -> dict[str, CheckResult]:
    config = parse_client_config({"bootstrap.servers": cluster.bootstrap_servers})
    checks = preflight(config, target, timeouts=INTERACTIVE_TIMEOUTS, thorough=thorough, system=cluster.system)
    assert not cluster.system.open_sockets, "checks close their connections"
    return {check.name: check for check in checks}
