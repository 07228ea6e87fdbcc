"""Checks that send requests to a connected cluster, and the outcomes of their responses."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from spark_kafka_sink.preflight import (
    INTERACTIVE_TIMEOUTS,
    CheckResult,
    Outcome,
    Target,
    cluster_checks,
    run,
)
from spark_kafka_sink.preflight.cluster_checks import CLOCK, FIRST_EPOCH, IDEMPOTENT_WRITE, TRANSACTIONS
from spark_kafka_sink.preflight.probe import Exchange
from spark_kafka_sink.preflight.request_check import RequestCheck
from spark_kafka_sink.protocol import error_codes
from spark_kafka_sink.protocol.message import ApiKey
from spark_kafka_sink.protocol.messages.describe_configs import DescribeConfigsResponse
from spark_kafka_sink.protocol.messages.metadata import MetadataResponse, MetadataResponseTopic
from spark_kafka_sink.protocol.schema import VersionRange
from spark_kafka_sink.requests.topics import DescribeTopics
from tests.fake_system import FakeSystem
from tests.preflight.preflight_cases import (
    create_cluster,
    run_interactive_checks,
)
from tests.simulated_cluster import SimulatedCluster


def test_checks_only_permissions_that_the_write_needs() -> None:
    names = {IDEMPOTENT_WRITE, TRANSACTIONS}
    assert not names & {*run_interactive_checks(create_cluster(), Target(["t"]))}
    checks = run_interactive_checks(create_cluster(), Target(["t"], idempotent=True, transactional_id="an-id"))
    assert {checks[name].outcome for name in names} == {Outcome.PASSED}


def test_size_check_is_skipped_if_the_response_has_no_setting() -> None:
    (check,) = cluster_checks.check_message_sizes(Target(["t"]), [MetadataResponseTopic(name="t")])
    skipped = check.evaluate(Exchange(DescribeConfigsResponse(), 0))
    assert (skipped.outcome, skipped.detail) == (Outcome.SKIPPED, "the broker did not return max.message.bytes")


def test_checks_change_nothing_in_the_cluster() -> None:
    cluster = create_cluster()
    run_interactive_checks(cluster, Target(["t"], idempotent=True, transactional_id="an-id"), thorough=True)
    assert cluster.core.coordinator.transactions == {}
    assert [cluster.core.log("t", partition).log_end_offset for partition in (0, 1)] == [0, 0]


@pytest.mark.parametrize(
    ("api", "code", "name", "outcome", "message"),
    [
        (
            ApiKey.INIT_PRODUCER_ID,
            error_codes.CLUSTER_AUTHORIZATION_FAILED,
            IDEMPOTENT_WRITE,
            Outcome.FAILED,
            "this user is not authorized (CLUSTER_AUTHORIZATION_FAILED). Grant this user the Write permission on the",
        ),
        (ApiKey.INIT_PRODUCER_ID, error_codes.COORDINATOR_LOAD_IN_PROGRESS, IDEMPOTENT_WRITE, Outcome.WARNING, ""),
        (
            ApiKey.END_TXN,
            error_codes.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
            TRANSACTIONS,
            Outcome.FAILED,
            "this user is not authorized to use the transactional id an-id. Grant this user the Write and Describe",
        ),
        (ApiKey.END_TXN, error_codes.NOT_COORDINATOR, TRANSACTIONS, Outcome.PASSED, ""),
        (ApiKey.DESCRIBE_QUORUM, error_codes.CLUSTER_AUTHORIZATION_FAILED, CLOCK, Outcome.SKIPPED, "Describe"),
        (
            ApiKey.DESCRIBE_CONFIGS,
            error_codes.TOPIC_AUTHORIZATION_FAILED,
            "largest message of t",
            Outcome.SKIPPED,
            "DescribeConfigs",
        ),
    ],
)
def test_rejection_fails_only_its_check_with_remedy(
    api: ApiKey, code: int, name: str, outcome: Outcome, message: str
) -> None:
    cluster = create_cluster()
    cluster.control.when(api=api, times=None).fail(code)
    checks = run_interactive_checks(cluster, Target(["t"], idempotent=True, transactional_id="an-id"), thorough=True)
    assert checks[name].outcome is outcome
    assert message in str(checks[name])
    others = {check.outcome for other, check in checks.items() if other != name}
    assert others == {Outcome.PASSED}


def test_remedy_names_prefix_of_transactional_ids() -> None:
    cluster = create_cluster()
    cluster.control.when(api=ApiKey.END_TXN, times=None).fail(error_codes.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    target = Target(["t"], transactional_id="orders-driver", transactional_id_prefix="orders")
    assert str(run_interactive_checks(cluster, target)[TRANSACTIONS]) == (
        "Transactions: this user is not authorized to use the transactional id orders-driver. Grant this user the "
        "Write and Describe permissions on all transactional ids with the prefix orders."
    )


def test_compares_clock_with_middle_of_successful_exchange() -> None:
    """The time of a retry must not count as clock skew."""
    cluster = create_cluster()
    cluster.control.when(api=ApiKey.DESCRIBE_QUORUM).fail(error_codes.LEADER_NOT_AVAILABLE)
    cluster.control.when(api=ApiKey.DESCRIBE_QUORUM, nth=2).delay(600)
    check = run_interactive_checks(cluster, Target(["t"]), thorough=True)[CLOCK]
    assert check.outcome is Outcome.PASSED
    assert "is 0.3 s" in check.detail


def test_new_check_needs_one_function_and_table_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Follow the recipe of docs/developing.md."""

    def evaluate(exchange: Exchange[MetadataResponse]) -> CheckResult:
        return CheckResult("cluster size", Outcome.PASSED, f"{len(exchange.response.brokers)} brokers")

    def cluster_size(target: Target, topics: Sequence[MetadataResponseTopic]) -> Iterator[RequestCheck[Any]]:
        yield RequestCheck("cluster size", DescribeTopics([]), evaluate)

    monkeypatch.setattr(run, "THOROUGH_CHECKS", (*cluster_checks.THOROUGH_CHECKS, cluster_size))
    assert run_interactive_checks(create_cluster(), Target(["t"]), thorough=True)["cluster size"].detail == "2 brokers"
    assert "cluster size" not in run_interactive_checks(create_cluster(), Target(["t"]))


