"""The decision log: creation, reads up to the end, and validity of records of the prefix's own driver only."""

from __future__ import annotations

import json
from typing import Any
from unittest.mock import patch

import pytest

from spark_kafka_sink.client.producer_ids import ProducerIdAndEpoch
from spark_kafka_sink.errors import BrokerError, DecodeError
from spark_kafka_sink.exactly_once import decision_log, log_writer, operations
from spark_kafka_sink.exactly_once.batch_summary import BatchSummary
from spark_kafka_sink.exactly_once.entries import Batch, Entry, EntryState
from spark_kafka_sink.exactly_once.entry_json import encode_entry
from spark_kafka_sink.exactly_once.log_topic import PARTITION_COUNT, partition_for
from spark_kafka_sink.exactly_once.log_writer import WriterState
from spark_kafka_sink.exactly_once.query_transactions import QueryTransactions
from spark_kafka_sink.exactly_once.transaction_names import TaskAttempt, build_claim_key, build_task_id
from spark_kafka_sink.producer.producer import KafkaProducer
from spark_kafka_sink.producer.record import ProducerRecord
from spark_kafka_sink.protocol import error_codes
from spark_kafka_sink.protocol.message import ApiKey
from spark_kafka_sink.protocol.messages.fetch import FetchResponse
from spark_kafka_sink.reader import fetch_loop, fetched
from spark_kafka_sink.requests.blocking import BlockingClient
from spark_kafka_sink.requests.engine import Call
from spark_kafka_sink.requests.transaction_identity import TransactionIdentity
from spark_kafka_sink.testing import EmbeddedBroker
from tests.exactly_once.embedded_query import (
    LOG,
    PREFIX,
    QUERY,
    Query,
    fence_driver_id,
    open_query_transactions,
    read_values,
    rows,
    write_entries_as,
    write_entry_as,
)
from tests.exactly_once.embedded_query import broker as broker
from tests.exactly_once.embedded_query import transactions as transactions
from tests.waiting import WAIT_TIMEOUT_SECONDS


def write_without_transaction(broker: EmbeddedBroker, *entries: tuple[str, bytes | None]) -> None:
    """Write records to the log, each in its own batch."""
    with KafkaProducer({"bootstrap.servers": broker.bootstrap_servers, "linger.ms": "0"}) as producer:
        for key, value in entries:
            record = ProducerRecord(LOG, value, key=key, partition=partition_for(key, PARTITION_COUNT))
            producer.send(record).result(WAIT_TIMEOUT_SECONDS)


# --- the topic


def test_creates_compacted_log_once(broker: EmbeddedBroker) -> None:
    with open_query_transactions(broker) as transactions:
        assert not transactions.decision_log.exists()
        transactions.decision_log.create_if_missing()
        transactions.decision_log.create_if_missing()
        assert transactions.decision_log.exists()
    assert broker.cluster.topic(LOG).config["cleanup.policy"] == "compact"
    assert len(broker.cluster.topic(LOG).partitions) == PARTITION_COUNT


@pytest.mark.parametrize("code", [error_codes.TOPIC_AUTHORIZATION_FAILED, error_codes.POLICY_VIOLATION])
def test_error_names_log_that_may_not_be_created(broker: EmbeddedBroker, code: int) -> None:
    broker.control.when(api=ApiKey.CREATE_TOPICS, times=None).fail(code)
    with (
        pytest.raises(BrokerError, match="topic decisions, the decision log"),
        open_query_transactions(broker) as transactions,
    ):
        transactions.decision_log.create_if_missing()


def test_retries_creation_after_controller_change(broker: EmbeddedBroker) -> None:
    broker.control.when(api=ApiKey.CREATE_TOPICS, times=2).fail(error_codes.NOT_CONTROLLER)
    with open_query_transactions(broker) as transactions:
        transactions.decision_log.create_if_missing()
        assert transactions.decision_log.exists()


# --- reads


def test_reads_newest_entry_until_a_tombstone(broker: EmbeddedBroker, transactions: QueryTransactions) -> None:
    state = transactions.write(fence_driver_id(transactions), Entry(PREFIX, generation=1))
    assert transactions.read_entry() == Entry(PREFIX, generation=1)
    state = transactions.write(state, Entry(PREFIX, generation=2))
    with open_query_transactions(broker, "q") as other:
        other.write(fence_driver_id(other), Entry("q", generation=7))
    assert transactions.read_entry() == Entry(PREFIX, generation=2)
    state = transactions.delete_entry(state)
    assert transactions.read_entry() == Entry(PREFIX)


