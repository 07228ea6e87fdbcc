"""TransactionalWriter: writes numbered records in transactions, injects faults before steps, and checks the topic."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from confluent_kafka.admin import AdminClient

from integration.support.kafka_cluster import KafkaCluster
from integration.support.librdkafka import create_topic, read_topic
from spark_kafka_sink.errors import TransactionAbortableError, TransactionTimeoutError
from spark_kafka_sink.exactly_once.clients import create_client
from spark_kafka_sink.producer.config import ProducerConfig
from spark_kafka_sink.producer.producer import KafkaProducer
from spark_kafka_sink.producer.record import ProducerRecord
from spark_kafka_sink.requests.engine import RequestEngine
from spark_kafka_sink.requests.request import TRANSACTION_KEY_TYPE, CoordinatorRoute
from spark_kafka_sink.requests.transaction_admin import describe_transactions
from tests.waiting import WAIT_TIMEOUT_SECONDS

RECORDS = 30
PARTITIONS = 3
MAX_ATTEMPTS = 20
INIT, FIRST_RECORD, LATER_RECORD, COMMIT = "init", "first record", "later record", "commit"


def create_producer(bootstrap: str, transactional_id: str, **options: object) -> KafkaProducer:
    """Create a transactional producer. Names of `options` have `_` instead of dots."""
    defaults = {"bootstrap.servers": bootstrap, "transactional.id": transactional_id, "linger.ms": 0}
    return KafkaProducer(defaults | {name.replace("_", "."): value for name, value in options.items()})


class TransactionalWriter:
    """A transactional producer that writes the numbers from 0 on, RECORDS in each transaction."""

    def __init__(self, bootstrap: str, topic: str, transactional_id: str, **options: object) -> None:
        self.bootstrap = bootstrap
        self.topic = topic
        self.written = 0
        self.aborted = 0
        self.producer = create_producer(bootstrap, transactional_id, delivery_timeout_ms=600_000, **options)
        self.producer.init_transactions()

    def write_transaction(self, faults: Mapping[str, Callable[[], object]] | None = None) -> None:
        """Write one transaction, and write it again as long as it can only be aborted.

        `faults`: functions that inject a fault, by the step before which they are called. Each is called once.
        """
        pending_faults = dict(faults or {})
        for _ in range(MAX_ATTEMPTS):
            if self._try_transaction(pending_faults):
                self.written += RECORDS
                assert not pending_faults, f"the transaction did not reach the steps {list(pending_faults)}"
                return
            self.aborted += 1
        raise AssertionError(f"a transaction was aborted {MAX_ATTEMPTS} times")

    def check(self) -> None:
        """Check that the topic contains each written record exactly once, in order within its partition."""
        last: dict[int, int] = {}
        stored = [(record.partition, int(record.value or b"")) for record in read_topic(self.bootstrap, self.topic)]
        for partition, number in stored:
            assert number > last.get(partition, -1), f"{number} comes after {last[partition]} in partition {partition}"
            last[partition] = number
        assert sorted(number for _, number in stored) == list(range(self.written))

    def _try_transaction(self, faults: dict[str, Callable[[], object]]) -> bool:
        """Write and commit a transaction. Abort it and return False if it cannot be committed."""
        if INIT in faults:
            faults.pop(INIT)()
            retry_timeouts(self.producer.init_transactions)
        self.producer.begin_transaction()
        try:
            for number in range(RECORDS):
                for step, step_number in ((FIRST_RECORD, 0), (LATER_RECORD, RECORDS // 2)):
                    if number == step_number and step in faults:
                        self.producer.flush()
                        faults.pop(step)()
                self._send(self.written + number)
            faults.pop(COMMIT, lambda: None)()
            retry_timeouts(self.producer.commit_transaction)
        except TransactionAbortableError:
            retry_timeouts(self.producer.abort_transaction)
            return False
        return True

    def _send(self, number: int) -> None:
        self.producer.send(ProducerRecord(self.topic, b"%d" % number, partition=number % PARTITIONS))


def retry_timeouts(call: Callable[[], None]) -> None:
    """Call a function, and call it again after each TransactionTimeoutError."""
    for _ in range(MAX_ATTEMPTS):
        try:
            call()
        except TransactionTimeoutError:
            continue
        return
    raise AssertionError(f"{call} timed out {MAX_ATTEMPTS} times")


# --- leaders and coordinators


def find_leader(cluster: KafkaCluster, topic: str) -> int:
    """Return the leader of the topic's first partition."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap()})
    return int(admin.list_topics(topic, timeout=WAIT_TIMEOUT_SECONDS).topics[topic].partitions[0].leader)


def find_coordinator(cluster: KafkaCluster, transactional_id: str) -> int:
    config = ProducerConfig.parse({"bootstrap.servers": cluster.bootstrap()}).client_config()
    with create_client(config) as client:
        describe_transactions(client, [transactional_id])
        return _find_cached_node(client._engine, transactional_id)


def find_cached_coordinator(producer: KafkaProducer) -> int:
    """Return the coordinator that the producer has looked up."""
    assert producer._transactions is not None
    return _find_cached_node(producer._call_executor._engine, producer._transactions.manager.transactional_id)


def _find_cached_node(engine: RequestEngine, transactional_id: str) -> int:
    node = engine.routing.find_node(CoordinatorRoute(TRANSACTION_KEY_TYPE, transactional_id), 0)
    assert node is not None
    return node.id


def create_topic_with_leader(cluster: KafkaCluster, node: int) -> str:
    """Create topics until this node leads the first partition of one, since brokers choose leaders at random."""
    while True:
        topic = create_topic(cluster.bootstrap(), partitions=PARTITIONS, replicas=cluster.brokers)
        if find_leader(cluster, topic) == node:
            return topic
