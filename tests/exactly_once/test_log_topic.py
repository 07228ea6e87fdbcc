"""Settings of the decision log's topic: a topic that is not compacted is rejected before the first row."""

from __future__ import annotations

import dataclasses
import logging
from typing import Any

import pytest

from spark_kafka_sink.broker.context import RequestContext
from spark_kafka_sink.broker.handlers import load_handler
from spark_kafka_sink.errors import BrokerError, PreflightError
from spark_kafka_sink.exactly_once.decision_log import DecisionLog
from spark_kafka_sink.exactly_once.driver import Driver
from spark_kafka_sink.exactly_once.settings import ExactlyOnceOptions
from spark_kafka_sink.producer.config import ProducerConfig
from spark_kafka_sink.protocol import error_codes
from spark_kafka_sink.protocol.message import ApiKey
from spark_kafka_sink.protocol.schema import VersionRange
from spark_kafka_sink.testing import EmbeddedBroker
from tests.exactly_once.embedded_query import LOG, Query, connect_client, read_values, rows
from tests.exactly_once.embedded_query import broker as broker


def create_if_missing(broker: EmbeddedBroker) -> None:
    config = ProducerConfig.parse({"bootstrap.servers": broker.bootstrap_servers}).client_config()
    with connect_client(broker) as client:
        DecisionLog(config, LOG, client).create_if_missing()


@pytest.mark.parametrize("settings", [{}, {"cleanup.policy": "delete"}, {"cleanup.policy": "compact,delete"}])
def test_rejects_log_that_is_not_compacted_before_the_first_row(
    broker: EmbeddedBroker, settings: dict[str, str]
) -> None:
    broker.control.create_topic(LOG, 1, settings)
    policy = settings.get("cleanup.policy", "delete")
    for _ in range(2):
        with pytest.raises(PreflightError, match=rf"nothing was written: topic {LOG}, .* cleanup.policy={policy}\."):
            Query(broker).begin()


def test_uses_compacted_log_created_by_user(broker: EmbeddedBroker) -> None:
    broker.control.create_topic(LOG, 1, {"cleanup.policy": "compact"})
    Query(broker).run(0)
    assert read_values(broker) == rows(0)


@pytest.mark.parametrize("code", [error_codes.TOPIC_AUTHORIZATION_FAILED, error_codes.CLUSTER_AUTHORIZATION_FAILED])
def test_warns_if_cleanup_policy_may_not_be_described(
    broker: EmbeddedBroker, code: int, caplog: pytest.LogCaptureFixture
) -> None:
    broker.control.when(api=ApiKey.DESCRIBE_CONFIGS).fail(code)
    with caplog.at_level(logging.WARNING, "spark_kafka_sink"):
        create_if_missing(broker)
    (warning,) = [record.getMessage() for record in caplog.records if "cleanup.policy" in record.getMessage()]
    assert warning.startswith(f"Could not read the cleanup.policy of topic {LOG}, the decision log")
    assert "AUTHORIZATION_FAILED" in warning


