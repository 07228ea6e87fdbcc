"""An authorization failure of a topic or of the client fails the affected calls in time and names the reason."""

from __future__ import annotations

import pyarrow as pa
import pytest

from spark_kafka_sink import KafkaProducer, ProducerRecord, RecordColumns
from spark_kafka_sink.broker.listener_security import ListenerSecurity
from spark_kafka_sink.errors import (
    AuthenticationError,
    AuthorizationError,
    BrokerError,
    DeliveryTimeoutError,
    KafkaSinkError,
)
from spark_kafka_sink.protocol import error_codes as codes
from spark_kafka_sink.protocol.message import ApiKey
from spark_kafka_sink.testing import embedded_broker
from tests.fake_system import FakeSystem
from tests.producer.virtual_time import (
    create_simulated_producer,
    get_loop,
    get_reserved_bytes,
    run_until,
    wait_for_result,
)
from tests.simulated_cluster import SimulatedCluster
from tests.waiting import WAIT_TIMEOUT_SECONDS

FINAL = [
    (codes.TOPIC_AUTHORIZATION_FAILED, AuthorizationError, "TOPIC_AUTHORIZATION_FAILED"),
    (codes.INVALID_TOPIC_EXCEPTION, BrokerError, "INVALID_TOPIC_EXCEPTION"),
]
COLUMNS = RecordColumns(pa.array([b"a", b"b"]))
PASSWORD = "a-secret-of-alice"


def simulated(**options: object) -> tuple[SimulatedCluster, KafkaProducer]:
    cluster = SimulatedCluster(FakeSystem(latency_ms=1), nodes=2, topics={"t": 1, "u": 1})
    return cluster, create_simulated_producer(cluster, linger_ms=0, max_block_ms=60_000, **options)


@pytest.mark.parametrize(("code", "kind", "name"), FINAL)
def test_unauthorized_topic_fails_immediately_and_other_topics_continue(
    code: int, kind: type[KafkaSinkError], name: str
) -> None:
    cluster, producer = simulated()
    cluster.control.when(api=ApiKey.METADATA, topic="u", times=None).fail(code)
    started = cluster.system.now()
    seen: list[Exception | None] = []
    rejected = producer.send(ProducerRecord("u", b"v"), lambda metadata, error: seen.append(error))
    assert isinstance(rejected.exception(0), kind)
    assert name in str(rejected.exception(0))
    assert "topic u" in str(rejected.exception(0))
    assert list(map(repr, seen)) == [repr(rejected.exception(0))]
    with pytest.raises(kind, match=name):
        producer.send_columns("u", COLUMNS)
    with pytest.raises(kind, match=name):
        producer.partitions_for("u")
    assert cluster.system.now() - started < 2000  # far below max.block.ms, which is 60 s
    assert wait_for_result(producer, producer.send(ProducerRecord("t", b"v"))).offset == 0


def test_writes_to_topic_after_authorization_is_granted() -> None:
    cluster, producer = simulated()
    rule = cluster.control.when(api=ApiKey.METADATA, topic="u", times=None).fail(codes.TOPIC_AUTHORIZATION_FAILED)
    assert isinstance(producer.send(ProducerRecord("u", b"v")).exception(0), AuthorizationError)
    rule.remove()
    assert wait_for_result(producer, producer.send(ProducerRecord("u", b"v"))).offset == 0


@pytest.mark.parametrize(("code", "kind", "name"), FINAL)
def test_records_time_out_with_reason_when_topic_becomes_unauthorized(
    code: int, kind: type[KafkaSinkError], name: str
) -> None:
    cluster, producer = simulated(delivery_timeout_ms=5000, request_timeout_ms=1000, metadata_max_age_ms=500)
    for topic in ("t", "u"):
        wait_for_result(producer, producer.send(ProducerRecord(topic, b"0")))
    cluster.control.when(api=ApiKey.PRODUCE, topic="u", times=None).fail(codes.NOT_LEADER_OR_FOLLOWER)
    waiting = producer.send(ProducerRecord("u", b"1"))
    get_loop(producer).run_until(lambda: False, 100)
    cluster.control.when(api=ApiKey.METADATA, topic="u", times=None).fail(code)
    run_until(producer, waiting.done, 5100)
    error = waiting.exception(0)
    assert isinstance(error, kind | DeliveryTimeoutError)
    assert name in str(error)
    assert "topic u" in str(error)
    assert wait_for_result(producer, producer.send(ProducerRecord("t", b"1"))).offset == 1
    producer.close()
    assert get_reserved_bytes(producer) == 0


@pytest.mark.parametrize("lost", ["the leader", "every broker"])
def test_error_of_unsent_records_names_the_reason(lost: str) -> None:
    cluster, producer = simulated(delivery_timeout_ms=5000, request_timeout_ms=1000, metadata_max_age_ms=500)
    producer.partitions_for("t")
    if lost == "the leader":
        cluster.core.topic("t").partitions[0].leader = None
        get_loop(producer).run_until(lambda: False, 1000)
    else:
        for node in range(2):
            cluster.control.stop_node(node)
    future = producer.send(ProducerRecord("t", b"1"))
    run_until(producer, future.done, 5100)
    error = str(future.exception(0))
    assert "and never sent" in error
    assert ("no leader" if lost == "the leader" else "broker0:9092") in error
    assert "may have been stored" not in error


@pytest.mark.parametrize("rejected", ["from the start", "while it writes"])
def test_rejected_password_fails_all_records_and_stays_secret(rejected: str, caplog: pytest.LogCaptureFixture) -> None:
    users = {"alice": PASSWORD}
    security = ListenerSecurity("SASL_PLAINTEXT", users=users, mechanisms=("PLAIN",))
    jaas = f'org.apache.kafka.common.security.plain.PlainLoginModule required username="alice" password="{PASSWORD}";'
    with embedded_broker(topics={"t": 1}, security=security) as broker:
        options = {
            "bootstrap.servers": broker.bootstrap_servers,
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "PLAIN",
            "sasl.jaas.config": jaas,
            "linger.ms": 0,
        }
        with KafkaProducer(options) as producer:
            if rejected == "while it writes":
                assert producer.send(ProducerRecord("t", b"v")).result(WAIT_TIMEOUT_SECONDS).offset == 0
                broker.control.when(api=ApiKey.PRODUCE, times=None).drop()
            users["alice"] = "another"
            futures = [producer.send(ProducerRecord("t", b"v")) for _ in range(3)]
            errors = [future.exception(60) for future in futures]
    for error in errors:
        assert isinstance(error, AuthenticationError)
        assert "127.0.0.1" in str(error)
        assert PASSWORD not in str(error)
    assert PASSWORD not in caplog.text
