"""createTopic on a real Kafka cluster: created topics, compared settings, and the messages of rejected creations."""

from __future__ import annotations

import json
import logging
import uuid
from pathlib import Path

import pytest

from integration.support.kafka_cluster import KafkaCluster
from spark_kafka_sink.cli.main import main
from spark_kafka_sink.errors import PreflightError
from spark_kafka_sink.spark.checks import check_connection_and_create_topic
from spark_kafka_sink.spark.options.parse import parse_options

pytestmark = pytest.mark.needs("kafka")


def options(kafka: KafkaCluster, topic: str, **overrides: str) -> dict[str, str]:
    options = {
        "kafka.bootstrap.servers": kafka.bootstrap(),
        "topic": topic,
        "createTopic": "true",
        "createTopic.partitions": "5",
        "createTopic.config.cleanup.policy": "compact",
    }
    return options | {name.replace("__", "."): value for name, value in overrides.items()}


def test_creates_topic_once_and_compares_it_afterwards(
    kafka: KafkaCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    topic = f"made-{uuid.uuid4().hex[:8]}"
    settings = tmp_path / "job.json"
    settings.write_text(json.dumps(options(kafka, topic)))
    assert main(["doctor", "--spark-conf", str(settings)]) == 0
    assert f"creation of topic {topic}: possible: partitions 5" in capsys.readouterr().out
    check_connection_and_create_topic(parse_options(options(kafka, topic)))
    assert main(["topics", topic, "--bootstrap-server", kafka.bootstrap(), "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)) == 5
    assert main(["doctor", "--spark-conf", str(settings)]) == 0
    assert f"creation of topic {topic}: the topic exists and matches the options" in capsys.readouterr().out
    with caplog.at_level(logging.WARNING, "spark_kafka_sink"):
        check_connection_and_create_topic(parse_options(options(kafka, topic, createTopic__partitions="6")))
    assert "5 partitions, not 6" in caplog.text


@pytest.mark.parametrize("checks", ["true", "false"])
@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"createTopic__replicationFactor": "9"}, r"INVALID_REPLICATION_FACTOR(?s:.*)as many replicas as there are"),
        ({"createTopic__config__cleanup__policy": "burn"}, r"INVALID_CONFIG(?s:.*)Correct the setting"),
        ({"createTopic__config__no__such__setting": "1"}, r"INVALID_CONFIG(?s:.*)Correct the setting"),
    ],
)
def test_preflight_reports_topic_settings_that_broker_rejects(
    kafka: KafkaCluster, overrides: dict[str, str], message: str, checks: str
) -> None:
    with pytest.raises(PreflightError, match=message):
        check_connection_and_create_topic(
            parse_options(options(kafka, f"refused-{uuid.uuid4().hex[:8]}", checkConnection=checks, **overrides))
        )
