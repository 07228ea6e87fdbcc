"""Suggestions for unknown option names, including producer options without the prefix `kafka.`."""

from __future__ import annotations

import pytest

from spark_kafka_sink.network.security_options import SECURITY_OPTIONS
from spark_kafka_sink.producer.options import PRODUCER_OPTIONS
from spark_kafka_sink.spark.options.names import JAVA_CLASS_OPTION_REMEDIES, PRODUCER_OPTION_NAMES
from spark_kafka_sink.spark.options.parse import parse_options
from tests.spark.options.test_parse import NEEDED, problems

KAFKA_CALLBACK_HANDLER = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginCallbackHandler"


@pytest.mark.parametrize("name", sorted({*PRODUCER_OPTION_NAMES} - {"bootstrap.servers"}))
def test_error_for_missing_prefix_suggests_only_options_that_can_be_set(name: str) -> None:
    option = PRODUCER_OPTIONS.get(name) or SECURITY_OPTIONS[name]
    is_rejected = bool(option.unsupported_reason) or name == "transactional.id"
    (problem,) = problems(NEEDED | {name: "com.example.Mine"})
    assert problem.startswith(f"Unknown option '{name}'. ")
    assert (f": use 'kafka.{name}'." in problem) != is_rejected
    if is_rejected:
        (prefixed_problem,) = problems(NEEDED | {f"kafka.{name}": "com.example.Mine"})
        assert problem == f"Unknown option '{name}'. {prefixed_problem}"
        assert JAVA_CLASS_OPTION_REMEDIES.get(name, "") in problem


def test_error_for_missing_prefix_names_invalid_value_too() -> None:
    (problem,) = problems(NEEDED | {"partitioner.class": "com.example.Mine"})
    (prefixed_problem,) = problems(NEEDED | {"kafka.partitioner.class": "com.example.Mine"})
    assert problem.endswith(f": use 'kafka.partitioner.class'. {prefixed_problem}")
    assert "column 'partition'" in prefixed_problem


def test_error_for_missing_prefix_of_callback_handler_does_not_suggest_the_prefix() -> None:
    (problem,) = problems(NEEDED | {"sasl.login.callback.handler.class": "com.example.Mine"})
    assert problem == (
        "Unknown option 'sasl.login.callback.handler.class'. kafka.sasl.login.callback.handler.class cannot be set: it "
        "would load a Java class. Remove the option. For other sources of tokens, set "
        "kafka.sasl.oauthbearer.token.callback to a function."
    )


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("enable.metrics.push", "false"),
        ("interceptor.classes", ""),
        ("sasl.login.callback.handler.class", KAFKA_CALLBACK_HANDLER),
    ],
)
def test_error_for_missing_prefix_suggests_prefix_for_accepted_default(name: str, value: str) -> None:
    parse_options(NEEDED | {f"kafka.{name}": value})
    (problem,) = problems(NEEDED | {name: value})
    assert problem.endswith(f": use 'kafka.{name}'.")


@pytest.mark.parametrize(
    ("name", "suggestion"),
    [
        ("kafka.lingr.ms", "linger.ms"),
        ("kafka.sasl.mechanisms", "sasl.mechanism"),
        ("tpoic", "'topic'"),
        ("deadlettertopics", "'deadLetterTopic'"),
        ("acks", "'kafka.acks'"),
        ("ssl.keystore.location", "'kafka.ssl.keystore.location'"),
        ("path", "topic option"),
    ],
)
def test_suggests_option_for_misspelt_name(name: str, suggestion: str) -> None:
    (problem,) = problems(NEEDED | {name: "x"})
    assert suggestion in problem


@pytest.mark.parametrize(
    ("name", "suggestion"),
    [
        ("format", "'valueFormat' or 'keyFormat'"),
        ("columns", "'valueColumns' or 'keyColumns'"),
        ("schema", "'valueSchema' or 'keySchema'"),
        ("subject", "'valueSubject' or 'keySubject'"),
        ("schemaName", "'valueSchemaName' or 'keySchemaName'"),
        ("schema.file", "'valueSchemaFile' or 'keySchemaFile'"),
        ("keySchemaFil", "'keySchemaFile'"),
    ],
)
def test_suggests_options_of_value_and_key_for_name_without_part(name: str, suggestion: str) -> None:
    (problem,) = problems(NEEDED | {name: "x"})
    assert problem == f"Unknown option '{name}'. Did you mean {suggestion}?"


