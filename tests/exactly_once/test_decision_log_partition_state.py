"""The records of a log partition: valid records, and records that a reader may ignore."""

from __future__ import annotations

import pytest

from spark_kafka_sink.client.config import ClientConfig
from spark_kafka_sink.client.producer_ids import ProducerIdAndEpoch
from spark_kafka_sink.errors import DecodeError
from spark_kafka_sink.exactly_once import decision_log, log_writer
from spark_kafka_sink.exactly_once.clients import create_client
from spark_kafka_sink.exactly_once.decision_log import DecisionLog
from spark_kafka_sink.exactly_once.driver_ids import DriverIds
from spark_kafka_sink.exactly_once.entries import Entry
from spark_kafka_sink.exactly_once.entry_json import encode_entry
from spark_kafka_sink.exactly_once.log_partition import LogPartitionState, LogRecord
from spark_kafka_sink.exactly_once.log_writer import KeyValue, WriterState
from spark_kafka_sink.exactly_once.transaction_names import build_claim_key
from spark_kafka_sink.protocol.headers import decode_request
from spark_kafka_sink.protocol.messages.describe_configs import DescribeConfigsRequest
from spark_kafka_sink.reader.fetched import iterate_stored_batches
from spark_kafka_sink.requests.transaction_description import EMPTY, TransactionDescription
from tests.fake_system import FakeSystem
from tests.simulated_cluster import SimulatedCluster

LOG, KEY, CLAIM_KEY = "log", b"p", build_claim_key("p")
DRIVER = ProducerIdAndEpoch(70, 0)
ENTRY = Entry("p", generation=1)


class Partition:
    """A partition of the log, to which a driver writes without a network."""

    def __init__(self) -> None:
        self.log = SimulatedCluster(FakeSystem(), topics={LOG: 1}).log(LOG)
        self.driver = DRIVER

    def write(self, *records: KeyValue, commit: bool | None = True) -> None:
        """Write the records in a transaction under the next epoch. It stays open if `commit` is None."""
        self.driver = self.driver._replace(epoch=self.driver.epoch + 1)
        self.log.append(log_writer._encode_batch(WriterState(self.driver, 0), records, 1), wall_ms=1)
        if commit is not None:
            self.log.append_end_marker(*self.driver, commit=commit, wall_ms=1, leader_epoch=0)

    def write_claim(self, followed_offset: int) -> None:
        self.write((CLAIM_KEY, encode_entry(ENTRY, followed_offset=followed_offset)))

    def read(self, key: bytes | None = KEY) -> LogPartitionState:
        state = LogPartitionState(0)
        for batch in iterate_stored_batches(b"".join(self.log.read(0, 2**62).batches)):
            state.add_batch(batch, key)
        return state

    def newest(self) -> LogRecord:
        return self.read().newest_records[KEY][DRIVER.producer_id]


@pytest.fixture
def partition() -> Partition:
    return Partition()


@pytest.mark.parametrize("key", [KEY, None])
def test_only_committed_records_are_valid(partition: Partition, key: bytes | None) -> None:
    partition.write((KEY, b"a"))
    partition.write((KEY, b"b"), commit=False)
    ended = partition.read(key)
    assert (list(ended.newest_records), ended.open_transaction_records) == ([KEY], {})
    partition.write((KEY, b"c"), commit=None)
    assert [record.value for _, record in partition.read(key).open_transaction_records[70]] == [b"c"]
    assert partition.newest() == LogRecord(0, DRIVER._replace(epoch=1), b"a")


def test_claim_without_value_is_ignored(partition: Partition) -> None:
    """A claim's batch has such a record only to use up a sequence number."""
    partition.write((CLAIM_KEY, None))
    assert partition.read().newest_records == {}
    partition.write((KEY, None))
    assert partition.newest().value is None, "a decision without a value deletes the entry"


