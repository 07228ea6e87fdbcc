"""Transactional producers in virtual time: records visible to readers, producer ids, epochs and versions."""

from __future__ import annotations

import pyarrow as pa
import pytest

from spark_kafka_sink.broker.transaction_coordinator import TransactionState
from spark_kafka_sink.errors import (
    AuthorizationError,
    BrokerError,
    KafkaSinkError,
    ProducerFencedError,
    TransactionAbortedError,
)
from spark_kafka_sink.protocol import error_codes as codes
from spark_kafka_sink.protocol.message import ApiKey
from spark_kafka_sink.protocol.messages.add_partitions_to_txn import AddPartitionsToTxnRequest
from spark_kafka_sink.protocol.messages.end_txn import EndTxnRequest
from spark_kafka_sink.protocol.messages.init_producer_id import InitProducerIdRequest
from spark_kafka_sink.protocol.messages.produce import ProduceRequest
from spark_kafka_sink.records.columns import RecordColumns
from spark_kafka_sink.records.header import parse_header
from tests.producer.transactional_cases import (
    BOTH_VERSIONS,
    ID,
    create_initialized_producer,
    create_producer_in_transaction,
    find_requests,
    pass_time,
    read_committed,
    send,
    send_and_flush,
    state,
)
from tests.producer.virtual_time import get_loop
from tests.simulated_cluster import SimulatedCluster


def batches(cluster: SimulatedCluster, partition: int = 0) -> list[tuple[int, int]]:
    """Return the epoch and first sequence number of each stored batch of records."""
    log = cluster.log("t", partition)
    headers = [parse_header(batch) for batch in log.read(log.log_start_offset, 2**62).batches]
    assert all(header.is_transactional for header in headers)
    return [(header.producer_epoch, header.base_sequence) for header in headers if not header.is_control]


# --- visible records


@BOTH_VERSIONS
def test_commit_makes_records_of_all_partitions_visible(version: int) -> None:
    cluster, producer = create_producer_in_transaction(version)
    send_and_flush(producer, b"1", b"2", partition=0)
    send_and_flush(producer, b"3", partition=1)
    assert (read_committed(cluster, 0), read_committed(cluster, 1)) == ([], [])
    producer.commit_transaction()
    assert (read_committed(cluster, 0), read_committed(cluster, 1)) == ([b"1", b"2"], [b"3"])
    assert state(cluster) is TransactionState.COMPLETE_COMMIT


@BOTH_VERSIONS
def test_abort_hides_records_from_committed_readers(version: int) -> None:
    cluster, producer = create_producer_in_transaction(version)
    send_and_flush(producer, b"1", b"2")
    producer.abort_transaction()
    assert cluster.values("t") == [b"1", b"2"]
    assert read_committed(cluster) == []
    assert state(cluster) is TransactionState.COMPLETE_ABORT


@BOTH_VERSIONS
def test_commits_and_aborts_consecutive_transactions(version: int) -> None:
    cluster, producer = create_initialized_producer(version)
    for number in range(6):
        producer.begin_transaction()
        for partition in (0, 1):
            send(producer, b"%d" % number, partition)
        if number % 3 == 2:
            producer.abort_transaction()
        else:
            producer.commit_transaction()
    assert [read_committed(cluster, partition) for partition in (0, 1)] == [[b"0", b"1", b"3", b"4"]] * 2


@BOTH_VERSIONS
def test_commit_sends_lingering_records_and_waits_for_acknowledgements(version: int) -> None:
    cluster, producer = create_producer_in_transaction(version, linger_ms=60_000, delivery_timeout_ms=120_000)
    futures = [send(producer, b"1"), send(producer, b"2", 1)]
    started = cluster.system.now()
    producer.commit_transaction()
    assert cluster.system.now() - started < 1000
    assert [future.result(0).offset for future in futures] == [0, 0]
    assert (read_committed(cluster, 0), read_committed(cluster, 1)) == ([b"1"], [b"2"])


