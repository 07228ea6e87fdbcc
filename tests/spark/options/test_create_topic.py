"""The options `createTopic` and `createTopic.*`."""

from __future__ import annotations

import pytest

from spark_kafka_sink.client.new_topic import NewTopic
from spark_kafka_sink.errors import ConfigurationError
from spark_kafka_sink.spark.options.parse import parse_options

GIVEN = {"kafka.bootstrap.servers": "b:1", "topic": "t"}
CREATE = GIVEN | {"createTopic": "true"}


def problems(options: dict[str, str]) -> tuple[str, ...]:
    with pytest.raises(ConfigurationError) as raised:
        parse_options(options)
    return raised.value.problems


def test_returns_no_new_topic_without_create_topic() -> None:
    assert parse_options(GIVEN).new_topic is None
    assert parse_options(GIVEN | {"createTopic": "false"}).new_topic is None


def test_leaves_unset_topic_options_to_brokers() -> None:
    assert parse_options(CREATE).new_topic == NewTopic("t", -1, -1)


def test_new_topic_has_partitions_replicas_and_configs_of_options() -> None:
    more = {
        "createTopic.partitions": "12",
        "createTopic.replicationFactor": "3",
        "createTopic.config.cleanup.policy": "compact",
        "createtopic.config.retention.ms": " 60000 ",
    }
    settings = (("cleanup.policy", "compact"), ("retention.ms", "60000"))
    assert parse_options(CREATE | more).new_topic == NewTopic("t", 12, 3, settings)


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("createTopic", "yes", "Option 'createTopic' must be true or false. It is 'yes'."),
        ("createTopic.partitions", "0", "Option 'createTopic.partitions' must be -1 or a number from 1 to "),
        ("createTopic.replicationFactor", "three", "It is 'three'."),
        ("createTopic.config.Clean up", "x", "does not name a topic setting, such as cleanup.policy"),
        ("createTopic.partition", "3", "Did you mean 'createTopic.partitions'?"),
    ],
)
def test_rejects_invalid_values(name: str, value: str, words: str) -> None:
    (problem,) = problems(CREATE | {name: value})
    assert words in problem


@pytest.mark.parametrize("name", ["createTopic.partitions", "createTopic.config.retention.ms", "createTopic.config.*"])
def test_rejects_option_without_effect(name: str) -> None:
    assert problems(GIVEN | {name: "3"}) == (f"Option '{name}' has no effect unless 'createTopic' is 'true'.",)


def test_rejects_create_topic_for_topics_of_a_column() -> None:
    (problem,) = problems({"kafka.bootstrap.servers": "b:1", "createTopic": "true"})
    assert problem.startswith("Option 'createTopic' requires the option 'topic': ")
