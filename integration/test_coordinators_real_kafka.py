"""Three hundred transactions on three real brokers end together, also when one of the brokers is dead or stands still;
and the decision log goes on at its next leader. librdkafka reads what is committed.
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
from spark_kafka_sink.client.producer_ids import ProducerIdAndEpoch
from spark_kafka_sink.client.topic_partition import TopicPartition
from spark_kafka_sink.errors import KafkaSinkError, ProducerFencedError
from spark_kafka_sink.exactly_once.batch_content import BatchContent
from spark_kafka_sink.exactly_once.clients import new_client
from spark_kafka_sink.exactly_once.entries import Batch, EntryState
from spark_kafka_sink.exactly_once.log_writer import WriterState
from spark_kafka_sink.exactly_once.query_transactions import MAX_TRIES
from spark_kafka_sink.exactly_once.transaction_aborts import abort_transactions, expected_identity
from spark_kafka_sink.producer.config import ProducerConfig
from spark_kafka_sink.requests.blocking import BlockingClient
from spark_kafka_sink.requests.init_producer_id import InitProducerId
from spark_kafka_sink.requests.request import TRANSACTION, CoordinatorKey
from spark_kafka_sink.requests.transaction_admin import (
    describe_transactions,
    end_transactions,
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
TIMEOUT_MS = 900_000
OF_TRANSACTIONS = "__transaction_state"
SECONDS_MORE = 5.0
USUAL_TIMES_MORE = 10.0
"""So long after an election all must be answered: as many seconds, and for a slow machine as many times what it takes,
while all brokers live, to begin what is ended then."""
ELECTION_SECONDS_MAX = 300.0
"""A test that has failed before the election ends its look; it takes 3 s, and on a slow machine some more."""


def connect_client(cluster: KafkaCluster) -> BlockingClient:
    return new_client(ProducerConfig.parse({"bootstrap.servers": cluster.bootstrap()}).client_config())


def prepared(client: BlockingClient, topic: str, ids: Sequence[str] = ()) -> list[TransactionIdentity]:
    """An open transaction for each task, without a producer for each."""
    ids = ids or [f"{topic}-{number}" for number in range(TASKS)]
    answers = client.send_all(InitProducerId(name, TIMEOUT_MS) for name in ids)
    begun = [TransactionIdentity(name, each.producer_id, each.producer_epoch, 1) for name, each in answers.items()]
    client.send_all(AddPartitions(each, frozenset([TopicPartition(topic, 0)])) for each in begun)
    assert all(each.state == ONGOING for each in describe_transactions(client, ids).values())
    return begun


class Patience:
    """How long a test may wait: beyond the election, where a broker is gone, what is usual on this machine now."""

    def __init__(self, usual: float) -> None:
        self._usual = usual
        self._elected: Future[float] | None = None

    def wait_for_election(self, cluster: KafkaCluster, gone: int, *topics: str) -> None:
        """Look for it from now on, in a thread that ends when it is over."""
        with_one_thread = ThreadPoolExecutor(1)
        self._elected = with_one_thread.submit(elected_at, cluster, gone, topics)
        with_one_thread.shutdown(wait=False)

    @contextmanager
    def measured(self, what: str) -> Iterator[None]:
        begun = time.monotonic()
        yield
        ended = time.monotonic()
        elected = begun if self._elected is None else self._elected.result()
        print(f"{what}: {ended - begun:.1f} s, {ended - max(begun, elected):.1f} s after the election")
        assert ended < max(begun, elected) + SECONDS_MORE + USUAL_TIMES_MORE * self._usual, what


def elected_at(cluster: KafkaCluster, gone: int, topics: tuple[str, ...]) -> float:
    """When none of these topics has a partition any more that the broker leads, as librdkafka sees it."""
    others = ",".join(
        f"localhost:{n.ports['PLAINTEXT']}" for n in cluster.nodes.values() if n.is_broker and n.node_id != gone
    )
    begun = time.monotonic()
    while any(leads(others, gone, topic) for topic in topics):
        assert time.monotonic() < begun + ELECTION_SECONDS_MAX, "the cluster elects no other broker"
        time.sleep(0.05)
    return time.monotonic()


def leads(bootstrap: str, node_id: int, topic: str) -> bool:
    """Asked of a new client each time: one that knows the broker would ask that one, too."""
    found = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0}).list_topics(topic, timeout=60).topics[topic]
    return any(partition.leader in (node_id, -1) for partition in found.partitions.values())


def find_id_that_cannot_be_stored(client: BlockingClient, transactional_ids: Iterable[str]) -> str:
    """Return the first id for which the coordinator answers COORDINATOR_NOT_AVAILABLE.

    Each try needs an id of its own. A broker shows the new in-sync replicas in its metadata before its partitions use
    them: shutting down fetchers from suspended brokers may take 30 s between the two. A record that is appended
    meanwhile waits for the suspended brokers as long as the id's transaction timeout, and the id with it.
    """
    for transactional_id in transactional_ids:
        with pytest.raises(KafkaSinkError) as rejected:
            client.send(InitProducerId(transactional_id, TIMEOUT_MS), timeout_ms=2_000)
        if "COORDINATOR_NOT_AVAILABLE" in str(rejected.value):
            return transactional_id
    raise AssertionError(f"the coordinator stores every id, or does not answer: {rejected.value}")


def take_over(client: BlockingClient, described: TransactionDescription) -> ProducerIdAndEpoch:
    """Request the next epoch of the id until it is granted, looking up the id again after each rejection.

    The brokers are just back, so a coordinator may append the record and answer COORDINATOR_NOT_AVAILABLE all the same.
    The retry of that request is fenced by its first attempt. A driver looks again as well (QueryTransactions.in_turns).
    """
    transactional_id = described.transactional_id
    for _ in range(MAX_TRIES):
        with suppress(ProducerFencedError):
            return init_producer_id(client, transactional_id, TIMEOUT_MS, expected_identity(described))
        described = describe_transactions(client, [transactional_id])[transactional_id]
    raise AssertionError(f"fenced {MAX_TRIES} times, last at {described}")


def coordinator_of_most(client: BlockingClient) -> int:
    nodes = [node.id for node in client._pending.routing._coordinators.values()]
    return max(set(nodes), key=nodes.count)


def nothing(_: KafkaCluster, __: int) -> None:
    """All brokers live."""


FAULTS: dict[str, tuple[Callable[[KafkaCluster, int], None], Callable[[KafkaCluster, int], None]]] = {
    "all live": (nothing, nothing),
    "one is killed": (KafkaCluster.kill, KafkaCluster.start_node),
    "one stands still": (KafkaCluster.pause, KafkaCluster.resume),
}


@pytest.mark.parametrize("round_", range(10 if SOAK else 1))
@pytest.mark.parametrize("fault", FAULTS)
def test_commits_transactions_of_many_tasks_despite_coordinator_failure(
    kafka3: KafkaCluster, fault: str, round_: int
) -> None:
    strike, heal = FAULTS[fault]
    topic = create_topic(kafka3.bootstrap(), replicas=3)
    with connect_client(kafka3) as client:
        begun = time.monotonic()
        tasks = prepared(client, topic)
        patience = Patience(time.monotonic() - begun)
        names = [each.transactional_id for each in tasks]
        struck = coordinator_of_most(client)
        strike(kafka3, struck)
        try:
            if strike is not nothing:
                patience.wait_for_election(kafka3, struck, OF_TRANSACTIONS)
            with patience.measured(f"{TASKS} transactions, {fault}"):
                assert end_transactions(client, tasks, commit=True) == {}
            with patience.measured(f"{TASKS} descriptions, {fault}"):
                found = describe_transactions(client, names).values()
            with patience.measured(f"the list, {fault}"):
                assert not [name for name in list_transactional_ids(client, ONGOING) if name.startswith(f"{topic}-")]
        finally:
            heal(kafka3, struck)
        assert len(found) == TASKS
        assert {each.state for each in found} <= {"CompleteCommit", "PrepareCommit"}
    kafka3.wait_until_ready()


@pytest.mark.parametrize("round_", range(10 if SOAK else 1))
@pytest.mark.parametrize("fault", FAULTS)
def test_decides_and_commits_batch_of_many_tasks_despite_broker_failure(
    kafka3: KafkaCluster, fault: str, round_: int
) -> None:
    """All that the driver does then: it asks what is open, decides, ends, lists what lost, notes that it is done."""
    strike, heal = FAULTS[fault]
    topic = create_topic(kafka3.bootstrap(), replicas=3)
    query = Query(cast(EmbeddedBroker, Brokers(kafka3.bootstrap())), prefix=topic, data=topic, timeout_ms=TIMEOUT_MS)
    start = query.begin()
    with connect_client(kafka3) as client:
        begun = time.monotonic()
        tasks = prepared(client, topic, [start.task_id(number, 0) for number in range(TASKS)])
        patience = Patience(time.monotonic() - begun)
        struck = coordinator_of_most(client)
    strike(kafka3, struck)
    try:
        if strike is not nothing:
            patience.wait_for_election(kafka3, struck, OF_TRANSACTIONS, LOG)
        with patience.measured(f"a batch of {TASKS} tasks, {fault}"):
            query.commit(start, 0, tasks, BatchContent.from_row_counts({topic: TASKS}, TASKS))
    finally:
        heal(kafka3, struck)
    kafka3.wait_until_ready()
    # A broker that stood still answers for a moment as if it led the log, or the id, as before.
    wait_until(
        lambda: entry_of(kafka3, topic) == (EntryState.DONE, query.batch(0)), lambda: str(entry_of(kafka3, topic))
    )


def entry_of(cluster: KafkaCluster, prefix: str) -> tuple[EntryState, Batch]:
    with open_query_transactions(cast(EmbeddedBroker, Brokers(cluster.bootstrap())), prefix) as transactions:
        transactions.describe_driver_id()
        entry = transactions.read_entry()
    return entry.state, entry.batch


def test_ids_aborted_as_in_version_1_can_be_reused_at_once(
    kafka3: KafkaCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Coordinators wait for the other brokers to have their record of an id for as long as the id's timeout: if it were
    short, the id would be blocked for minutes.
    """
    monkeypatch.setattr(BlockingClient, "transaction_version", 1)
    topic = create_topic(kafka3.bootstrap(), replicas=3)
    with connect_client(kafka3) as client:
        begun = time.monotonic()
        tasks = prepared(client, topic)
        patience = Patience(time.monotonic() - begun)
        with patience.measured(f"{TASKS} aborts as in version 1"):
            abort_transactions(
                client, [*describe_transactions(client, [each.transactional_id for each in tasks]).values()]
            )
        with patience.measured(f"{TASKS} transactions of these ids"):
            again = prepared(client, topic)
        abort_transactions(client, [*describe_transactions(client, [each.transactional_id for each in again]).values()])


