"""Suggestions for option names of other clients, which name supported options."""

from __future__ import annotations

import re
from pathlib import Path

import kafka
import pytest

from spark_kafka_sink.client.option_suggestions import (
    KAFKA_PYTHON_OPTIONS,
    LIBRDKAFKA_OPTIONS,
    OPTIONS_WITHOUT_REPLACEMENT,
    build_unknown_option_problem,
    suggest_option,
)
from spark_kafka_sink.errors import OptionSpelling
from spark_kafka_sink.network.security_options import SECURITY_OPTIONS
from spark_kafka_sink.producer.options import PRODUCER_OPTIONS

KNOWN = {*PRODUCER_OPTIONS, *SECURITY_OPTIONS}
LIBRDKAFKA_NAMES = Path(__file__).with_name("librdkafka_options.txt").read_text().split()
"""All option names in librdkafka's CONFIGURATION.md."""
OTHER_NAMES = {*LIBRDKAFKA_NAMES, *kafka.KafkaProducer.DEFAULT_CONFIG} - KNOWN


@pytest.mark.parametrize("name", [*LIBRDKAFKA_OPTIONS, *KAFKA_PYTHON_OPTIONS, *OPTIONS_WITHOUT_REPLACEMENT])
def test_foreign_names_lead_to_supported_options(name: str) -> None:
    assert name not in KNOWN
    suggestion = suggest_option(name, KNOWN).text
    assert re.match(r"That is (librdkafka|kafka-python)'s name\. (Instead, use|The option is) ", suggestion)
    assert "use not " not in suggestion, "not a sentence"
    named = re.findall(r"\{([^}]+)\}", suggestion)
    unsupported_names = {name for name, option in PRODUCER_OPTIONS.items() if option.unsupported_reason}
    unsupported_names |= {name for name, option in SECURITY_OPTIONS.items() if option.unsupported_reason}
    assert all(option in KNOWN and option not in unsupported_names for option in named)


@pytest.mark.parametrize(
    "name", sorted(OTHER_NAMES - {*LIBRDKAFKA_OPTIONS, *KAFKA_PYTHON_OPTIONS, *OPTIONS_WITHOUT_REPLACEMENT})
)
def test_suggests_no_option_that_is_only_similar_to_name_of_another_client(name: str) -> None:
    java_name = name.replace("_", ".")
    expected = f"Use the name with dots: {{{java_name}}}." if java_name in KNOWN else ""
    assert suggest_option(name, KNOWN).text == expected


def test_suggests_complete_login_module_for_oauthbearer_extensions() -> None:
    suggestion = suggest_option("sasl.oauthbearer.extensions", KNOWN).text
    module = 'org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required extension_<name>="<value>";'
    assert suggestion == f"That is librdkafka's name. Instead, use {{sasl.jaas.config}}: {module}"


def test_suggests_option_name() -> None:
    assert (
        suggest_option("message.timeout.ms", KNOWN).text
        == "That is librdkafka's name. Instead, use {delivery.timeout.ms}."
    )
    assert suggest_option("max_block_ms", KNOWN).text == "Use the name with dots: {max.block.ms}."
    assert suggest_option("lingr.ms", KNOWN).text == "Did you mean {linger.ms}?"
    assert suggest_option("zzzzzz", KNOWN).text == ""


@pytest.mark.parametrize("name", ["consumer.poll.timeout.ms", "consumer.pollTimeoutMs", "num.partitions"])
def test_suggests_no_unrelated_option(name: str) -> None:
    assert suggest_option(name, KNOWN).text == ""


@pytest.mark.parametrize(
    ("name", "known_name"), [("batch", "batch.size"), ("timeout.ms", "request.timeout.ms"), ("retry", "retries")]
)
def test_suggests_option_whose_name_is_only_partly_given(name: str, known_name: str) -> None:
    assert suggest_option(name, KNOWN).text == f"Did you mean {{{known_name}}}?"


def test_spells_unknown_option_and_suggestion_like_the_user() -> None:
    problem = build_unknown_option_problem("lingr.ms", KNOWN, "producer")
    assert problem.render() == "lingr.ms is not an option of the Kafka producer. Did you mean linger.ms?"
    in_spark = problem.render(OptionSpelling("kafka.{}".format))
    assert in_spark == "kafka.lingr.ms is not an option of the Kafka producer. Did you mean kafka.linger.ms?"


def test_suggests_file_in_place_of_private_key() -> None:
    suggestion = suggest_option("sasl.oauthbearer.assertion.private.key.pem", KNOWN).text
    assert suggestion.endswith("{sasl.oauthbearer.assertion.private.key.file}, the path of a file with the key.")


def test_suggests_complete_jaas_config() -> None:
    suggestion = suggest_option("sasl.username", KNOWN).text
    assert 'org.apache.kafka.common.security.plain.PlainLoginModule required username="<user>"' in suggestion
    assert 'org.apache.kafka.common.security.scram.ScramLoginModule required username="<user>"' in suggestion


@pytest.mark.parametrize(
    ("name", "option"),
    [
        ("linger_ms", "linger.ms"),
        ("lingr.ms", "linger.ms"),
        ("queue.buffering.max.ms", "linger.ms"),
        ("sasl.password", None),
        ("reconnect.backoff.jitter.ms", None),
        ("zzzzzz", None),
    ],
)
def test_names_suggested_option_only_if_renaming_is_enough(name: str, option: str | None) -> None:
    assert suggest_option(name, KNOWN).option == option