def test_warns_if_brokers_do_not_support_describe_configs(
    broker: EmbeddedBroker, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    without = dataclasses.replace(broker.cluster.config, version_limits={ApiKey.DESCRIBE_CONFIGS: VersionRange(1, 0)})
    monkeypatch.setattr(broker.cluster, "config", without)
    with caplog.at_level(logging.WARNING, "spark_kafka_sink"):
        create_if_missing(broker)
    assert "Could not read the cleanup.policy" in caplog.text


def test_warns_if_response_lacks_cleanup_policy(
    broker: EmbeddedBroker, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    handle = load_handler(ApiKey.DESCRIBE_CONFIGS).handle

    def without(context: RequestContext, request: Any) -> Any:
        response: Any = handle(context, request)
        for row in response.results:
            row.configs.clear()
        return response

    monkeypatch.setattr(load_handler(ApiKey.DESCRIBE_CONFIGS), "handle", without)
    with caplog.at_level(logging.WARNING, "spark_kafka_sink"):
        create_if_missing(broker)
    assert "The broker does not report the cleanup.policy of topics" in caplog.text


def test_rejects_brokers_without_list_transactions_before_creating_the_log(
    broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = {ApiKey.LIST_TRANSACTIONS: VersionRange(0, -1), ApiKey.DESCRIBE_TRANSACTIONS: VersionRange(0, -1)}
    monkeypatch.setattr(broker.cluster, "config", dataclasses.replace(broker.cluster.config, version_limits=limits))
    creation = broker.control.when(api=ApiKey.CREATE_TOPICS, times=None).delay(0)
    with pytest.raises(PreflightError, match=r"nothing was written: .* requires Kafka 3\.0 or newer"):
        Query(broker).begin()
    assert creation.request_count == 0


def test_rejects_brokers_that_do_not_accept_an_identity_for_an_unknown_id(broker: EmbeddedBroker) -> None:
    """kfake, the broker of franz-go, responds like this."""
    broker.control.when(api=ApiKey.INIT_PRODUCER_ID).fail(error_codes.INVALID_PRODUCER_ID_MAPPING)
    with pytest.raises(PreflightError, match=r"nothing was written: .* Apache Kafka accepts such a request"):
        Query(broker).begin()


def test_retries_retriable_errors_and_raises_others(broker: EmbeddedBroker) -> None:
    rule = broker.control.when(api=ApiKey.DESCRIBE_CONFIGS, times=2).fail(error_codes.UNKNOWN_TOPIC_OR_PARTITION)
    broker.control.when(api=ApiKey.DESCRIBE_CONFIGS, nth=3).drop()
    broker.control.when(api=ApiKey.DESCRIBE_CONFIGS, nth=4).fail(error_codes.INVALID_CONFIG)
    with pytest.raises(BrokerError, match="settings was rejected: INVALID_CONFIG"):
        create_if_missing(broker)
    assert rule.request_count == 4


def test_checks_each_log_once_per_process(broker: EmbeddedBroker) -> None:
    rule = broker.control.when(api=ApiKey.DESCRIBE_CONFIGS, times=None).delay(0)
    for number in range(3):
        Query(broker).run(number)
    assert rule.request_count == 1


def test_creates_log_with_requested_replication(broker: EmbeddedBroker) -> None:
    settings = dataclasses.replace(
        Query(broker).settings, options=ExactlyOnceOptions(log_topic=LOG, log_replication_factor=3)
    )
    with (
        Driver(settings) as driver,
        pytest.raises(PreflightError, match="Replication factor 3 is invalid in a cluster of 2 nodes"),
    ):
        driver.begin("driver-1")
    assert LOG not in broker.cluster.topics


@pytest.mark.parametrize("value", ["true", "false"])
def test_warns_about_unclean_leader_election(
    broker: EmbeddedBroker, caplog: pytest.LogCaptureFixture, value: str
) -> None:
    broker.control.create_topic(LOG, 1, {"cleanup.policy": "compact", "unclean.leader.election.enable": value})
    with caplog.at_level(logging.WARNING, "spark_kafka_sink"):
        create_if_missing(broker)
    warnings = [record.getMessage() for record in caplog.records if "unclean" in record.getMessage()]
    assert len(warnings) == (value == "true")
    assert all("written twice" in warning for warning in warnings)


def test_warns_about_single_replica_on_cluster(broker: EmbeddedBroker, caplog: pytest.LogCaptureFixture) -> None:
    broker.control.create_topic(LOG, 1, {"cleanup.policy": "compact"})
    for partition in broker.cluster.topic(LOG).partitions:
        partition.replicas = partition.replicas[:1]
    with caplog.at_level(logging.WARNING, "spark_kafka_sink"):
        create_if_missing(broker)
    (warning,) = [record.getMessage() for record in caplog.records if "replica" in record.getMessage()]
    assert warning.startswith(f"Topic {LOG}, the decision log, has only one replica although the cluster has 2 brokers")
    assert "decisionLogReplication" in warning
