"""Descriptions of missing metadata: responses are mentioned before failed connections."""

from __future__ import annotations

from random import Random

import pytest

from spark_kafka_sink.client.client_request import ConnectionLoss
from spark_kafka_sink.client.cluster import Node
from spark_kafka_sink.client.metadata import Metadata
from tests.client.metadata_responses import metadata_response, topic
from tests.client.test_metadata import CONFIG, add_known_topics, receive
from tests.fake_system import FakeSystem


@pytest.fixture
def metadata() -> Metadata:
    return Metadata([Node(-1, "b", 9092)], CONFIG, system=FakeSystem(), rng=Random(5))


def test_describes_topic_missing_from_responses(metadata: Metadata) -> None:
    add_known_topics(metadata, "a")
    assert metadata.describe_missing_metadata("b").startswith("No broker has responded")
    metadata.add_topic("b", 10)
    receive(metadata, metadata_response(), 10)
    assert (
        metadata.describe_missing_metadata("b") == "Brokers responded, but their response does not contain this topic."
    )
    metadata.request_update()
    receive(metadata, metadata_response(topic("b")), 200)
    assert (
        metadata.describe_missing_metadata("a") == "Brokers responded, but their response does not contain this topic."
    )
    receive(metadata, metadata_response(topic("a"), topic("b")), 400)
    assert metadata.describe_missing_metadata("a").startswith("No broker has responded")


def test_describes_response_without_brokers(metadata: Metadata) -> None:
    metadata.add_topic("b", 0)
    metadata.record_update_failure(0, "A broker responded, but its response contains no broker.")
    metadata.record_update_failure(100)
    assert metadata.describe_missing_metadata("b") == "A broker responded, but its response contains no broker."
    metadata.record_connection_failure(1, "b1:9092", ConnectionLoss("Connection refused"))
    assert metadata.describe_missing_metadata("b").startswith("Tried: b1:9092: Connection refused. Check the host")
