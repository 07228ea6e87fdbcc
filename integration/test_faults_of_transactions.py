"""Transactions on real brokers that are killed, and through a proxy that loses, duplicates and delays responses.

The first test kills nodes of a cluster of three brokers, with transaction version 2; SOAK=1 adds version 1 and more
steps. The others use a proxy in front of a single broker. librdkafka reads the committed records.
"""

from __future__ import annotations

import os
import random
import threading
import time
import uuid
from collections.abc import Iterator

import pytest

from integration.support.kafka_cluster import KafkaCluster
from integration.support.librdkafka import create_topic, read_topic
from integration.support.open_transactions import TRANSACTIONS_TOOL
from integration.support.proxy import Mode, Proxy
from integration.support.transactional_writer import (
    COMMIT,
    FIRST_RECORD,
    INIT,
    LATER_RECORD,
    TransactionalWriter,
    create_producer,
    create_topic_with_leader,
    find_cached_coordinator,
    find_coordinator,
    find_leader,
    retry_timeouts,
)
from spark_kafka_sink.errors import KafkaSinkError
from spark_kafka_sink.producer.record import ProducerRecord
from tests.waiting import WAIT_TIMEOUT_SECONDS, wait_until

pytestmark = pytest.mark.needs("kafka")

SOAK = bool(os.environ.get("SOAK"))
FEATURES_TOOL = "org.apache.kafka.tools.FeatureCommand"
BOTH, LEADER, COORDINATOR = "both", "leader", "coordinator"
DURING_COMMIT = "amid the commit"
STEPS = (INIT, FIRST_RECORD, LATER_RECORD, COMMIT, DURING_COMMIT) if SOAK else (INIT, LATER_RECORD, DURING_COMMIT)
VERSIONS = (2, 1) if SOAK else (2,)
"""Transaction versions. Version 1 sends AddPartitionsToTxn, and an end does not bump the epoch."""
OPEN_TRANSACTION_SECONDS = (5, 40)
"""Timeouts of an abandoned transaction to try in turn. Kafka's tool may start too slowly for the first."""
ROUNDS = 200 if SOAK else 12
MAX_COMMIT_SECONDS = 0.02


# --- killed brokers


@pytest.fixture(scope="module", params=VERSIONS)
def version(request: pytest.FixtureRequest) -> int:
    return int(request.param)


@pytest.fixture(scope="module")
def brokers(version: int, kafka3: KafkaCluster) -> Iterator[KafkaCluster]:
    def set_version(verb: str, version: int) -> None:
        kafka3.run_tool(
            FEATURES_TOOL, "--bootstrap-server", kafka3.bootstrap(), verb, "--feature", f"transaction.version={version}"
        )

    if version == 2:
        yield kafka3
        return
    set_version("downgrade", 1)
    yield kafka3
    set_version("upgrade", 2)


@pytest.mark.parametrize("victim", [BOTH, LEADER, COORDINATOR] if SOAK else [BOTH])
def test_1_and_22_commits_despite_killed_leader_and_coordinator(brokers: KafkaCluster, victim: str) -> None:
    transactional_id = f"id-{uuid.uuid4().hex[:8]}"
    if victim == BOTH:
        topic = create_topic_with_leader(brokers, find_coordinator(brokers, transactional_id))
    else:
        topic = create_topic(brokers.bootstrap(), partitions=3, replicas=3)
    writer = TransactionalWriter(brokers.bootstrap(), topic, transactional_id, request_timeout_ms=10_000)

    def kill() -> None:
        node = find_cached_coordinator(writer.producer) if victim == COORDINATOR else find_leader(brokers, topic)
        brokers.kill(node)
        brokers.start_node(node, wait=False)

    def kill_soon() -> None:
        threading.Timer(random.uniform(0, MAX_COMMIT_SECONDS), kill).start()

    for step in STEPS:
        writer.write_transaction()
        writer.write_transaction({COMMIT: kill_soon} if step == DURING_COMMIT else {step: kill})
        brokers.wait_until_ready()
    writer.write_transaction()
    writer.producer.close()
    writer.check()


# --- a proxy in front of the broker


@pytest.fixture
def proxy(proxied: tuple[KafkaCluster, Proxy]) -> Proxy:
    _, proxy = proxied
    proxy.mode = Mode.PASS
    proxy.faults = 0
    return proxy


@pytest.fixture
def topic(proxied: tuple[KafkaCluster, Proxy]) -> str:
    return create_topic(proxied[0].bootstrap(), partitions=3)


