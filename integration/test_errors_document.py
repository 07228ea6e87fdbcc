"""docs/errors.md explains the messages that runs against a real Kafka cluster produce."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from pyspark.sql.types import StringType, StructField, StructType

from integration.support.kafka_cluster import USERS, KafkaCluster
from integration.support.librdkafka import create_topic
from spark_kafka_sink import KafkaProducer
from spark_kafka_sink.errors import KafkaSinkError
from spark_kafka_sink.preflight import run
from spark_kafka_sink.preflight.checks import INTERACTIVE_TIMEOUTS
from spark_kafka_sink.spark.checks import check_and_plan_write
from tests.waiting import wait_until
from tools.error_document import find_explaining_rows

pytestmark = pytest.mark.needs("kafka")

VALUE = StructType([StructField("value", StringType())])
LOGIN = 'org.apache.kafka.common.security.{module}LoginModule required username="alice" password="{password}";'


@pytest.fixture(scope="module")
def cluster(strict_kafka: KafkaCluster) -> KafkaCluster:
    """A cluster with the topics that the tests name, which creates no others automatically."""
    create_topic(strict_kafka.bootstrap(), "orders", partitions=3)
    create_topic(strict_kafka.bootstrap(), "compacted", cleanup_policy="compact")
    return strict_kafka


@pytest.fixture(autouse=True)
def in_haste(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "PreflightTimeouts", lambda: INTERACTIVE_TIMEOUTS)


def read_error_text(attempt: Callable[[], object]) -> str:
    with pytest.raises(KafkaSinkError) as error:
        attempt()
    return str(error.value)


def login(mechanism: str, password: str) -> dict[str, str]:
    module = "plain.Plain" if mechanism == "PLAIN" else "scram.Scram"
    return {"sasl.mechanism": mechanism, "sasl.jaas.config": LOGIN.format(module=module, password=password)}


def authority(cluster: KafkaCluster, name: str) -> dict[str, str]:
    return {"ssl.truststore.type": "PEM", "ssl.truststore.location": str(cluster.certificates / name)}


def with_prefix(options: dict[str, str]) -> dict[str, str]:
    return {f"kafka.{name}": value for name, value in options.items()}


ON_THE_DRIVER: dict[str, tuple[str, str, Callable[[KafkaCluster], dict[str, str]]]] = {
    "a wrong password by SCRAM": (
        "SASL_PLAINTEXT",
        "invalid credentials with SASL mechanism",
        lambda cluster: {"security.protocol": "SASL_PLAINTEXT", **login("SCRAM-SHA-256", "wrong")},
    ),
    "a wrong password by PLAIN": (
        "SASL_PLAINTEXT",
        "Invalid username or password",
        lambda cluster: {"security.protocol": "SASL_PLAINTEXT", **login("PLAIN", "wrong")},
    ),
    "a login at a port without": (
        "PLAINTEXT",
        "the listener does not use SASL",
        lambda cluster: {"security.protocol": "SASL_PLAINTEXT", **login("PLAIN", USERS["alice"])},
    ),
    "no login at a port with": ("SASL_PLAINTEXT", "the peer closed the connection", lambda cluster: {}),
    "no TLS at a port with": ("SSL", "a TLS alert was received: the listener expects TLS", lambda cluster: {}),
    "TLS at a port without": (
        "PLAINTEXT",
        "the peer closed the connection",
        lambda cluster: {"security.protocol": "SSL", **authority(cluster, "ca.pem")},
    ),
    "another authority": (
        "SSL",
        "is signed by an authority that is not trusted",
        lambda cluster: {"security.protocol": "SSL"},
    ),
    "a certificate of yesterday": (
        "EXPIRED",
        "certificate has expired",
        lambda cluster: {"security.protocol": "SSL", **authority(cluster, "ca.pem")},
    ),
    "no certificate of the client": (
        "MTLS",
        "the peer rejected the certificate of",
        lambda cluster: {"security.protocol": "SSL", **authority(cluster, "ca.pem")},
    ),
    "a Java class": ("PLAINTEXT", "cannot be set", lambda cluster: {"interceptor.classes": "a.B"}),
    "a port where nothing listens": (
        "PLAINTEXT",
        "Connection refused",
        lambda cluster: {"bootstrap.servers": "127.0.0.1:{unused}"},
    ),
    "a name that is none": (
        "PLAINTEXT",
        "the name cannot be resolved",
        lambda cluster: {"bootstrap.servers": "no-such-host.invalid:9092"},
    ),
}


@pytest.fixture
def unused_port() -> Iterator[int]:
    """A port that refuses connections: a socket is bound to it but does not listen."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]


