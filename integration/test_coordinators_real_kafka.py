"""Commits of 300 transactions and writes to the decision log on three real brokers, one of which fails.

librdkafka reads the committed records.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import cast

import pytest
from confluent_kafka.admin import AdminClient

from integration.support.kafka_cluster import KafkaCluster
from integration.support.librdkafka import create_topic, read_topic
from integration.support.plain_driver import Brokers
from spark_kafka_sink.client.client_request import ConnectionLoss
from spark_kafka_sink.client.connections import Connections
from spark_kafka_sink.client.producer_ids import ProducerIdAndEpoch
from spark_kafka_sink.client.topic_partition import TopicPartition
from spark_kafka_sink.errors import KafkaSinkError, ProducerFencedError
from spark_kafka_sink.exactly_once.batch_summary import BatchSummary
from spark_kafka_sink.exactly_once.clients import create_client
from spark_kafka_sink.exactly_once.entries import Batch, EntryState
from spark_kafka_sink.exactly_once.log_writer import WriterState
from spark_kafka_sink.exactly_once.query_transactions import MAX_ATTEMPTS
from spark_kafka_sink.exactly_once.transaction_aborts import abort_transactions, choose_expected_identity
from spark_kafka_sink.producer.config import ProducerConfig
from spark_kafka_sink.requests.blocking import BlockingClient
from spark_kafka_sink.requests.init_producer_id import InitProducerId
from spark_kafka_sink.requests.request import TRANSACTION_KEY_TYPE, CoordinatorRoute
from spark_kafka_sink.requests.transaction_admin import (
    describe_transactions,
    init_producer_id,
    list_transactional_ids,
)
from spark_kafka_sink.requests.transaction_description import EMPTY, ONGOING, TransactionDescription
from spark_kafka_sink.requests.transaction_identity import TransactionIdentity
from spark_kafka_sink.requests.transactions import AddPartitions
from spark_kafka_sink.testing import EmbeddedBroker
from tests.exactly_once.embedded_query import LOG, Query, open_query_transactions, write_records
from tests.waiting import wait_until

pytestmark = pytest.mark.needs("kafka")

SOAK = bool(os.environ.get("SOAK"))
TASKS = 300
REUSED_IDS = TASKS if SOAK else 30
"""The number of ids that are used twice, with coordinators on all three brokers."""
TIMEOUT_MS = 900_000
TRANSACTION_STATE_TOPIC = "__transaction_state"
MAX_TIMEOUTS = 20
"""Number of connections that a step may lose by timeouts, each after a wait of seconds.

A step that waits for the failed broker once per transaction loses far more. The duration of a step is no measure: a
broker that applies the new leaders may wait up to 30 s for a fetcher from the suspended broker to shut down.
"""
MAX_ELECTION_SECONDS = 300.0
"""Time after which the thread that observes the election gives up. An election takes 3 s on a fast machine."""


def connect_client(cluster: KafkaCluster) -> BlockingClient:
    return create_client(ProducerConfig.parse({"bootstrap.servers": cluster.bootstrap()}).client_config())


def begin_transactions(
    client: BlockingClient, topic: str, transactional_ids: Sequence[str]
) -> list[TransactionIdentity]:
    """Begin a transaction for each id through a single client."""
    results = client.send_all(InitProducerId(name, TIMEOUT_MS) for name in transactional_ids)
    identities = [
        TransactionIdentity(name, result.producer_id, result.producer_epoch, 1) for name, result in results.items()
    ]
    client.send_all(AddPartitions(identity, frozenset([TopicPartition(topic, 0)])) for identity in identities)
    descriptions = describe_transactions(client, transactional_ids).values()
    assert all(description.state == ONGOING for description in descriptions)
    return identities


class StepLimits:
    """Limits how many connections a step loses by timeouts, and prints how long the step took."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._timeouts = 0
        self._elected_at: Future[float] | None = None
        record_loss = Connections.record_loss

        def count_loss(connections: Connections, node_id: int, loss: ConnectionLoss, now: float) -> None:
            self._timeouts += loss.timed_out
            record_loss(connections, node_id, loss, now)

        monkeypatch.setattr(Connections, "record_loss", count_loss)

    def observe_election(self, cluster: KafkaCluster, failed_node: int, *topics: str) -> None:
        """Observe the election in a thread, so that the printed durations begin at its end."""
        executor = ThreadPoolExecutor(1)
        self._elected_at = executor.submit(wait_for_election, cluster, failed_node, topics)
        executor.shutdown(wait=False)

    @contextmanager
    def check(self, step: str) -> Iterator[None]:
        started, timeouts_before = time.monotonic(), self._timeouts
        yield
        ended, timeouts = time.monotonic(), self._timeouts - timeouts_before
        elected = started if self._elected_at is None else self._elected_at.result()
        seconds_after_election = ended - max(started, elected)
        print(
            f"{step}: {ended - started:.1f} s, {seconds_after_election:.1f} s after the election, {timeouts} timeouts"
        )
        assert timeouts <= MAX_TIMEOUTS, step


@pytest.fixture
def limits(monkeypatch: pytest.MonkeyPatch) -> StepLimits:
    return StepLimits(monkeypatch)


