"""Helpers of the tests of exactly-once delivery: drivers and tasks of a query without Spark, on an embedded broker."""

from __future__ import annotations

import dataclasses
import pickle
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import count
from typing import Any
from unittest.mock import patch
from weakref import WeakKeyDictionary

import pytest

from spark_kafka_sink.broker.transaction_coordinator import TransactionMetadata
from spark_kafka_sink.client.config import ClientConfig
from spark_kafka_sink.client.options import parse_client_config
from spark_kafka_sink.client.topic_partition import TopicPartition
from spark_kafka_sink.errors import BrokerError
from spark_kafka_sink.exactly_once import (
    decision_log,
    log_partition,
    operations,
    query_transactions,
    transaction_aborts,
)
from spark_kafka_sink.exactly_once.batch_start import BatchStart
from spark_kafka_sink.exactly_once.batch_summary import BatchSummary
from spark_kafka_sink.exactly_once.clients import create_client
from spark_kafka_sink.exactly_once.decision_log import DecisionLog
from spark_kafka_sink.exactly_once.driver import Driver
from spark_kafka_sink.exactly_once.entries import Batch, Entry, EntryState, WriterKind
from spark_kafka_sink.exactly_once.log_topic import PARTITION_COUNT, partition_for
from spark_kafka_sink.exactly_once.log_writer import LogTransaction, LogWriter, WriterState
from spark_kafka_sink.exactly_once.query_transactions import QueryTransactions
from spark_kafka_sink.exactly_once.settings import ExactlyOnceOptions, ExactlyOnceSettings
from spark_kafka_sink.exactly_once.transaction_names import build_driver_id, parse_task_attempt
from spark_kafka_sink.producer.config import ProducerConfig
from spark_kafka_sink.producer.producer import KafkaProducer
from spark_kafka_sink.producer.record import ProducerRecord
from spark_kafka_sink.protocol import error_codes
from spark_kafka_sink.protocol.error_codes import build_broker_error
from spark_kafka_sink.records.decoder import DecodedBatch
from spark_kafka_sink.requests.blocking import BlockingClient
from spark_kafka_sink.requests.transaction_admin import fetch_ids_by_producer, list_transactional_ids
from spark_kafka_sink.requests.transaction_description import ONGOING
from spark_kafka_sink.requests.transaction_identity import TransactionIdentity
from spark_kafka_sink.testing import EmbeddedBroker, embedded_broker, read_topic

TOPIC, LOG, PREFIX, QUERY = "t", "decisions", "p", "query-1"
BOTH_TASKS = BatchSummary.from_row_counts({TOPIC: 2}, 6)
"""The summary that `write_both` writes."""


@pytest.fixture(params=[1, 2])
def broker(request: pytest.FixtureRequest) -> Iterator[EmbeddedBroker]:
    with embedded_broker(topics={TOPIC: 2}, nodes=2, transaction_version=request.param) as broker:
        yield broker


class Crash(BaseException):
    """Simulates the death of the process at this point."""


