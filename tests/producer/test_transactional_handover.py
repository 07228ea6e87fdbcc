"""Transactions that include consumer group offsets, and transactions that another process ends."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from spark_kafka_sink.broker.transaction_coordinator import TransactionState
from spark_kafka_sink.errors import (
    ConfigurationError,
    IllegalStateError,
    InvalidRecordError,
    TransactionAbortableError,
    TransactionTimeoutError,
)
from spark_kafka_sink.producer.transactions.states import TransactionLifecycle, TransactionManagerState
from spark_kafka_sink.protocol import error_codes as codes
from spark_kafka_sink.protocol.message import ApiKey
from spark_kafka_sink.protocol.messages.init_producer_id import InitProducerIdRequest
from spark_kafka_sink.requests.consumer_groups import GroupMetadata, OffsetAndMetadata
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
from tests.simulated_cluster import SimulatedCluster

# --- offsets


def group_offset(cluster: SimulatedCluster, group: str = "g") -> int | None:
    found = cluster.core.offsets.committed.get(group, {}).get(("t", 0))
    return None if found is None else found.offset


@BOTH_VERSIONS
@pytest.mark.parametrize("group", ["g", GroupMetadata("g", -1, "")])
def test_offsets_are_committed_with_the_transaction(version: int, group: GroupMetadata | str) -> None:
    cluster, producer = create_producer_in_transaction(version)
    send(producer, b"1")
    producer.send_offsets_to_transaction({("t", 0): 7, ("t", 1): OffsetAndMetadata(8)}, group)
    assert group_offset(cluster) is None
    producer.commit_transaction()
    assert group_offset(cluster) == 7


@BOTH_VERSIONS
def test_abort_discards_offsets(version: int) -> None:
    cluster, producer = create_producer_in_transaction(version)
    producer.send_offsets_to_transaction({("t", 0): 7}, "g")
    producer.abort_transaction()
    assert group_offset(cluster) is None


LONE_SURROGATE = "\ud800"


@pytest.mark.parametrize(
    ("offsets", "group"),
    [
        ({("t", 0): 2**63}, "g"),
        ({("t", 0): -1}, "g"),
        ({("t", 0): "5"}, "g"),
        ({("t", 2**31): 5}, "g"),
        ({("t", "0"): 5}, "g"),
        ({(None, 0): 5}, "g"),
        ({(LONE_SURROGATE, 0): 5}, "g"),
        ({"t": 5}, "g"),
        (None, "g"),
        ([("t", 0, 5)], "g"),
        ({("t", 0): 5}, None),
        ({("t", 0): 5}, LONE_SURROGATE),
    ],
)
def test_rejects_invalid_offsets_and_remains_usable(offsets: Any, group: Any) -> None:
    cluster, producer = create_producer_in_transaction(2)
    with pytest.raises(InvalidRecordError):
        producer.send_offsets_to_transaction(offsets, group)
    producer.send_offsets_to_transaction({("t", np.int64(0)): np.int64(7)}, "g")
    producer.commit_transaction()
    assert group_offset(cluster) == 7


def test_offset_and_group_reject_invalid_fields() -> None:
    positions: list[tuple[Any, ...]] = [(5, 2**31), (5, -2), (5, -1, None), (5, -1, "x" * 2**15)]
    for fields in positions:
        with pytest.raises(InvalidRecordError):
            OffsetAndMetadata(*fields)
    groups: list[tuple[Any, ...]] = [("g", 2**31), ("g", -1, LONE_SURROGATE), ("g", -1, "m", 5)]
    for fields in groups:
        with pytest.raises(InvalidRecordError):
            GroupMetadata(*fields)


@pytest.mark.parametrize("name", [LONE_SURROGATE, "x" * 2**15, "", b"x"])
def test_rejects_invalid_transactional_id(name: Any) -> None:
    _, producer = create_initialized_producer(2)
    with pytest.raises(ConfigurationError, match="A transactional id must"):
        producer.init_transactions(name)
    with pytest.raises(ConfigurationError, match="A transactional id must"):
        producer.describe_transactions(["other", name])
    producer.init_transactions("other")


# --- two processes


@pytest.mark.parametrize("version", [0, 1, 2])
def test_writes_transaction_after_taken_over_one(version: int) -> None:
    """The other process's sequences are unknown, so the next transaction needs a new epoch or restarted sequences."""
    cluster, producer = create_producer_in_transaction(version)
    send(producer, b"1")
    prepared = producer.prepare_transaction()
    assert prepared is not None
    other = create_producer(cluster, ID)
    other.take_over_transaction(prepared)
    other.commit_transaction()
    with other.transaction():
        send(other, b"2")
    assert read_committed(cluster) == [b"1", b"2"]