def test_22_commits_once_if_responses_to_end_are_lost_duplicated_or_delayed(
    proxied: tuple[KafkaCluster, Proxy], proxy: Proxy, topic: str
) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    writer = TransactionalWriter(proxied[0].bootstrap(), topic, topic)
    writer.producer.close()
    writer = TransactionalWriter(proxy.address, topic, topic, request_timeout_ms=1_000)
    writer.bootstrap = proxied[0].bootstrap()

    def inject(mode: Mode) -> None:
        writer.producer.flush()
        fault_number = proxy.faults + 1
        proxy.mode = mode
        if mode is Mode.HOLD_RESPONSES:
            delay_seconds = rng.choice((0.1, 1.5))
            threading.Thread(target=release_after_delay, args=(fault_number, delay_seconds), daemon=True).start()

    def release_after_delay(fault_number: int, delay_seconds: float) -> None:
        proxy.wait_for_fault(fault_number)
        time.sleep(delay_seconds)
        proxy.mode = Mode.PASS

    for round_ in range(ROUNDS):
        mode = (Mode.LOSE_RESPONSE, Mode.DUPLICATE_RESPONSE, Mode.HOLD_RESPONSES)[round_ % 3]
        previous_faults = proxy.faults
        writer.write_transaction({COMMIT: lambda mode=mode: inject(mode)})  # type: ignore[misc]
        assert proxy.faults > previous_faults, f"{mode} had no effect"
    writer.producer.close()
    writer.check()


def test_23_rejects_delayed_record_of_fenced_producer(
    proxied: tuple[KafkaCluster, Proxy], proxy: Proxy, topic: str
) -> None:
    """The proxy holds a record of the fenced producer until another producer of its id has committed."""
    kafka, _ = proxied
    zombie = create_producer(proxy.address, topic, request_timeout_ms=2_000)
    zombie.init_transactions()
    zombie.begin_transaction()
    zombie.send(ProducerRecord(topic, b"early zombie", partition=0)).result(WAIT_TIMEOUT_SECONDS)
    proxy.mode = Mode.HOLD_REQUESTS
    late = zombie.send(ProducerRecord(topic, b"late zombie", partition=0))
    proxy.wait_for_fault()
    with create_producer(kafka.bootstrap(), topic) as successor:
        successor.init_transactions()
        for value in (b"1", b"2"):
            with successor.transaction():
                successor.send(ProducerRecord(topic, value, partition=0))
            proxy.mode = Mode.PASS
            wait_until(late.done)
        with pytest.raises(KafkaSinkError):
            late.result(0)
        with pytest.raises(KafkaSinkError):
            zombie.commit_transaction()
        zombie.close()
        with successor.transaction():
            successor.send(ProducerRecord(topic, b"3", partition=0))
    assert [record.value for record in read_topic(kafka.bootstrap(), topic)] == [b"1", b"2", b"3"]


def test_23_commits_are_atomic_while_producers_fence_each_other(
    proxied: tuple[KafkaCluster, Proxy], proxy: Proxy, topic: str
) -> None:
    kafka, _ = proxied
    committed: list[int] = []
    producers = [create_producer(kafka.bootstrap(), topic)]
    producers[0].init_transactions()
    for round_ in range(ROUNDS):
        producers[-1].begin_transaction()
        for partition in range(3):
            producers[-1].send(ProducerRecord(topic, b"%d" % round_, partition=partition))
        if round_ % 3 == 2:
            successor = create_producer(kafka.bootstrap(), topic)
            retry_timeouts(successor.init_transactions)
            with pytest.raises(KafkaSinkError):
                producers[-1].commit_transaction()
            producers.append(successor)
        else:
            producers[-1].commit_transaction()
            committed.append(round_)
    for producer in producers:
        producer.close()
    for partition in range(3):
        stored = [int(r.value or b"") for r in read_topic(kafka.bootstrap(), topic) if r.partition == partition]
        assert stored == committed


def test_24_kafka_tools_list_open_transaction_until_its_timeout(proxied: tuple[KafkaCluster, Proxy]) -> None:
    kafka, _ = proxied
    for timeout_seconds in OPEN_TRANSACTION_SECONDS:
        topic = create_topic(kafka.bootstrap(), partitions=3)
        started = time.monotonic()
        abandon_transaction(kafka, topic, timeout_seconds)
        line = find_transaction_line(kafka, topic)
        if time.monotonic() - started < timeout_seconds:
            break
    else:
        raise AssertionError(f"Kafka's tool took more than {timeout_seconds} s")
    assert "Ongoing" in line
    wait_until(lambda: [record.value for record in read_topic(kafka.bootstrap(), topic)] == [b"seen"])
    assert "CompleteAbort" in find_transaction_line(kafka, topic)


def abandon_transaction(kafka: KafkaCluster, topic: str, timeout_seconds: int) -> None:
    """Write a record in a transaction that is never ended, as after kill -9, and then one in a committed transaction.

    The topic's name is the id of the first transaction.
    """
    with create_producer(kafka.bootstrap(), f"{topic}-other") as other:
        other.init_transactions()
        producer = create_producer(kafka.bootstrap(), topic, transaction_timeout_ms=1_000 * timeout_seconds)
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(ProducerRecord(topic, b"never seen", partition=0)).result(WAIT_TIMEOUT_SECONDS)
        producer.close(timeout=0)
        with other.transaction():
            other.send(ProducerRecord(topic, b"seen", partition=0))


def find_transaction_line(kafka: KafkaCluster, transactional_id: str) -> str:
    """Return the line of Kafka's tool about the transaction."""
    output = kafka.run_tool(TRANSACTIONS_TOOL, "--bootstrap-server", kafka.bootstrap(), "list")
    (line,) = [line for line in output.splitlines() if line.split()[:1] == [transactional_id]]
    return line
