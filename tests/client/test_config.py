from __future__ import annotations

import pickle

import pytest

from spark_kafka_sink.client.config import CLIENT_OPTIONS, ClientConfig, client_config
from spark_kafka_sink.errors import ConfigurationError


def test_options_have_the_java_clients_names_and_defaults() -> None:
    config = client_config({"bootstrap.servers": "a:1,b:2"})
    assert config == ClientConfig(("a:1", "b:2"))
    assert config.metadata_max_age_ms == ClientConfig.metadata_max_age_ms == 300_000
    assert CLIENT_OPTIONS["socket.connection.setup.timeout.max.ms"] == "socket_connection_setup_timeout_max_ms"
    assert config.metadata_recovery_strategy == "rebootstrap"


def test_values_come_as_texts_or_as_values() -> None:
    texts = client_config({"bootstrap.servers": "a:1", "request.timeout.ms": "5000", "client.id": "me"})
    values = client_config({"bootstrap.servers": ["a:1"], "request.timeout.ms": 5000, "client.id": "me"})
    assert texts == values
    assert texts.request_timeout_ms == 5_000


def test_all_faults_are_told_at_once_with_the_names_of_the_options() -> None:
    with pytest.raises(ConfigurationError) as failure:
        client_config(
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
    told = str(failure.value)
    assert len(failure.value.faults) == 7
    for name in ("bootstrap.servers", "request.timeout.ms", "retry.backoff.ms", "max.in.flight", "client.dns.lookup"):
        assert name in told
    assert "metadata.max.age is not an option; metadata.max.age.ms is" in told


def test_without_an_address_there_is_nothing_to_do() -> None:
    with pytest.raises(ConfigurationError, match=r"bootstrap\.servers is missing"):
        client_config({})


def test_a_configuration_travels_and_shows_no_secret() -> None:
    jaas = 'org.apache.kafka.common.security.plain.PlainLoginModule required username="u" password="hunter2";'
    config = client_config(
        {
            "bootstrap.servers": "a:1",
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "PLAIN",
            "sasl.jaas.config": jaas,
        }
    )
    assert "hunter2" not in repr(config)
    assert pickle.loads(pickle.dumps(config)) == config
