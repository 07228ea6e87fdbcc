"""Credentials that cannot be obtained for a while: an expired Kerberos ticket, or a token endpoint that is down."""

from __future__ import annotations

import pytest

from spark_kafka_sink.errors import DeliveryTimeoutError, DisconnectedError, MetadataTimeoutError
from spark_kafka_sink.producer.producer import KafkaProducer
from spark_kafka_sink.sasl.plain import PlainClient
from tests.fake_system import FakeSystem
from tests.producer.scenarios.test_rejected_authentication import SASL, AuthenticatingCluster
from tests.producer.sending.sender_cases import established, pass_time, send, wait
from tests.producer.virtual_time import create_simulated_producer, wait_for_result

REMEDY = "Run `kinit`."


class Credentials:
    """Credentials that are available until `are_available` is reset."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.are_available = True
        start = PlainClient.start

        def start_if_available(client: PlainClient) -> bytes:
            if not self.are_available:
                raise DisconnectedError("no ticket", remedy=REMEDY)
            return start(client)

        monkeypatch.setattr(PlainClient, "start", start_if_available)


@pytest.fixture
def credentials(monkeypatch: pytest.MonkeyPatch) -> Credentials:
    return Credentials(monkeypatch)


def simulated(**options: object) -> tuple[AuthenticatingCluster, KafkaProducer]:
    cluster = AuthenticatingCluster(FakeSystem(latency_ms=2), topics={"t": 1})
    producer = create_simulated_producer(cluster, **SASL, linger_ms=0, request_timeout_ms=5000, **options)
    established(producer, 0)
    return cluster, producer


def test_sends_records_once_credentials_are_available_again(credentials: Credentials) -> None:
    cluster, producer = simulated()
    credentials.are_available = False
    cluster.close_connections(0)
    future = send(producer, b"v")
    pass_time(producer, 20_000)
    assert not future.done()
    credentials.are_available = True
    assert wait_for_result(producer, future).offset == 1
    producer.close()


def test_timeouts_give_reason_and_remedy_of_missing_credentials(credentials: Credentials) -> None:
    cluster, producer = simulated(delivery_timeout_ms=20_000, max_block_ms=5_000)
    credentials.are_available = False
    cluster.close_connections(0)
    pass_time(producer, 50)
    future = send(producer, b"v")
    wait(producer, future)
    error = future.exception(0)
    assert isinstance(error, DeliveryTimeoutError)
    assert f"no ticket (during SASL authentication). {REMEDY}" in str(error)
    assert "advertised.listeners" not in str(error)
    error = producer.send("unknown", b"v").exception(0)
    assert isinstance(error, MetadataTimeoutError)
    assert str(error).endswith(f"no ticket (during SASL authentication). {REMEDY}")
    producer.close(timeout=0)


def test_timeout_of_record_for_one_broker_gives_reason_and_remedy(credentials: Credentials) -> None:
    cluster = AuthenticatingCluster(FakeSystem(latency_ms=2), nodes=2, topics={"t": 2})
    for node in range(2):
        cluster.control.move_leader("t", node, node)
    producer = create_simulated_producer(
        cluster, **SASL, linger_ms=0, request_timeout_ms=5000, delivery_timeout_ms=20_000
    )
    established(producer, 0, 1)
    credentials.are_available = False
    cluster.close_connections(1)
    pass_time(producer, 50)
    future = send(producer, b"v", 1)
    wait(producer, future)
    assert str(future.exception(0)).endswith(
        "The connection to the partition's leader, broker 1 (broker1:9093), failed: no ticket (during SASL "
        f"authentication). {REMEDY}"
    )
    assert wait_for_result(producer, send(producer, b"other", 0)).offset == 1
    producer.close(timeout=0)
