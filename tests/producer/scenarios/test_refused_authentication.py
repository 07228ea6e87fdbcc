"""Brokers that do not take the producer's credentials: one of several, all of them, and for a while only."""

from __future__ import annotations

import logging

import pytest

from spark_kafka_sink.errors import AuthenticationError, DeliveryTimeoutError, TransactionTimeoutError
from spark_kafka_sink.network.channel import ChannelState, ChannelStateKind
from spark_kafka_sink.producer.producer import KafkaProducer
from tests.fake_system import FakeSystem
from tests.producer.sending.sender_cases import established, pass_time, send, wait
from tests.producer.virtual_time import outcome, run_until, simulated_producer
from tests.simulated_cluster import SimulatedCluster

BOTH = pytest.mark.parametrize("version", [1, 2])


class Refusals:
    """Brokers, by their hosts, that end each new connection because of the credentials, as the selector reports it."""

    def __init__(self, cluster: SimulatedCluster, producer: KafkaProducer) -> None:
        self.hosts: set[str] = set()
        self.attempts = 0
        self._cluster = cluster
        self._connections = producer._client._connections
        self._selector = producer._client._selector
        self._poll = self._selector.poll
        self._selector.poll = self.poll  # type: ignore[method-assign]

    def begin(self, *nodes: int) -> None:
        """Connections that stand are ended, too."""
        for node in nodes:
            self.hosts.add(f"broker{node}")
            self._cluster.cut(node)

    def poll(self, timeout_ms: float) -> None:
        self._poll(timeout_ms)
        for channel_id in list(self._selector.connected):
            node = self._connections._nodes[int(channel_id)]
            if node.host in self.hosts:
                self.attempts += 1
                self._selector.close_channel(channel_id)
                error = AuthenticationError(f"{node.host}:{node.port}: SASL authentication failed: unknown user")
                refused = ChannelState(ChannelStateKind.AUTHENTICATION_FAILED, error)
                self._selector.disconnected[channel_id] = refused


def simulated(
    nodes: int, *, transaction_version: int = 2, **options: object
) -> tuple[SimulatedCluster, KafkaProducer, Refusals]:
    """Partition n is led by node n."""
    topics = {"t": nodes}
    cluster = SimulatedCluster(
        FakeSystem(latency_ms=2), nodes=nodes, topics=topics, transaction_version=transaction_version
    )
    for node in range(nodes):
        cluster.control.move_leader("t", node, node)
    given: dict[str, object] = {"linger_ms": 0, "delivery_timeout_ms": 20_000, "request_timeout_ms": 5000, **options}
    producer = simulated_producer(cluster, **given)
    return cluster, producer, Refusals(cluster, producer)


@pytest.mark.parametrize("nodes", [2, 3])
def test_19_records_for_other_brokers_go_on_while_one_refuses(nodes: int) -> None:
    _, producer, refusals = simulated(nodes)
    established(producer, *range(nodes))
    refusals.begin(1)
    held = send(producer, b"held", 1)
    for i in range(20):
        assert outcome(producer, send(producer, b"%d" % i, 0)).offset == i + 1
        pass_time(producer, 200)
    assert refusals.attempts > 2
    assert not held.done()
    producer.close(timeout=0)


def test_a_record_is_sent_as_soon_as_its_broker_takes_the_credentials() -> None:
    """A rolling restart: one broker has not heard of the user yet."""
    _, producer, refusals = simulated(2)
    established(producer, 0, 1)
    refusals.begin(1)
    held = send(producer, b"held", 1)
    pass_time(producer, 8000)
    assert not held.done()
    refusals.hosts.clear()
    assert outcome(producer, held).offset == 1
    producer.close()


@pytest.mark.parametrize("before", ["it was never sent", "its answer was lost"])
def test_19_a_record_whose_broker_goes_on_refusing_fails_in_time_and_names_the_broker(before: str) -> None:
    cluster, producer, refusals = simulated(2)
    established(producer, 0, 1)
    if before == "it was never sent":
        refusals.begin(1)
        pass_time(producer, 50)
    started = cluster.system.now()
    held = send(producer, b"held", 1)
    refusals.begin(1)
    failed_ms: list[float] = []
    held.add_done_callback(lambda future: failed_ms.append(cluster.system.now() - started))
    wait(producer, held)
    assert failed_ms == [20_000]
    error = held.exception(0)
    assert isinstance(error, DeliveryTimeoutError)
    assert isinstance(error.__cause__, AuthenticationError)
    assert "broker 1 (broker1:9093) refuses the authentication" in str(error)
    assert "unknown user" in str(error)
    assert ("may be stored" in str(error)) == (before == "its answer was lost")
    assert outcome(producer, send(producer, b"other", 0)).offset == 1
    producer.close()