def test_grants_epoch_of_id_without_epoch_when_brokers_are_back(
    kafka3: KafkaCluster,
) -> None:
    """The coordinator describes it with an epoch of -1, which it refuses as that of a request."""
    topic = create_topic(kafka3.bootstrap(), replicas=3)
    with connect_client(kafka3) as client:
        init_producer_id(client, f"{topic}-other", TIMEOUT_MS)  # the connection to its coordinator is open from then on
        ids = [f"{topic}-{number}" for number in range(600)]
        assert describe_transactions(client, ids) == {}
        coordinators = client._pending.routing._coordinators
        coordinator = coordinators[CoordinatorKey(TRANSACTION, f"{topic}-other")].id
        ids = [each for each in ids if coordinators[CoordinatorKey(TRANSACTION, each)].id == coordinator]
        others = [node.node_id for node in kafka3.nodes.values() if node.is_broker and node.node_id != coordinator]
        for node in others:
            kafka3.pause(node)
        try:
            transactional_id = find_id_that_cannot_be_stored(client, ids)
        finally:
            for node in others:
                kafka3.resume(node)
        kafka3.wait_until_ready()
        described = describe_transactions(client, [transactional_id])[transactional_id]
        assert (described.state, described.id_and_epoch.epoch) == (EMPTY, -1)
        granted = take_over(client, described)
        assert describe_transactions(client, [transactional_id])[transactional_id].id_and_epoch == granted
        with pytest.raises(ProducerFencedError):
            init_producer_id(client, transactional_id, TIMEOUT_MS, expected_identity(None))