@dataclasses.dataclass
class Query:
    """A query of two tasks. Each call simulates a driver in a new process."""

    broker: EmbeddedBroker
    prefix: str = PREFIX
    name: str = "driver-1"
    query: str = QUERY
    checkpoint: str = "/checkpoint"
    has_user_prefix: bool = True
    timeout_ms: int | None = None
    data: str = TOPIC
    log: str = LOG

    @property
    def options(self) -> dict[str, str]:
        return {"bootstrap.servers": self.broker.bootstrap_servers, "retry.backoff.ms": "10"}

    @property
    def client(self) -> ClientConfig:
        return parse_client_config(self.options)

    @property
    def settings(self) -> ExactlyOnceSettings:
        prefix = self.prefix if self.has_user_prefix else None
        return ExactlyOnceSettings(
            self.client,
            self.prefix,
            ExactlyOnceOptions(prefix, log_topic=self.log, transaction_timeout_ms=self.timeout_ms),
            checkpoint=self.checkpoint,
            writer_kind=WriterKind.STREAM,
        )

    def batch(self, number: int) -> Batch:
        return Batch(self.query, number)

    def begin(self) -> BatchStart:
        with Driver(self.settings) as driver:
            start: BatchStart = pickle.loads(pickle.dumps(driver.begin(self.name)))
        return start

    def write(self, start: BatchStart, partition: int, *values: str, attempt: int = 0) -> TransactionIdentity:
        """Run a task of the query successfully."""
        producer = self.attempt(start, partition, attempt)
        producer.begin_transaction()
        for value in values:
            producer.send(ProducerRecord(self.data, value, partition=partition))
        prepared = producer.prepare_transaction()
        assert prepared is not None
        producer.close(timeout=0)
        return prepared

    def attempt(self, start: BatchStart, partition: int, attempt: int) -> KafkaProducer:
        """Return the producer of an attempt that has its transactional id and no transaction yet."""
        own = {"transactional.id": start.prefix, "transaction.timeout.ms": str(start.entry.timeout_ms)}
        producer = KafkaProducer({**self.options, "linger.ms": "0", **own})
        producer.init_transactions(start.build_task_id(partition, attempt))
        return producer

    def write_tasks(self, start: BatchStart, number: int) -> list[TransactionIdentity]:
        return [self.write(start, partition, f"{number}/{partition}") for partition in range(2)]

    def commit(
        self,
        start: BatchStart,
        number: int,
        transactions: list[TransactionIdentity],
        summary: BatchSummary = BOTH_TASKS,
    ) -> None:
        with Driver(self.settings) as driver:
            driver.commit(start, self.batch(number), transactions, summary)

    def write_and_commit(self, start: BatchStart, batch: Batch) -> None:
        """Write the rows of both tasks and commit them as this batch."""
        with Driver(self.settings) as driver:
            driver.commit(start, batch, self.write_tasks(start, 0), BOTH_TASKS)

    def abort(self, start: BatchStart, number: int) -> bool:
        with Driver(self.settings) as driver:
            return driver.abort(start, self.batch(number))

    def abort_unreported(self) -> bool:
        with Driver(self.settings) as driver:
            return driver.abort_unreported(self.name)

    def run(self, number: int) -> BatchStart:
        """Run a whole micro-batch: begin, both tasks, commit."""
        start = self.begin()
        assert not start.is_decided(self.batch(number))
        self.commit(start, number, self.write_tasks(start, number))
        return start

    def with_new_driver(self, **changes: object) -> Query:
        """Return a copy of the query with another driver."""
        return dataclasses.replace(self, **{"name": "driver-2", **changes})  # type: ignore[arg-type]

    def decide_with_reused_ids(self, start: BatchStart) -> None:
        """Let newer drivers begin until one reuses the ids of this start. It decides batch 0 and dies."""
        newer, later = self._begin_with_reused_ids(start)
        written = newer.write_tasks(later, 0)
        with death_before("commit"):
            newer.commit(later, 0, written)

    def _begin_with_reused_ids(self, start: BatchStart) -> tuple[Query, BatchStart]:
        for number in count(2):
            newer = self.with_new_driver(name=f"driver-{number}")
            begun = newer.begin()
            if begun.build_task_id(0, 0) == start.build_task_id(0, 0):
                return newer, begun
        raise AssertionError


def rows(*numbers: int) -> list[str]:
    """Return the rows that two tasks write in these batches."""
    return sorted(f"{number}/{partition}" for number in numbers for partition in range(2))


def read_values(broker: EmbeddedBroker, isolation: str = "read_committed") -> list[str]:
    table = read_topic(broker.bootstrap_servers, TOPIC, isolation=isolation)
    return sorted(value.decode() for value in table.column("value").to_pylist())


@contextmanager
def connect_client(broker: EmbeddedBroker, topic: str = TOPIC, **options: Any) -> Iterator[BlockingClient]:
    config = ProducerConfig.parse({"bootstrap.servers": broker.bootstrap_servers}).client_config()
    with create_client(config, **options) as client:
        client.wait_for_topic(topic)
        yield client


@pytest.fixture
def transactions(broker: EmbeddedBroker) -> Iterator[QueryTransactions]:
    with open_query_transactions(broker) as transactions:
        transactions.decision_log.create_if_missing()
        yield transactions