@pytest.mark.parametrize("nodes", [1, 2, 3, 5])
def test_19_when_no_broker_takes_the_credentials_everything_fails_at_once(nodes: int) -> None:
    cluster, producer, refusals = simulated(nodes)
    established(producer, *range(nodes))
    refusals.begin(*range(nodes))
    started = cluster.system.now()
    futures = [send(producer, b"v", partition) for partition in range(nodes)]
    wait(producer, *futures)
    assert cluster.system.now() - started < 1500
    assert all(isinstance(future.exception(0), AuthenticationError) for future in futures)
    refusals.hosts.clear()
    pass_time(producer, 3000)
    assert outcome(producer, send(producer, b"again")).offset >= 1
    producer.close()


@pytest.mark.parametrize("nodes", [1, 3])
def test_a_producer_that_every_broker_refuses_fails_its_first_call(nodes: int) -> None:
    cluster, producer, refusals = simulated(nodes)
    refusals.begin(*range(nodes))
    started = cluster.system.now()
    with pytest.raises(AuthenticationError, match="unknown user"):
        producer.partitions_for("t")
    assert cluster.system.now() - started < 1500
    producer.close()


def test_a_producer_starts_although_the_first_broker_that_it_asks_refuses() -> None:
    for refusing in range(3):
        _, producer, refusals = simulated(3)
        refusals.begin(refusing)
        other = (refusing + 1) % 3
        assert outcome(producer, send(producer, b"v", other)).offset == 0
        producer.close(timeout=0)


def test_a_producer_that_one_broker_refuses_and_that_cannot_reach_the_other_fails_its_first_call() -> None:
    cluster, producer, refusals = simulated(2)
    refusals.begin(0)
    cluster.control.refuse_connections(1)
    started = cluster.system.now()
    with pytest.raises(AuthenticationError, match="unknown user"):
        producer.partitions_for("t")
    assert cluster.system.now() - started < 2500
    producer.close()


def test_a_refusal_that_stays_is_an_error_in_the_log_once(caplog: pytest.LogCaptureFixture) -> None:
    _, producer, refusals = simulated(2)
    established(producer, 0, 1)
    refusals.begin(1)
    send(producer, b"held", 1)
    with caplog.at_level(logging.INFO):
        run_until(producer, lambda: refusals.attempts > 5)
    logged = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert [(record.levelname, "broker 1" in record.getMessage()) for record in logged] == [("ERROR", True)]
    producer.close(timeout=0)


# --- transactions, whose coordinator is node 0


def begun(version: int, **options: object) -> tuple[SimulatedCluster, KafkaProducer, Refusals]:
    """One record is acknowledged, by node 1."""
    cluster, producer, refusals = simulated(3, transaction_version=version, transactional_id="x", **options)
    cluster.control.move_coordinator("x", 0)
    producer.init_transactions()
    producer.begin_transaction()
    outcome(producer, send(producer, b"1", 1))
    return cluster, producer, refusals


@BOTH
def test_19_a_transaction_waits_for_a_coordinator_that_refuses_for_a_while(version: int) -> None:
    cluster, producer, refusals = begun(version)
    refusals.begin(0)
    cluster.system.at(cluster.system.now() + 3000, refusals.hosts.clear)
    send(producer, b"2", 2)
    producer.commit_transaction()
    assert refusals.attempts > 2
    assert [cluster.values("t", partition, committed=True) for partition in (1, 2)] == [[b"1"], [b"2"]]
    producer.close()


@BOTH
def test_19_a_call_that_waits_in_vain_for_a_coordinator_that_refuses_names_it(version: int) -> None:
    _, producer, refusals = begun(version, max_block_ms=5000)
    refusals.begin(0)
    with pytest.raises(TransactionTimeoutError, match=r"broker0:9092: SASL authentication failed: unknown user"):
        producer.commit_transaction()
    refusals.hosts.clear()
    producer.commit_transaction()
    producer.close()


@pytest.mark.parametrize("nodes", [1, 3])
def test_19_a_transactional_producer_that_every_broker_refuses_fails_its_first_call(nodes: int) -> None:
    cluster, producer, refusals = simulated(nodes, transactional_id="x")
    refusals.begin(*range(nodes))
    started = cluster.system.now()
    with pytest.raises(AuthenticationError, match="unknown user"):
        producer.init_transactions()
    assert cluster.system.now() - started < 1500
    producer.close()
