"""TransactionCoordinator in both transaction versions."""

from __future__ import annotations

import pytest

from spark_kafka_sink.broker.transaction_coordinator import (
    MAX_EPOCH,
    ProducerIdentity,
    TopicPartition,
    TransactionCoordinator,
    TransactionMetadata,
    TransactionState,
)
from spark_kafka_sink.protocol import error_codes

PARTITION: TopicPartition = ("t", 0)
FENCED = error_codes.PRODUCER_FENCED


class MarkerRecorder:
    """Records the markers and ended offsets of a coordinator."""

    def __init__(self) -> None:
        self.written: list[tuple[TopicPartition, int, int, bool]] = []
        self.ended: list[tuple[str, bool]] = []

    def write(self, partition: TopicPartition, producer_id: int, epoch: int, commit: bool) -> None:
        self.written.append((partition, producer_id, epoch, commit))

    def complete_group_offsets(self, transaction: TransactionMetadata, commit: bool) -> None:
        self.ended.append((transaction.transactional_id, commit))


@pytest.fixture
def markers() -> MarkerRecorder:
    return MarkerRecorder()


@pytest.fixture
def coordinator(markers: MarkerRecorder) -> TransactionCoordinator:
    return TransactionCoordinator(markers.write, markers.complete_group_offsets)


def init(coordinator: TransactionCoordinator, expected: ProducerIdentity | None = None) -> ProducerIdentity:
    return coordinator.init_producer_id("x", 1000, expected)


def add(coordinator: TransactionCoordinator, identity: ProducerIdentity, *, now_ms: float = 0, version: int = 1) -> int:
    return coordinator.add_partitions("x", identity, [PARTITION], now_ms, 0, transaction_version=version)


def end(
    coordinator: TransactionCoordinator, identity: ProducerIdentity, *, commit: bool = True, version: int = 1
) -> ProducerIdentity:
    return coordinator.end_transaction("x", identity, commit=commit, transaction_version=version)


def test_assigns_new_producer_id_without_transactional_id(coordinator: TransactionCoordinator) -> None:
    first, second = (coordinator.init_producer_id(None, 0, None) for _ in range(2))
    assert first.producer_id != second.producer_id
    assert (first.epoch, second.epoch) == (0, 0)


@pytest.mark.parametrize(
    ("name", "timeout_ms", "error"),
    [("", 1000, error_codes.INVALID_REQUEST), ("x", 900_001, error_codes.INVALID_TRANSACTION_TIMEOUT)],
)
def test_rejects_empty_transactional_id_and_excessive_timeout(
    coordinator: TransactionCoordinator, name: str, timeout_ms: int, error: int
) -> None:
    assert coordinator.init_producer_id(name, timeout_ms, None).error_code == error


def test_second_producer_with_transactional_id_fences_the_first(coordinator: TransactionCoordinator) -> None:
    first, second = init(coordinator), init(coordinator)
    assert (second.producer_id, second.epoch) == (first.producer_id, first.epoch + 1)
    assert add(coordinator, first) == FENCED
    assert end(coordinator, first).error_code == FENCED
    assert add(coordinator, second) == 0


def test_commit_writes_marker_to_each_partition_and_can_be_repeated(
    coordinator: TransactionCoordinator, markers: MarkerRecorder
) -> None:
    identity = init(coordinator)
    coordinator.add_partitions("x", identity, [("t", 1), ("t", 0)], 0, 0)
    assert [end(coordinator, identity).error_code for _ in range(2)] == [0, 0]
    assert markers.written == [(("t", part), identity.producer_id, identity.epoch, True) for part in (0, 1)]
    assert end(coordinator, identity, commit=False).error_code == error_codes.INVALID_TXN_STATE