@BOTH_VERSIONS
def test_transaction_includes_columns(version: int) -> None:
    cluster, producer = create_producer_in_transaction(version)
    columns = RecordColumns(pa.array([b"1", b"2", b"3"]))
    producer.send_columns("t", columns, pa.array([0, 1, 0], pa.int32()))
    producer.commit_transaction()
    assert (read_committed(cluster, 0), read_committed(cluster, 1)) == ([b"1", b"3"], [b"2"])


@BOTH_VERSIONS
def test_block_commits_transaction(version: int) -> None:
    cluster, producer = create_initialized_producer(version)
    with producer.transaction():
        send(producer, b"1")
    assert read_committed(cluster) == [b"1"]


@BOTH_VERSIONS
def test_block_aborts_transaction_and_propagates_error(version: int) -> None:
    cluster, producer = create_initialized_producer(version)
    with pytest.raises(ZeroDivisionError), producer.transaction():
        _ = 1 // len(send_and_flush(producer, b"1")[1:])
    assert state(cluster) is TransactionState.COMPLETE_ABORT
    with producer.transaction():
        send(producer, b"2")
    assert read_committed(cluster) == [b"2"]


@BOTH_VERSIONS
@pytest.mark.parametrize("commit", [True, False])
def test_empty_transaction_sends_no_request(version: int, commit: bool) -> None:
    cluster, producer = create_producer_in_transaction(version)
    before = len(cluster.requests)
    if commit:
        producer.commit_transaction()
    else:
        producer.abort_transaction()
    assert len(cluster.requests) == before
    producer.begin_transaction()


# --- producer ids, epochs and versions


@BOTH_VERSIONS
def test_requests_have_transactional_id_and_version_of_transaction(version: int) -> None:
    cluster, producer = create_producer_in_transaction(version)
    send_and_flush(producer, b"1")
    producer.commit_transaction()
    ((produce_version, produce),) = find_requests(cluster, ProduceRequest)
    assert isinstance(produce, ProduceRequest)
    assert produce.transactional_id == ID
    ((end_version, _),) = find_requests(cluster, EndTxnRequest)
    if version == 1:
        assert produce_version <= 11
        assert end_version <= 4
        assert len(find_requests(cluster, AddPartitionsToTxnRequest)) == 1
    else:
        assert produce_version >= 12
        assert end_version >= 5
        assert find_requests(cluster, AddPartitionsToTxnRequest) == []


def test_version_1_sequences_continue_across_transactions() -> None:
    cluster, producer = create_initialized_producer(1)
    for commit in (True, False, True):
        producer.begin_transaction()
        send_and_flush(producer, b"1")
        send_and_flush(producer, b"2")
        (producer.commit_transaction if commit else producer.abort_transaction)()
    assert batches(cluster) == [(0, sequence) for sequence in range(6)]


def test_version_2_transactions_have_new_epoch_and_restart_sequences() -> None:
    cluster, producer = create_initialized_producer(2)
    for commit in (True, False, True):
        producer.begin_transaction()
        send_and_flush(producer, b"1")
        send_and_flush(producer, b"2")
        (producer.commit_transaction if commit else producer.abort_transaction)()
    assert batches(cluster) == [(epoch, sequence) for epoch in range(3) for sequence in range(2)]


def test_uses_transaction_version_of_cluster_at_begin() -> None:
    cluster, producer = create_initialized_producer(1)
    with producer.transaction():
        send(producer, b"1")
    cluster.core.coordinator.version = 2
    cluster.close_connections(0)  # clients learn of the new version when they connect
    for value in (b"2", b"3", b"4"):
        with producer.transaction():
            send(producer, value)
    assert read_committed(cluster) == [b"1", b"2", b"3", b"4"]
    assert [version for version, _ in find_requests(cluster, EndTxnRequest)] == [4, 4, 5, 5]
    init_requests = [request for _, request in find_requests(cluster, InitProducerIdRequest)]
    assert [getattr(request, "producer_id", None) for request in init_requests] == [-1, 0]
    assert batches(cluster) == [(0, 0), (0, 1), (1, 0), (2, 0)]


