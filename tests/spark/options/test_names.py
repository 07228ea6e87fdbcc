"""Option names in the producer's messages get the prefix `kafka.`, as in a Spark job."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import spark_kafka_sink
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

PACKAGE = Path(spark_kafka_sink.__file__).parent


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
        "/etc/secrets/ssl.key.password cannot be read",
        "No such file or directory: 'ssl.keystore.location'",
        "Topic 'batch.size' does not exist.",
        'the principal "ssl.protocol"',
    ],
)
def test_adds_no_prefix_to_other_words(words: str) -> None:
    assert add_kafka_prefix(words) == words


def test_messages_of_the_producer_do_not_quote_its_options() -> None:
    """`add_kafka_prefix` takes a quoted name for a value."""
    names = "|".join(map(re.escape, PRODUCER_OPTION_NAMES))
    paths = [path for path in PACKAGE.rglob("*.py") if not path.is_relative_to(PACKAGE / "spark")]
    assert len(paths) > 100
    for path in paths:
        # Messages are in double quotes in the source, so they quote with single quotes.
        assert not re.findall(rf"'(?:{names})'", path.read_text()), path


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
    assert not {name.lower() for name in TABLE_AND_FILE_OPTIONS} & {*OPTION_NAMES_BY_LOWERCASE}
    with pytest.raises(ValueError, match="Option 'mergeSchema' is for tables or files"):
        parse_options({"kafka.bootstrap.servers": "a:1", "mergeSchema": "true"})