@BOTH_VERSIONS
@pytest.mark.parametrize("commit", [True, False])
def test_another_producer_ends_prepared_transaction(version: int, commit: bool) -> None:
    cluster, producer = create_producer_in_transaction(version)
    futures = [send(producer, b"1"), send(producer, b"2", 1)]
    prepared = producer.prepare_transaction()
    assert prepared is not None
    assert all(future.done() for future in futures)
    producer.close()
    assert state(cluster) is TransactionState.ONGOING
    other = create_producer(cluster, prepared.transactional_id)
    other.take_over_transaction(prepared)
    (other.commit_transaction if commit else other.abort_transaction)()
    assert (read_committed(cluster, 0), read_committed(cluster, 1)) == (([b"1"], [b"2"]) if commit else ([], []))


@BOTH_VERSIONS
@pytest.mark.parametrize("has_response_arrived", [False, True])
def test_transaction_cannot_be_taken_over_while_the_outcome_of_a_commit_is_unread(
    version: int, has_response_arrived: bool
) -> None:
    """The next commit would join the earlier one, and report its outcome."""
    cluster, other = create_producer_in_transaction(version)
    send_and_flush(other, b"other")
    prepared = other.prepare_transaction()
    assert prepared is not None
    producer = create_producer(cluster, "id-2", max_block_ms=200)
    producer.init_transactions()
    producer.begin_transaction()
    send_and_flush(producer, b"1")
    cluster.control.when(api=ApiKey.END_TXN).delay(500, execute_first=True)
    with pytest.raises(TransactionTimeoutError):
        producer.commit_transaction()
    if has_response_arrived:
        pass_time(producer, 1000)
    with pytest.raises(IllegalStateError, match=r"the outcome of commit_transaction\(\) is unknown"):
        producer.take_over_transaction(prepared)
    pass_time(producer, 1000)
    producer.commit_transaction()
    producer.take_over_transaction(prepared)
    producer.commit_transaction()
    assert read_committed(cluster) == [b"other", b"1"]


@BOTH_VERSIONS
def test_preparing_producer_can_be_initialized_after_another_has_committed(version: int) -> None:
    cluster, producer = create_producer_in_transaction(version)
    send(producer, b"1")
    prepared = producer.prepare_transaction()
    assert prepared is not None
    other = create_producer(cluster, ID)
    other.take_over_transaction(prepared)
    other.commit_transaction()
    for transactional_id in (ID, "another"):
        producer.init_transactions(transactional_id)
        with producer.transaction():
            send(producer, b"2")
    assert read_committed(cluster) == [b"1", b"2", b"2"]


@BOTH_VERSIONS
def test_prepare_reports_failed_records(version: int) -> None:
    cluster, producer = create_producer_in_transaction(version)
    cluster.control.when(api=ApiKey.PRODUCE).fail(codes.INVALID_RECORD)
    send(producer, b"1", key=b"k1")
    with pytest.raises(TransactionAbortableError, match="with the key 'k1' for topic t, partition 0, failed"):
        producer.prepare_transaction()


