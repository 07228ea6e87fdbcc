"""The checks before a write: their results and durations, and the retries of temporary failures."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from spark_kafka_sink.client.options import parse_client_config
from spark_kafka_sink.preflight import (
    INTERACTIVE_TIMEOUTS,
    Check,
    Outcome,
    PreflightTimeouts,
    Target,
    build_preflight_error,
    preflight,
)
from spark_kafka_sink.preflight.connectivity_checks import check_topic_metadata
from spark_kafka_sink.protocol import error_codes
from spark_kafka_sink.protocol.message import ApiKey
from spark_kafka_sink.protocol.messages.metadata import MetadataResponsePartition, MetadataResponseTopic
from spark_kafka_sink.testing import ListenerSecurity, embedded_broker
from tests.fake_system import FakeSystem
from tests.simulated_cluster import SimulatedCluster

SECRET = "hush-hush"
SOAK = bool(os.environ.get("SOAK"))


def simulated(nodes: int = 2, **options: Any) -> SimulatedCluster:
    """Create a cluster whose topic t has one partition on each of the first two brokers."""
    return SimulatedCluster(FakeSystem(latency_ms=20), nodes=nodes, topics={"t": 2}, **options)


def run_checks(
    cluster: SimulatedCluster, *topics: str, servers: str | None = None, create: bool = True, **options: object
) -> dict[str, Check]:
    kafka_options = {name.replace("_", "."): value for name, value in options.items()}
    config = parse_client_config({"bootstrap.servers": servers or cluster.bootstrap_servers, **kafka_options})
    target = Target(topics, connect_all_brokers=not topics, allow_auto_topic_creation=create)
    results = preflight(config, target, system=cluster.system)
    assert not cluster.system.open_sockets, "checks close their connections"
    return {check.name: check for check in results}


def outcomes(checks: dict[str, Check]) -> dict[str, str]:
    return {name: check.outcome.value for name, check in checks.items()}


def error_message(checks: dict[str, Check]) -> str:
    error = build_preflight_error(checks.values())
    assert error is not None
    return str(error)


def test_healthy_cluster_passes_within_a_second() -> None:
    cluster = simulated()
    started = cluster.system.now()
    checks = run_checks(cluster, "t")
    assert set(outcomes(checks).values()) == {"passed"}
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


def test_connects_all_brokers_without_fixed_topic() -> None:
    assert [*run_checks(simulated(nodes=3))][4:] == [f"broker {n} (broker{n}:{9092 + n})" for n in range(3)]


def test_names_option_of_missing_dead_letter_topic() -> None:
    cluster = simulated()
    config = parse_client_config({"bootstrap.servers": cluster.bootstrap_servers})
    target = Target(("t", "tt"), topic_option_names=(("tt", "deadLetterTopic"),), allow_auto_topic_creation=False)
    checks = {check.name: check for check in preflight(config, target, system=cluster.system)}
    assert checks["topic tt"].detail == "does not exist; the option deadLetterTopic names it"
    assert checks["topic tt"].remedy == "Create the topic, or correct deadLetterTopic."
    assert outcomes(checks)["topic t"] == "passed"


def test_only_connection_failures_concern_the_address() -> None:
    cluster = simulated()
    cluster.system.names["nowhere"] = []
    unresolved = run_checks(cluster, "t", servers="nowhere:9092")
    assert [name for name, check in unresolved.items() if check.is_connectivity_failure] == ["bootstrap servers"]
    missing = run_checks(simulated(), "tpoic", create=False)
    assert outcomes(missing)["topic tpoic"] == "failed"
    assert not any(check.is_connectivity_failure for check in missing.values())


def test_unresolvable_bootstrap_server_ends_checks() -> None:
    cluster = simulated()
    cluster.system.names["nowhere"] = []
    started = cluster.system.now()
    checks = run_checks(cluster, "t", servers="nowhere:9092")
    assert cluster.system.now() == started
    assert outcomes(checks) == {
        "bootstrap servers": "failed",
        "security": "skipped",
        "metadata": "skipped",
        "topic t": "skipped",
    }
    assert "nowhere:9092: the name cannot be resolved" in error_message(checks)
    assert "Correct the host names in bootstrap.servers" in error_message(checks)


def test_waits_for_unresolvable_bootstrap_server_until_resolve_timeout() -> None:
    cluster = simulated()
    cluster.system.names["nowhere"] = []
    started = cluster.system.now()
    checks = run_checks(cluster, "t", servers="nowhere:9092", bootstrap_resolve_timeout_ms=20_000)
    assert cluster.system.now() == pytest.approx(started + 20_000, abs=200)
    assert outcomes(checks)["bootstrap servers"] == "failed"
    assert "could not be resolved within 20000 ms (bootstrap.resolve.timeout.ms)" in error_message(checks)


def test_names_refusing_server_after_retry_time() -> None:
    cluster = simulated()
    started = cluster.system.now()
    checks = run_checks(cluster, "t", servers="broker7:9092")
    assert "bootstrap servers: broker7:9092: Connection refused" in error_message(checks)
    assert "Check the host and port" in error_message(checks)
    assert PreflightTimeouts().retry_ms <= cluster.system.now() - started < PreflightTimeouts().retry_ms + 100
    assert outcomes(checks)["topic t"] == "skipped"


def test_names_silent_bootstrap_server() -> None:
    cluster = simulated()
    cluster.system.swallow("gone", 9092)
    assert "bootstrap servers: gone:9092: no response within 5 s" in error_message(
        run_checks(cluster, servers="gone:9092")
    )


def test_warns_when_one_of_two_bootstrap_servers_fails() -> None:
    checks = run_checks(simulated(), "t", servers="broker7:9092,broker0:9092")
    assert checks["bootstrap servers"].outcome is Outcome.WARNING
    assert "1 of 2 reachable" in checks["bootstrap servers"].detail
    assert "broker7:9092" in checks["bootstrap servers"].detail
    assert build_preflight_error(checks.values()) is None


@pytest.mark.parametrize("role", ["the bootstrap server", "a leader"])
def test_waits_for_restarting_broker(role: str) -> None:
    cluster = simulated()
    node = 0 if role == "the bootstrap server" else 1
    cluster.refuse_connections(node)
    cluster.system.after(2_000, lambda: cluster.accept_connections(node))
    assert build_preflight_error(run_checks(cluster, "t", servers="broker0:9092").values()) is None


def test_follows_leader_to_reachable_broker() -> None:
    cluster = simulated()
    cluster.refuse_connections(1)
    cluster.system.after(1_000, lambda: cluster.control.move_leader("t", 1, 0))
    checks = run_checks(cluster, "t", servers="broker0:9092")
    assert build_preflight_error(checks.values()) is None
    assert "broker 1 (broker1:9093)" not in checks


def test_names_unresolvable_advertised_address() -> None:
    cluster = simulated()
    cluster.system.names["broker1"] = []
    checks = run_checks(cluster, "t", servers="broker0:9092")
    assert outcomes(checks)["topic t"] == "passed"
    assert ": broker 1 (broker1:9093): the name cannot be resolved" in error_message(checks)
    assert "The broker advertises this address (advertised.listeners)" in error_message(checks)
    assert "broker 0" not in error_message(checks)


@pytest.mark.parametrize("retry_ms", range(500, 3_000, 20 if SOAK else 100))
def test_names_all_unresolvable_brokers_at_any_retry_time(retry_ms: int) -> None:
    """The client drops unreachable brokers from time to time and returns to the bootstrap servers."""
    cluster = SimulatedCluster(FakeSystem(latency_ms=100), nodes=2, topics={"t": 2})
    cluster.system.names |= {"entry": ["broker0"], "broker0": [], "broker1": []}
    results = preflight(
        parse_client_config({"bootstrap.servers": "entry:9092"}),
        Target(("t",)),
        timeouts=PreflightTimeouts(retry_ms=retry_ms),
        system=cluster.system,
    )
    checks = {check.name: check for check in results}
    failed = {name for name, outcome in outcomes(checks).items() if outcome == "failed"}
    assert failed == {"broker 0 (broker0:9092)", "broker 1 (broker1:9093)"}
    assert checks["topic t"].outcome is Outcome.PASSED


@pytest.mark.parametrize("nth", [1, 2])
@pytest.mark.parametrize("delay_ms", range(700, 4_700, 150 if SOAK else 450))
@pytest.mark.parametrize("topics", [("t",), ()])
def test_names_unresolvable_brokers_after_late_metadata(topics: tuple[str, ...], delay_ms: int, nth: int) -> None:
    cluster = simulated()
    cluster.system.names |= {"entry": ["broker0"], "broker0": [], "broker1": []}
    cluster.control.when(api=ApiKey.METADATA, nth=nth).delay(delay_ms)
    results = preflight(
        parse_client_config({"bootstrap.servers": "entry:9092,broker7:9092"}),
        Target(topics, connect_all_brokers=not topics),
        timeouts=INTERACTIVE_TIMEOUTS,
        system=cluster.system,
    )
    failed = {check.name for check in results if check.outcome is Outcome.FAILED}
    assert failed == {"broker 0 (broker0:9092)", "broker 1 (broker1:9093)"}


def test_names_silent_leader() -> None:
    cluster = simulated()
    cluster.system.swallow("broker1", 9093)
    assert ": broker 1 (broker1:9093): no response within 5 s." in error_message(
        run_checks(cluster, "t", servers="broker0:9092")
    )


def test_missing_topic_fails_without_being_created() -> None:
    cluster = simulated(auto_create_topics=True)
    checks = run_checks(cluster, "t", "tpoic", create=False)
    assert ": topic tpoic: does not exist.\nWhat to do: Correct the name or create the topic" in error_message(checks)
    assert outcomes(checks)["topic t"] == "passed"
    assert [*cluster.core.topics] == ["t"]


def test_automatically_created_topic_passes() -> None:
    cluster = simulated(auto_create_topics=True)
    assert build_preflight_error(run_checks(cluster, "new").values()) is None
    assert "new" in cluster.core.topics


def test_waits_for_topic_that_is_being_created() -> None:
    cluster = simulated()
    cluster.system.after(2_000, lambda: cluster.control.create_topic("late", 1))
    assert build_preflight_error(run_checks(cluster, "late").values()) is None


def test_unauthorized_topic_ends_checks_at_once() -> None:
    cluster = simulated()
    cluster.control.when(api=ApiKey.METADATA, topic="t", times=None).fail(error_codes.TOPIC_AUTHORIZATION_FAILED)
    started = cluster.system.now()
    assert (
        ": topic t: this user is not authorized to describe the topic (TOPIC_AUTHORIZATION_FAILED).\n"
        "What to do: Grant this user the Describe and Write permissions" in error_message(run_checks(cluster, "t"))
    )
    assert cluster.system.now() - started < 1_000


@pytest.mark.parametrize("connect_all_brokers", [False, True])
def test_skips_broker_that_was_not_awaited(connect_all_brokers: bool) -> None:
    cluster = SimulatedCluster(FakeSystem(latency_ms=20), nodes=2, topics={"t": 2, "mine": 2})
    cluster.control.when(api=ApiKey.METADATA, topic="t", times=None).fail(error_codes.TOPIC_AUTHORIZATION_FAILED)
    config = parse_client_config({"bootstrap.servers": "broker0:9092"})
    results = preflight(config, Target(["t", "mine"], connect_all_brokers=connect_all_brokers), system=cluster.system)
    failed = [check.name for check in results if check.outcome is Outcome.FAILED]
    assert failed == ["topic t"]
    broker = next(check for check in results if check.name.startswith("broker 1"))
    assert broker.outcome is (Outcome.PASSED if connect_all_brokers else Outcome.SKIPPED)


def test_warns_of_partition_without_leader() -> None:
    cluster = simulated()
    cluster.core.topic("t").partitions[1].leader = None
    checks = run_checks(cluster, "t")
    assert checks["topic t"].outcome is Outcome.WARNING
    assert "1 of 2 partitions without a leader: 1" in checks["topic t"].detail
    assert build_preflight_error(checks.values()) is None


def test_missing_metadata_response_fails_metadata_check() -> None:
    cluster = simulated()
    cluster.control.when(api=ApiKey.METADATA, times=None).never_respond()
    checks = run_checks(cluster, "t")
    assert outcomes(checks)["metadata"] == "failed"
    assert outcomes(checks)["topic t"] == "skipped"


@pytest.mark.parametrize(
    ("operations", "outcome"),
    [
        pytest.param(1 << 8 | 1 << 4, Outcome.PASSED, id="describe and write"),
        pytest.param(1 << 8 | 1 << 3, Outcome.FAILED, id="describe and read"),
        pytest.param(-(1 << 31), Outcome.PASSED, id="unknown"),
    ],
)
def test_topic_without_write_permission_fails(operations: int, outcome: Outcome) -> None:
    partition = MetadataResponsePartition(error_code=0, partition_index=0, leader_id=3)
    answered = MetadataResponseTopic(
        error_code=0, name="t", partitions=[partition], topic_authorized_operations=operations
    )
    check = check_topic_metadata(answered, [3])
    assert check.outcome is outcome
    assert ("Grant this user the Write permission on the topic." in str(check)) == (outcome is Outcome.FAILED)


def test_error_lists_first_failures_and_counts_the_rest() -> None:
    failed = [Check(f"topic t{number}", Outcome.FAILED, "does not exist") for number in range(300)]
    lines = str(build_preflight_error(failed)).splitlines()
    assert lines[0] == "Kafka cannot be written to, and nothing was written: topic t0: does not exist."
    assert (len(lines), lines[-1]) == (11, "- and 290 more checks.")


def test_error_begins_with_first_failure_and_its_remedy() -> None:
    failed = [Check(f"topic t{number}", Outcome.FAILED, "does not exist", "Create it") for number in range(2)]
    assert str(build_preflight_error(failed)).splitlines() == [
        "Kafka cannot be written to, and nothing was written: topic t0: does not exist.",
        "What to do: Create it.",
        "- topic t1: does not exist. Create it.",
    ]


# With real sockets: security.


def secured(servers: str, password: str = SECRET, protocol: str = "SASL_PLAINTEXT") -> dict[str, object]:
    login = "org.apache.kafka.common.security.scram.ScramLoginModule required"
    return {
        "bootstrap.servers": servers,
        "security.protocol": protocol,
        "sasl.mechanism": "SCRAM-SHA-256",
        "sasl.jaas.config": f'{login} username="alice" password="{password}";',
    }


def test_uses_credentials_of_the_job_and_hides_them() -> None:
    security = ListenerSecurity("SASL_PLAINTEXT", users={"alice": SECRET})
    with embedded_broker(topics={"t": 1}, security=security) as broker:
        passed = preflight(parse_client_config(secured(broker.bootstrap_servers)), Target(["t"]))
        refused = preflight(parse_client_config(secured(broker.bootstrap_servers, f"{SECRET}-wrong")), Target(["t"]))
    assert build_preflight_error(passed) is None
    by_name = {check.name: check for check in refused}
    assert by_name["bootstrap servers"].outcome is Outcome.PASSED
    assert by_name["security"].outcome is Outcome.FAILED
    assert by_name["security"].detail.startswith("SASL_PLAINTEXT with SCRAM-SHA-256: ")
    assert by_name["security"].remedy.startswith("Check the user name and password in sasl.jaas.config")
    assert SECRET not in repr(refused)


@pytest.mark.parametrize(
    ("security", "message"),
    [
        (None, "the listener does not use SASL: compare security.protocol and the port."),
        (
            ListenerSecurity("SASL_PLAINTEXT", mechanisms=("PLAIN",), users={"alice": SECRET}),
            "the listener does not support this mechanism. It supports PLAIN: compare sasl.mechanism.",
        ),
    ],
    ids=["a plaintext port", "another mechanism"],
)
def test_listener_mismatch_does_not_mention_password(security: ListenerSecurity | None, message: str) -> None:
    with embedded_broker(security=security) as broker:
        results = preflight(parse_client_config(secured(broker.bootstrap_servers)), Target(["t"]))
    (check,) = (check for check in results if check.outcome is Outcome.FAILED)
    assert str(check).endswith(message)
    assert "password" not in str(check)


def test_plaintext_to_sasl_listener_suggests_security_protocol() -> None:
    security = ListenerSecurity("SASL_PLAINTEXT", users={"alice": SECRET})
    with embedded_broker(security=security) as broker:
        checks = preflight(
            parse_client_config({"bootstrap.servers": broker.bootstrap_servers}),
            Target(["t"]),
            timeouts=PreflightTimeouts(300, 300),
        )
    assert "within" not in str(build_preflight_error(checks)), "the broker closed the connection at once"
    assert "its listener may expect another security.protocol: SASL or TLS." in str(build_preflight_error(checks))


def test_missing_truststore_fails_security_check() -> None:
    options = {"bootstrap.servers": "127.0.0.1:1", "security.protocol": "SSL"}
    options["ssl.truststore.location"] = str(Path("/no/such/file.pem"))
    checks = {check.name: check for check in preflight(parse_client_config(options), Target(["t"]))}
    assert checks["security"].outcome is Outcome.FAILED
    assert "/no/such/file.pem" in checks["security"].detail
    assert checks["security"].remedy
    assert checks["bootstrap servers"].outcome is Outcome.SKIPPED


def test_failure_shows_address_once() -> None:
    config = parse_client_config({"bootstrap.servers": "localhost:1"})
    checks = {check.name: check for check in preflight(config, Target(["t"]), timeouts=PreflightTimeouts(300, 300))}
    assert checks["bootstrap servers"].detail == "localhost:1: Connection refused"