@pytest.mark.parametrize(
    ("name", "correct_name", "value"),
    [
        ("acks", "kafka.acks", "all"),
        ("Acks", "kafka.acks", "all"),
        ("acks", "Kafka.Acks", "all"),
        ("value_format", "valueFormat", "json"),
        ("value.format", "valueFormat", "json"),
        ("kafka.lingr.ms", "kafka.linger.ms", "5"),
        ("queue.buffering.max.ms", "kafka.linger.ms", "5"),
        ("linger_ms", "kafka.linger.ms", "5"),
        ("kafka.linger_ms", "kafka.linger.ms", "5"),
        ("kafka.topic", "topic", "t"),
        ("Kafka.Topic", "topic", "t"),
        ("kafka.createTopic.config.retention.ms", "createTopic.config.retention.ms", "5"),
    ],
)
def test_tells_to_remove_option_that_is_also_set_under_its_correct_name(
    name: str, correct_name: str, value: str
) -> None:
    (problem,) = problems(NEEDED | {"createTopic": "true", "topic": "t", name: "0", correct_name: value})
    assert problem.endswith(f". '{correct_name}' is also set: remove '{name}'.")
    assert "use '" not in problem


def test_names_documented_option_if_spark_has_changed_its_name_to_lowercase() -> None:
    (problem,) = problems(NEEDED | {"value.format": "avro", "valueformat": "json"})
    assert problem == "Unknown option 'value.format'. 'valueFormat' is also set: remove 'value.format'."


@pytest.mark.parametrize(
    ("first_name", "second_name", "suggestion"),
    [
        ("linger_ms", "kafka.linger_ms", "kafka.linger.ms"),
        ("compression.type", "kafka.compression_type", "kafka.compression.type"),
        ("value.format", "value_format", "valueFormat"),
        ("value.format", "kafka.valueFormat", "valueFormat"),
    ],
)
def test_suggests_same_option_only_once(first_name: str, second_name: str, suggestion: str) -> None:
    first_problem, second_problem = problems(NEEDED | {second_name: "lz4", first_name: "lz4"})
    assert suggestion in first_problem
    assert f"remove '{first_name}'" not in first_problem
    assert second_problem.endswith(f". '{suggestion}' is also suggested for '{first_name}': remove '{second_name}'.")


@pytest.mark.parametrize(
    ("name", "other_name"),
    [("kafka.sasl.username", "kafka.sasl.password"), ("kafka.ssl.certificate.location", "kafka.ssl.key.location")],
)
def test_repeats_suggestion_of_option_that_combines_two(name: str, other_name: str) -> None:
    """One of the two alone has no equivalent, so neither of them can just be removed."""
    first_advice, second_advice = (
        problem.partition(". ")[2] for problem in problems(NEEDED | {name: "x", other_name: "x"})
    )
    assert first_advice == second_advice


@pytest.mark.parametrize(
    ("name", "rejected_name"),
    [
        ("kafka.value_serializer", "value.serializer"),
        ("value_serializer", "value.serializer"),
        ("kafka.transaction.id", "transactional.id"),
        ("transactional_id", "transactional.id"),
        ("kafka.interceptor_classes", "interceptor.classes"),
        ("kafka.metric.reporter", "metric.reporters"),
        ("security_providers", "security.providers"),
    ],
)
def test_suggestion_includes_rejection_of_option_that_cannot_be_set(name: str, rejected_name: str) -> None:
    (problem,) = problems(NEEDED | {name: "x"})
    (rejection,) = problems(NEEDED | {f"kafka.{rejected_name}": "x"})
    assert f" kafka.{rejected_name}" in problem
    assert problem.endswith(rejection)


def test_suggestion_does_not_reject_accepted_default() -> None:
    (problem,) = problems(NEEDED | {"kafka.enable_metrics_push": "false"})
    assert problem.endswith(" Use the name with dots: kafka.enable.metrics.push.")


@pytest.mark.parametrize("name", ["default.topic.config", "createTopic.configs", "createTopics.config.x"])
def test_suggests_no_pattern_of_option_names(name: str) -> None:
    (problem,) = problems(NEEDED | {name: "x"})
    assert "createTopic.config.*" not in problem


def test_rejects_unknown_option_without_similar_name() -> None:
    (problem,) = problems(NEEDED | {"zzzzzz": "1"})
    assert "Unknown option 'zzzzzz'" in problem


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("kafka.ssl.ca.location", "Instead, use kafka.ssl.truststore.location, with kafka.ssl.truststore.type PEM."),
        ("kafka.queue.buffering.max.ms", "That is librdkafka's name. Instead, use kafka.linger.ms."),
        ("kafka.sasl.username", 'PlainLoginModule required username="<user>" password="<password>";'),
        ("kafka.sasl_plain_password", "That is kafka-python's name. Instead, use kafka.sasl.jaas.config, for PLAIN: "),
        ("kafka.linger_ms", "Use the name with dots: kafka.linger.ms."),
        ("queue.buffering.max.ms", "Instead, use kafka.linger.ms."),
        ("compression_type", "Use the name with dots: kafka.compression.type."),
    ],
)
def test_suggests_kafka_option_for_name_of_another_client(name: str, advice: str) -> None:
    (problem,) = problems(NEEDED | {name: "hush-hush"})
    assert advice in problem
    assert "hush-hush" not in problem
