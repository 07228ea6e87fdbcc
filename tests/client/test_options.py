"""Parsing of options into a ClientConfig, or into a single error that lists all problems."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping

import pytest

from spark_kafka_sink.client.config import ClientConfig
from spark_kafka_sink.client.options import CLIENT_OPTIONS, parse_client_config
from spark_kafka_sink.errors import ConfigurationError
from spark_kafka_sink.producer.config import ProducerConfig
from spark_kafka_sink.producer.options import PRODUCER_OPTIONS


def test_options_have_names_and_defaults_of_java_client() -> None:
    config = parse_client_config({"bootstrap.servers": "a:1,b:2"})
    assert config == ClientConfig(("a:1", "b:2"))
    assert config.metadata_max_age_ms == ClientConfig.metadata_max_age_ms == 300_000
    option = CLIENT_OPTIONS["socket.connection.setup.timeout.max.ms"]
    assert option.field == "socket_connection_setup_timeout_max_ms"
    assert config.metadata_recovery_strategy == "rebootstrap"


def test_parses_text_and_typed_values_equally() -> None:
    texts = parse_client_config({"bootstrap.servers": "a:1", "request.timeout.ms": "5000", "client.id": "me"})
    values = parse_client_config({"bootstrap.servers": ["a:1"], "request.timeout.ms": 5000, "client.id": "me"})
    assert texts == values
    assert texts.request_timeout_ms == 5_000


def test_reports_all_faults_in_one_error() -> None:
    with pytest.raises(ConfigurationError) as failure:
        parse_client_config(
            {
                "bootstrap.servers": "nonsense",
                "request.timeout.ms": "soon",
                "retry.backoff.ms": -1,
                "max.in.flight.requests.per.connection": True,
                "client.dns.lookup": "guess",
                "metadata.max.age": 1,
                "security.protocol": "ROT13",
            }
        )
    message = str(failure.value)
    assert len(failure.value.problems) == 7
    for name in ("bootstrap.servers", "request.timeout.ms", "retry.backoff.ms", "max.in.flight", "client.dns.lookup"):
        assert name in message
    assert "metadata.max.age is not an option of the Kafka client. Did you mean metadata.max.age.ms?" in message


def test_requires_bootstrap_servers() -> None:
    with pytest.raises(ConfigurationError, match=r"bootstrap\.servers is not set"):
        parse_client_config({})


def test_config_can_be_pickled_and_hides_secrets() -> None:
    jaas = 'org.apache.kafka.common.security.plain.PlainLoginModule required username="u" password="hunter2";'
    config = parse_client_config(
        {
            "bootstrap.servers": "a:1",
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "PLAIN",
            "sasl.jaas.config": jaas,
        }
    )
    assert "hunter2" not in repr(config)
    assert pickle.loads(pickle.dumps(config)) == config


OPTION_VALUES = [
    ("request.timeout.ms", " 5000 "),
    ("request.timeout.ms", "5_000"),
    ("request.timeout.ms", None),
    ("request.timeout.ms", 2**31),
    ("request.timeout.ms", 5.0),
    ("retry.backoff.ms", 5_000),
    ("reconnect.backoff.max.ms", 10),
    ("client.dns.lookup", "USE_ALL_DNS_IPS"),
    ("metadata.recovery.strategy", "None"),
    ("client.id", 7),
    ("client.id", " me "),
    ("bootstrap.servers", "a:1, b:2,"),
    ("bootstrap.servers", [" a:1", "b:2 "]),
    ("bootstrap.servers", 5),
    ("bootstrap.servers", None),
    ("send.buffer.bytes", -2),
    ("metadata.max.idle.ms", 4_999),
    ("security.protocol", "ssl"),
]


@pytest.mark.parametrize(("name", "value"), OPTION_VALUES)
def test_producer_and_client_parse_options_equally(name: str, value: object) -> None:
    options = {"bootstrap.servers": "z:1", name: value}
    assert parse_or_problems(parse_client_config, options) == parse_or_problems(
        lambda raw: ProducerConfig.parse(raw).client_config(), options
    )


@pytest.mark.parametrize("servers", [{"alice:hush@h:1"}, b"alice:hush@h:1", 7])
def test_error_of_wrong_type_hides_value(servers: object) -> None:
    with pytest.raises(ConfigurationError, match=r"must be a list, or a string with commas\. It is ") as failure:
        parse_client_config({"bootstrap.servers": servers})
    assert "hush" not in str(failure.value)


def parse_or_problems(parse: Callable[[Mapping[str, object]], ClientConfig], options: Mapping[str, object]) -> object:
    try:
        return parse(options)
    except ConfigurationError as error:
        return error.problems


def test_producer_has_all_client_options() -> None:
    assert all(PRODUCER_OPTIONS[name] is option for name, option in CLIENT_OPTIONS.items())
    defaults = {
        option.field: option.default for option in CLIENT_OPTIONS.values() if option.name != "bootstrap.servers"
    }
    assert ClientConfig((), **defaults) == ClientConfig(())  # type: ignore[arg-type]
