"""What is said of a topic of which nothing is known: what was answered comes before what was not."""

from __future__ import annotations

from random import Random

import pytest

from spark_kafka_sink.client.cluster import Node
from spark_kafka_sink.client.metadata import Metadata
from tests.client.answers import metadata_answer, topic
from tests.client.test_metadata import CONFIG, answer, settled
from tests.fake_system import FakeSystem


@pytest.fixture
def metadata() -> Metadata:
    return Metadata([Node(-1, "b", 9092)], CONFIG, system=FakeSystem(), random=Random(5))


def test_describes_topic_missing_from_responses(metadata: Metadata) -> None:
    settled(metadata, "a")
    assert metadata.describe_missing_metadata("b").startswith("No broker has responded")
    metadata.add_topic("b", 10)
    answer(metadata, metadata_answer(), 10)
    assert (
        metadata.describe_missing_metadata("b") == "Brokers responded, but their response does not contain this topic."
    )
    metadata.request_update()
    answer(metadata, metadata_answer(topic("b")), 200)
    assert (
        metadata.describe_missing_metadata("a") == "Brokers responded, but their response does not contain this topic."
    )
    answer(metadata, metadata_answer(topic("a"), topic("b")), 400)
    assert metadata.describe_missing_metadata("a").startswith("No broker has responded")


def test_describes_response_without_brokers(metadata: Metadata) -> None:
    metadata.add_topic("b", 0)
    metadata.update_failed(0, "A broker responded, but its response contains no broker.")
    metadata.update_failed(100)
    assert metadata.describe_missing_metadata("b") == "A broker responded, but its response contains no broker."
    metadata.connection_failed(1, "b1:9092", "Connection refused")
    assert metadata.describe_missing_metadata("b") == "Tried: b1:9092: Connection refused"
