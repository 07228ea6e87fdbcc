"""Faults that a producer must survive, each as a whole scenario in virtual time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future

import pytest

from spark_kafka_sink.client.metadata import Metadata
from spark_kafka_sink.errors import DeliveryTimeoutError, KafkaSinkError
from spark_kafka_sink.producer.producer import KafkaProducer
from spark_kafka_sink.producer.record import ProducerRecord
from spark_kafka_sink.producer.results import RecordMetadata
from spark_kafka_sink.producer.sending import idempotence
from spark_kafka_sink.protocol import error_codes as codes
from spark_kafka_sink.protocol.message import ApiKey
from tests.fake_system import WALL_MS, FakeSystem
from tests.producer.virtual_time import (
    create_simulated_producer,
    get_loop,
    get_reserved_bytes,
    get_sender,
    run_until,
    wait_for_result,
)
from tests.simulated_cluster import SimulatedCluster

KAFKA_4_5 = {"first_sequence_must_be_zero": True}
"""Settings of a cluster that rejects the first batch of a partition unless its sequence is 0."""


def simulated(
    nodes: int = 2, cluster_config: Mapping[str, object] | None = None, **options: object
) -> tuple[SimulatedCluster, KafkaProducer]:
    cluster = SimulatedCluster(FakeSystem(latency_ms=2), nodes=nodes, topics={"t": 1}, **dict(cluster_config or {}))
    given: dict[str, object] = {"linger_ms": 0, "retry_backoff_ms": 10, **options}
    return cluster, create_simulated_producer(cluster, **given)


def send(producer: KafkaProducer, value: bytes, *, timestamp_ms: int | None = None) -> Future[RecordMetadata]:
    return producer.send(ProducerRecord("t", value, partition=0, timestamp_ms=timestamp_ms))


def find_leader(cluster: SimulatedCluster) -> int:
    leader = cluster.core.topic("t").partitions[0].leader
    assert leader is not None
    return leader


def lose_response_and_move_leader() -> tuple[list[bytes | None], list[BaseException | None]]:
    """Store record 1 but lose its response. Send records 2 to 9, one batch each, after the leader has moved."""
    cluster, producer = simulated(request_timeout_ms=1000, batch_size=1)
    cluster.control.add_partitions("t", 2)
    wait_for_result(producer, send(producer, b"0"))
    old = find_leader(cluster)
    # Over its connection to the other broker, the producer learns of the new leader while the old one does not respond.
    cluster.control.move_leader("t", 1, 1 - old)
    wait_for_result(producer, producer.send(ProducerRecord("t", b"there", partition=1)))
    cluster.control.when(api=ApiKey.PRODUCE).never_respond(execute_first=True)
    futures = [send(producer, b"1")]
    get_loop(producer).run_until(lambda: False, 3)
    cluster.control.move_leader("t", 0, 1 - old)
    get_sender(producer).metadata.request_update()
    run_until(producer, lambda: producer.partitions_for("t")[0].leader != old)
    for i in range(2, 10):
        futures.append(send(producer, b"%d" % i))
        get_loop(producer).run_until(lambda: False, 5)
    run_until(producer, lambda: all(future.done() for future in futures))
    producer.close()
    return cluster.values("t"), [future.exception(0) for future in futures]


RULES_1_AND_2: dict[str, Callable[..., bool]] = {
    "can_pipeline": lambda state, connection, topic_id, unix_time_ms: True,
    "can_send_to": lambda state, leader_id, max_in_flight: True,
}


@pytest.mark.parametrize("without", [None, *RULES_1_AND_2])
def test_8_response_lost_on_previous_leader_is_duplicate_on_new_one(
    without: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of the two rules is sufficient by itself."""
    if without is not None:
        monkeypatch.setattr(idempotence, without, RULES_1_AND_2[without])
    stored, errors = lose_response_and_move_leader()
    assert stored == [b"%d" % i for i in range(10)]
    assert errors == [None] * 9


def test_8_without_rules_1_and_2_stored_batch_is_not_recognized(monkeypatch: pytest.MonkeyPatch) -> None:
    """The new leader remembers the last five batches, and record 1 was stored before them."""
    for rule, without in RULES_1_AND_2.items():
        monkeypatch.setattr(idempotence, rule, without)
    stored, errors = lose_response_and_move_leader()
    assert stored == [b"%d" % i for i in range(10)]
    assert "may have been stored" in str(errors[0])
    assert errors[1:] == [None] * 8