def test_rejects_end_without_open_transaction(coordinator: TransactionCoordinator) -> None:
    assert end(coordinator, init(coordinator)).error_code == error_codes.INVALID_TXN_STATE
    unknown = coordinator.end_transaction("unknown", ProducerIdentity(0, 0), commit=True, transaction_version=1)
    assert unknown.error_code == error_codes.INVALID_PRODUCER_ID_MAPPING


def test_version_2_end_increments_epoch_and_can_be_repeated(
    coordinator: TransactionCoordinator, markers: MarkerRecorder
) -> None:
    identity = init(coordinator)
    add(coordinator, identity, version=2)
    ended = end(coordinator, identity, version=2)
    assert ended == ProducerIdentity(identity.producer_id, identity.epoch + 1)
    assert end(coordinator, identity, version=2) == ended
    assert markers.written == [(PARTITION, identity.producer_id, identity.epoch + 1, True)]
    assert end(coordinator, ended, version=2).error_code == error_codes.INVALID_TXN_STATE
    assert add(coordinator, identity, version=2) == FENCED
    assert add(coordinator, ended, version=2) == 0


def test_version_2_accepts_abort_without_open_transaction(
    coordinator: TransactionCoordinator, markers: MarkerRecorder
) -> None:
    identity = init(coordinator)
    for _ in range(3):
        ended = end(coordinator, identity, commit=False, version=2)
        assert ended == ProducerIdentity(identity.producer_id, identity.epoch + 1)
        identity = ended
    assert markers.written == []
    assert end(coordinator, identity, commit=True, version=2).error_code == error_codes.INVALID_TXN_STATE
    assert end(coordinator, init(coordinator), commit=False, version=1).error_code == error_codes.INVALID_TXN_STATE


def test_new_producer_aborts_open_transaction_and_must_retry(
    coordinator: TransactionCoordinator, markers: MarkerRecorder
) -> None:
    old = init(coordinator)
    add(coordinator, old)
    assert init(coordinator).error_code == error_codes.CONCURRENT_TRANSACTIONS
    assert markers.written == [(PARTITION, old.producer_id, old.epoch + 1, False)]
    assert init(coordinator) == ProducerIdentity(old.producer_id, old.epoch + 2)
    assert end(coordinator, old).error_code == FENCED


def test_producer_with_expected_identity_gets_next_epoch(coordinator: TransactionCoordinator) -> None:
    identity = init(coordinator)
    next_identity = init(coordinator, identity)
    assert next_identity == ProducerIdentity(identity.producer_id, identity.epoch + 1)
    assert init(coordinator, identity) == next_identity, "a repeated request must get the same result"
    assert init(coordinator, ProducerIdentity(99, 0)).error_code == FENCED
    init(coordinator)
    assert init(coordinator, identity).error_code == FENCED


def test_aborts_timed_out_transaction_and_fences_its_producer(
    coordinator: TransactionCoordinator, markers: MarkerRecorder
) -> None:
    identity = init(coordinator)
    add(coordinator, identity, now_ms=100)
    assert coordinator.next_timeout_ms() == 1100
    assert coordinator.abort_timed_out_transactions(1099) == []
    assert coordinator.abort_timed_out_transactions(1100) == ["x"]
    assert markers.written == [(PARTITION, identity.producer_id, identity.epoch + 1, False)]
    assert coordinator.next_timeout_ms() is None
    assert end(coordinator, identity, commit=True).error_code == error_codes.INVALID_TXN_STATE


def test_aborts_at_the_computed_deadline_despite_rounding(coordinator: TransactionCoordinator) -> None:
    began_ms = 902218.240992874
    identity = coordinator.init_producer_id("x", 900_000, None)
    add(coordinator, identity, now_ms=began_ms)
    announced_ms = coordinator.next_timeout_ms()
    assert announced_ms is not None
    assert announced_ms - began_ms < 900_000, "the deadline must be rounded for this test"
    assert coordinator.abort_timed_out_transactions(announced_ms) == ["x"]
    assert end(coordinator, identity, commit=False).error_code == 0, "as if the producer had aborted the transaction"


