"""Option names in the producer's messages get the prefix `kafka.`, as in a Spark job."""

from __future__ import annotations

import re

import pytest

from spark_kafka_sink.errors import NetworkError
from spark_kafka_sink.spark.options.names import (
    JAVA_CLASS_OPTION_REMEDIES,
    NAMES_LEFT_ALONE,
    PRODUCER_OPTION_NAMES,
    TABLE_AND_FILE_OPTIONS,
    add_kafka_prefix,
    kafka_prefix_in_errors,
)
from spark_kafka_sink.spark.options.parse import parse_options
from spark_kafka_sink.spark.options.table import OPTION_NAMES_BY_LOWERCASE, SINK_OPTIONS


@pytest.mark.parametrize("name", [name for name in PRODUCER_OPTION_NAMES if name not in NAMES_LEFT_ALONE])
def test_adds_kafka_prefix_once_to_each_option_in_a_text(name: str) -> None:
    shown = add_kafka_prefix(f"{name} is wrong ({name}), compare {name}. Set {name}=1; not kafka.{name}: {name}")
    assert shown.count(f"kafka.{name}") == shown.count(name) == 6
    assert "kafka.kafka." not in shown
    assert add_kafka_prefix(shown) == shown


@pytest.mark.parametrize(
    "words",
    [
        "org.apache.kafka.common.security.plain.PlainLoginModule",
        "the topic's max.message.bytes, or transaction.max.timeout.ms of the broker",
        "schema.registry.ssl.keystore.location",
        "up to the retries of a task; as acks asks for",
        "kafka.linger.ms",
        "the topic has compression.type lz4, not zstd",
        "Another producer with the same transactional.id has started.",
    ],
)
def test_adds_no_prefix_to_other_words(words: str) -> None:
    assert add_kafka_prefix(words) == words


def test_adds_kafka_prefix_to_option_families() -> None:
    assert add_kafka_prefix("Check sasl.oauthbearer.*, please") == "Check kafka.sasl.oauthbearer.*, please"


def test_adds_kafka_prefix_to_message_and_remedy_of_an_error() -> None:
    with pytest.raises(NetworkError) as caught, kafka_prefix_in_errors():
        raise NetworkError("max.block.ms has passed.", address="b:9092", remedy="Check security.protocol.")
    assert str(caught.value) == "b:9092: kafka.max.block.ms has passed. Check kafka.security.protocol."


def test_remedies_for_java_classes_name_existing_options() -> None:
    named = {word for words in JAVA_CLASS_OPTION_REMEDIES.values() for word in re.findall(r"\b[a-z]+[A-Z]\w+", words)}
    assert named - {"DataFrames"} <= {*SINK_OPTIONS}
    assert set(JAVA_CLASS_OPTION_REMEDIES) <= set(PRODUCER_OPTION_NAMES)


def test_table_and_file_options_exclude_options_of_the_sink() -> None:
    assert not TABLE_AND_FILE_OPTIONS & {*OPTION_NAMES_BY_LOWERCASE}
    with pytest.raises(ValueError, match="Option 'mergeschema' is for tables or files"):
        parse_options({"kafka.bootstrap.servers": "a:1", "mergeSchema": "true"})
