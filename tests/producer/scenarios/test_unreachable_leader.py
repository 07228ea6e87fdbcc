"""The advertised.listeners trap: the bootstrap server answers, but the advertised address cannot be reached."""

from __future__ import annotations

import pytest

from spark_kafka_sink.errors import DeliveryTimeoutError
from spark_kafka_sink.producer.record import ProducerRecord
from tests.fake_system import FakeConnection, FakeSystem, Peer
from tests.producer.virtual_time import create_simulated_producer, get_sender, run_until, wait_for_result
from tests.simulated_cluster import SimulatedCluster

REASONS = {
    "unknown name": "the name cannot be resolved",
    "refused": "Connection refused",
    "swallowed": "no connection within",
}


class HangsUp(Peer):
    """Peer that closes the connection, as a SASL or TLS listener does after a plaintext request."""

    def on_bytes(self, connection: FakeConnection, data: bytes) -> None:
        connection.close()


def cluster_that_advertises_an_internal_name() -> SimulatedCluster:
    cluster = SimulatedCluster(FakeSystem(latency_ms=1), topics={"t": 1})
    cluster.core.nodes[0].host = "kafka-internal"
    return cluster


@pytest.mark.parametrize("why", REASONS)
def test_error_of_unsent_records_names_leader_address_and_reason(why: str) -> None:
    cluster = cluster_that_advertises_an_internal_name()
    if why == "unknown name":
        cluster.system.names["kafka-internal"] = []
    elif why == "swallowed":
        cluster.system.swallow("kafka-internal", 9092)
    producer = create_simulated_producer(
        cluster,
        bootstrap_servers="broker0:9092",
        delivery_timeout_ms=30_000,
        request_timeout_ms=5_000,
        metadata_max_age_ms=1_000,
        socket_connection_setup_timeout_ms=2_000,
    )
    future = producer.send(ProducerRecord("t", b"v"))
    run_until(producer, future.done, 40_000)
    error = future.exception(0)
    assert isinstance(error, DeliveryTimeoutError)
    for message in (
        "and never sent",
        "broker 0 (kafka-internal:9092)",
        REASONS[why],
        "The broker advertises kafka-internal:9092",
    ):
        assert message in str(error)
    producer.close()


def test_error_suggests_sasl_or_tls_when_listener_closes_plaintext_connection() -> None:
    cluster = cluster_that_advertises_an_internal_name()
    cluster.system.listen("kafka-internal", 9092, HangsUp())
    producer = create_simulated_producer(cluster, bootstrap_servers="broker0:9092", delivery_timeout_ms=40_000)
    future = producer.send(ProducerRecord("t", b"v"))
    run_until(producer, future.done, 50_000)
    assert "the listener may expect SASL or TLS, check security.protocol" in str(future.exception(0))


def test_error_does_not_name_leader_that_was_reached_later() -> None:
    cluster = cluster_that_advertises_an_internal_name()
    producer = create_simulated_producer(cluster, bootstrap_servers="broker0:9092")
    future = producer.send(ProducerRecord("t", b"v"))
    run_until(producer, lambda: get_sender(producer).metadata.connection_failure(0) is not None)
    cluster.accept_connections(0)
    assert wait_for_result(producer, future).offset == 0
    assert get_sender(producer).metadata.connection_failure(0) is None


def test_sent_and_unsent_records_have_same_cause_when_leader_is_unreachable() -> None:
    cluster = SimulatedCluster(FakeSystem(latency_ms=1), topics={"t": 1})
    limits = {"delivery_timeout_ms": 5_000, "request_timeout_ms": 1_000, "metadata_recovery_strategy": "none"}
    producer = create_simulated_producer(cluster, linger_ms=0, batch_size=0, **limits)
    assert wait_for_result(producer, producer.send("t", b"0")).offset == 0
    cluster.control.when("PRODUCE", times=None).never_respond()
    futures = [producer.send("t", b"%d" % number) for number in range(7)]
    run_until(producer, lambda: producer.metric("requests-in-flight") == 5)
    cluster.close_connections(0)
    cluster.refuse_connections(0)
    run_until(producer, lambda: all(future.done() for future in futures))
    errors = [future.exception(0) for future in futures]
    causes = {str(error.__cause__) for error in errors if error is not None}
    (cause,) = causes
    assert cause.startswith("The partition's leader, broker 0 (broker0:9092), cannot be reached: Connection refused")
    assert "Check that the broker is running." in cause
    assert ["The last error was: " in str(error) for error in errors] == [True] * 5 + [False] * 2


def test_error_names_unresponsive_leader_timeout_and_remedy() -> None:
    cluster = SimulatedCluster(FakeSystem(latency_ms=1), topics={"t": 1})
    producer = create_simulated_producer(cluster, linger_ms=0, delivery_timeout_ms=3_000, request_timeout_ms=1_000)
    cluster.control.when("PRODUCE", times=None).never_respond()
    future = producer.send("t", b"v")
    run_until(producer, future.done)
    message = str(future.exception(0))
    assert (
        "broker 0 (broker0:9092) did not respond within 1 s (request.timeout.ms). Check the log and the load" in message
    )
    assert "The records may have been stored." in message
