"""The options of createTopic."""

from __future__ import annotations

import pytest

from spark_kafka_sink.client.new_topic import NewTopic
from spark_kafka_sink.errors import ConfigurationError
from spark_kafka_sink.spark.options.parse import parse_options

GIVEN = {"kafka.bootstrap.servers": "b:1", "topic": "t"}
CREATE = GIVEN | {"createTopic": "true"}


def faults(options: dict[str, str]) -> tuple[str, ...]:
    with pytest.raises(ConfigurationError) as refused:
        parse_options(options)
    return refused.value.faults


def test_without_the_option_no_topic_is_made() -> None:
    assert parse_options(GIVEN).new_topic is None
    assert parse_options(GIVEN | {"createTopic": "false"}).new_topic is None


def test_what_is_not_said_is_left_to_the_brokers() -> None:
    assert parse_options(CREATE).new_topic == NewTopic("t", -1, -1)


def test_partitions_replicas_and_settings_are_those_of_the_options() -> None:
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
def test_what_is_wrong_is_refused(name: str, value: str, words: str) -> None:
    (fault,) = faults(CREATE | {name: value})
    assert words in fault


@pytest.mark.parametrize("name", ["createTopic.partitions", "createTopic.config.retention.ms"])
def test_an_option_that_would_have_no_effect_is_refused(name: str) -> None:
    assert faults(GIVEN | {name: "3"}) == (f"Option '{name}' has no effect unless 'createTopic' is 'true'.",)


def test_topics_of_a_column_are_not_made() -> None:
    (fault,) = faults({"kafka.bootstrap.servers": "b:1", "createTopic": "true"})
    assert fault.startswith("Option 'createTopic' requires the option 'topic': ")