def assert_found(message: str, sentence: str) -> None:
    """Check that a search for the message finds the row about it."""
    assert sentence in [row.message for row in find_explaining_rows(message)], message


@pytest.mark.parametrize("mistake", ON_THE_DRIVER)
def test_page_contains_errors_of_driver(cluster: KafkaCluster, unused_port: int, mistake: str) -> None:
    listener, sentence, options = ON_THE_DRIVER[mistake]
    client_options = {"bootstrap.servers": cluster.bootstrap(listener), **options(cluster)}
    client_options["bootstrap.servers"] = client_options["bootstrap.servers"].replace("{unused}", str(unused_port))
    assert_found(
        read_error_text(lambda: check_and_plan_write(with_prefix(client_options) | {"topic": "orders"}, VALUE)),
        sentence,
    )


def test_page_contains_error_of_missing_topic_with_suggestion(cluster: KafkaCluster) -> None:
    client_options = {"kafka.bootstrap.servers": cluster.bootstrap(), "topic": "ordres"}
    message = read_error_text(lambda: check_and_plan_write(client_options, VALUE))
    assert_found(message, "does not exist")
    assert "Did you mean 'orders'?" in message


SHORT_TIMEOUTS = {"delivery.timeout.ms": "3000", "request.timeout.ms": "1000", "linger.ms": "0"}
BIG = b"x" * 2_000_000
IN_A_TASK: dict[str, tuple[str, dict[str, str], dict[str, Any]]] = {
    "a partition that there is not": (
        "has no partition … numbered from 0",
        {},
        {"topic": "orders", "value": b"a", "partition": 99},
    ),
    "a topic that there is not": (
        "The partitions of … did not become known",
        {"max.block.ms": "2000"},
        {"topic": "nope", "value": b"a"},
    ),
    "a record that is too large here": (
        "a record of up to … bytes exceeds",
        {},
        {"topic": "orders", "value": BIG},
    ),
    "a record that is too large there": (
        "MESSAGE_TOO_LARGE",
        {"max.request.size": "10000000"},
        {"topic": "orders", "value": BIG},
    ),
    "no key where they are compared": ("the broker rejected this record", {}, {"topic": "compacted", "value": b"a"}),
}


@pytest.mark.parametrize("mistake", IN_A_TASK)
def test_page_contains_errors_of_task(cluster: KafkaCluster, mistake: str) -> None:
    sentence, options, record = IN_A_TASK[mistake]
    with KafkaProducer(options | {"bootstrap.servers": cluster.bootstrap()}) as producer:
        assert_found(read_error_text(lambda: producer.send(**record).result()), sentence)


def try_to_send(producer: KafkaProducer) -> bool:
    """Send a record, and return whether the broker has acknowledged it."""
    try:
        producer.send("orders", b"a").result()
    except KafkaSinkError:
        return False
    return True


def test_page_contains_error_of_suspended_broker(
    cluster: KafkaCluster,
) -> None:
    with KafkaProducer(SHORT_TIMEOUTS | {"bootstrap.servers": cluster.bootstrap()}) as producer:
        # SHORT_TIMEOUTS may be too short for the first record, for which the producer connects and gets its id.
        wait_until(lambda: try_to_send(producer))
        cluster.pause(1)
        try:
            message = read_error_text(lambda: producer.send("orders", b"a").result())
        finally:
            cluster.resume(1)
    assert_found(message, "not acknowledged within … ms")
