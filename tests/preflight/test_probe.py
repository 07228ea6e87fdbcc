"""Probe: its connections, its retries of temporary failures, and the end of its waits."""

from __future__ import annotations

import os
import re

import pytest

from spark_kafka_sink.client.options import parse_client_config
from spark_kafka_sink.preflight import (
    INTERACTIVE_TIMEOUTS,
    Outcome,
    PreflightTimeouts,
    Target,
    build_preflight_error,
    preflight,
)
from spark_kafka_sink.preflight.cluster_checks import IDEMPOTENT_WRITE
from spark_kafka_sink.protocol import error_codes
from spark_kafka_sink.protocol.message import ApiKey
from tests.fake_system import FakeSystem
from tests.preflight.preflight_cases import (
    build_error_message,
    collect_outcomes,
    create_cluster,
    run_checks,
    run_interactive_checks,
)
from tests.simulated_cluster import SimulatedCluster

SOAK = bool(os.environ.get("SOAK"))


def test_connects_all_brokers_without_fixed_topic() -> None:
    assert [*run_checks(create_cluster(nodes=3))][4:] == [f"broker {n} (broker{n}:{9092 + n})" for n in range(3)]


def test_names_server_that_refuses_connections_after_retry_time() -> None:
    cluster = create_cluster()
    started = cluster.system.now()
    checks = run_checks(cluster, "t", servers="broker7:9092")
    assert "Bootstrap servers: broker7:9092: Connection refused" in build_error_message(checks)
    assert "Check the host and port" in build_error_message(checks)
    assert PreflightTimeouts().retry_ms <= cluster.system.now() - started < PreflightTimeouts().retry_ms + 100
    assert collect_outcomes(checks)["topic t"] == "skipped"


@pytest.mark.parametrize("role", ["the bootstrap server", "a leader"])
def test_waits_for_restarting_broker(role: str) -> None:
    cluster = create_cluster()
    node = 0 if role == "the bootstrap server" else 1
    cluster.refuse_connections(node)
    cluster.system.after(2_000, lambda: cluster.accept_connections(node))
    assert build_preflight_error(run_checks(cluster, "t", servers="broker0:9092").values()) is None


def test_follows_leader_to_reachable_broker() -> None:
    cluster = create_cluster()
    cluster.refuse_connections(1)
    cluster.system.after(1_000, lambda: cluster.control.move_leader("t", 1, 0))
    checks = run_checks(cluster, "t", servers="broker0:9092")
    assert build_preflight_error(checks.values()) is None
    assert "broker 1 (broker1:9093)" not in checks


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
    failed = {name for name, outcome in collect_outcomes(checks).items() if outcome == "failed"}
    assert failed == {"broker 0 (broker0:9092)", "broker 1 (broker1:9093)"}
    assert checks["topic t"].outcome is Outcome.PASSED


@pytest.mark.parametrize("nth", [1, 2])
@pytest.mark.parametrize("delay_ms", range(700, 4_700, 150 if SOAK else 450))
@pytest.mark.parametrize("topics", [("t",), ()])
def test_names_unresolvable_brokers_after_late_metadata(topics: tuple[str, ...], delay_ms: int, nth: int) -> None:
    cluster = create_cluster()
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


def test_automatically_created_topic_passes() -> None:
    cluster = create_cluster(auto_create_topics=True)
    assert build_preflight_error(run_checks(cluster, "new").values()) is None
    assert "new" in cluster.core.topics


def test_waits_for_topic_that_is_being_created() -> None:
    cluster = create_cluster()
    cluster.system.after(2_000, lambda: cluster.control.create_topic("late", 1))
    assert build_preflight_error(run_checks(cluster, "late").values()) is None