def test_claim_is_valid_only_if_its_driver_had_read_the_newest_record(partition: Partition) -> None:
    partition.write((KEY, encode_entry(ENTRY)))
    partition.write_claim(followed_offset=-1)
    assert (partition.newest().offset, partition.newest().is_claim) == (0, False)
    assert partition.newest().last_invalid_offset == 2
    partition.write_claim(followed_offset=2)
    assert (partition.newest().offset, partition.newest().is_claim) == (4, True)


def test_claim_after_a_deleted_entry_is_valid(partition: Partition) -> None:
    partition.write((KEY, None))
    partition.write_claim(followed_offset=-1)
    assert partition.newest().offset == 2


def test_claim_that_cannot_be_decoded_is_valid(partition: Partition) -> None:
    """A newer version may have written it, so that a start must fail instead of ignoring it."""
    partition.write((KEY, encode_entry(ENTRY)))
    partition.write((CLAIM_KEY, b"x"))
    assert partition.newest().offset == 2


def test_record_names_the_current_driver_number() -> None:
    values = [encode_entry(ENTRY), encode_entry(ENTRY.with_driver_number(2)), b"x", None]
    assert [LogRecord(0, DRIVER, value).driver_number for value in values] == [1, 2, None, None]
    invalid_values = [b'{"driverNumber": 0}', b'{"driverNumber": -5}']
    assert [LogRecord(0, DRIVER, value).driver_number for value in invalid_values] == [None, None]


class Reader:
    """A decision log on a simulated cluster."""

    def __init__(self) -> None:
        self.cluster = SimulatedCluster(FakeSystem(latency_ms=1))
        self.config = ClientConfig((self.cluster.bootstrap_servers,))
        self.client = create_client(self.config, system=self.cluster.system)

    def open(self, topic: str = LOG) -> DecisionLog:
        return DecisionLog(self.config, topic, self.client)

    def count_descriptions(self) -> int:
        requests = (decode_request(memoryview(frame))[1] for _, _, frame in self.cluster.requests)
        return sum(isinstance(request, DescribeConfigsRequest) for request in requests)


@pytest.fixture
def reader(monkeypatch: pytest.MonkeyPatch) -> Reader:
    monkeypatch.setattr(decision_log, "_checked_topics", set())
    monkeypatch.setattr(decision_log, "_partition_cache", {})
    return Reader()


def test_checks_each_log_once_in_a_process(reader: Reader, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decision_log, "_MAX_CHECKED_TOPICS", 2)
    counts = []
    for topic in ("a", "a", "b", "b", "c", "a"):
        reader.open(topic).create_if_missing()
        counts.append(reader.count_descriptions())
    assert counts == [1, 1, 2, 2, 3, 4], "the third log replaces the first two"


def test_abandons_prefetched_records_if_the_log_is_shorter_than_the_cached_part(reader: Reader) -> None:
    log = reader.open()
    log.create_if_missing()
    ids = DriverIds("p", lambda names: {}, dict)
    ids.load_missing([1])
    assert log.read_entry(ids) is None
    (state,) = decision_log._partition_cache.values()
    state.next_offset = 100
    assert reader.open().read_entry(ids) is None
    assert reader.client._engine._calls == []
    assert state not in decision_log._partition_cache.values()


def test_unreadable_record_of_a_driver_id_that_only_the_listing_shows_is_an_error(reader: Reader) -> None:
    """The first driver id is forgotten, and the record does not name the second one."""
    identity = ProducerIdAndEpoch(71, 3)
    description = TransactionDescription("p-driver-2", EMPTY, identity)
    descriptions = {description.transactional_id: description}
    ids = DriverIds("p", lambda names: descriptions if "p-driver-2" in names else {}, lambda: {71: "p-driver-2"})
    ids.load_missing([1])
    state = LogPartitionState(0, newest_records={KEY: {71: LogRecord(5, identity, b"x")}})
    with pytest.raises(DecodeError, match="offset 5: the newest decision under the prefix p cannot be read"):
        reader.open()._select_entry(0, state, ids)