def wait_for_election(cluster: KafkaCluster, failed_node: int, topics: tuple[str, ...]) -> float:
    """Wait until the failed broker leads no partition of the topics, as librdkafka sees it. Return that time."""
    other_brokers = ",".join(
        f"localhost:{node.ports['PLAINTEXT']}"
        for node in cluster.nodes.values()
        if node.is_broker and node.node_id != failed_node
    )
    deadline = time.monotonic() + MAX_ELECTION_SECONDS
    while any(leads_partition(other_brokers, failed_node, topic) for topic in topics):
        assert time.monotonic() < deadline, "the cluster elects no other broker"
        time.sleep(0.05)
    return time.monotonic()


def leads_partition(bootstrap: str, node_id: int, topic: str) -> bool:
    """Return whether the broker leads a partition of the topic, or a partition has no leader.

    Each call needs a new client. A client that knows the failed broker would send requests to it, too.
    """
    metadata = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0}).list_topics(topic, timeout=60)
    return any(partition.leader in (node_id, -1) for partition in metadata.topics[topic].partitions.values())


def find_id_that_cannot_be_stored(client: BlockingClient, transactional_ids: Iterable[str]) -> str:
    """Return the first id for which the coordinator responds with COORDINATOR_NOT_AVAILABLE.

    Each attempt needs a new id. A broker shows the new in-sync replicas in its metadata before its partitions use them:
    in between, it may wait 30 s for the fetchers from suspended brokers to shut down. A record that is appended in this
    period waits for the suspended brokers until the id's transaction timeout, and blocks the id for as long.
    """
    for transactional_id in transactional_ids:
        with pytest.raises(KafkaSinkError) as rejected:
            client.send(InitProducerId(transactional_id, TIMEOUT_MS), timeout_ms=2_000)
        if "COORDINATOR_NOT_AVAILABLE" in str(rejected.value):
            return transactional_id
    raise AssertionError(f"the coordinator stores every id, or does not respond: {rejected.value}")


def take_over(client: BlockingClient, description: TransactionDescription) -> ProducerIdAndEpoch:
    """Request the next epoch of the id until it is granted. After each rejection, describe the id again.

    Soon after the brokers were resumed, a coordinator may append the record and still respond with
    COORDINATOR_NOT_AVAILABLE. The retry of that request is fenced by its first attempt. A driver describes the id again
    as well (QueryTransactions.retry_when_fenced).
    """
    transactional_id = description.transactional_id
    for _ in range(MAX_ATTEMPTS):
        with suppress(ProducerFencedError):
            return init_producer_id(client, transactional_id, TIMEOUT_MS, choose_expected_identity(description))
        description = describe_transactions(client, [transactional_id])[transactional_id]
    raise AssertionError(f"fenced {MAX_ATTEMPTS} times, last at {description}")


def busiest_coordinator(client: BlockingClient) -> int:
    """Return the broker that coordinates most of the transactions that the client has sent requests for."""
    node_ids = [node.id for node in client._engine.routing._coordinators.values()]
    return max(set(node_ids), key=node_ids.count)


def do_nothing(cluster: KafkaCluster, node_id: int) -> None:
    pass


FaultAction = Callable[[KafkaCluster, int], None]
FAULTS: dict[str, tuple[FaultAction, FaultAction]] = {
    "none": (do_nothing, do_nothing),
    "killed": (KafkaCluster.kill, KafkaCluster.start_node),
    "suspended": (KafkaCluster.pause, KafkaCluster.resume),
}
"""The function that injects a fault into one broker, and the one that repairs it, by name of the fault."""
TESTED_FAULTS = tuple(FAULTS) if SOAK else ("killed", "suspended")
"""Faults to test. Batches of as many tasks without a fault are in test_exactly_once_paused.py."""


@pytest.mark.parametrize("round_", range(10 if SOAK else 1))
@pytest.mark.parametrize("fault", TESTED_FAULTS)
def test_decides_and_commits_batch_of_many_tasks_despite_broker_failure(
    kafka3: KafkaCluster, limits: StepLimits, fault: str, round_: int
) -> None:
    """The commit describes the tasks, records the decision, ends transactions and marks the batch as done."""
    inject, repair = FAULTS[fault]
    topic = create_topic(kafka3.bootstrap(), replicas=3)
    query = Query(cast(EmbeddedBroker, Brokers(kafka3.bootstrap())), prefix=topic, data=topic, timeout_ms=TIMEOUT_MS)
    start = query.begin()
    transactional_ids = [start.build_task_id(task, 0) for task in range(TASKS)]
    with connect_client(kafka3) as client:
        tasks = begin_transactions(client, topic, transactional_ids)
        failed_node = busiest_coordinator(client)
        inject(kafka3, failed_node)
        try:
            if inject is not do_nothing:
                limits.observe_election(kafka3, failed_node, TRANSACTION_STATE_TOPIC, LOG)
            with limits.check(f"commit a batch of {TASKS} tasks, fault: {fault}"):
                query.commit(start, 0, tasks, BatchSummary.from_row_counts({topic: TASKS}, TASKS))
            with limits.check(f"describe {TASKS} transactions, fault: {fault}"):
                descriptions = describe_transactions(client, transactional_ids).values()
            with limits.check(f"list transactions, fault: {fault}"):
                open_ids = list_transactional_ids(client, ONGOING)
        finally:
            repair(kafka3, failed_node)
    assert len(descriptions) == TASKS
    assert {description.state for description in descriptions} <= {"CompleteCommit", "PrepareCommit"}
    assert set(open_ids).isdisjoint(transactional_ids)
    kafka3.wait_until_ready()
    # For a moment, a resumed broker responds as if it still led the log or coordinated the id.
    wait_until(
        lambda: read_entry(kafka3, topic) == (EntryState.DONE, query.batch(0)), lambda: str(read_entry(kafka3, topic))
    )


