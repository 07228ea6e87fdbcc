"""Successful transactions: their requests and order, and the producer id and epoch of the next transaction."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from spark_kafka_sink.client.producer_ids import ProducerIdAndEpoch
from spark_kafka_sink.errors import IllegalStateError, KafkaSinkError
from spark_kafka_sink.producer.transactions.states import Operation
from spark_kafka_sink.protocol import error_codes as codes
from spark_kafka_sink.protocol.messages.end_txn import EndTxnRequest, EndTxnResponse
from spark_kafka_sink.protocol.messages.find_coordinator import (
    FindCoordinatorRequest,
)
from spark_kafka_sink.protocol.messages.init_producer_id import InitProducerIdRequest
from spark_kafka_sink.protocol.schema import VersionRange
from spark_kafka_sink.requests.init_producer_id import InitProducerId
from spark_kafka_sink.requests.request import TRANSACTION_KEY_TYPE, CoordinatorRoute
from spark_kafka_sink.requests.transaction_identity import TransactionIdentity
from spark_kafka_sink.requests.transactions import AddPartitions, EndTransaction
from tests.producer.transactions.transaction_cases import (
    GROUP,
    OFFSETS,
    T0,
    T1,
    Request,
    S,
    TransactionHarness,
    get_added_partitions,
    get_error,
    get_initial_identity,
    get_lookup_route,
)

BOTH_VERSIONS = pytest.mark.parametrize("version", [1, 2])


# --- init


def test_init_requests_producer_id_with_transactional_id_and_timeout() -> None:
    harness = TransactionHarness()
    harness.manager.init()
    message = harness.send_and_respond(InitProducerId).build_message(4)
    assert message == InitProducerIdRequest(transactional_id="x", transaction_timeout_ms=60_000)


def test_coordinator_lookup_uses_layout_of_request_version() -> None:
    harness = TransactionHarness()
    harness.manager.init()
    lookup = harness.require_due_request()
    assert lookup.versions is not None
    assert 0 not in lookup.versions  # version 0 supports only groups
    assert lookup.build_message(3) == FindCoordinatorRequest(key="x", key_type=1)
    assert lookup.build_message(4) == FindCoordinatorRequest(coordinator_keys=["x"], key_type=1)


def test_requests_nothing_before_init() -> None:
    assert TransactionHarness().find_due_request() is None


def test_repeats_first_request_whose_response_was_lost() -> None:
    harness = TransactionHarness()
    operation = harness.manager.init()
    harness.send_and_lose_response(InitProducerId)
    harness.send_and_respond(InitProducerId)
    assert get_error(operation) is None


def test_sends_one_request_at_a_time() -> None:
    harness = TransactionHarness()
    harness.manager.init()
    harness.send()
    assert harness.find_due_request() is None


def test_request_is_due_until_it_is_sent() -> None:
    harness = TransactionHarness().init()
    harness.manager.begin(1)
    harness.manager.admit_batch(T0, is_retry=False)
    assert harness.require_due_request().build_message(3) == harness.require_due_request().build_message(3)


def test_ready_producer_can_be_initialized_with_another_id() -> None:
    harness = TransactionHarness().init()
    operation = harness.manager.init("y")
    assert get_lookup_route(harness.require_due_request()) == CoordinatorRoute(TRANSACTION_KEY_TYPE, "y")
    message = harness.send_and_respond(InitProducerId).build_message(4)
    assert isinstance(message, InitProducerIdRequest)
    assert message.transactional_id == harness.manager.transactional_id == "y"
    assert get_error(operation) is None


def create_harness_with_pending_epoch_request() -> tuple[TransactionHarness, Request]:
    """Create a ready harness in which an empty transaction has a request for the next epoch of id "x" in flight."""
    harness = TransactionHarness(1).with_added_partitions().commit()
    harness.manager.begin(2)
    request = harness.send(InitProducerId)
    assert harness.manager.prepare() is None
    return harness, request


@pytest.mark.parametrize("code", [codes.NONE, codes.PRODUCER_FENCED])
def test_response_for_previous_id_does_not_initialize_the_producer(code: int) -> None:
    harness, request = create_harness_with_pending_epoch_request()
    operation = harness.manager.init("y")
    harness.respond(request, code)
    assert not operation.done_event.is_set()
    harness.run_until_idle()
    assert get_error(operation) is None
    assert harness.manager.id_and_epoch == harness.id_and_epoch


def test_response_for_previous_id_does_not_change_taken_over_transaction() -> None:
    harness, request = create_harness_with_pending_epoch_request()
    prepared = TransactionIdentity("y", 80, 5, 1)
    harness.manager.take_over(prepared)
    harness.respond(request)
    assert harness.manager.id_and_epoch == prepared.id_and_epoch
    harness.commit()
    assert harness.sent_request_types[-1] is EndTransaction


def test_take_over_cancels_unsent_epoch_request_of_previous_id() -> None:
    harness = TransactionHarness(1).with_added_partitions().commit()
    harness.manager.begin(2)
    assert harness.manager.prepare() is None
    harness.manager.take_over(TransactionIdentity("y", 80, 5, 1))
    assert harness.find_due_request() is None
    harness.commit()
    assert harness.sent_request_types[-1] is EndTransaction


# --- commit and abort


@BOTH_VERSIONS
def test_admits_no_batch_before_init_and_begin(version: int) -> None:
    harness = TransactionHarness(version)
    assert not harness.manager.admit_batch(T0, is_retry=False)
    harness.init()
    assert not harness.manager.admit_batch(T0, is_retry=False)
    assert harness.find_due_request() is None


def test_version_1_adds_partitions_before_their_batches_are_admitted() -> None:
    harness = TransactionHarness(1).with_begun_transaction()
    assert not harness.manager.admit_batch(T0, is_retry=False)
    assert not harness.manager.admit_batch(T1, is_retry=False)
    request = harness.send(AddPartitions)
    assert get_added_partitions(request) == {T0, T1}
    assert request.versions == VersionRange(0, 3)
    assert not harness.manager.admit_batch(T0, is_retry=False)
    harness.respond(request)
    assert harness.manager.admit_batch(T0, is_retry=False)
    assert harness.manager.admit_batch(T1, is_retry=False)
    assert harness.find_due_request() is None


def test_version_1_adds_only_new_partition_to_open_transaction() -> None:
    harness = TransactionHarness(1).with_added_partitions(T0)
    harness.manager.admit_batch(T1, is_retry=False)
    assert get_added_partitions(harness.send_and_respond(AddPartitions)) == {T1}
    assert harness.manager.admit_batch(T1, is_retry=False)


def test_version_2_admits_batch_without_adding_its_partition() -> None:
    harness = TransactionHarness(2).with_begun_transaction()
    assert harness.manager.admit_batch(T0, is_retry=False)
    assert harness.find_due_request() is None


@BOTH_VERSIONS
@pytest.mark.parametrize("commit", [True, False])
def test_sends_end_txn_only_after_flush(version: int, commit: bool) -> None:
    harness = TransactionHarness(version).with_added_partitions()
    harness.is_flushed = False
    operation = harness.manager.commit() if commit else harness.manager.abort()
    assert harness.find_due_request() is None
    harness.is_flushed = True
    end = harness.send(EndTransaction)
    assert end.build_message(5) == EndTxnRequest(
        transactional_id="x", producer_id=70, producer_epoch=get_initial_identity(harness).epoch, committed=commit
    )
    assert not operation.done_event.is_set()
    harness.respond(end)
    assert get_error(operation) is None
    assert harness.state() is S.READY


def test_version_1_commit_keeps_epoch_and_uses_end_txn_version_of_at_most_4() -> None:
    harness = TransactionHarness(1).with_added_partitions()
    harness.manager.commit()
    assert harness.send_and_respond(EndTransaction).versions == VersionRange(0, 4)
    assert harness.manager.id_and_epoch == get_initial_identity(harness)


def test_version_2_commit_uses_epoch_from_end_txn_response() -> None:
    harness = TransactionHarness(2).with_added_partitions()
    harness.manager.commit()
    versions = harness.send_and_respond(EndTransaction).versions
    assert versions is not None
    assert versions.min == 5
    assert harness.manager.id_and_epoch == ProducerIdAndEpoch(70, get_initial_identity(harness).epoch + 1)


def test_version_2_commit_uses_new_producer_id_from_end_txn_response() -> None:
    harness = TransactionHarness(2).with_added_partitions()
    harness.manager.commit()
    harness.respond_with_message(harness.send(EndTransaction), EndTxnResponse(producer_id=71, producer_epoch=0))
    assert harness.manager.id_and_epoch == ProducerIdAndEpoch(71, 0)


@BOTH_VERSIONS
def test_admits_no_batch_after_end_txn_was_sent(version: int) -> None:
    harness = TransactionHarness(version).with_added_partitions()
    harness.manager.commit()
    assert harness.manager.admit_batch(T0, is_retry=False)  # the last batches before the end
    harness.send(EndTransaction)
    assert not harness.manager.admit_batch(T0, is_retry=False)


def test_abort_admits_only_retries_of_added_partitions() -> None:
    harness = TransactionHarness(1).with_added_partitions(T0)
    harness.manager.admit_batch(T1, is_retry=False)
    harness.is_flushed = False
    harness.manager.abort()
    assert harness.manager.should_drop_unsent_batches
    assert harness.manager.admit_batch(T0, is_retry=True)
    assert not harness.manager.admit_batch(T0, is_retry=False)
    assert not harness.manager.admit_batch(T1, is_retry=True)
    assert harness.find_due_request() is None  # the pending partition is not added
    harness.is_flushed = True
    harness.send_and_respond(EndTransaction)


def test_commit_adds_pending_partitions_before_it_ends_the_transaction() -> None:
    harness = TransactionHarness(1).with_begun_transaction()
    harness.manager.admit_batch(T0, is_retry=False)
    harness.is_flushed = False
    harness.manager.commit()
    harness.send_and_respond(AddPartitions)
    assert harness.manager.admit_batch(T0, is_retry=False)
    harness.is_flushed = True
    harness.send_and_respond(EndTransaction)
    assert harness.state() is S.READY


# --- versions


def test_each_begin_determines_transaction_version() -> None:
    harness = TransactionHarness(1).with_added_partitions().commit()
    harness.version = 2
    harness.manager.begin(2)
    # Version 2 begins with a new epoch. The request has the current one, so that no other producer is fenced.
    assert not harness.manager.admit_batch(T0, is_retry=False)
    message = harness.send_and_respond(InitProducerId).build_message(4)
    assert isinstance(message, InitProducerIdRequest)
    assert (message.producer_id, message.producer_epoch) == get_initial_identity(harness)
    assert harness.manager.admit_batch(T0, is_retry=False)
    harness.manager.commit()
    assert harness.send_and_respond(EndTransaction).versions == VersionRange(5, 32767)
    harness.manager.commit().read_result()
    harness.version = 1
    harness.manager.begin(1)
    assert not harness.manager.admit_batch(T0, is_retry=False)
    assert type(harness.require_due_request()) is AddPartitions


def test_begin_without_known_version_keeps_previous_version() -> None:
    harness = TransactionHarness(2).with_added_partitions().commit()
    harness.manager.begin(None)
    assert harness.manager.admit_batch(T0, is_retry=False)


# --- handover between processes


@BOTH_VERSIONS
def test_prepare_returns_identity_and_keeps_transaction_open(version: int) -> None:
    harness = TransactionHarness(version).with_added_partitions()
    prepared = harness.manager.prepare()
    assert prepared == TransactionIdentity("x", *get_initial_identity(harness), version)
    assert harness.state() is S.PREPARED
    assert not harness.manager.has_abortable_transaction
    assert harness.find_due_request() is None
    assert not harness.manager.admit_batch(T0, is_retry=False)


def test_producer_can_commit_transaction_it_has_prepared() -> None:
    harness = TransactionHarness(2).with_added_partitions()
    harness.manager.prepare()
    operation = harness.manager.commit()
    harness.send_and_respond(EndTransaction)
    assert get_error(operation) is None


# --- invalid calls


def test_calls_without_transaction_fail_and_name_required_call() -> None:
    harness = TransactionHarness()
    calls: tuple[Callable[[], object], ...] = (
        harness.manager.require_transaction_number,
        harness.manager.prepare,
        lambda: harness.manager.send_offsets(OFFSETS, GROUP),
    )
    for call in calls:
        with pytest.raises(IllegalStateError, match=r"is 'uninitialized'\. Call init_transactions\(\) first"):
            call()
    harness.init()
    with pytest.raises(
        IllegalStateError, match=r"send\(\) requires an open .* is 'ready'\. Call begin_transaction\(\) first"
    ):
        harness.manager.require_transaction_number()


def test_init_after_fatal_error_raises_that_error() -> None:
    harness = TransactionHarness().with_added_partitions()
    harness.manager.commit()
    harness.manager.transition_to_fatal_error(KafkaSinkError("the disk is gone"))
    with pytest.raises(KafkaSinkError, match="the disk is gone"):
        harness.manager.init("two")


@pytest.mark.parametrize("call", ["begin", "commit", "abort"])
def test_call_before_init_raises_and_keeps_state(call: str) -> None:
    harness = TransactionHarness()
    calls: dict[str, Callable[[], object]] = {
        "begin": lambda: harness.manager.begin(1),
        "commit": harness.manager.commit,
        "abort": harness.manager.abort,
    }
    with pytest.raises(
        IllegalStateError, match=r"invalid transition from 'uninitialized' .* Call init_transactions\(\) first"
    ):
        calls[call]()
    assert harness.state() is S.UNINITIALIZED
    harness.init()
    assert harness.state() is S.READY


def test_second_begin_raises_and_keeps_transaction_open() -> None:
    harness = TransactionHarness(2).with_added_partitions()
    with pytest.raises(IllegalStateError, match=r"Call commit_transaction\(\) or abort_transaction\(\) first"):
        harness.manager.begin(2)
    assert harness.manager.admit_batch(T0, is_retry=False)


def test_rejects_records_during_commit() -> None:
    harness = TransactionHarness(2).with_added_partitions()
    harness.manager.commit()
    with pytest.raises(IllegalStateError, match=r"send\(\) is not possible, because the outcome of commit"):
        harness.manager.require_transaction_number()


@pytest.mark.parametrize("call", ["init", "commit", "abort"])
def test_only_the_same_call_is_allowed_while_outcome_is_unread(call: str) -> None:
    harness = TransactionHarness(2) if call == "init" else TransactionHarness(2).with_added_partitions()
    calls: dict[str, Callable[[], Operation]] = {
        "init": harness.manager.init,
        "commit": harness.manager.commit,
        "abort": harness.manager.abort,
    }
    first = calls[call]()
    end_txn = harness.send(EndTransaction) if call == "commit" else None
    others: list[Callable[[], object]] = [other for name, other in calls.items() if name != call]
    others.append(lambda: harness.manager.begin(2))
    for other in others:
        with pytest.raises(IllegalStateError, match=r"the outcome of .* is unknown"):
            other()
    assert calls[call]() is first
    if end_txn is not None:
        harness.respond(end_txn)
    harness.run_until_idle()
    assert first.done_event.is_set()
    assert calls[call]() is first  # also after the operation has ended
    with pytest.raises(IllegalStateError):
        harness.manager.begin(2)
    assert get_error(first) is None
    harness.manager.begin(2)


# --- records of calls that end late


def test_does_not_add_record_to_later_transaction() -> None:
    harness = TransactionHarness().with_begun_transaction()
    number = harness.manager.require_transaction_number()
    harness.commit()
    harness.manager.begin(harness.version)
    with pytest.raises(IllegalStateError, match=r"send\(\)"):
        harness.manager.require_transaction_number(number)
    assert harness.manager.require_transaction_number() != number


def test_adds_no_record_while_transaction_is_being_prepared() -> None:
    harness = TransactionHarness().with_begun_transaction()
    harness.manager.stop_accepting_records()
    with pytest.raises(IllegalStateError, match=r"send\(\)"):
        harness.manager.require_transaction_number()
