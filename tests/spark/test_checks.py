"""The checks before a write, without Spark running, and when they connect to Kafka."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql.types import LongType, StringType, StructField, StructType

from spark_kafka_sink.diagnostics.deferred_log import clear_logged_warnings
from spark_kafka_sink.errors import KafkaSinkError, PreflightError
from spark_kafka_sink.preflight import Outcome, Target
from spark_kafka_sink.protocol import error_codes
from spark_kafka_sink.protocol.message import ApiKey
from spark_kafka_sink.spark.checks import check_and_plan_write, check_connection_and_create_topic
from spark_kafka_sink.spark.options.parse import parse_options
from spark_kafka_sink.testing import embedded_broker
from tests.spark.fake_preflight import Preflights

SERVERS = {"kafka.bootstrap.servers": "a:1"}
VALUE = StructType([StructField("value", StringType())])


def test_repeats_connection_check_only_after_failure(preflights: Preflights) -> None:
    options = parse_options(SERVERS | {"topic": "t"})
    preflights.outcome = Outcome.FAILED
    for _ in range(2):
        with pytest.raises(PreflightError, match=r'connection refused[\s\S]*"checkConnection", "false"'):
            check_connection_and_create_topic(options)
    preflights.outcome = Outcome.PASSED
    for _ in range(2):
        check_connection_and_create_topic(options)
    assert len(preflights.targets) == 3
    check_connection_and_create_topic(parse_options(SERVERS | {"topic": "other"}))
    assert len(preflights.targets) == 4


CONFLICT = {"topic": "t", "kafka.group.id": "g", "kafka.acks": "1"}
"""Options that cause two warnings: one is ignored, and another one disables idempotence."""


def test_logs_no_warning_when_a_check_fails(preflights: Preflights, caplog: pytest.LogCaptureFixture) -> None:
    clear_logged_warnings()
    for options, schema in (
        (SERVERS | CONFLICT | {"tpoic": "t"}, VALUE),
        (SERVERS | CONFLICT, StructType([StructField("value", LongType())])),
        (SERVERS | CONFLICT, VALUE),
    ):
        preflights.outcome = Outcome.FAILED
        with pytest.raises(KafkaSinkError):
            check_and_plan_write(options, schema)
    assert caplog.messages == []
    preflights.outcome = Outcome.PASSED
    check_and_plan_write(SERVERS | CONFLICT, VALUE)
    assert [message.partition(",")[0] for message in dict.fromkeys(caplog.messages)] == [
        "Ignored options of Spark's Kafka source",
        "Disabled idempotence",
    ]


@pytest.fixture
def unused_port() -> Iterator[int]:
    """Yield a port that refuses connections, because a socket is bound to it but does not listen."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]


def test_logs_connection_messages_only_when_the_check_passes(
    caplog: pytest.LogCaptureFixture, unused_port: int
) -> None:
    with embedded_broker({"t": 1}) as broker:
        sink_options = {"topic": "t", "kafka.bootstrap.servers": f"{broker.bootstrap_servers},127.0.0.1:{unused_port}"}
        check_and_plan_write(sink_options, VALUE)
    assert any("Connection refused" in message for message in caplog.messages)
    caplog.clear()
    with pytest.raises(PreflightError, match="Connection refused"):
        check_and_plan_write(sink_options | {"kafka.bootstrap.servers": f"127.0.0.1:{unused_port}"}, VALUE)
    assert caplog.messages == []


PAGE = Path(__file__).resolve().parents[2] / "docs" / "exactly-once.md"


@pytest.mark.parametrize("prefix", ["orders", None])
def test_error_about_transactional_id_permission_matches_exactly_once_page(prefix: str | None) -> None:
    sink_options = {"topic": "t", "deliveryGuarantee": "exactly-once", "checkpointLocation": "/checkpoints/orders"}
    sink_options |= {} if prefix is None else {"transactionalIdPrefix": prefix}
    with embedded_broker({"t": 1}) as broker:
        broker.control.when(api=ApiKey.END_TXN, times=None).fail(error_codes.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
        with pytest.raises(PreflightError) as error:
            check_and_plan_write(sink_options | {"kafka.bootstrap.servers": broker.bootstrap_servers}, VALUE)
    if prefix is not None:
        assert f"\n{error.value}\n" in PAGE.read_text()
    else:
        assert "the transactional id pykafka-check-" in str(error.value)
        assert "on all transactional ids with the prefix pykafka-." in str(error.value)


def test_preflight_error_names_options_with_kafka_prefix(preflights: Preflights) -> None:
    preflights.outcome = Outcome.FAILED
    preflights.remedy = "Check user and password in sasl.jaas.config."
    with pytest.raises(PreflightError, match=r"password in kafka\.sasl\.jaas\.config\."):
        check_connection_and_create_topic(parse_options(SERVERS | {"topic": "t"}))


@pytest.mark.parametrize("guarantee", ["at-least-once", "exactly-once"])
def test_does_not_suggest_skipping_the_check_with_exactly_once(preflights: Preflights, guarantee: str) -> None:
    clear_logged_warnings()
    preflights.outcome = Outcome.FAILED
    with pytest.raises(PreflightError) as error:
        check_connection_and_create_topic(parse_options(SERVERS | {"topic": "t", "deliveryGuarantee": guarantee}))
    assert ("checkConnection" in str(error.value)) == (guarantee == "at-least-once")


def test_does_not_suggest_skipping_the_check_after_kafka_responded(preflights: Preflights) -> None:
    preflights.outcome = Outcome.FAILED
    preflights.is_connectivity_failure = False
    with pytest.raises(PreflightError) as error:
        check_connection_and_create_topic(parse_options(SERVERS | {"topic": "t"}))
    assert "checkConnection" not in str(error.value)


def test_checks_topics_of_options_and_all_brokers_for_a_topic_column(
    preflights: Preflights,
) -> None:
    letters = {"onRecordError": "deadLetter", "deadLetterTopic": "dead"}
    check_connection_and_create_topic(parse_options(SERVERS | {"topic": "t"} | letters))
    check_connection_and_create_topic(parse_options(SERVERS | letters))
    check_connection_and_create_topic(parse_options(SERVERS))
    assert preflights.targets == [
        Target(("t", "dead"), topic_option_names=(("dead", "deadLetterTopic"),), idempotent=True),
        Target(("dead",), topic_option_names=(("dead", "deadLetterTopic"),), connect_all_brokers=True, idempotent=True),
        Target((), connect_all_brokers=True, idempotent=True),
    ]


def test_skips_check_with_check_connection_false(preflights: Preflights) -> None:
    check_connection_and_create_topic(parse_options(SERVERS | {"topic": "t", "checkConnection": "false"}))
    assert preflights.targets == []