@pytest.mark.parametrize("cluster_config", [{}, KAFKA_4_5], ids=["before 4.5", "from 4.5"])
@pytest.mark.parametrize("recreated_while", ["idle", "pipelining"])
def test_13_writes_to_recreated_topic_in_order(recreated_while: str, cluster_config: Mapping[str, object]) -> None:
    cluster, producer = simulated(cluster_config=cluster_config)
    wait_for_result(producer, send(producer, b"0"))
    before = [] if recreated_while == "idle" else [send(producer, b"%d" % i) for i in range(1, 4)]
    if before:
        get_loop(producer).run_until(lambda: False, 1)
    cluster.control.delete_topic("t")
    cluster.control.create_topic("t", 1)
    after = [send(producer, b"%d" % i) for i in range(4, 8)]
    for future in before + after:
        wait_for_result(producer, future)
    values = cluster.values("t")
    assert values == sorted(set(values), key=lambda value: value or b"")
    assert values[-4:] == [b"4", b"5", b"6", b"7"]
    producer.close()


def send_two_and_reject_the_first(
    cluster: SimulatedCluster, producer: KafkaProducer, code: int, *, timestamp_ms: int | None = None
) -> list[bytes | None]:
    """Return the values in the log."""
    cluster.control.when(api=ApiKey.PRODUCE).fail(code)
    futures = []
    for value in (b"1", b"2"):
        futures.append(send(producer, value, timestamp_ms=timestamp_ms))
        get_loop(producer).run_until(lambda: False, 0.2)
    for future in futures:
        wait_for_result(producer, future)
    producer.close()
    return cluster.values("t")


@pytest.mark.parametrize("code", [codes.NOT_LEADER_OR_FOLLOWER, codes.UNKNOWN_TOPIC_ID])
def test_13_leader_of_recreated_topic_that_rejects_first_request_gets_no_second(code: int) -> None:
    """The connection is still open. The leader does not know the producer, so it would accept the second request."""
    cluster, producer = simulated(nodes=1)
    wait_for_result(producer, send(producer, b"0"))
    cluster.control.delete_topic("t")
    cluster.control.create_topic("t", 1)
    sender = get_sender(producer)
    version = sender.metadata.request_update(reset_backoff=True)
    sender.client.wakeup()
    run_until(producer, lambda: sender.metadata.version > version)
    assert send_two_and_reject_the_first(cluster, producer, code) == [b"1", b"2"]


def test_16_sends_one_request_at_a_time_after_producer_was_idle() -> None:
    cluster, producer = simulated(nodes=1)
    wait_for_result(producer, send(producer, b"0"))
    get_loop(producer).run_until(lambda: False, idempotence.MAX_AGE_MS)
    cluster.control.forget_producers("t", 0)
    assert send_two_and_reject_the_first(cluster, producer, codes.NOT_ENOUGH_REPLICAS) == [b"0", b"1", b"2"]


def test_16_sends_one_request_at_a_time_for_old_timestamps() -> None:
    """Such a broker forgets the producer even if it has just written."""
    cluster, producer = simulated(nodes=1)
    old_ms = WALL_MS - idempotence.MAX_AGE_MS
    wait_for_result(producer, send(producer, b"0", timestamp_ms=old_ms))
    cluster.control.forget_producers("t", 0)
    stored = send_two_and_reject_the_first(cluster, producer, codes.NOT_ENOUGH_REPLICAS, timestamp_ms=old_ms)
    assert stored == [b"0", b"1", b"2"]


def test_13_records_of_deleted_topic_time_out_with_its_name() -> None:
    cluster, producer = simulated(request_timeout_ms=500, delivery_timeout_ms=3000)
    wait_for_result(producer, send(producer, b"0"))
    cluster.control.delete_topic("t")
    future = send(producer, b"1")
    run_until(producer, future.done, 3100)
    assert isinstance(future.exception(0), DeliveryTimeoutError)
    assert "topic t, partition 0" in str(future.exception(0))
    producer.close()


def test_delivers_record_sent_in_callback_of_expired_record() -> None:
    cluster, producer = simulated(request_timeout_ms=500, delivery_timeout_ms=800)
    wait_for_result(producer, send(producer, b"0"))
    rule = cluster.control.when(api=ApiKey.PRODUCE, times=None).never_respond()
    again: list[Future[RecordMetadata]] = []

    def send_again(metadata: RecordMetadata | None, error: Exception | None) -> None:
        assert isinstance(error, DeliveryTimeoutError)
        rule.remove()
        again.append(send(producer, b"again"))

    producer.send(ProducerRecord("t", b"1", partition=0), send_again)
    run_until(producer, lambda: bool(again) and again[0].done())
    assert again[0].exception(0) is None
    assert cluster.values("t") == [b"0", b"again"]
    producer.close()


@pytest.mark.parametrize("retry_backoff_ms", [0, 10])
@pytest.mark.parametrize("known", ["nothing yet", "the leader"])
def test_sender_does_not_spin_while_all_brokers_are_unreachable(retry_backoff_ms: int, known: str) -> None:
    cluster, producer = simulated(
        retry_backoff_ms=retry_backoff_ms, request_timeout_ms=5000, delivery_timeout_ms=10_000, metadata_max_age_ms=500
    )
    producer.partitions_for("t")
    if known == "the leader":
        wait_for_result(producer, send(producer, b"0"))
    for node in range(2):
        cluster.control.stop_node(node)
    before = get_loop(producer).rounds
    future = send(producer, b"1")
    run_until(producer, future.done)
    assert isinstance(future.exception(0), KafkaSinkError)
    assert get_loop(producer).rounds - before < 3000
    producer.close()


