"""Failed records in a transaction: the commit reports them, and after an abort the next transaction succeeds."""

from __future__ import annotations

from collections.abc import Callable
from unittest.mock import Mock, patch

import pyarrow as pa
import pytest

from spark_kafka_sink.broker.api_error import ApiError
from spark_kafka_sink.broker.transaction_coordinator import TransactionState
from spark_kafka_sink.errors import (
    DataError,
    DecodeError,
    DeliveryError,
    DeliveryTimeoutError,
    InvalidRecordError,
    MetadataTimeoutError,
    RecordTooLargeError,
    TransactionAbortableError,
    TransactionAbortedError,
    TransactionTimeoutError,
    UnsupportedVersionError,
)
from spark_kafka_sink.producer.record import ProducerRecord
from spark_kafka_sink.producer.sending.call_executor import BlockingCall
from spark_kafka_sink.protocol import error_codes as codes
from spark_kafka_sink.protocol.message import ApiKey
from spark_kafka_sink.protocol.messages.end_txn import EndTxnRequest
from spark_kafka_sink.protocol.messages.init_producer_id import InitProducerIdRequest
from spark_kafka_sink.protocol.schema import VersionRange
from spark_kafka_sink.records.columns import RecordColumns
from spark_kafka_sink.requests.transactions import DescribeTransactions
from tests.producer.transactional_cases import (
    BOTH_VERSIONS,
    ID,
    create_cluster,
    create_initialized_producer,
    create_producer,
    create_producer_in_transaction,
    find_requests,
    pass_time,
    read_committed,
    send,
    send_and_flush,
    state,
)
from tests.producer.virtual_time import get_loop, get_sender


@BOTH_VERSIONS
@pytest.mark.parametrize(
    "code",
    [codes.INVALID_RECORD, codes.TOPIC_AUTHORIZATION_FAILED, codes.INVALID_TXN_STATE, codes.TRANSACTION_ABORTABLE],
)
def test_commit_names_rejected_record_and_next_transaction_succeeds(version: int, code: int) -> None:
    cluster, producer = create_producer_in_transaction(version)
    send_and_flush(producer, b"0", partition=1)
    cluster.control.when(api=ApiKey.PRODUCE, topic="t", partition=0).fail(code)
    send(producer, b"1", key=b"order-17")
    with pytest.raises(TransactionAbortableError) as caught:
        producer.commit_transaction()
    message = str(caught.value)
    assert "1 record with the key 'order-17' for topic t, partition 0, failed" in message
    assert message.count("topic t, partition 0") == 1
    assert codes.lookup_error_code(code).name in message
    record_error = caught.value.__cause__
    assert isinstance(record_error, DeliveryError)
    assert codes.lookup_error_code(code).name in str(record_error.__cause__)
    producer.abort_transaction()
    assert [read_committed(cluster, partition) for partition in (0, 1)] == [[], []]
    with producer.transaction():
        send(producer, b"2")
        send(producer, b"3", 1)
    assert [read_committed(cluster, partition) for partition in (0, 1)] == [[b"2"], [b"3"]]


@BOTH_VERSIONS
def test_transaction_without_accepted_records_can_be_aborted(version: int) -> None:
    cluster, producer = create_producer_in_transaction(version)
    cluster.control.when(api=ApiKey.PRODUCE).fail(codes.INVALID_RECORD)
    send(producer, b"1")
    with pytest.raises(TransactionAbortableError):
        producer.commit_transaction()
    producer.abort_transaction()
    with producer.transaction():
        send(producer, b"2")
    assert read_committed(cluster) == [b"2"]


@BOTH_VERSIONS
def test_commit_reports_record_that_broker_has_named(version: int) -> None:
    cluster, producer = create_producer_in_transaction(version, linger_ms=50)
    cluster.control.create_topic("c", config={"cleanup.policy": "compact"})
    futures = [producer.send(ProducerRecord("c", b"v", key=key)) for key in (b"a", None)]
    with pytest.raises(TransactionAbortableError, match="1 record for topic c, partition 0, failed"):
        producer.commit_transaction()
    assert all(future.exception(0) is not None for future in futures)


@BOTH_VERSIONS
def test_record_above_max_request_size_prevents_commit(version: int) -> None:
    _, producer = create_producer_in_transaction(version, max_request_size=1000)
    future = send(producer, b"x" * 2000)
    assert isinstance(future.exception(0), RecordTooLargeError)
    with pytest.raises(TransactionAbortableError, match=r"max\.request\.size"):
        producer.commit_transaction()
    producer.abort_transaction()
    producer.begin_transaction()
    producer.close()


