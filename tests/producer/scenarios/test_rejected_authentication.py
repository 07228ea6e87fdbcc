"""Brokers that reject the producer's credentials: one of several, all of them, or temporarily."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from spark_kafka_sink.broker.outcome import ChannelResponse
from spark_kafka_sink.client import connections
from spark_kafka_sink.errors import AuthenticationError, DeliveryTimeoutError, TransactionTimeoutError
from spark_kafka_sink.producer.producer import KafkaProducer
from spark_kafka_sink.protocol import error_codes as codes
from spark_kafka_sink.protocol.headers import decode_request, encode_response
from spark_kafka_sink.protocol.message import Message
from spark_kafka_sink.protocol.messages.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from spark_kafka_sink.protocol.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse
from tests.fake_system import FakeSystem
from tests.producer.sending.sender_cases import established, pass_time, send, wait
from tests.producer.virtual_time import create_simulated_producer, run_until, wait_for_result
from tests.simulated_cluster import Conversation, SimulatedCluster

SASL = {
    "security_protocol": "SASL_PLAINTEXT",
    "sasl_mechanism": "PLAIN",
    "sasl_jaas_config": (
        'org.apache.kafka.common.security.plain.PlainLoginModule required username="writer" password="secret";'
    ),
}
BOTH_VERSIONS = pytest.mark.parametrize("version", [1, 2])


class AuthenticatingCluster(SimulatedCluster):
    """Brokers that require SASL PLAIN and accept every user, except for the nodes in `rejecting_nodes`."""

    def __init__(self, system: FakeSystem, **options: Any) -> None:
        super().__init__(system, **options)
        self.rejecting_nodes: set[int] = set()
        self.rejection_count = 0

    def reject_user(self, *nodes: int) -> None:
        """Reject the user from now on, and close the open connections of these nodes."""
        for node in nodes:
            self.rejecting_nodes.add(node)
            self.close_connections(node)

    def handle_frame(self, conversation: Conversation, frame: bytes) -> None:
        header, request = decode_request(memoryview(frame))
        response: Message
        if isinstance(request, SaslHandshakeRequest):
            response = SaslHandshakeResponse(mechanisms=["PLAIN"])
        elif not isinstance(request, SaslAuthenticateRequest):
            super().handle_frame(conversation, frame)
            return
        elif conversation.node not in self.rejecting_nodes:
            response = SaslAuthenticateResponse()
        else:
            self.rejection_count += 1
            response = SaslAuthenticateResponse(
                error_code=codes.SASL_AUTHENTICATION_FAILED, error_message="unknown user"
            )
        conversation.send_response(
            ChannelResponse(encode_response(response, header.api_version, header.correlation_id))
        )


def simulated(
    nodes: int, *, transaction_version: int = 2, **options: object
) -> tuple[AuthenticatingCluster, KafkaProducer]:
    """Create a cluster in which node n leads partition n, and a producer."""
    topics = {"t": nodes}
    cluster = AuthenticatingCluster(
        FakeSystem(latency_ms=2), nodes=nodes, topics=topics, transaction_version=transaction_version
    )
    for node in range(nodes):
        cluster.control.move_leader("t", node, node)
    configuration: dict[str, object] = {
        "linger_ms": 0,
        "delivery_timeout_ms": 20_000,
        "request_timeout_ms": 5000,
        **options,
    }
    return cluster, create_simulated_producer(cluster, **SASL, **configuration)


@pytest.mark.parametrize("nodes", [2, 3])
def test_19_sends_records_to_other_brokers_while_one_rejects_authentication(nodes: int) -> None:
    cluster, producer = simulated(nodes)
    established(producer, *range(nodes))
    cluster.reject_user(1)
    pending = send(producer, b"held", 1)
    for i in range(20):
        assert wait_for_result(producer, send(producer, b"%d" % i, 0)).offset == i + 1
        pass_time(producer, 200)
    assert cluster.rejection_count > 2
    assert not pending.done()
    producer.close(timeout=0)


def test_sends_record_once_its_broker_accepts_the_credentials() -> None:
    """During a rolling restart, one broker may not know the user yet."""
    cluster, producer = simulated(2)
    established(producer, 0, 1)
    cluster.reject_user(1)
    pending = send(producer, b"held", 1)
    pass_time(producer, 8000)
    assert not pending.done()
    cluster.rejecting_nodes.clear()
    assert wait_for_result(producer, pending).offset == 1
    producer.close()


@pytest.mark.parametrize("before", ["record was never sent", "response was lost"])
def test_19_record_times_out_and_names_broker_that_rejects_authentication(before: str) -> None:
    cluster, producer = simulated(2)
    established(producer, 0, 1)
    if before == "record was never sent":
        cluster.reject_user(1)
        pass_time(producer, 50)
    started = cluster.system.now()
    pending = send(producer, b"held", 1)
    cluster.reject_user(1)
    failed_ms: list[float] = []
    pending.add_done_callback(lambda future: failed_ms.append(cluster.system.now() - started))
    wait(producer, pending)
    assert failed_ms == [20_000]
    error = pending.exception(0)
    assert isinstance(error, DeliveryTimeoutError)
    assert isinstance(error.__cause__, AuthenticationError)
    assert "broker 1 (broker1:9093) rejected the authentication" in str(error)
    assert "unknown user" in str(error)
    assert ("may have been stored" in str(error)) == (before == "response was lost")
    assert wait_for_result(producer, send(producer, b"other", 0)).offset == 1
    producer.close()


@pytest.mark.parametrize("nodes", [1, 2, 3, 5])
def test_19_fails_everything_immediately_when_all_brokers_reject_authentication(nodes: int) -> None:
    cluster, producer = simulated(nodes)
    established(producer, *range(nodes))
    cluster.reject_user(*range(nodes))
    started = cluster.system.now()
    futures = [send(producer, b"v", partition) for partition in range(nodes)]
    wait(producer, *futures)
    assert cluster.system.now() - started < 1500
    assert all(isinstance(future.exception(0), AuthenticationError) for future in futures)
    cluster.rejecting_nodes.clear()
    pass_time(producer, 3000)
    assert wait_for_result(producer, send(producer, b"again")).offset >= 1
    producer.close()


@pytest.mark.parametrize("nodes", [1, 3])
def test_first_call_fails_when_all_brokers_reject_authentication(nodes: int) -> None:
    cluster, producer = simulated(nodes)
    cluster.reject_user(*range(nodes))
    started = cluster.system.now()
    with pytest.raises(AuthenticationError, match="unknown user"):
        producer.partitions_for("t")
    assert cluster.system.now() - started < 1500
    producer.close()


def test_producer_starts_when_first_broker_rejects_authentication() -> None:
    for rejecting_node in range(3):
        cluster, producer = simulated(3)
        cluster.reject_user(rejecting_node)
        other = (rejecting_node + 1) % 3
        assert wait_for_result(producer, send(producer, b"v", other)).offset == 0
        producer.close(timeout=0)


def test_first_call_fails_if_one_broker_rejects_and_other_is_unreachable() -> None:
    cluster, producer = simulated(2)
    cluster.reject_user(0)
    cluster.control.refuse_connections(1)
    started = cluster.system.now()
    with pytest.raises(AuthenticationError, match="unknown user"):
        producer.partitions_for("t")
    assert cluster.system.now() - started < 2500
    producer.close()


def test_logs_permanent_authentication_failure_once(caplog: pytest.LogCaptureFixture) -> None:
    cluster, producer = simulated(2)
    established(producer, 0, 1)
    cluster.reject_user(1)
    send(producer, b"held", 1)
    with caplog.at_level(logging.INFO):
        run_until(producer, lambda: cluster.rejection_count > 5)
    # Another module warns once per process that the credentials are sent unencrypted.
    logged = [record for record in caplog.records if record.name == connections.__name__]
    failures = [record for record in logged if record.levelno >= logging.WARNING]
    assert [(record.levelname, "broker 1" in record.getMessage()) for record in failures] == [("ERROR", True)]
    producer.close(timeout=0)


# --- transactions with node 0 as the coordinator


def begin_transaction(version: int, **options: object) -> tuple[AuthenticatingCluster, KafkaProducer]:
    """Begin a transaction in which node 1 has acknowledged one record."""
    cluster, producer = simulated(3, transaction_version=version, transactional_id="x", **options)
    cluster.control.move_coordinator("x", 0)
    producer.init_transactions()
    producer.begin_transaction()
    wait_for_result(producer, send(producer, b"1", 1))
    return cluster, producer


@BOTH_VERSIONS
def test_19_transaction_continues_after_coordinator_rejects_authentication(version: int) -> None:
    cluster, producer = begin_transaction(version)
    cluster.reject_user(0)
    cluster.system.at(cluster.system.now() + 3000, cluster.rejecting_nodes.clear)
    send(producer, b"2", 2)
    producer.commit_transaction()
    assert cluster.rejection_count > 2
    assert [cluster.values("t", partition, committed=True) for partition in (1, 2)] == [[b"1"], [b"2"]]
    producer.close()


@BOTH_VERSIONS
def test_19_timeout_names_coordinator_that_rejects_authentication(version: int) -> None:
    cluster, producer = begin_transaction(version, max_block_ms=5000)
    cluster.reject_user(0)
    with pytest.raises(
        TransactionTimeoutError, match=r"broker0:9092: SASL PLAIN: the broker rejected the login: unknown user"
    ):
        producer.commit_transaction()
    cluster.rejecting_nodes.clear()
    producer.commit_transaction()
    producer.close()


@pytest.mark.parametrize("nodes", [1, 3])
def test_19_first_transactional_call_fails_when_all_brokers_reject_authentication(nodes: int) -> None:
    cluster, producer = simulated(nodes, transactional_id="x")
    cluster.reject_user(*range(nodes))
    started = cluster.system.now()
    with pytest.raises(AuthenticationError, match="unknown user"):
        producer.init_transactions()
    assert cluster.system.now() - started < 1500
    producer.close()