def outcome_without_new_metadata(
    monkeypatch: pytest.MonkeyPatch, new_leader: int = 1
) -> tuple[bool, list[bytes | None]]:
    """Move the leader and suppress metadata requests.

    Return whether the next record is acknowledged within a second, and the stored values.
    """
    cluster, producer = simulated()
    cluster.control.move_leader("t", 0, 1 - new_leader)
    wait_for_result(producer, send(producer, b"0"))
    cluster.control.move_leader("t", 0, new_leader)
    monkeypatch.setattr(get_sender(producer).metadata, "request_update", lambda: None)
    future = send(producer, b"1")
    done = get_loop(producer).run_until(future.done, 1000)
    producer.close(timeout=0)
    return done and future.exception(0) is None, cluster.values("t")


@pytest.mark.parametrize("new_leader", [0, 1])
def test_uses_leader_hint_without_new_metadata(new_leader: int, monkeypatch: pytest.MonkeyPatch) -> None:
    assert outcome_without_new_metadata(monkeypatch, new_leader) == (True, [b"0", b"1"])


def test_needs_new_metadata_without_leader_hints(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Metadata, "update_leaders", lambda metadata, hints, nodes: set())
    assert outcome_without_new_metadata(monkeypatch) == (False, [b"0"])


def test_permanent_rejection_without_doubt_fails_only_its_record() -> None:
    cluster, producer = simulated()
    wait_for_result(producer, send(producer, b"0"))
    cluster.control.when(api=ApiKey.PRODUCE).fail(codes.POLICY_VIOLATION)
    first = send(producer, b"1")
    get_loop(producer).run_until(lambda: False, 0.2)
    second = send(producer, b"2")
    wait_for_result(producer, second)
    assert "POLICY_VIOLATION" in str(first.exception(0))
    assert cluster.values("t") == [b"0", b"2"]
    producer.close()


# --- brokers at other addresses


def move_to_other_addresses(strategy: str) -> tuple[SimulatedCluster, Future[RecordMetadata]]:
    """Restart the brokers at other addresses, which only the bootstrap name resolves to."""
    cluster = SimulatedCluster(FakeSystem(latency_ms=2), nodes=2, topics={"t": 1})
    system, nodes = cluster.system, cluster.core.nodes.values()
    system.names["kafka"] = [node.host for node in nodes]
    for node in nodes:
        node.port = 9092
        cluster.accept_connections(node.id)
    options: dict[str, object] = {"request_timeout_ms": 1000, "delivery_timeout_ms": 20_000, "linger_ms": 0}
    producer = create_simulated_producer(
        cluster, bootstrap_servers="kafka:9092", metadata_recovery_strategy=strategy, **options
    )
    wait_for_result(producer, send(producer, b"0"))
    for node in nodes:
        cluster.stop_node(node.id)
        node.host = f"elsewhere{node.id}"

    def come_back() -> None:
        system.names["kafka"] = [node.host for node in nodes]
        for node in nodes:
            cluster.accept_connections(node.id)

    system.after(3000, come_back)
    future = send(producer, b"1")
    run_until(producer, future.done)
    producer.close()
    return cluster, future


def test_20_finds_brokers_at_new_addresses_through_bootstrap_name() -> None:
    cluster, future = move_to_other_addresses("rebootstrap")
    assert future.exception(0) is None
    assert cluster.values("t") == [b"0", b"1"]


def test_20_record_times_out_without_metadata_recovery() -> None:
    cluster, future = move_to_other_addresses("none")
    assert isinstance(future.exception(0), DeliveryTimeoutError)
    assert cluster.values("t") == [b"0"]


# --- memory


def test_26_call_fails_after_max_block_ms_when_memory_is_full_without_brokers() -> None:
    cluster, producer = simulated(buffer_memory=40_000, max_block_ms=200, delivery_timeout_ms=60_000)
    wait_for_result(producer, send(producer, b"0"))
    for node in range(2):
        cluster.control.stop_node(node)
    began_ms = cluster.system.now()
    waiting: list[Future[RecordMetadata]] = []
    while not (future := send(producer, b"x" * 2000)).done():
        waiting.append(future)
    assert "buffer.memory" in str(future.exception(0))
    assert 200 <= cluster.system.now() - began_ms < 1200
    assert 0 < len(waiting) < 20
    for node in range(2):
        cluster.control.start_node(node)
    for future in waiting:
        wait_for_result(producer, future)
    assert len(cluster.values("t")) == 1 + len(waiting)
    producer.close()
    assert get_reserved_bytes(producer) == 0
