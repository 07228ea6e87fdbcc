"""The harness itself: a real Kafka that tests may break."""

from __future__ import annotations

import pytest
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient

from integration.support.kafka_cluster import USERS, KafkaCluster
from integration.support.librdkafka import create_topic, read_topic
from tests.waiting import PATIENCE_SECONDS

pytestmark = pytest.mark.needs("kafka")


def _produce_one(config: dict[str, str], topic: str) -> None:
    errors: list[object] = []
    producer = Producer(config)
    producer.produce(topic, b"value", on_delivery=lambda error, _message: errors.append(error))
    assert producer.flush(PATIENCE_SECONDS) == 0
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


def test_a_node_can_be_killed_paused_and_restarted_and_the_others_go_on(
    kafka3: KafkaCluster,
) -> None:
    topic = create_topic(kafka3.bootstrap(), partitions=3, replicas=3)
    config = {"bootstrap.servers": kafka3.bootstrap(), "acks": "all"}
    kafka3.kill(1)
    _produce_one(config, topic)
    kafka3.start_node(1)
    kafka3.pause(2)
    with pytest.raises(KafkaException):
        AdminClient({"bootstrap.servers": f"localhost:{kafka3.nodes[2].ports['PLAINTEXT']}"}).list_topics(timeout=1)
    kafka3.resume(2)
    kafka3.restart(3)
    _produce_one(config, topic)
    assert len(read_topic(kafka3.bootstrap(), topic)) == 2
