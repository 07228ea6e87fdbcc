"""Embedded brokers with TLS and SASL: only clients with the broker's options can connect."""

from __future__ import annotations

from typing import Any

import pytest

from spark_kafka_sink import KafkaProducer, ProducerRecord
from spark_kafka_sink.errors import ConfigurationError, KafkaSinkError
from spark_kafka_sink.testing import EmbeddedBroker, ListenerSecurity, embedded_broker
from tests.waiting import WAIT_TIMEOUT_SECONDS

USERS = {"alice": 'a "secret" with \\', "bob": "bob's"}


def write(broker: EmbeddedBroker, options: dict[str, object]) -> None:
    with KafkaProducer(options) as producer:
        producer.send(ProducerRecord("t", b"v")).result(WAIT_TIMEOUT_SECONDS)


@pytest.mark.parametrize(
    ("security", "protocol"),
    [
        ({}, "PLAINTEXT"),
        ({"tls": True}, "SSL"),
        ({"tls": "mutual"}, "SSL"),
        ({"users": USERS}, "SASL_PLAINTEXT"),
        ({"users": USERS, "mechanism": "PLAIN"}, "SASL_PLAINTEXT"),
        ({"tls": True, "users": USERS, "mechanism": "SCRAM-SHA-256"}, "SASL_SSL"),
    ],
)
def test_client_connects_with_options_of_broker(security: dict[str, Any], protocol: str) -> None:
    with embedded_broker({"t": 1}, **security) as broker:
        write(broker, broker.client_options)
        assert broker.topic("t").read().num_rows == 1
        assert broker.client_options.get("security.protocol", "PLAINTEXT") == protocol


@pytest.mark.parametrize("security", [{"tls": True}, {"tls": "mutual"}, {"users": USERS}])
def test_rejects_client_without_security_options(security: dict[str, Any]) -> None:
    with embedded_broker({"t": 1}, **security) as broker, pytest.raises(KafkaSinkError):
        write(broker, {"bootstrap.servers": broker.bootstrap_servers, "max.block.ms": 1_000})


def test_mutual_tls_rejects_client_without_certificate() -> None:
    with embedded_broker({"t": 1}, tls="mutual") as broker:
        options = {name: value for name, value in broker.client_options.items() if "keystore" not in name}
        with pytest.raises(KafkaSinkError, match="certificate"):
            write(broker, options)


def test_spark_options_are_client_options_with_prefix() -> None:
    with embedded_broker(users=USERS) as broker:
        assert broker.spark_options == {f"kafka.{name}": value for name, value in broker.client_options.items()}
        assert broker.topic("t").spark_options == {**broker.spark_options, "topic": "t"}


def test_repr_hides_secrets() -> None:
    with embedded_broker(tls="mutual", users=USERS) as broker:
        text = repr(broker) + repr(broker.topic("t"))
    assert "secret" not in text
    assert "PRIVATE KEY" not in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"tls": "both"}, "tls must be True, False or 'mutual', not 'both'"),
        ({"users": USERS, "mechanism": "GSSAPI"}, "not GSSAPI"),
        ({"tls": True, "security": ListenerSecurity()}, "Set either security, or tls and users"),
        ({"users": {"alice": ""}}, "User alice has an empty password"),
    ],
)
def test_rejects_inconsistent_security_arguments(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        embedded_broker(**arguments)