def open_query_transactions(broker: EmbeddedBroker, prefix: str = PREFIX) -> QueryTransactions:
    return QueryTransactions(parse_client_config(client_options(broker)), prefix, LOG)


def fence_driver_id(transactions: QueryTransactions) -> WriterState:
    return WriterState(transactions.fence(transactions.describe_driver_id()))


_WRITERS: WeakKeyDictionary[BlockingClient, LogWriter] = WeakKeyDictionary()


def get_log_writer(client: BlockingClient) -> LogWriter:
    """Return the LogWriter of a client. It keeps the state of each epoch, so a client must have only one."""
    return _WRITERS.setdefault(client, LogWriter(client))


def write_records(
    client: BlockingClient,
    transactional_id: str,
    state: WriterState,
    partition: tuple[str, int],
    records: Sequence[tuple[bytes, bytes | None]],
) -> WriterState:
    """Write these records in a transaction and commit it."""
    writing = get_log_writer(client).begin_transaction(transactional_id, state, TopicPartition(*partition), records)
    writing.wait()
    return writing.commit()


def write_entry_as(broker: EmbeddedBroker, transactional_id: str, key: str, value: bytes | None) -> None:
    """Write a record to the log in a transaction of this transactional id."""
    write_entries_as(broker, transactional_id, [(key, value)])


def write_entries_as(
    broker: EmbeddedBroker, transactional_id: str, entries: Iterable[tuple[str, bytes | None]]
) -> None:
    """Write records to the log, each in its own transaction of this transactional id."""
    options = {"bootstrap.servers": broker.bootstrap_servers, "transactional.id": transactional_id, "linger.ms": "0"}
    with KafkaProducer(options) as producer:
        producer.init_transactions()
        for key, value in entries:
            producer.begin_transaction()
            producer.send(ProducerRecord(LOG, value, key=key, partition=partition_for(key, PARTITION_COUNT)))
            producer.commit_transaction()


def list_open_ids(broker: EmbeddedBroker, prefix: str = PREFIX, topic: str = TOPIC) -> list[str]:
    with connect_client(broker, topic) as client:
        return [
            name for name in list_transactional_ids(client, ONGOING) if parse_task_attempt(prefix, name) is not None
        ]


@contextmanager
def death_after_claim() -> Iterator[None]:
    """Let a driver die after its claim was committed and before it reads the claim back."""
    original = LogTransaction.wait_and_commit

    def commit(writing: LogTransaction) -> WriterState:
        original(writing)
        raise Crash

    with patch.object(LogTransaction, "wait_and_commit", commit), pytest.raises(Crash):
        yield


@contextmanager
def stale_end_offsets(old_end: int, times: int) -> Iterator[None]:
    """Let the first `times` end offset lookups return `old_end`, in a process that has read nothing before."""
    original, left = DecisionLog._fetch_end_offset, [times]

    def end(log: DecisionLog, partition: int) -> int:
        left[0] -= 1
        return old_end if left[0] >= 0 else original(log, partition)

    decision_log._partition_cache.clear()
    with patch.object(DecisionLog, "_fetch_end_offset", end):
        yield
    decision_log._partition_cache.clear()


def register_id_without_epoch(broker: EmbeddedBroker, transactional_id: str) -> None:
    """Give an id a producer id and no epoch, as if the coordinator could not write the first record of the id."""
    coordinator = broker.cluster.coordinator
    coordinator.transactions[transactional_id] = TransactionMetadata(
        transactional_id, coordinator.allocate_producer_id()
    )


@contextmanager
def compacted_log(broker: EmbeddedBroker) -> Iterator[None]:
    """Let a new process read the decision log as if Kafka had compacted all its committed records."""
    records = read_topic(broker.bootstrap_servers, LOG, isolation="read_committed").select(["key", "offset"])
    newest = {key: max(offsets) for key, offsets in _offsets_by_key(records.to_pylist()).items()}
    original = log_partition._iterate_records

    def read(batch: DecodedBatch, key: bytes | None) -> Iterator[tuple[bytes, log_partition.LogRecord]]:
        for row_key, record in original(batch, key):
            if record.offset >= newest.get(row_key, -1):
                yield row_key, record

    decision_log._partition_cache.clear()
    with patch.object(log_partition, "_iterate_records", read):
        yield
    decision_log._partition_cache.clear()


