"""Transactions on real brokers that die, and through a proxy that loses, doubles and delays what they say.

Three brokers for those that die, in both versions of transactions. One, with a proxy before it, for the rest.
librdkafka reads what is committed, and once Kafka's own console consumer.
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
    again,
    coordinator_of,
    known_coordinator,
    leader_of,
    producer_of,
    topic_with_leader,
)
from spark_kafka_sink.errors import KafkaSinkError
from spark_kafka_sink.producer.record import ProducerRecord
from tests.waiting import WAIT_TIMEOUT_SECONDS, wait_until

pytestmark = pytest.mark.needs("kafka")

SOAK = bool(os.environ.get("SOAK"))
FEATURES_TOOL = "org.apache.kafka.tools.FeatureCommand"
CONSOLE_CONSUMER = "org.apache.kafka.tools.consumer.ConsoleConsumer"
BOTH, LEADER, COORDINATOR = "both", "leader", "coordinator"
AMID_COMMIT = "amid the commit"
ALL_STEPS = (INIT, FIRST_RECORD, LATER_RECORD, COMMIT, AMID_COMMIT)
STEPS = {2: ALL_STEPS, 1: ALL_STEPS if SOAK else (LATER_RECORD, AMID_COMMIT)}
"""By the version of transactions. Version 1 adds partitions as they come, and ends without a new epoch."""
ROUNDS = 200 if SOAK else 12
AMID_SECONDS_MAX = 0.02


# --- brokers that die


@pytest.fixture(scope="module", params=[2, 1])
def version(request: pytest.FixtureRequest) -> int:
    return int(request.param)


@pytest.fixture(scope="module")
def brokers(version: int, kafka3: KafkaCluster) -> Iterator[KafkaCluster]:
    def set_version(verb: str, version: int) -> None:
        kafka3.tool(
            FEATURES_TOOL, "--bootstrap-server", kafka3.bootstrap(), verb, "--feature", f"transaction.version={version}"
        )

    if version == 2:
        yield kafka3
        return
    set_version("downgrade", 1)
    yield kafka3
    set_version("upgrade", 2)


@pytest.mark.parametrize("victim", [BOTH, LEADER, COORDINATOR] if SOAK else [BOTH])
def test_1_and_22_a_leader_and_a_coordinator_may_die_in_each_step(
    brokers: KafkaCluster, version: int, victim: str
) -> None:
    transactional_id = f"id-{uuid.uuid4().hex[:8]}"
    if victim == BOTH:
        topic = topic_with_leader(brokers, coordinator_of(brokers, transactional_id))
    else:
        topic = create_topic(brokers.bootstrap(), partitions=3, replicas=3)
    writer = TransactionalWriter(brokers.bootstrap(), topic, transactional_id, request_timeout_ms=10_000)

    def kill() -> None:
        node = known_coordinator(writer.producer) if victim == COORDINATOR else leader_of(brokers, topic)
        brokers.kill(node)
        brokers.start_node(node, wait=False)

    def kill_soon() -> None:
        threading.Timer(random.uniform(0, AMID_SECONDS_MAX), kill).start()

    for step in STEPS[version]:
        writer.write_transaction()
        writer.write_transaction({COMMIT: kill_soon} if step == AMID_COMMIT else {step: kill})
        brokers.wait_until_ready()
    writer.write_transaction()
    writer.producer.close()
    writer.check()


# --- a proxy before the broker


@pytest.fixture
def proxy(proxied: tuple[KafkaCluster, Proxy]) -> Proxy:
    _, proxy = proxied
    proxy.mode = Mode.PASS
    proxy.faults = 0
    return proxy


@pytest.fixture
def topic(proxied: tuple[KafkaCluster, Proxy]) -> str:
    return create_topic(proxied[0].bootstrap(), partitions=3)


def test_22_ends_whose_answers_are_lost_doubled_and_late_are_one_end(
    proxied: tuple[KafkaCluster, Proxy], proxy: Proxy, topic: str
) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    writer = TransactionalWriter(proxied[0].bootstrap(), topic, topic)
    writer.producer.close()
    writer = TransactionalWriter(proxy.address, topic, topic, request_timeout_ms=1_000)
    writer.bootstrap = proxied[0].bootstrap()

    def strike(mode: Mode) -> None:
        writer.producer.flush()
        struck = proxy.faults
        proxy.mode = mode
        if mode is Mode.HOLD_ANSWERS:
            threading.Thread(target=pass_on_later, args=(struck + 1, chance.choice((0.1, 1.5))), daemon=True).start()

    def pass_on_later(fault: int, held_seconds: float) -> None:
        proxy.wait_for_fault(fault)
        time.sleep(held_seconds)
        proxy.mode = Mode.PASS

    for round_ in range(ROUNDS):
        mode = (Mode.LOSE_ANSWER, Mode.DOUBLE_ANSWER, Mode.HOLD_ANSWERS)[round_ % 3]
        struck = proxy.faults
        writer.write_transaction({COMMIT: lambda mode=mode: strike(mode)})  # type: ignore[misc]
        assert proxy.faults > struck, f"{mode} met nothing"
    writer.producer.close()
    writer.check()


def test_23_a_zombies_write_that_comes_late_is_refused(
    proxied: tuple[KafkaCluster, Proxy], proxy: Proxy, topic: str
) -> None:
    """The proxy keeps the zombie's records until another producer of its id has committed."""
    kafka, _ = proxied
    zombie = producer_of(proxy.address, topic, request_timeout_ms=2_000)
    zombie.init_transactions()
    zombie.begin_transaction()
    zombie.send(ProducerRecord(topic, b"early zombie", partition=0)).result(WAIT_TIMEOUT_SECONDS)
    proxy.mode = Mode.HOLD_REQUESTS
    late = zombie.send(ProducerRecord(topic, b"late zombie", partition=0))
    proxy.wait_for_fault()
    with producer_of(kafka.bootstrap(), topic) as heir:
        heir.init_transactions()
        for value in (b"1", b"2"):
            with heir.transaction():
                heir.send(ProducerRecord(topic, value, partition=0))
            proxy.mode = Mode.PASS
            wait_until(late.done)
        with pytest.raises(KafkaSinkError):
            late.result(0)
        with pytest.raises(KafkaSinkError):
            zombie.commit_transaction()
        zombie.close()
        with heir.transaction():
            heir.send(ProducerRecord(topic, b"3", partition=0))
    assert [record.value for record in read_topic(kafka.bootstrap(), topic)] == [b"1", b"2", b"3"]