def test_transaction_timeout_ms_reaches_the_coordinator() -> None:
    cluster, _ = create_initialized_producer(2, transaction_timeout_ms=1234)
    assert cluster.core.coordinator.transactions[ID].timeout_ms == 1234


# --- aborts


@BOTH_VERSIONS
def test_abort_drops_unsent_records_and_fails_their_futures(version: int) -> None:
    cluster, producer = create_producer_in_transaction(version, linger_ms=60_000, delivery_timeout_ms=120_000)
    future = send(producer, b"1")
    producer.abort_transaction()
    assert isinstance(future.exception(0), TransactionAbortedError)
    assert cluster.values("t") == []
    producer.begin_transaction()
    send(producer, b"2")
    producer.commit_transaction()
    assert read_committed(cluster) == [b"2"]


@BOTH_VERSIONS
def test_abort_waits_for_requests_in_flight(version: int) -> None:
    cluster, producer = create_producer_in_transaction(version)
    send_and_flush(producer, b"0")
    cluster.control.when(api=ApiKey.PRODUCE).delay(500, execute_first=False)
    future = send(producer, b"1")
    get_loop(producer).run_until(lambda: False, 5)
    producer.abort_transaction()
    assert future.result(0).offset == 1
    assert cluster.values("t") == [b"0", b"1"]
    assert read_committed(cluster) == []
    assert cluster.log("t").list_open_producer_ids() == []


@BOTH_VERSIONS
def test_abort_drops_records_that_wait_for_retry(version: int) -> None:
    cluster, producer = create_producer_in_transaction(version)
    send_and_flush(producer, b"0")
    cluster.control.when(api=ApiKey.PRODUCE, times=None).fail(codes.NOT_ENOUGH_REPLICAS)
    future = send(producer, b"1")
    get_loop(producer).run_until(lambda: False, 50)
    started = cluster.system.now()
    producer.abort_transaction()
    assert cluster.system.now() - started < 1000
    assert isinstance(future.exception(0), TransactionAbortedError)
    cluster.control.clear()
    with producer.transaction():
        send(producer, b"2")
    assert read_committed(cluster) == [b"2"]


def test_adds_partition_before_batches_that_wait_for_the_connection() -> None:
    cluster, producer = create_producer_in_transaction(1, batch_size=1, max_in_flight_requests_per_connection=2)
    send_and_flush(producer, b"0")
    cluster.control.when(api=ApiKey.PRODUCE, times=None).delay(10)
    futures = [send(producer, b"%d" % number) for number in range(20)]
    pass_time(producer, 1)
    futures.append(send(producer, b"other partition", partition=1))
    get_loop(producer).run_until(lambda: len(find_requests(cluster, AddPartitionsToTxnRequest)) > 1)
    # The first record, two requests in flight, and the request of the round that found the new partition.
    assert len(find_requests(cluster, ProduceRequest)) == 4
    producer.commit_transaction()
    assert [future.exception(0) for future in futures] == [None] * 21


@BOTH_VERSIONS
@pytest.mark.parametrize(
    ("code", "error_type"),
    [
        (codes.PRODUCER_FENCED, ProducerFencedError),
        (codes.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, AuthorizationError),
        (codes.CLUSTER_AUTHORIZATION_FAILED, AuthorizationError),
        (codes.INVALID_PRODUCER_ID_MAPPING, BrokerError),
    ],
)
def test_pending_commit_raises_error_that_ends_the_producer(
    version: int, code: int, error_type: type[KafkaSinkError]
) -> None:
    """An abort, which other failed records require, would fail."""
    cluster, producer = create_producer_in_transaction(version)
    cluster.control.when(api=ApiKey.PRODUCE).fail(code)
    future = send(producer, b"1")
    with pytest.raises(error_type):
        producer.commit_transaction()
    assert isinstance(future.exception(0), error_type)
    with pytest.raises(error_type):
        producer.abort_transaction()