@BOTH_VERSIONS
@pytest.mark.parametrize("has_records", [True, False])
def test_prepared_transaction_includes_offsets_of_timed_out_call(version: int, has_records: bool) -> None:
    """If preparing did not add them, another process would commit the records without the offsets."""
    cluster, producer = create_producer_in_transaction(version, max_block_ms=100)
    if has_records:
        send_and_flush(producer, b"1")
    cluster.control.when(api=ApiKey.TXN_OFFSET_COMMIT, times=None).fail(codes.COORDINATOR_LOAD_IN_PROGRESS)
    with pytest.raises(TransactionTimeoutError, match=r"Call send_offsets_to_transaction\(\) again"):
        producer.send_offsets_to_transaction({("t", 0): 7}, "g")
    with pytest.raises(TransactionTimeoutError, match=r"Call prepare_transaction\(\) again"):
        producer.prepare_transaction()
    with pytest.raises(IllegalStateError, match="is being prepared"):
        producer.send_offsets_to_transaction({("t", 0): 8}, "g")
    cluster.control.clear()
    prepared = producer.prepare_transaction()
    assert prepared is not None
    other = create_producer(cluster, ID)
    other.take_over_transaction(prepared)
    other.commit_transaction()
    assert (read_committed(cluster), group_offset(cluster)) == ([b"1"] if has_records else [], 7)


@BOTH_VERSIONS
def test_prepare_reports_offsets_rejected_after_their_call(version: int) -> None:
    cluster, producer = create_producer_in_transaction(version, max_block_ms=100)
    cluster.control.when(api=ApiKey.TXN_OFFSET_COMMIT, times=None).fail(codes.COORDINATOR_LOAD_IN_PROGRESS)
    with pytest.raises(TransactionTimeoutError):
        producer.send_offsets_to_transaction({("t", 0): 7}, "g")
    cluster.control.clear()
    cluster.control.when(api=ApiKey.TXN_OFFSET_COMMIT).fail(codes.GROUP_AUTHORIZATION_FAILED)
    with pytest.raises(TransactionAbortableError, match="GROUP_AUTHORIZATION_FAILED"):
        producer.prepare_transaction()


def test_prepare_without_open_transaction_names_required_call() -> None:
    producer = create_producer(create_cluster(2))
    with pytest.raises(
        IllegalStateError, match=r"prepare_transaction\(\) requires .* Call init_transactions\(\) first"
    ):
        producer.prepare_transaction()
    producer.init_transactions()
    with pytest.raises(
        IllegalStateError, match=r"prepare_transaction\(\) requires .* Call begin_transaction\(\) first"
    ):
        producer.prepare_transaction()


def test_prepare_ends_empty_transaction() -> None:
    _, producer = create_producer_in_transaction(2)
    assert producer.prepare_transaction() is None
    producer.begin_transaction()


@BOTH_VERSIONS
@pytest.mark.parametrize("commit", [True, False])
def test_producer_writes_transactions_after_ending_taken_over_one(version: int, commit: bool) -> None:
    """In version 1 it needs a new epoch, because it does not know the next sequences."""
    cluster, first = create_producer_in_transaction(version)
    send_and_flush(first, b"1", b"2")
    prepared = first.prepare_transaction()
    assert prepared is not None
    first.close()
    second = create_producer(cluster, ID)
    second.take_over_transaction(prepared)
    (second.commit_transaction if commit else second.abort_transaction)()
    for value in (b"3", b"4"):
        with second.transaction():
            send(second, value)
    assert read_committed(cluster) == [*([b"1", b"2"] if commit else []), b"3", b"4"]
    assert len(find_requests(cluster, InitProducerIdRequest)) == (2 if version == 1 else 1)


def test_preparing_an_empty_transaction_shows_no_ending_state_to_the_sender(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sender reads the state without the lock, and could end the next transaction before its records are sent.

    1. The sender reads the state COMMITTING, and that all batches are done.
    2. The caller ends the empty transaction, begins the next one, and commits it while its record is staged.
    3. The sender ends the transaction, because it takes it for flushed.
    """
    _, producer = create_producer_in_transaction(2)
    states = []
    transition_to = TransactionLifecycle.transition_to

    def record_state(lifecycle: TransactionLifecycle, next_state: TransactionManagerState) -> None:
        transition_to(lifecycle, next_state)
        states.append(next_state)

    monkeypatch.setattr(TransactionLifecycle, "transition_to", record_state)
    assert producer.prepare_transaction() is None
    assert states == [TransactionManagerState.READY]