@BOTH_VERSIONS
def test_row_with_missing_partition_prevents_commit(version: int) -> None:
    _, producer = create_producer_in_transaction(version)
    producer.send_columns("t", RecordColumns(pa.array([b"1", b"2"])), pa.array([0, 9], pa.int32()))
    with pytest.raises(TransactionAbortableError) as caught:
        producer.commit_transaction()
    assert isinstance(caught.value.__cause__, InvalidRecordError)


@BOTH_VERSIONS
def test_call_with_invalid_arguments_prevents_commit(version: int) -> None:
    cluster, producer = create_producer_in_transaction(version)
    columns = RecordColumns(pa.array([b"1", b"2"]))
    rejected_calls: list[Callable[[], object]] = [
        lambda: producer.send_columns("t", columns, pa.array(["0", "1"])),
        lambda: producer.send_columns("t", columns, pa.array([0])),
        lambda: producer.send_columns("no topic", columns),
        lambda: producer.send_columns("t", pa.array([b"1"])),
        lambda: producer.send("no topic", b"1"),
    ]
    for send_rejected in rejected_calls:
        send(producer, b"0")
        with pytest.raises(DataError) as rejection:
            send_rejected()
        with pytest.raises(TransactionAbortableError) as caught:
            producer.commit_transaction()
        assert caught.value.__cause__ is rejection.value
        producer.abort_transaction()
        producer.begin_transaction()
    assert read_committed(cluster) == []


@BOTH_VERSIONS
def test_metadata_timeout_of_send_columns_prevents_commit(version: int, monkeypatch: pytest.MonkeyPatch) -> None:
    _, producer = create_producer_in_transaction(version)
    topic_infos = iter([producer._await_topic("t", producer._system.now()), MetadataTimeoutError("no response")])

    def await_topic(*_: object) -> object:
        topic_info = next(topic_infos)
        if isinstance(topic_info, Exception):
            raise topic_info
        return topic_info

    monkeypatch.setattr(producer, "_await_topic", await_topic)
    with pytest.raises(MetadataTimeoutError):
        producer.send_columns("t", RecordColumns(pa.array([b"1", b"2"])), pa.array([0, 9], pa.int32()))
    with pytest.raises(TransactionAbortableError, match="no response"):
        producer.commit_transaction()


