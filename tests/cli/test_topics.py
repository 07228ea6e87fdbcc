"""`pykafka topics` against an embedded broker on the loopback interface."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pyarrow as pa
import pytest

from spark_kafka_sink import KafkaProducer, RecordColumns
from spark_kafka_sink.cli.main import main
from spark_kafka_sink.testing import EmbeddedBroker, embedded_broker

Output = pytest.CaptureFixture[str]


@pytest.fixture
def broker() -> Iterator[EmbeddedBroker]:
    with embedded_broker({"t": 2, "a": 1}, nodes=2) as broker:
        yield broker


def topics(broker: EmbeddedBroker, *arguments: str) -> int:
    return main(["topics", "--bootstrap-server", broker.bootstrap_servers, *arguments])


def test_lists_topics_by_name(capsys: Output, broker: EmbeddedBroker) -> None:
    assert topics(broker) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert rows[0] == ["topic", "partitions", "replicas"]
    assert rows[2:] == [["a", "1", "2"], ["t", "2", "2"]]
    assert topics(broker, "--json") == 0
    assert json.loads(capsys.readouterr().out)[0] == {"topic": "a", "partitions": 1, "replicas": 2}


def test_describes_named_topic(capsys: Output, broker: EmbeddedBroker) -> None:
    with KafkaProducer({"bootstrap.servers": broker.bootstrap_servers}) as producer:
        producer.send_columns("t", RecordColumns(pa.array([b"x"] * 3)), 1).result()
    assert topics(broker, "t", "--json") == 0
    first, second = json.loads(capsys.readouterr().out)
    assert (first["partition"], first["leader"], first["end_offset"]) == (0, 0, 0)
    assert second == {
        "topic": "t",
        "partition": 1,
        "leader": 1,
        "replicas": [1, 0],
        "in_sync": [1, 0],
        "first_offset": 0,
        "end_offset": 3,
    }
    assert topics(broker, "t") == 0
    assert capsys.readouterr().out.splitlines()[3].split() == ["t", "1", "1", "1,0", "1,0", "0", "3", "3"]


def test_shows_leaderless_partition_without_offsets(capsys: Output, broker: EmbeddedBroker) -> None:
    broker.cluster.topic("t").partitions[1].leader = None
    assert topics(broker, "t") == 0
    assert capsys.readouterr().out.splitlines()[3].split() == ["t", "1", "none", "1,0", "1,0", "?", "?", "?"]


def test_prints_error_for_missing_topic_and_refused_connection(capsys: Output, broker: EmbeddedBroker) -> None:
    assert topics(broker, "nope") == 1
    assert "Topic 'nope' does not exist" in capsys.readouterr().err
    assert main(["topics", "--bootstrap-server", "127.0.0.1:1"]) == 1
    assert "Connection refused" in (errors := capsys.readouterr().err)
    assert "Traceback" not in errors


def test_prints_message_without_topics(capsys: Output) -> None:
    with embedded_broker() as broker:
        assert topics(broker) == 0
    assert capsys.readouterr().out == "There are no topics that this user is authorized to describe.\n"