def test_assigns_new_producer_id_when_epochs_are_exhausted(coordinator: TransactionCoordinator) -> None:
    identity = init(coordinator)
    coordinator.transactions["x"].epoch = MAX_EPOCH - 1
    fresh = init(coordinator)
    assert (fresh.producer_id != identity.producer_id, fresh.epoch) == (True, 0)


def test_version_2_end_with_last_epoch_assigns_new_producer_id_and_can_be_repeated(
    coordinator: TransactionCoordinator,
) -> None:
    producer_id = init(coordinator).producer_id
    coordinator.transactions["x"].epoch = MAX_EPOCH - 1
    last = ProducerIdentity(producer_id, MAX_EPOCH - 1)
    add(coordinator, last, version=2)
    fresh = end(coordinator, last, version=2)
    assert (fresh.error_code, fresh.epoch, fresh.producer_id != producer_id) == (0, 0, True)
    assert end(coordinator, last, version=2) == fresh


def test_version_1_verifies_only_added_partitions(coordinator: TransactionCoordinator) -> None:
    identity = init(coordinator)
    assert coordinator.verify_partition("x", identity, PARTITION) == error_codes.TRANSACTION_ABORTABLE
    add(coordinator, identity)
    assert coordinator.verify_partition("x", identity, PARTITION) == 0
    end(coordinator, identity)
    assert coordinator.transactions["x"].state is TransactionState.COMPLETE_COMMIT
    assert coordinator.verify_partition("x", identity, PARTITION) == error_codes.TRANSACTION_ABORTABLE


@pytest.mark.parametrize("version", [1, 2])
def test_deferred_completion_blocks_next_transaction_until_markers_are_written(
    coordinator: TransactionCoordinator, markers: MarkerRecorder, version: int
) -> None:
    coordinator.should_defer_completion = lambda transaction: True
    identity = init(coordinator)
    assert add(coordinator, identity, version=version) == 0
    next_identity = end(coordinator, identity, version=version)
    assert not next_identity.error_code
    assert (next_identity.epoch == identity.epoch) == (version == 1)
    transaction = coordinator.transactions["x"]
    assert transaction.state.value == "PrepareCommit"
    assert markers.written == []
    blocked = error_codes.CONCURRENT_TRANSACTIONS
    assert add(coordinator, next_identity, version=version) == blocked
    assert coordinator.add_group("x", next_identity, "g", 0, 0, version) == blocked
    assert init(coordinator).error_code == init(coordinator, next_identity).error_code == blocked
    assert end(coordinator, identity, version=version).error_code == blocked
    assert end(coordinator, identity, commit=False, version=version).error_code == error_codes.INVALID_TXN_STATE
    coordinator.abort_timed_out_transactions(1e9)
    coordinator.complete_transaction(transaction)
    coordinator.complete_transaction(transaction)
    assert transaction.state.value == "CompleteCommit"
    assert markers.written == [(PARTITION, identity.producer_id, next_identity.epoch, True)]
    assert end(coordinator, identity, version=version) == next_identity
    assert add(coordinator, next_identity, version=version) == 0


def test_deferred_markers_of_last_epoch_keep_their_producer_id(
    coordinator: TransactionCoordinator, markers: MarkerRecorder
) -> None:
    coordinator.should_defer_completion = lambda transaction: True
    identity = init(coordinator)
    transaction = coordinator.transactions["x"]
    transaction.epoch = MAX_EPOCH - 1
    last = ProducerIdentity(identity.producer_id, MAX_EPOCH - 1)
    assert add(coordinator, last, version=2) == 0
    next_identity = end(coordinator, last, version=2)
    assert next_identity.producer_id != identity.producer_id
    coordinator.complete_transaction(transaction)
    assert markers.written == [(PARTITION, identity.producer_id, MAX_EPOCH, True)]