def test_interrupt_during_abort_of_close_ends_the_producer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the sender thread and its connections would remain until the process ends."""
    _, producer = create_producer_in_transaction(2)
    assert producer._transactions is not None
    monkeypatch.setattr(producer._transactions, "close", Mock(side_effect=KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        producer.close()
    assert get_sender(producer).is_finished


@BOTH_VERSIONS
def test_records_behind_failed_record_are_dropped_with_its_error_as_cause(version: int) -> None:
    cluster, producer = create_producer_in_transaction(version, batch_size=0)
    send_and_flush(producer, b"0")
    cluster.control.when(api=ApiKey.PRODUCE).fail(codes.INVALID_RECORD)
    futures = [send(producer, b"%d" % number) for number in (1, 2, 3)]
    producer.flush()
    assert all(future.exception(0) is not None for future in futures)
    dropped = futures[-1].exception(0)
    assert isinstance(dropped, TransactionAbortedError)
    assert isinstance(dropped.__cause__, DeliveryError)
    producer.abort_transaction()
    with producer.transaction():
        send(producer, b"4")
    assert read_committed(cluster) == [b"4"]


@BOTH_VERSIONS
@pytest.mark.parametrize("failure", ["expiry", "rejection"])
@pytest.mark.parametrize("is_response_lost", [False, True])
def test_record_behind_failed_one_may_be_stored_only_if_its_response_was_lost(
    version: int, failure: str, is_response_lost: bool
) -> None:
    cluster, producer = create_producer_in_transaction(
        version, batch_size=0, delivery_timeout_ms=500, request_timeout_ms=100
    )
    send_and_flush(producer, b"0")
    send_and_flush(producer, b"0")
    cluster.control.when(api=ApiKey.PRODUCE).fail(codes.NOT_ENOUGH_REPLICAS)
    if is_response_lost:
        cluster.control.when(api=ApiKey.PRODUCE, nth=2).drop(execute_first=True)
    last_code = codes.NOT_ENOUGH_REPLICAS if failure == "expiry" else codes.INVALID_RECORD
    cluster.control.when(api=ApiKey.PRODUCE, nth=3, times=None).fail(last_code)
    failed = send(producer, b"1")
    pass_time(producer, 0.2)
    behind = send(producer, b"2")
    producer.flush()
    assert isinstance(failed.exception(0), DeliveryTimeoutError if failure == "expiry" else InvalidRecordError)
    error = behind.exception(0)
    assert isinstance(error, TransactionAbortedError)
    assert error.possibly_stored is is_response_lost
    assert "not acknowledged, because its transaction cannot be committed" in str(error)


@BOTH_VERSIONS
def test_error_of_dropped_record_has_no_cause_from_earlier_transaction(version: int) -> None:
    cluster, producer = create_producer_in_transaction(version, linger_ms=10_000)
    cluster.control.when(api=ApiKey.PRODUCE).fail(codes.INVALID_RECORD)
    send(producer, b"1")
    with pytest.raises(TransactionAbortableError):
        producer.commit_transaction()
    producer.abort_transaction()
    producer.begin_transaction()
    future = send(producer, b"2")
    producer.abort_transaction()
    error = future.exception(0)
    assert isinstance(error, TransactionAbortedError)
    assert str(error) == "transactional id x: the record was not acknowledged, because its transaction was aborted."
    assert error.__cause__ is None


@BOTH_VERSIONS
def test_batches_in_flight_behind_rejected_batch_complete_by_the_abort(version: int) -> None:
    cluster, producer = create_producer_in_transaction(version, batch_size=0)
    send_and_flush(producer, b"0")
    send_and_flush(producer, b"0")
    cluster.control.when(api=ApiKey.PRODUCE).fail(codes.INVALID_RECORD)
    futures = [send(producer, b"%d" % number) for number in range(1, 6)]
    pass_time(producer, 1)
    started = cluster.system.now()
    with pytest.raises(TransactionAbortableError):
        producer.commit_transaction()
    producer.abort_transaction()
    assert cluster.system.now() - started < 2000
    assert all(future.done() for future in futures)
    with producer.transaction():
        send(producer, b"6")
    assert read_committed(cluster) == [b"6"]


@BOTH_VERSIONS
def test_expired_batch_makes_transaction_abortable_and_abort_bumps_epoch(version: int) -> None:
    cluster, producer = create_producer_in_transaction(version, delivery_timeout_ms=500, request_timeout_ms=100)
    send_and_flush(producer, b"0")
    before = get_sender(producer).idempotence.id_and_epoch
    cluster.control.when(api=ApiKey.PRODUCE, times=None).never_respond()
    future = send(producer, b"1")
    with pytest.raises(TransactionAbortableError, match="not acknowledged within 500 ms"):
        producer.commit_transaction()
    assert isinstance(future.exception(0), DeliveryTimeoutError)
    cluster.control.clear()
    producer.abort_transaction()
    assert get_sender(producer).idempotence.id_and_epoch.epoch == before.epoch + 1
    with producer.transaction():
        send(producer, b"2")
    assert read_committed(cluster) == [b"2"]


def test_commit_reports_record_that_expires_before_its_batch_is_sent() -> None:
    cluster, producer = create_producer_in_transaction(1, delivery_timeout_ms=500, request_timeout_ms=100)
    cluster.control.when(api=ApiKey.ADD_PARTITIONS_TO_TXN, times=None).never_respond()
    future = send(producer, b"1", key=b"k")
    with pytest.raises(TransactionAbortableError, match=r"1 record for topic t, partition 0, failed: .*never sent"):
        producer.commit_transaction()
    assert isinstance(future.exception(0), DeliveryTimeoutError)
    cluster.control.clear()
    producer.abort_transaction()
    with producer.transaction():
        send(producer, b"2")
    assert read_committed(cluster) == [b"2"]


@BOTH_VERSIONS
@pytest.mark.parametrize("code", [codes.OUT_OF_ORDER_SEQUENCE_NUMBER, codes.UNKNOWN_PRODUCER_ID])
def test_sequence_error_makes_transaction_abortable(version: int, code: int) -> None:
    cluster, producer = create_producer_in_transaction(version)
    send_and_flush(producer, b"0")
    cluster.control.when(api=ApiKey.PRODUCE).fail(code)
    future = send(producer, b"1")
    with pytest.raises(TransactionAbortableError):
        producer.commit_transaction()
    assert future.exception(0) is not None
    producer.abort_transaction()
    with producer.transaction():
        send(producer, b"2")
    assert read_committed(cluster) == [b"2"]
    ends = [request for _, request in find_requests(cluster, EndTxnRequest)]
    assert [getattr(end, "committed", None) for end in ends] == [False, True]
    epochs = [getattr(request, "producer_epoch", None) for _, request in find_requests(cluster, InitProducerIdRequest)]
    assert epochs == ([-1, 0] if version == 1 else [-1])


@BOTH_VERSIONS
def test_splits_too_large_batch_within_transaction(version: int) -> None:
    cluster, producer = create_producer_in_transaction(version, linger_ms=20, batch_size=100_000)
    cluster.control.when(api=ApiKey.PRODUCE).fail(codes.MESSAGE_TOO_LARGE)
    for number in range(20):
        send(producer, b"%02d" % number * 100)
    producer.commit_transaction()
    assert read_committed(cluster) == [b"%02d" % number * 100 for number in range(20)]


@BOTH_VERSIONS
def test_moved_leader_loses_and_duplicates_nothing_in_transaction(version: int) -> None:
    cluster, producer = create_producer_in_transaction(version, nodes=3)
    for number in range(6):
        send(producer, b"%d" % number)
        if number == 2:
            cluster.control.move_leader("t", 0, 2)
        pass_time(producer, 3)
    producer.commit_transaction()
    assert read_committed(cluster) == [b"%d" % number for number in range(6)]


@BOTH_VERSIONS
def test_every_call_raises_fatal_error(version: int) -> None:
    cluster, producer = create_producer_in_transaction(version)
    cluster.control.when(api=ApiKey.PRODUCE).fail(codes.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    send(producer, b"1")
    for call in (producer.commit_transaction, producer.abort_transaction, producer.begin_transaction):
        with pytest.raises(Exception, match="TRANSACTIONAL_ID_AUTHORIZATION_FAILED"):
            call()
    producer.close()


@BOTH_VERSIONS
def test_close_ends_the_producer_after_timed_out_and_failed_commit(version: int) -> None:
    limits = {"max_block_ms": 1000, "request_timeout_ms": 1000, "delivery_timeout_ms": 5000}
    cluster, producer = create_producer_in_transaction(version, **limits)
    send_and_flush(producer, b"1")
    cluster.control.when(api=ApiKey.PRODUCE, times=None).fail(codes.NOT_ENOUGH_REPLICAS)
    send(producer, b"2")
    with pytest.raises(TransactionTimeoutError):
        producer.commit_transaction()
    pass_time(producer, 8000)
    producer.close()
    assert get_sender(producer).is_finished
    # The batch has expired in flight. With version 1, the coordinator aborts the transaction at its timeout.
    assert (state(cluster) is TransactionState.ONGOING) is (version == 1)
    assert read_committed(cluster) == []


@BOTH_VERSIONS
def test_timeout_names_last_error_of_broker(version: int) -> None:
    cluster, producer = create_producer_in_transaction(version, max_block_ms=1000)
    send_and_flush(producer, b"1")
    loading = cluster.control.when(api=ApiKey.END_TXN, times=None).fail(codes.COORDINATOR_LOAD_IN_PROGRESS)
    with pytest.raises(TransactionTimeoutError, match=r"The last request failed: .*COORDINATOR_LOAD_IN_PROGRESS"):
        producer.commit_transaction()
    loading.remove()
    producer.commit_transaction()
    assert read_committed(cluster) == [b"1"]


@BOTH_VERSIONS
def test_timeout_does_not_mention_failure_that_a_retry_has_overcome(version: int) -> None:
    limits = {"max_block_ms": 1000, "request_timeout_ms": 1000, "delivery_timeout_ms": 5000}
    cluster, producer = create_producer_in_transaction(version, **limits)
    send_and_flush(producer, b"1")
    cluster.control.when(api=ApiKey.END_TXN).fail(codes.COORDINATOR_LOAD_IN_PROGRESS)
    producer.commit_transaction()
    producer.begin_transaction()
    cluster.control.when(api=ApiKey.PRODUCE, times=None).fail(codes.NOT_ENOUGH_REPLICAS)
    send(producer, b"2")
    with pytest.raises(TransactionTimeoutError) as caught:
        producer.commit_transaction()
    assert "COORDINATOR_LOAD_IN_PROGRESS" not in str(caught.value)


@BOTH_VERSIONS
def test_init_without_response_times_out(version: int) -> None:
    cluster = create_cluster(version)
    producer = create_producer(cluster, max_block_ms=1000)
    cluster.control.when(api=ApiKey.INIT_PRODUCER_ID).never_respond()
    with pytest.raises(TransactionTimeoutError):
        producer.init_transactions()


@BOTH_VERSIONS
def test_rejection_that_names_nonexistent_record_is_abortable(version: int, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster, producer = create_producer_in_transaction(version)
    rejection = ApiError(codes.INVALID_RECORD, "record 99 has no key", {99: "no key"})
    with monkeypatch.context() as patch_log:
        patch_log.setattr(cluster.log("t"), "append", Mock(side_effect=rejection))
        send(producer, b"1")
        with pytest.raises(TransactionAbortableError, match="record 99 has no key"):
            producer.commit_transaction()
        producer.abort_transaction()
    with producer.transaction():
        send(producer, b"2")
    assert read_committed(cluster) == [b"2"]


@BOTH_VERSIONS
def test_init_fails_immediately_without_support_for_transactions(version: int) -> None:
    cluster = create_cluster(version, version_limits={ApiKey.INIT_PRODUCER_ID: VersionRange(1, 0)})
    producer, since = create_producer(cluster), cluster.system.now()
    with pytest.raises(UnsupportedVersionError, match="INIT_PRODUCER_ID"):
        producer.init_transactions()
    assert cluster.system.now() - since < 5_000
    assert isinstance(get_sender(producer).fatal_error, UnsupportedVersionError)
    with pytest.raises(UnsupportedVersionError):
        producer.begin_transaction()


@BOTH_VERSIONS
def test_unsupported_describe_request_fails_only_its_call(version: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """During a cluster upgrade, one coordinator may support the request while another one does not."""
    cluster, producer = create_initialized_producer(version, nodes=2)
    for node, name in enumerate("ab"):
        cluster.control.move_coordinator(name, node)
    known = get_sender(producer).client.latest_usable_version

    def latest_usable_version(node: int, api: ApiKey, versions: VersionRange | None = None) -> int:
        if (node, api) == (1, ApiKey.DESCRIBE_TRANSACTIONS):
            raise UnsupportedVersionError("node 1 does not know DESCRIBE_TRANSACTIONS")
        return known(node, api, versions)

    monkeypatch.setattr(get_sender(producer).client, "latest_usable_version", latest_usable_version)
    with pytest.raises(UnsupportedVersionError, match="node 1 does not know DESCRIBE_TRANSACTIONS"):
        producer.describe_transactions("ab")
    assert [*producer.describe_transactions("a")] == []
    with producer.transaction():
        send(producer, b"1")
    assert read_committed(cluster) == [b"1"]


@BOTH_VERSIONS
def test_unresponsive_coordinator_delays_no_request_to_another(version: int) -> None:
    """Calls of another thread, or for other transactional ids, must not wait for the unresponsive coordinator."""
    cluster, producer = create_initialized_producer(version, nodes=3)
    coordinators = {"a": 1, "b": 2}
    for name, node in coordinators.items():
        cluster.control.move_coordinator(name, node)
    producer.describe_transactions("ab")
    cluster.system.swallow("broker1", 9093)
    cluster.close_connections(1)
    pass_time(producer, 200)
    since = cluster.system.now()
    unresponsive_call, other_call = (
        BlockingCall([DescribeTransactions(["a"])]),
        BlockingCall([DescribeTransactions(["b"])]),
    )
    for call in (unresponsive_call, other_call):
        get_sender(producer)._call_executor.submit(call)
    assert get_loop(producer).run_until(other_call.done_event.is_set, 60_000)
    assert cluster.system.now() - since < 1_000
    assert not unresponsive_call.done_event.is_set()


@BOTH_VERSIONS
def test_looks_up_unreachable_coordinator_again(version: int) -> None:
    cluster, producer = create_initialized_producer(version, nodes=2)
    known = cluster.core.find_coordinator(ID)
    assert known is not None
    old = known.id
    cluster.control.move_coordinator(ID, 1 - old)
    cluster.control.refuse_connections(old)
    cluster.close_connections(old)
    pass_time(producer, 200)
    producer.init_transactions()


@BOTH_VERSIONS
def test_calls_fail_immediately_after_sender_has_failed(version: int) -> None:
    cluster, producer = create_producer_in_transaction(version)
    sender, since = get_sender(producer), cluster.system.now()
    with patch.object(sender, "run_once", Mock(side_effect=RuntimeError("a fault of ours"))):
        sender.run()
    for call in (producer.commit_transaction, producer.abort_transaction, producer.begin_transaction):
        with pytest.raises(DeliveryError, match="sender thread has failed: RuntimeError"):
            call()
    assert cluster.system.now() == since


def test_negative_producer_id_fails_init_and_all_later_calls() -> None:
    cluster = create_cluster(2)
    cluster.core.coordinator.next_producer_id = -5
    producer = create_producer(cluster)
    for method in (producer.init_transactions, producer.begin_transaction):
        with pytest.raises(DecodeError, match="A broker returned the producer id -5 with the epoch 0: neither may be"):
            method()
    producer.close()