def read_entry(cluster: KafkaCluster, prefix: str) -> tuple[EntryState, Batch]:
    with open_query_transactions(cast(EmbeddedBroker, Brokers(cluster.bootstrap())), prefix) as transactions:
        transactions.describe_driver_id()
        entry = transactions.read_entry()
    return entry.state, entry.batch


def test_ids_aborted_as_in_version_1_can_be_reused_immediately(
    kafka3: KafkaCluster, limits: StepLimits, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The transaction timeout stays long: a coordinator waits that long for the other brokers to store an id's record.

    With a short timeout, it would reject the id's requests for minutes.
    """
    monkeypatch.setattr(BlockingClient, "transaction_version", 1)
    topic = create_topic(kafka3.bootstrap(), replicas=3)
    transactional_ids = [f"{topic}-{task}" for task in range(REUSED_IDS)]
    with connect_client(kafka3) as client:
        for use in ("first", "second"):
            with limits.check(f"begin {REUSED_IDS} transactions, {use} use of the ids"):
                begin_transactions(client, topic, transactional_ids)
            descriptions = describe_transactions(client, transactional_ids)
            with limits.check(f"abort {REUSED_IDS} transactions as in version 1, {use} use of the ids"):
                abort_transactions(client, [*descriptions.values()])


def test_grants_epoch_of_id_without_epoch_when_brokers_are_back(kafka3: KafkaCluster) -> None:
    """The coordinator describes the id with the epoch -1, which it rejects in a request."""
    topic = create_topic(kafka3.bootstrap(), replicas=3)
    with connect_client(kafka3) as client:
        connected_id = f"{topic}-other"
        init_producer_id(client, connected_id, TIMEOUT_MS)  # opens the connection to the id's coordinator
        transactional_ids = [f"{topic}-{number}" for number in range(600)]
        assert describe_transactions(client, transactional_ids) == {}
        coordinators = client._engine.routing._coordinators
        coordinator = coordinators[CoordinatorRoute(TRANSACTION_KEY_TYPE, connected_id)].id
        same_coordinator_ids = [
            name
            for name in transactional_ids
            if coordinators[CoordinatorRoute(TRANSACTION_KEY_TYPE, name)].id == coordinator
        ]
        other_brokers = [
            node.node_id for node in kafka3.nodes.values() if node.is_broker and node.node_id != coordinator
        ]
        for node_id in other_brokers:
            kafka3.pause(node_id)
        try:
            transactional_id = find_id_that_cannot_be_stored(client, same_coordinator_ids)
        finally:
            for node_id in other_brokers:
                kafka3.resume(node_id)
        kafka3.wait_until_ready()
        description = describe_transactions(client, [transactional_id])[transactional_id]
        assert (description.state, description.id_and_epoch.epoch) == (EMPTY, -1)
        granted = take_over(client, description)
        assert describe_transactions(client, [transactional_id])[transactional_id].id_and_epoch == granted
        with pytest.raises(ProducerFencedError):
            init_producer_id(client, transactional_id, TIMEOUT_MS, choose_expected_identity(None))


@pytest.mark.parametrize("fault", ["killed", "suspended"] if SOAK else ["suspended"])
def test_writes_log_after_leader_failure(kafka3: KafkaCluster, limits: StepLimits, fault: str) -> None:
    inject, repair = FAULTS[fault]
    topic = create_topic(kafka3.bootstrap(), partitions=1, replicas=3)
    with connect_client(kafka3) as client:
        state = WriterState(init_producer_id(client, topic, 60_000))
        state = write_records(client, topic, state, (topic, 0), [(b"k", b"before")])
        # A broker that is suspended while it writes the marker delays the coordinator by minutes.
        wait_until(lambda: describe_transactions(client, [topic])[topic].state == "CompleteCommit")
        leader = client.find_leader(topic, 0)
        assert leader is not None
        inject(kafka3, leader.id)
        try:
            limits.observe_election(kafka3, leader.id, topic, TRANSACTION_STATE_TOPIC)
            with limits.check(f"write one entry, fault: {fault}"):
                write_records(client, topic, state, (topic, 0), [(b"k", b"after")])
        finally:
            repair(kafka3, leader.id)
    kafka3.wait_until_ready()
    assert [record.value for record in read_topic(kafka3.bootstrap(), topic)] == [b"before", b"after"]
