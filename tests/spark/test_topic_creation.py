"""createTopic: the driver creates a missing topic before the first task and compares an existing one."""

from __future__ import annotations

import dataclasses
import logging
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from spark_kafka_sink import register
from spark_kafka_sink.diagnostics.deferred_log import clear_logged_warnings
from spark_kafka_sink.errors import PreflightError
from spark_kafka_sink.protocol import error_codes
from spark_kafka_sink.protocol.message import ApiKey
from spark_kafka_sink.protocol.schema import VersionRange
from spark_kafka_sink.spark.checks import check_connection_and_create_topic
from spark_kafka_sink.spark.options.parse import parse_options
from spark_kafka_sink.testing import EmbeddedBroker, embedded_broker, run_stream, stream_of


@pytest.fixture(params=[True, False], ids=["auto create", "no auto create"])
def broker(request: pytest.FixtureRequest) -> Iterator[EmbeddedBroker]:
    clear_logged_warnings()
    with embedded_broker(auto_create_topics=request.param) as broker:
        yield broker


def options(broker: EmbeddedBroker, **overrides: str) -> dict[str, str]:
    creation_options = {
        "createTopic": "true",
        "createTopic.partitions": "3",
        "createTopic.config.cleanup.policy": "compact",
    }
    base_options = {"kafka.bootstrap.servers": broker.bootstrap_servers, "topic": "new", **creation_options}
    return base_options | {name.replace("__", "."): value for name, value in overrides.items()}


def check(broker: EmbeddedBroker, **overrides: str) -> None:
    check_connection_and_create_topic(parse_options(options(broker, **overrides)))


@pytest.mark.parametrize("checks", ["true", "false"])
def test_creates_missing_topic_with_options(broker: EmbeddedBroker, checks: str) -> None:
    check(broker, checkConnection=checks)
    created_topic = broker.cluster.topic("new")
    assert len(created_topic.partitions) == 3
    assert created_topic.config == {"cleanup.policy": "compact"}


@pytest.mark.parametrize("checks", ["true", "false"])
def test_next_write_recreates_deleted_topic(broker: EmbeddedBroker, checks: str) -> None:
    for _ in range(2):
        check(broker, checkConnection=checks)
        assert len(broker.cluster.topic("new").partitions) == 3
        broker.control.delete_topic("new")


def test_micro_batch_does_not_check_topic_again(broker: EmbeddedBroker) -> None:
    """A broker that restarts at the beginning of a micro-batch must not fail the stream."""
    parsed = parse_options(options(broker))
    check_connection_and_create_topic(parsed, is_stream=True)
    broker.control.delete_topic("new")
    check_connection_and_create_topic(parsed, is_stream=True)
    assert "new" not in broker.cluster.topics


def test_warns_about_existing_topic_that_differs_from_options(
    broker: EmbeddedBroker, caplog: pytest.LogCaptureFixture
) -> None:
    broker.control.create_topic("new", 2, {"cleanup.policy": "delete"})
    with caplog.at_level(logging.WARNING, "spark_kafka_sink"):
        check(broker)
        check(broker)
    (warning,) = caplog.messages
    assert "the topic exists and has 2 partitions, not 3; cleanup.policy delete, not compact" in warning
    assert len(broker.cluster.topic("new").partitions) == 2


def test_does_not_warn_about_existing_topic_that_matches_options(
    broker: EmbeddedBroker, caplog: pytest.LogCaptureFixture
) -> None:
    broker.control.create_topic("new", 3, {"cleanup.policy": "compact"})
    with caplog.at_level(logging.WARNING, "spark_kafka_sink"):
        check(broker)
    assert caplog.messages == []


def test_warns_when_topic_configs_cannot_be_described(broker: EmbeddedBroker, caplog: pytest.LogCaptureFixture) -> None:
    broker.control.create_topic("new", 3)
    broker.control.when(api=ApiKey.DESCRIBE_CONFIGS).fail(error_codes.TOPIC_AUTHORIZATION_FAILED)
    with caplog.at_level(logging.WARNING, "spark_kafka_sink"):
        check(broker)
    (warning,) = caplog.messages
    assert (
        "this user cannot see these settings: cleanup.policy. Grant this user the DescribeConfigs permission" in warning
    )