def test_skips_check_of_unsupported_api_with_reason() -> None:
    cluster = create_cluster(version_limits={ApiKey.DESCRIBE_QUORUM: VersionRange(0, -1)})
    check = run_interactive_checks(cluster, Target(["t"]), thorough=True)[CLOCK]
    assert check.outcome is Outcome.SKIPPED
    assert "DESCRIBE_QUORUM" in check.detail


def test_skips_check_when_response_times_out() -> None:
    cluster = create_cluster()
    cluster.control.when(api=ApiKey.INIT_PRODUCER_ID, times=None).never_respond()
    started = cluster.system.now()
    check = run_interactive_checks(cluster, Target(["t"], idempotent=True))[IDEMPOTENT_WRITE]
    assert check.outcome is Outcome.SKIPPED
    assert cluster.system.now() - started < INTERACTIVE_TIMEOUTS.response_ms + 1_000


@pytest.mark.parametrize(
    ("ahead_ms", "outcome", "message"),
    [
        (0, Outcome.PASSED, "0.0 s"),
        (4_000, Outcome.PASSED, "4.0 s ahead of"),
        (60_000, Outcome.WARNING, "60.0 s ahead of"),
        (-60_000, Outcome.WARNING, "60.0 s behind"),
    ],
)
def test_warns_of_clock_skew(ahead_ms: int, outcome: Outcome, message: str) -> None:
    cluster = create_cluster()
    cluster.core.wall_ms = lambda: cluster.system.wall_ms() + ahead_ms
    check = run_interactive_checks(cluster, Target(["t"]), thorough=True)[CLOCK]
    assert check.outcome is outcome
    assert message in check.detail


@pytest.mark.parametrize(("max_record_bytes", "outcome"), [(None, Outcome.PASSED), (5_000_000, Outcome.WARNING)])
def test_warns_when_max_request_size_exceeds_topic_limit(max_record_bytes: int | None, outcome: Outcome) -> None:
    check = run_interactive_checks(create_cluster(), Target(["t"], max_record_bytes=max_record_bytes), thorough=True)[
        "largest message of t"
    ]
    assert check.outcome is outcome
    assert ("max.request.size is 5000000" in check.detail) == (outcome is Outcome.WARNING)


def test_suggests_existing_topic_for_missing_one() -> None:
    cluster = SimulatedCluster(FakeSystem(latency_ms=20), nodes=2, topics={"orders": 2, "events": 1})
    checks = run_interactive_checks(cluster, Target(["ordres", "zzz"], allow_auto_topic_creation=False))
    assert checks["topic ordres"].remedy.startswith("Did you mean 'orders'? Correct the name")
    assert checks["topic zzz"].remedy.startswith("Correct the name")


EXACTLY_ONCE_TARGET = Target(["t"], exactly_once=True, transactional_id="p-driver", transactional_id_prefix="p")


def test_doctor_passes_first_epoch_also_when_it_runs_again() -> None:
    cluster = create_cluster()
    for _ in range(2):
        assert (
            run_interactive_checks(cluster, EXACTLY_ONCE_TARGET, thorough=True)[FIRST_EPOCH].outcome is Outcome.PASSED
        )
    assert [*cluster.core.coordinator.transactions] == ["p-doctor"]
    assert FIRST_EPOCH not in run_interactive_checks(cluster, EXACTLY_ONCE_TARGET)


@pytest.mark.parametrize(
    ("code", "outcome", "message"),
    [
        (error_codes.INVALID_PRODUCER_ID_MAPPING, Outcome.FAILED, "Exactly-once delivery is not possible"),
        (error_codes.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, Outcome.SKIPPED, "see the check transactions"),
        (error_codes.INVALID_TRANSACTION_TIMEOUT, Outcome.WARNING, "transaction.max.timeout.ms"),
    ],
)
def test_doctor_evaluates_rejected_first_epoch(code: int, outcome: Outcome, message: str) -> None:
    cluster = create_cluster()
    cluster.control.when(api=ApiKey.INIT_PRODUCER_ID, times=None).fail(code)
    check = run_interactive_checks(cluster, EXACTLY_ONCE_TARGET, thorough=True)[FIRST_EPOCH]
    assert check.outcome is outcome
    assert message in str(check)