def test_does_not_read_cached_records_again(transactions: QueryTransactions) -> None:
    read_offsets: list[int] = []
    original = fetch_loop.read_stored_batches

    def read_stored_batches(*partition: Any, start: int, **options: Any) -> Any:
        read_offsets.append(start)
        return original(*partition, start=start, **options)

    with patch.object(decision_log, "read_stored_batches", read_stored_batches):
        state = transactions.write(fence_driver_id(transactions), Entry(PREFIX, generation=1))
        assert transactions.read_entry().generation == 1
        state = transactions.write(state, Entry(PREFIX, generation=2))
        assert transactions.read_entry().generation == 2
    assert read_offsets == [0, 2], "a record and its marker"


def test_fetches_ahead_only_at_the_first_read(broker: EmbeddedBroker, transactions: QueryTransactions) -> None:
    """The previous batch was decided a moment ago. Between two reads of one start there is rarely anything to fetch."""
    state = transactions.write(fence_driver_id(transactions), Entry(PREFIX, generation=1))
    transactions.read_entry()
    state = transactions.write(state, Entry(PREFIX, generation=2))
    prefetched_offsets: list[int] = []
    original = fetch_loop.prefetch_stored_batches

    def prefetch(client: BlockingClient, topic: str, partition: int, start: int) -> Call[FetchResponse]:
        prefetched_offsets.append(start)
        return original(client, topic, partition, start)

    with (
        patch.object(decision_log, "prefetch_stored_batches", prefetch),
        open_query_transactions(broker) as next_start,
    ):
        next_start.describe_driver_id()
        for _ in range(3):
            assert next_start.read_entry().generation == 2
    assert prefetched_offsets == [2], "a record and its marker were read before"