def test_unauthorized_topic_ends_checks_immediately() -> None:
    cluster = create_cluster()
    cluster.control.when(api=ApiKey.METADATA, topic="t", times=None).fail(error_codes.TOPIC_AUTHORIZATION_FAILED)
    started = cluster.system.now()
    assert (
        ". Topic t: this user is not authorized to describe the topic (TOPIC_AUTHORIZATION_FAILED).\n"
        "What to do: Grant this user the Write and Describe permissions"
        in build_error_message(run_checks(cluster, "t"))
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


def test_retries_init_producer_id_while_coordinator_loads() -> None:
    cluster = create_cluster()
    cluster.control.when(api=ApiKey.INIT_PRODUCER_ID, times=2).fail(error_codes.COORDINATOR_LOAD_IN_PROGRESS)
    assert run_interactive_checks(cluster, Target(["t"], idempotent=True))[IDEMPOTENT_WRITE].outcome is Outcome.PASSED


def test_warns_when_retriable_error_persists() -> None:
    cluster = create_cluster()
    cluster.control.when(api=ApiKey.INIT_PRODUCER_ID, times=None).fail(error_codes.COORDINATOR_LOAD_IN_PROGRESS)
    started = cluster.system.now()
    check = run_interactive_checks(cluster, Target(["t"], idempotent=True))[IDEMPOTENT_WRITE]
    assert (check.outcome, check.detail) == (Outcome.WARNING, "COORDINATOR_LOAD_IN_PROGRESS")
    assert INTERACTIVE_TIMEOUTS.retry_ms <= cluster.system.now() - started < 2 * INTERACTIVE_TIMEOUTS.retry_ms


def test_retries_request_at_another_node_after_connection_loss() -> None:
    cluster = create_cluster()
    cluster.control.when(api=ApiKey.INIT_PRODUCER_ID).drop(execute_first=False)
    started = cluster.system.now()
    assert run_interactive_checks(cluster, Target(["t"], idempotent=True))[IDEMPOTENT_WRITE].outcome is Outcome.PASSED
    assert cluster.system.now() - started < INTERACTIVE_TIMEOUTS.retry_ms


def test_skips_check_early_when_all_connections_are_lost() -> None:
    cluster = create_cluster()
    cluster.control.when(api=ApiKey.INIT_PRODUCER_ID, times=None).drop(execute_first=False)
    started = cluster.system.now()
    check = run_interactive_checks(cluster, Target(["t"], idempotent=True))[IDEMPOTENT_WRITE]
    assert check.outcome is Outcome.SKIPPED
    assert re.match(r"no response: .*closed the connection", check.detail)
    assert cluster.system.now() - started < 2 * INTERACTIVE_TIMEOUTS.retry_ms


def test_permanent_failures_end_after_retry_time() -> None:
    cluster = create_cluster()
    for servers, topic in (("broker7:9092", "t"), (cluster.bootstrap_servers, "nope")):
        started = cluster.system.now()
        config = parse_client_config({"bootstrap.servers": servers})
        target = Target([topic], allow_auto_topic_creation=False)
        checks = preflight(config, target, timeouts=INTERACTIVE_TIMEOUTS, system=cluster.system)
        assert build_preflight_error(checks) is not None
        assert INTERACTIVE_TIMEOUTS.retry_ms <= cluster.system.now() - started < 2 * INTERACTIVE_TIMEOUTS.retry_ms


def test_waits_full_response_time_for_unresponsive_server() -> None:
    cluster = create_cluster()
    cluster.system.swallow("gone", 9092)
    started = cluster.system.now()
    config = parse_client_config({"bootstrap.servers": "gone:9092"})
    checks = preflight(config, Target(["t"]), timeouts=INTERACTIVE_TIMEOUTS, system=cluster.system)
    assert build_preflight_error(checks) is not None
    assert cluster.system.now() - started >= INTERACTIVE_TIMEOUTS.response_ms


def test_target_without_topics_passes_quickly() -> None:
    cluster = create_cluster()
    started = cluster.system.now()
    assert build_preflight_error(run_interactive_checks(cluster, Target()).values()) is None
    assert cluster.system.now() - started < 500
