"""The table of producer options: it has every option of the Java client, each with a meaning and a valid default."""

from __future__ import annotations

import pytest

from spark_kafka_sink.network.security_options import SECURITY_OPTIONS
from spark_kafka_sink.producer.options import PRODUCER_OPTIONS
from tests.producer.config_cases import parse_config, parse_problems
from tests.producer.kafka_clients_options import PRODUCER_OPTION_NAMES


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("transaction.two.phase.commit.enable", "true", "no released broker supports it"),
        ("key.serializer", "org.apache.kafka.common.serialization.StringSerializer", "key_serializer="),
        ("value.serializer", str, "value_serializer="),
        ("interceptor.classes", "com.example.Audit", "interceptors="),
        ("metric.reporters", ["com.example.Reporter"], "metrics()"),
        ("partitioner.class", "com.example.Mine", "Python callable"),
        ("enable.metrics.push", "true", "KIP-714"),
        ("metrics.recording.level", "DEBUG", "INFO"),
        ("config.providers", "file", "Java classes"),
    ],
)
def test_rejects_java_only_options_with_reason(name: str, value: object, message: str) -> None:
    (problem,) = parse_problems(**{name: value})
    assert problem.startswith(name)
    assert message in problem


def test_every_option_of_kafka_clients_is_known() -> None:
    assert not PRODUCER_OPTION_NAMES - PRODUCER_OPTIONS.keys() - SECURITY_OPTIONS.keys()


def test_accepts_java_only_options_without_effect() -> None:
    config = parse_config(interceptor_classes="", metric_reporters=[], enable_metrics_push=False)
    assert config == parse_config(metrics_recording_level="info")


@pytest.mark.parametrize("option", PRODUCER_OPTIONS.values(), ids=lambda option: option.name)
def test_every_option_has_meaning_and_valid_default(option: object) -> None:
    assert option.description  # type: ignore[attr-defined]
    default = option.default  # type: ignore[attr-defined]
    if default is not None:
        assert option.parse(default) == default  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "name", ["metadata.recovery.strategy", "client.dns.lookup", "compression.type", "acks", "enable.idempotence"]
)
def test_choice_options_reject_other_values(name: str) -> None:
    (problem,) = parse_problems(**{name: "whatever"})
    assert problem.startswith(f"{name} must be")
