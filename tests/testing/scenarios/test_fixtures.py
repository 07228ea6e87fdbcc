"""The fixtures of the pytest plugin."""

from __future__ import annotations

from spark_kafka_sink import KafkaProducer, ProducerRecord
from spark_kafka_sink.pytest_plugin import NewKafkaTopic
from spark_kafka_sink.testing import EmbeddedBroker, KafkaTopic
from tests.waiting import WAIT_TIMEOUT_SECONDS

shared_topics: list[tuple[EmbeddedBroker, str]] = []


def test_fixture_creates_topic_named_after_test(kafka_topic: KafkaTopic, session_kafka_broker: EmbeddedBroker) -> None:
    with KafkaProducer(kafka_topic.client_options) as producer:
        producer.send(ProducerRecord(kafka_topic.name, b"v")).result(WAIT_TIMEOUT_SECONDS)
        assert len(producer.partitions_for(kafka_topic.name)) == 3
    assert kafka_topic.read().num_rows == 1
    assert kafka_topic.name.startswith("test_fixture_creates_topic_named_after_test")
    shared_topics.append((session_kafka_broker, kafka_topic.name))


def test_session_broker_is_shared_and_topics_are_deleted_after_test(session_kafka_broker: EmbeddedBroker) -> None:
    for broker, topic in shared_topics:
        assert broker is session_kafka_broker
        assert topic not in broker.cluster.topics


def test_additional_topics_have_different_names(
    new_kafka_topic: NewKafkaTopic, session_kafka_broker: EmbeddedBroker
) -> None:
    first, second = new_kafka_topic(), new_kafka_topic(partitions=12, config={"cleanup.policy": "compact"})
    assert first.name != second.name
    assert len(session_kafka_broker.cluster.topic(second.name).partitions) == 12


def test_topic_that_the_test_deletes_does_not_keep_the_others(
    new_kafka_topic: NewKafkaTopic, session_kafka_broker: EmbeddedBroker
) -> None:
    deleted, other = new_kafka_topic(), new_kafka_topic()
    session_kafka_broker.control.delete_topic(deleted.name)
    shared_topics.append((session_kafka_broker, other.name))


def test_other_topics_are_deleted_after_a_test_that_deletes_a_topic() -> None:
    for broker, topic in shared_topics:
        assert topic not in broker.cluster.topics