def test_23_of_two_producers_that_take_over_from_each_other_each_commit_is_whole_or_absent(
    proxied: tuple[KafkaCluster, Proxy], proxy: Proxy, topic: str
) -> None:
    kafka, _ = proxied
    committed: list[int] = []
    producers = [producer_of(kafka.bootstrap(), topic)]
    producers[0].init_transactions()
    for round_ in range(ROUNDS):
        producers[-1].begin_transaction()
        for partition in range(3):
            producers[-1].send(ProducerRecord(topic, b"%d" % round_, partition=partition))
        if round_ % 3 == 2:
            heir = producer_of(kafka.bootstrap(), topic)
            again(heir.init_transactions)
            with pytest.raises(KafkaSinkError):
                producers[-1].commit_transaction()
            producers.append(heir)
        else:
            producers[-1].commit_transaction()
            committed.append(round_)
    for producer in producers:
        producer.close()
    for partition in range(3):
        stored = [int(r.value or b"") for r in read_topic(kafka.bootstrap(), topic) if r.partition == partition]
        assert stored == committed


def test_24_kafkas_tools_see_an_open_transaction_and_its_end_at_the_timeout(
    proxied: tuple[KafkaCluster, Proxy], topic: str
) -> None:
    """Its producer is gone without a word, as after kill -9."""
    kafka, _ = proxied
    with producer_of(kafka.bootstrap(), f"{topic}-other") as other:
        other.init_transactions()
        producer = producer_of(kafka.bootstrap(), topic, transaction_timeout_ms=8_000)
        producer.init_transactions()
        started = time.monotonic()
        producer.begin_transaction()
        producer.send(ProducerRecord(topic, b"never seen", partition=0)).result(WAIT_TIMEOUT_SECONDS)
        producer.close(timeout=0)
        with other.transaction():
            other.send(ProducerRecord(topic, b"seen", partition=0))
    listed = kafka.tool(TRANSACTIONS_TOOL, "--bootstrap-server", kafka.bootstrap(), "list")
    if time.monotonic() - started < 8:
        (line,) = [line for line in listed.splitlines() if line.split()[:1] == [topic]]
        assert "Ongoing" in line
    wait_until(lambda: [record.value for record in read_topic(kafka.bootstrap(), topic)] == [b"seen"])
    listed = kafka.tool(TRANSACTIONS_TOOL, "--bootstrap-server", kafka.bootstrap(), "list")
    (line,) = [line for line in listed.splitlines() if line.split()[:1] == [topic]]
    assert "CompleteAbort" in line
    arguments = ("--topic", topic, "--from-beginning", "--isolation-level", "read_committed", "--timeout-ms", "3000")
    printed = kafka.tool(CONSOLE_CONSUMER, "--bootstrap-server", kafka.bootstrap(), *arguments)
    assert "seen" in printed.splitlines()
    assert "never seen" not in printed
