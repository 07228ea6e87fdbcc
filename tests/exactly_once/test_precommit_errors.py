"""Errors before a commit: brokers without the required APIs are rejected before a task starts."""

from __future__ import annotations

import dataclasses

import pytest

from spark_kafka_sink.broker.cluster import ClusterConfig
from spark_kafka_sink.broker.listener_config import ListenerConfig
from spark_kafka_sink.errors import BrokerError, PreflightError
from spark_kafka_sink.exactly_once import commit_errors, precommit_errors
from spark_kafka_sink.exactly_once.batch_content import BatchContent
from spark_kafka_sink.exactly_once.driver import Driver
from spark_kafka_sink.exactly_once.entries import Batch, Entry
from spark_kafka_sink.exactly_once.transaction_names import TaskAttempt, build_task_id
from spark_kafka_sink.protocol import error_codes
from spark_kafka_sink.protocol.error_codes import build_broker_error
from spark_kafka_sink.protocol.message import ApiKey
from spark_kafka_sink.protocol.schema import VersionRange
from spark_kafka_sink.requests.transaction_identity import TransactionIdentity
from spark_kafka_sink.testing import EmbeddedBroker
from tests.exactly_once.embedded_query import Query

ABSENT = VersionRange(1, 0)
OF_KAFKA_3 = (ApiKey.LIST_TRANSACTIONS, ApiKey.DESCRIBE_TRANSACTIONS)


@pytest.mark.parametrize("is_single_use", [True, False], ids=["job", "stream"])
@pytest.mark.parametrize("absent", [OF_KAFKA_3, (ApiKey.INIT_PRODUCER_ID,)], ids=["before 3.0", "no transactions"])
def test_rejects_brokers_without_transactions_before_the_first_row(
    absent: tuple[ApiKey, ...], *, is_single_use: bool
) -> None:
    config = ClusterConfig(version_limits=dict.fromkeys(absent, ABSENT))
    with EmbeddedBroker(config, ListenerConfig()) as broker:
        delivery = dataclasses.replace(Query(broker).delivery, is_single_use=is_single_use)
        with Driver(delivery) as driver, pytest.raises(PreflightError) as refused:
            driver.begin("driver-1")
    assert "nothing was written" in str(refused.value)
    assert "Exactly-once delivery requires Kafka 3.0 or newer" in str(refused.value)


@pytest.mark.parametrize("code", [error_codes.INVALID_TXN_STATE, error_codes.POLICY_VIOLATION], ids=["lost", "not yet"])
@pytest.mark.parametrize(("many", "shown_count", "last"), [(20, 20, "p-1-9-0"), (300, 21, "and 280 more")])
def test_error_names_first_transactions_and_counts_the_others(
    code: int, many: int, shown_count: int, last: str
) -> None:
    names = [build_task_id("p", TaskAttempt(1, partition, 0)) for partition in range(many)]
    written = tuple(TransactionIdentity(name, 4711, 12, 2) for name in names)
    entry = Entry("p").with_decision(Batch("q", 1), BatchContent.from_row_counts({"t": many}, many), written)
    error = commit_errors.build_not_committed_error(entry, {name: build_broker_error(code, name) for name in names})
    lines = [line for line in str(error).splitlines() if line.startswith("- ")]
    assert len(lines) == shown_count
    assert lines[-1].startswith(f"- {last}")


def test_other_rejections_of_tasks_are_not_converted() -> None:
    refused = build_broker_error(error_codes.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, "transactional id p-1-0-0")
    with pytest.raises(BrokerError) as raised, precommit_errors.convert_timeout_errors(is_user_timeout=True):
        raise refused
    assert raised.value is refused