def _offsets_by_key(records: Sequence[dict[str, Any]]) -> dict[bytes, list[int]]:
    offsets: dict[bytes, list[int]] = {}
    for record in records:
        offsets.setdefault(record["key"], []).append(record["offset"])
    return offsets


@contextmanager
def assert_no_new_epoch(broker: EmbeddedBroker) -> Iterator[None]:
    """Check that no client gets an epoch of the driver id, so that the active driver is not fenced."""
    transaction = broker.cluster.coordinator.transactions[build_driver_id(PREFIX)]
    before = (transaction.producer_id, transaction.epoch)
    yield
    assert (transaction.producer_id, transaction.epoch) == before


@contextmanager
def death_before(at: str) -> Iterator[None]:
    """Let the driver die before a step: `decision`, `commit`, `done` or `superseded`; `bump_epoch`: after its claim."""
    how = "begin_write" if at == "decision" else "write"
    original = getattr(QueryTransactions, how)

    def write(query: QueryTransactions, state: WriterState, entry: Entry) -> LogTransaction | WriterState:
        if entry.state is (EntryState.DECIDED if at == "decision" else EntryState.DONE):
            raise Crash
        written: LogTransaction | WriterState = original(query, state, entry)
        return written

    def die(*_: object, **__: object) -> None:
        raise Crash

    with ExitStack() as stack:
        if at in ("decision", "done"):
            stack.enter_context(patch.object(QueryTransactions, how, write))
        if at == "done":  # A driver that takes over records this with its claim.
            stack.enter_context(patch.object(QueryTransactions, "claim", die))
        if at == "bump_epoch":
            stack.enter_context(patch.object(QueryTransactions, "bump_epoch", die))
        if at == "commit":
            stack.enter_context(patch.object(Driver, "_commit_transactions", die))
        if at == "superseded":
            stack.enter_context(patch.object(QueryTransactions, "abort_task_transactions", die))
        stack.enter_context(pytest.raises(Crash))
        yield


@contextmanager
def rejected_aborts() -> Iterator[None]:
    """Let the brokers reject all aborts of tasks' transactions, as after a permission was revoked."""

    def reject(
        client: BlockingClient, transactions: Iterable[TransactionIdentity], **_: object
    ) -> dict[str, BrokerError]:
        code = error_codes.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        return {
            transaction.transactional_id: build_broker_error(code, transaction.transactional_id)
            for transaction in transactions
        }

    with patch.object(transaction_aborts, "end_transactions", reject):
        yield


def decide_and_stop_before_commit(query: Query, *, has_superseded_attempt: bool = False) -> list[str]:
    """Let the driver die when its batch is decided and not committed. Return the ids of the decided transactions."""
    start = query.begin()
    prepared = query.write_tasks(start, 0)
    if has_superseded_attempt:
        query.write(start, 1, "of an attempt that lost", attempt=1)
    with death_before("commit"):
        query.commit(start, 0, prepared)
    return [start.build_task_id(partition, 0) for partition in range(2)]


def client_options(broker: EmbeddedBroker) -> dict[str, str]:
    return {"bootstrap.servers": broker.bootstrap_servers}


def use_up_epochs(broker: EmbeddedBroker, name: str, left: int = 3) -> None:
    transaction = broker.cluster.coordinator.transactions[name]
    transaction.epoch, transaction.previous_epoch = 32_767 - left, 32_766 - left


@pytest.fixture
def restricted_user(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let `fetch_ids_by_producer` show what a user with the rights of docs/security.md sees."""

    def own_ids(client: BlockingClient) -> dict[int, str]:
        return {key: name for key, name in fetch_ids_by_producer(client).items() if "p-" in name}

    for module in (operations, query_transactions):
        monkeypatch.setattr(module, "fetch_ids_by_producer", own_ids)