@pytest.mark.parametrize("fault", ["one is killed", "one stands still"])
def test_writes_log_after_leader_failure(kafka3: KafkaCluster, fault: str) -> None:
    strike, heal = FAULTS[fault]
    topic = create_topic(kafka3.bootstrap(), partitions=1, replicas=3)
    with connect_client(kafka3) as client:
        begun = time.monotonic()
        written = WriterState(init_producer_id(client, topic, 60_000))
        written = write_records(client, topic, written, (topic, 0), [(b"k", b"before")])
        patience = Patience(time.monotonic() - begun)
        while describe_transactions(client, [topic])[topic].state != "CompleteCommit":
            time.sleep(
                0.05
            )  # a broker that stands still while it writes the marker holds its coordinator up for minutes
        leader = client.leader(topic, 0)
        assert leader is not None
        strike(kafka3, leader.id)
        try:
            patience.wait_for_election(kafka3, leader.id, topic, OF_TRANSACTIONS)
            with patience.measured(f"one entry, {fault}"):
                write_records(client, topic, written, (topic, 0), [(b"k", b"after")])
        finally:
            heal(kafka3, leader.id)
    kafka3.wait_until_ready()
    assert [record.value for record in read_topic(kafka3.bootstrap(), topic)] == [b"before", b"after"]
