"""The listeners of the real Kafka that the tests use."""

from __future__ import annotations

import pytest
from confluent_kafka import Producer

from integration.support.kafka_cluster import USERS, KafkaCluster
from tests.waiting import WAIT_TIMEOUT_SECONDS

pytestmark = pytest.mark.needs("kafka")


def _produce_one(config: dict[str, str], topic: str) -> None:
    errors: list[object] = []
    producer = Producer(config)
    producer.produce(topic, b"value", on_delivery=lambda error, _message: errors.append(error))
    assert producer.flush(WAIT_TIMEOUT_SECONDS) == 0
    assert errors == [None]


def _login(mechanism: str) -> dict[str, str]:
    if mechanism == "OAUTHBEARER":
        return {"enable.sasl.oauthbearer.unsecure.jwt": "true", "sasl.oauthbearer.config": "principal=alice"}
    return {"sasl.username": "alice", "sasl.password": USERS["alice"]}


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"])
@pytest.mark.parametrize("listener", ["SASL_PLAINTEXT", "SASL_SSL"])
def test_every_sasl_mechanism_is_served_with_and_without_tls(
    kafka: KafkaCluster, listener: str, mechanism: str
) -> None:
    config = {"bootstrap.servers": kafka.bootstrap(listener), "security.protocol": listener}
    config |= {"sasl.mechanism": mechanism, "ssl.ca.location": str(kafka.certificates / "ca.pem")}
    _produce_one(config | _login(mechanism), "sasl")


def test_tls_and_mutual_tls_are_served(kafka: KafkaCluster) -> None:
    config = {"security.protocol": "SSL", "ssl.ca.location": str(kafka.certificates / "ca.pem")}
    _produce_one(config | {"bootstrap.servers": kafka.bootstrap("SSL")}, "tls")
    client = str(kafka.certificates / "client.pem")
    mutual = {"ssl.certificate.location": client, "ssl.key.location": client}
    _produce_one(config | mutual | {"bootstrap.servers": kafka.bootstrap("MTLS")}, "tls")