def test_caches_of_partitions_and_warnings_are_bounded(
    broker: EmbeddedBroker,
    transactions: QueryTransactions,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(decision_log, "_MAX_CACHED_PARTITIONS", 3)
    monkeypatch.setattr(decision_log, "_MAX_WARNED_RECORDS", 3)
    transactions.write(fence_driver_id(transactions), Entry(PREFIX, generation=1))
    for number in range(5):
        write_without_transaction(broker, (PREFIX, b"%d" % number))
        with open_query_transactions(broker, f"prefix-{number}") as other:
            other.read_entry()
        assert transactions.read_entry().generation == 1
        assert len(decision_log._partition_cache) <= 3
        assert len(decision_log._warned_records) <= 3
    assert caplog.text.count("Ignored this record,") == 5


def test_warns_once_about_an_invalid_record(
    broker: EmbeddedBroker, transactions: QueryTransactions, caplog: pytest.LogCaptureFixture
) -> None:
    """A query reads its log in each batch."""
    transactions.write(fence_driver_id(transactions), Entry(PREFIX, generation=1))
    write_without_transaction(broker, (PREFIX, b"{}"))
    for _ in range(3):
        with open_query_transactions(broker) as next_start:
            next_start.describe_driver_id()
            assert next_start.read_entry().generation == 1
    assert caplog.text.count("Ignored this record,") == 1


def test_open_transaction_of_one_query_delays_no_other(broker: EmbeddedBroker, transactions: QueryTransactions) -> None:
    """The open decision of a dead driver blocks read_committed consumers until it times out. Drivers read past it."""
    other = KafkaProducer({"bootstrap.servers": broker.bootstrap_servers, "transactional.id": "other-driver"})
    other.init_transactions()
    other.begin_transaction()
    partition = partition_for(PREFIX, PARTITION_COUNT)
    other.send(ProducerRecord(LOG, b"{}", key="other", partition=partition)).result(WAIT_TIMEOUT_SECONDS)
    transactions.write(fence_driver_id(transactions), Entry(PREFIX, generation=1))
    assert transactions.read_entry() == Entry(PREFIX, generation=1)
    other.close()


def test_aborted_decision_is_not_valid(broker: EmbeddedBroker, transactions: QueryTransactions) -> None:
    transactions.write(fence_driver_id(transactions), Entry(PREFIX, generation=1))
    options = {"bootstrap.servers": broker.bootstrap_servers, "transactional.id": transactions.driver_id}
    with KafkaProducer(options) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        partition = partition_for(PREFIX, PARTITION_COUNT)
        producer.send(ProducerRecord(LOG, encode_entry(Entry(PREFIX, generation=9)), key=PREFIX, partition=partition))
        producer.flush()
        assert transactions.read_entry().generation == 1, "it is open"
        producer.abort_transaction()
    assert transactions.read_entry().generation == 1


# --- valid records


def encode_foreign_entry(query: str | None = QUERY, number: int | None = 0, key: str | None = None) -> bytes:
    entry = Entry(PREFIX, generation=1, checkpoint="/checkpoint").with_claim("driver-1", "/checkpoint", 900_000)
    batch = Batch(query, number, key)
    return encode_entry(entry.with_decision(batch, None, ()).as_done())  # type: ignore[arg-type]


def test_non_transactional_record_is_never_valid(broker: EmbeddedBroker, caplog: pytest.LogCaptureFixture) -> None:
    query = Query(broker)
    with open_query_transactions(broker) as transactions:
        transactions.decision_log.create_if_missing()
    write_without_transaction(broker, (PREFIX, encode_foreign_entry()))
    query.run(0)
    write_without_transaction(broker, (PREFIX, encode_foreign_entry(number=1)))
    query.run(1)
    assert read_values(broker) == rows(0, 1)
    assert "Ignored this record, because the driver of the prefix p did not write it" in caplog.text
    assert f"topic {LOG}, partition {partition_for(PREFIX, PARTITION_COUNT)}, offset" in caplog.text


@pytest.mark.parametrize("is_before_start", [True, False])
def test_record_of_another_transactional_id_is_never_valid(broker: EmbeddedBroker, *, is_before_start: bool) -> None:
    """This holds before and after the first start of the query."""
    query = Query(broker)
    with open_query_transactions(broker) as transactions:
        transactions.decision_log.create_if_missing()
    if not is_before_start:
        query.begin()
    write_entry_as(broker, "evil", PREFIX, encode_foreign_entry())
    query.run(0)
    write_entry_as(broker, "evil", PREFIX, None)
    query.run(1)
    assert read_values(broker) == rows(0, 1)


def test_record_of_another_prefix_decides_nothing(broker: EmbeddedBroker) -> None:
    query, other = Query(broker), Query(broker, prefix="other", name="of-a-stranger")
    start = other.begin()
    other.commit(start, 10**9, other.write_tasks(start, 10**9))
    query.run(0)
    assert read_values(broker) == sorted([*rows(0), *rows(10**9)])


INVALID_VALUES = (
    b"",
    b"x",
    b"[]",
    b"{}",
    b"\xff",
    b"[" * 100_000,
    b'{"format":99}',
    b'{"format":3,"state":"done","query":"query-1","batch":1e400,"key":null,"transactions":[],"generation":1,'
    b'"drivers":[],"checkpoint":"","timeoutMs":1,"keys":[]}',
    json.dumps({"format": 3, "state": "done", "query": QUERY, "batch": True}).encode(),
    json.dumps({"format": 3, "state": 7, "transactions": [[]], "keys": [7], "drivers": 5}).encode(),
)


def test_invalid_foreign_records_stop_no_query(broker: EmbeddedBroker) -> None:
    query = Query(broker)
    query.run(0)
    entries = [(key, value) for value in INVALID_VALUES for key in (PREFIX, "other", "\\0", "p" * 5_000)]
    write_without_transaction(broker, *entries)
    write_entries_as(broker, "evil", entries)
    query.run(1)
    assert read_values(broker) == rows(0, 1)


def append_decompression_bomb(
    broker: EmbeddedBroker, producer: ProducerIdAndEpoch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Append a batch of a few kilobytes that exceeds the limit of readers when it is decompressed."""
    monkeypatch.setattr(fetched, "MAX_BATCH_BYTES", 1 << 20)
    batch = log_writer._encode_batch(WriterState(producer, 0), [(PREFIX.encode(), bytes(2 << 20))], 1)
    broker.cluster.log(LOG, partition_for(PREFIX, PARTITION_COUNT)).append(batch, wall_ms=1)


def test_foreign_decompression_bomb_stops_neither_query_nor_listing(
    broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    query = Query(broker)
    query.run(0)
    append_decompression_bomb(broker, ProducerIdAndEpoch(999_999, 0), monkeypatch)
    query.with_new_driver().run(1)
    assert read_values(broker) == rows(0, 1)
    (found,) = operations.list_prefixes(query.options, LOG)
    assert found.entry is not None
    assert found.entry.batch == query.batch(1)
    assert "because it cannot be read (the decompressed batch has more than 1048576 bytes" in caplog.text


def test_non_transactional_batch_with_producer_id_of_the_driver_stops_no_query(
    broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Brokers require rights on the transactional id only for transactional batches."""
    query = Query(broker)
    start = query.run(0)
    with monkeypatch.context() as patch:
        patch.setattr(log_writer, "TRANSACTIONAL", 0)
        append_decompression_bomb(broker, start.driver_identity._replace(epoch=30_000), monkeypatch)
    assert query.with_new_driver().begin().is_decided(query.batch(0))


def test_decompression_bomb_of_the_driver_is_an_error_with_its_position(
    broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    query = Query(broker)
    start = query.run(0)
    append_decompression_bomb(broker, start.driver_identity._replace(epoch=30_000), monkeypatch)
    with pytest.raises(DecodeError, match=r"(?s)topic decisions, partition \d+, offset \d+: .*more than 1048576"):
        query.with_new_driver().begin()


def test_unreadable_record_of_the_driver_is_an_error_of_its_query_only(broker: EmbeddedBroker) -> None:
    query, other = Query(broker), Query(broker, prefix="other", name="of-another-query")
    query.run(0)
    write_entry_as(broker, f"{PREFIX}-driver", PREFIX, b'{"format":99,"newer":true}')
    with pytest.raises(DecodeError, match=r"(?s)topic decisions, partition \d+, offset \d+: .*format version is 99"):
        query.with_new_driver().begin()
    other.run(1)
    assert read_values(broker) == rows(0, 1)


def test_claim_of_a_newer_version_is_an_error(broker: EmbeddedBroker, transactions: QueryTransactions) -> None:
    state = transactions.write(fence_driver_id(transactions), Entry(PREFIX, generation=1))
    writing = transactions._begin_transaction(state, [(build_claim_key(PREFIX), b'{"format":99,"claimed":true}')])
    writing.wait()
    state = writing.commit()
    with pytest.raises(DecodeError, match="format version is 99"):
        transactions.read_entry()


def test_revoked_permission_is_not_reported_as_deleted_records(
    broker: EmbeddedBroker, transactions: QueryTransactions
) -> None:
    state = transactions.write(fence_driver_id(transactions), Entry(PREFIX, generation=1))
    assert transactions.read_entry().generation == 1
    state = transactions.write(state, Entry(PREFIX, generation=2))
    broker.control.when(api=ApiKey.FETCH, times=None).fail(error_codes.TOPIC_AUTHORIZATION_FAILED)
    with pytest.raises(BrokerError, match="TOPIC_AUTHORIZATION_FAILED"):
        transactions.read_entry()


def test_listing_omits_unreadable_entry_with_warning(broker: EmbeddedBroker, caplog: pytest.LogCaptureFixture) -> None:
    for prefix in (PREFIX, "q", "r"):
        Query(broker, prefix=prefix, name=f"driver of {prefix}").run(0)
    write_entry_as(broker, "q-driver", "q", b'{"format":99,"newer":true}')
    found = operations.list_prefixes({"bootstrap.servers": broker.bootstrap_servers}, LOG)
    assert {status.prefix: status.entry.claimant_name for status in found if status.entry is not None} == {
        PREFIX: "driver of p",
        "r": "driver of r",
    }
    assert "its format version is 99" in caplog.text


# --- size of reads


@pytest.mark.parametrize("broker", [2], indirect=True)
def test_start_reads_less_than_a_megabyte_of_log_with_many_batches(
    broker: EmbeddedBroker,
) -> None:
    """Nothing is compacted yet: for each batch the log has a decision and a "done" record with their markers."""
    with open_query_transactions(broker) as transactions:
        transactions.decision_log.create_if_missing()
    prefixes = [PREFIX, *(f"pykafka-stream-{number:016x}" for number in range(499))]
    template = "pykafka-stream-" + "x" * 16
    begun = Entry(template).with_claim("a.host.of.a.cluster/" + "0" * 32, "hdfs://name/checkpoints/of/a/query", 900_000)
    names = (build_task_id(template, TaskAttempt(1, part, 0)) for part in range(8))
    tasks = tuple(TransactionIdentity(name, 4711 + part, 12, 2) for part, name in enumerate(names))
    decided = [
        begun.with_decision(Batch(QUERY, number), BatchSummary.from_row_counts({"t": 1_000}, 100_000), tasks)
        for number in range(20)
    ]
    values = [encode_entry(state) for entry in decided for state in (entry, entry.as_done())]
    partition = partition_for(PREFIX, PARTITION_COUNT)
    log = broker.cluster.log(LOG, partition)
    for producer_id, prefix in enumerate(prefixes, start=10_000):
        if partition_for(prefix, PARTITION_COUNT) != partition:
            continue  # A start reads no other partition.
        for epoch, value in enumerate(values):
            key_value = prefix.encode(), value.replace(template.encode(), prefix.encode())
            log.append(
                log_writer._encode_batch(WriterState(ProducerIdAndEpoch(producer_id, epoch), 0), [key_value], 1),
                wall_ms=1,
            )
            log.append_end_marker(producer_id, epoch, commit=True, wall_ms=1, leader_epoch=0)
    sizes: list[int] = []
    original = fetched.iterate_stored_batches

    def stored_batches(records: Any) -> Any:
        sizes.append(len(records or b""))
        return original(records)

    decision_log._partition_cache.clear()
    with (
        patch.object(fetch_loop, "iterate_stored_batches", stored_batches),
        open_query_transactions(broker) as transactions,
    ):
        transactions._driver_ids.record_producer_id(1, ProducerIdAndEpoch(10_000, 0))
        entry = transactions.read_entry()
    assert (entry.state, entry.batch.batch_id) == (EntryState.DONE, 19)
    assert sum(sizes) < 1 << 20
