"""Writes records in transactions while something goes wrong at a given step, and checks what became of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from confluent_kafka.admin import AdminClient

from integration.support.kafka_cluster import KafkaCluster
from integration.support.librdkafka import create_topic, read_topic
from spark_kafka_sink.errors import TransactionAbortableError, TransactionTimeoutError
from spark_kafka_sink.exactly_once.clients import new_client
from spark_kafka_sink.producer.config import ProducerConfig
from spark_kafka_sink.producer.producer import KafkaProducer
from spark_kafka_sink.producer.record import ProducerRecord
from spark_kafka_sink.requests.pending import PendingRequests
from spark_kafka_sink.requests.request import TRANSACTION, CoordinatorKey
from spark_kafka_sink.requests.transaction_admin import describe_transactions
from tests.waiting import WAIT_TIMEOUT_SECONDS

RECORDS = 30
PARTITIONS = 3
ATTEMPTS_MAX = 20
INIT, FIRST_RECORD, LATER_RECORD, COMMIT = "init", "first record", "later record", "commit"


def producer_of(bootstrap: str, transactional_id: str, **options: object) -> KafkaProducer:
    given = {name.replace("_", "."): value for name, value in options.items()}
    own = {"bootstrap.servers": bootstrap, "transactional.id": transactional_id, "linger.ms": 0}
    return KafkaProducer(own | given)


class TransactionalWriter:
    def __init__(self, bootstrap: str, topic: str, transactional_id: str, **options: object) -> None:
        self.bootstrap = bootstrap
        self.topic = topic
        self.written = 0
        self.aborted = 0
        self.producer = producer_of(bootstrap, transactional_id, delivery_timeout_ms=600_000, **options)
        self.producer.init_transactions()

    def write_transaction(self, faults: Mapping[str, Callable[[], object]] | None = None) -> None:
        """`faults`: what happens before a step. A transaction that can only be aborted is written once more."""
        left = dict(faults or {})
        for _ in range(ATTEMPTS_MAX):
            if self._is_written(left):
                self.written += RECORDS
                assert not left, f"{left} did not happen"
                return
            self.aborted += 1
        raise AssertionError(f"a transaction was aborted {ATTEMPTS_MAX} times")

    def check(self) -> None:
        """Each record is there once, those of a partition in order, and nothing else is."""
        last: dict[int, int] = {}
        stored = [(record.partition, int(record.value or b"")) for record in read_topic(self.bootstrap, self.topic)]
        for partition, number in stored:
            assert number > last.get(partition, -1), f"{number} comes after {last[partition]} in partition {partition}"
            last[partition] = number
        assert sorted(number for _, number in stored) == list(range(self.written))

    def _is_written(self, faults: dict[str, Callable[[], object]]) -> bool:
        if INIT in faults:
            faults.pop(INIT)()
            again(self.producer.init_transactions)
        self.producer.begin_transaction()
        try:
            for number in range(RECORDS):
                for step, at in ((FIRST_RECORD, 0), (LATER_RECORD, RECORDS // 2)):
                    if number == at and step in faults:
                        self.producer.flush()
                        faults.pop(step)()
                self._send(self.written + number)
            faults.pop(COMMIT, lambda: None)()
            again(self.producer.commit_transaction)
        except TransactionAbortableError:
            again(self.producer.abort_transaction)
            return False
        return True

    def _send(self, number: int) -> None:
        self.producer.send(ProducerRecord(self.topic, b"%d" % number, partition=number % PARTITIONS))


def again(call: Callable[[], None]) -> None:
    """Repeat the call as often as its time is up."""
    for _ in range(ATTEMPTS_MAX):
        try:
            call()
        except TransactionTimeoutError:
            continue
        return
    raise AssertionError(f"{call} never ends")


# --- who leads, who coordinates


def leader_of(cluster: KafkaCluster, topic: str) -> int:
    """The leader of the topic's first partition."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap()})
    return int(admin.list_topics(topic, timeout=WAIT_TIMEOUT_SECONDS).topics[topic].partitions[0].leader)


def coordinator_of(cluster: KafkaCluster, transactional_id: str) -> int:
    config = ProducerConfig.parse({"bootstrap.servers": cluster.bootstrap()}).client_config()
    with new_client(config) as client:
        describe_transactions(client, [transactional_id])
        return _known(client._pending, transactional_id)


def known_coordinator(producer: KafkaProducer) -> int:
    assert producer._transactions is not None
    return _known(producer._requests._pending, producer._transactions.manager.transactional_id)


def _known(pending: PendingRequests, transactional_id: str) -> int:
    node = pending.routing.find(CoordinatorKey(TRANSACTION, transactional_id), 0)
    assert node is not None
    return node.id


def topic_with_leader(cluster: KafkaCluster, node: int) -> str:
    """A new one, whose first partition this broker leads. Brokers are not asked for a leader: they draw one."""
    while True:
        topic = create_topic(cluster.bootstrap(), partitions=PARTITIONS, replicas=cluster.brokers)
        if leader_of(cluster, topic) == node:
            return topic