@pytest.mark.parametrize("checks", ["true", "false"])
@pytest.mark.parametrize(
    ("code", "message"),
    [
        (error_codes.POLICY_VIOLATION, "A cluster policy"),
        (error_codes.TOPIC_AUTHORIZATION_FAILED, "Grant this user the Create permission on the topic"),
    ],
)
def test_raises_rejection_of_topic_before_first_task(
    broker: EmbeddedBroker, code: int, message: str, checks: str
) -> None:
    broker.control.when(api=ApiKey.CREATE_TOPICS).fail(code)
    with pytest.raises(PreflightError, match=f"(?s)othing was written.*topic new.*{message}"):
        check(broker, checkConnection=checks)
    assert "new" not in broker.cluster.topics


@pytest.mark.parametrize(
    ("code", "names_options"),
    [
        (error_codes.INVALID_PARTITIONS, True),
        (error_codes.POLICY_VIOLATION, True),
        (error_codes.TOPIC_AUTHORIZATION_FAILED, False),
    ],
)
def test_rejection_names_options_that_configure_topic(broker: EmbeddedBroker, code: int, names_options: bool) -> None:
    broker.control.when(api=ApiKey.CREATE_TOPICS).fail(code)
    with pytest.raises(PreflightError) as error:
        check(broker, checkConnection="false")
    assert ("createTopic.partitions" in str(error.value)) is names_options


def test_connection_error_of_topic_creation_has_remedy(broker: EmbeddedBroker) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        servers = f"127.0.0.1:{unused.getsockname()[1]}"
        with pytest.raises(PreflightError) as error:
            check(broker, checkConnection="false", kafka__bootstrap__servers=servers, kafka__max__block__ms="200")
    assert "Connection refused. Check the host and port" in str(error.value)
    assert str(error.value).endswith("and that no firewall blocks the connection.")


def test_error_of_topic_creation_names_options_as_spark_job_does(broker: EmbeddedBroker) -> None:
    tls = {"kafka__security__protocol": "SSL", "kafka__ssl__truststore__location": "/missing/ca.pem"}
    message = r"^Cannot write to Kafka; nothing was written: kafka\.ssl\.truststore\.location is /missing"
    with pytest.raises(PreflightError, match=message):
        check(broker, checkConnection="false", **tls)


@pytest.mark.parametrize("checks", ["true", "false"])
def test_rejects_old_brokers_for_exactly_once_before_topic_creation(checks: str) -> None:
    with embedded_broker() as broker:
        limits = {ApiKey.LIST_TRANSACTIONS: VersionRange(0, -1)}
        broker.cluster.config = dataclasses.replace(broker.cluster.config, version_limits=limits)
        with pytest.raises(PreflightError, match=r"is older than Kafka 3\.0"):
            check(broker, deliveryGuarantee="exactly-once", transactionalIdPrefix="old", checkConnection=checks)
        assert "new" not in broker.cluster.topics


def test_rejects_more_replicas_than_brokers_with_both_numbers(broker: EmbeddedBroker) -> None:
    message = r"Replication factor 7 is invalid in a cluster of 1 node\..*\n.*at most as many replicas"
    with pytest.raises(PreflightError, match=message):
        check(broker, createTopic__replicationFactor="7")


@pytest.mark.needs("java")
def test_job_and_stream_create_their_topics(spark: SparkSession, tmp_path: Path) -> None:
    register(spark)
    with embedded_broker() as broker:
        rows = spark.range(9).selectExpr("CAST(id AS STRING) AS key", "CAST(id AS STRING) AS value")
        for guarantee in ("at-least-once", "exactly-once"):
            overrides = {"topic": f"batch-{guarantee}", "deliveryGuarantee": guarantee}
            rows.write.format("pykafka").options(**options(broker, **overrides)).save()
            assert len(broker.cluster.topic(overrides["topic"]).partitions) == 3
            assert broker.topic(overrides["topic"]).read().num_rows == 9
            stream = stream_of([rows], tmp_path / guarantee).writeStream.format("pykafka")
            overrides |= {
                "topic": f"stream-{guarantee}",
                "checkpointLocation": str(tmp_path / f"checkpoint-{guarantee}"),
            }
            run_stream(stream.options(**options(broker, **overrides)))
            assert len(broker.cluster.topic(overrides["topic"]).partitions) == 3
            assert broker.topic(overrides["topic"]).read().num_rows == 9
