"""NewTopic: its request, its differences from an existing topic, and the remedies of errors."""

from __future__ import annotations

import pytest

from spark_kafka_sink.client.new_topic import NewTopic, find_remedy
from spark_kafka_sink.protocol import error_codes


def test_unset_values_use_broker_defaults() -> None:
    (topic,) = NewTopic("t").build_request().topics
    assert (topic.num_partitions, topic.replication_factor, topic.configs) == (-1, -1, [])
    assert str(NewTopic("t", 3)) == "partitions 3, replicas (broker default)"


def test_compares_only_requested_settings() -> None:
    new_topic = NewTopic("t", 12, -1, (("cleanup.policy", "compact"),))
    assert list(new_topic.find_differences(12, 1, {"cleanup.policy": "compact", "retention.ms": "1"})) == []
    assert list(new_topic.find_differences(6, 3, {"cleanup.policy": "delete"})) == [
        "6 partitions, not 12",
        "cleanup.policy delete, not compact",
    ]
    assert list(NewTopic("t", -1, 3).find_differences(6, 1, {})) == ["1 replicas, not 3"]


@pytest.mark.parametrize(
    ("code", "message"),
    [
        (error_codes.TOPIC_AUTHORIZATION_FAILED, "the Create permission"),
        (error_codes.CLUSTER_AUTHORIZATION_FAILED, "the Create permission"),
        (error_codes.POLICY_VIOLATION, "create.topic.policy.class.name"),
        (error_codes.INVALID_REPLICATION_FACTOR, "at most as many replicas as there are brokers"),
        (error_codes.INVALID_PARTITIONS, "-1 for the brokers' default"),
        (error_codes.INVALID_CONFIG, "names and values are those of Kafka's topic settings"),
    ],
)
def test_remedy_of_creation_error(code: int, message: str) -> None:
    assert message in find_remedy(code)
