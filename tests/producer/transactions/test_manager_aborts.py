"""Failures that abort a transaction but leave its producer usable."""

from __future__ import annotations

from uuid import UUID

import pytest

from spark_kafka_sink.client.producer_ids import ProducerIdAndEpoch
from spark_kafka_sink.errors import (
    BrokerError,
    DeliveryTimeoutError,
    IllegalStateError,
    KafkaSinkError,
    RecordTooLargeError,
    TransactionAbortableError,
)
from spark_kafka_sink.protocol import error_codes as codes
from spark_kafka_sink.protocol.messages.init_producer_id import InitProducerIdRequest
from spark_kafka_sink.requests.find_coordinator import FindCoordinator
from spark_kafka_sink.requests.init_producer_id import InitProducerId
from spark_kafka_sink.requests.transactions import AddOffsets, AddPartitions, CommitOffsets, EndTransaction
from tests.producer.transactions.transaction_cases import (
    GROUP,
    OFFSETS,
    T0,
    T1,
    Request,
    S,
    TransactionHarness,
    build_add_partitions_response,
    create_harness_before,
    get_error,
)

BOTH_VERSIONS = pytest.mark.parametrize("version", [1, 2])
FAILURE = DeliveryTimeoutError("topic t, partition 0: 3 records were not acknowledged.")


@BOTH_VERSIONS
def test_batch_that_fails_before_end_txn_fails_the_commit(version: int) -> None:
    harness = TransactionHarness(version).with_added_partitions()
    harness.is_flushed = False
    operation = harness.manager.commit()
    harness.manager.handle_failed_batch(FAILURE, has_sequence=True)
    error = get_error(operation)
    assert isinstance(error, TransactionAbortableError)
    assert error.__cause__ is FAILURE
    harness.is_flushed = True
    assert harness.find_due_request() is None  # the transaction does not end before the abort
    harness.manager.abort()
    message = harness.send_and_respond(EndTransaction).build_message(5)
    assert getattr(message, "committed", None) is False


@BOTH_VERSIONS
def test_commit_succeeds_when_another_threads_record_fails_after_end_txn_was_sent(version: int) -> None:
    harness = TransactionHarness(version).with_added_partitions()
    number = harness.manager.require_transaction_number()
    operation = harness.manager.commit()
    end = harness.send(EndTransaction)
    harness.manager.handle_rejected_record(number, RecordTooLargeError("The record has 2000000 bytes."))
    assert harness.state() is S.COMMITTING
    harness.respond(end)
    assert get_error(operation) is None
    assert harness.state() is S.READY


@BOTH_VERSIONS
def test_commit_succeeds_when_another_thread_sends_during_the_commit(version: int) -> None:
    harness = TransactionHarness(version).with_added_partitions()
    number = harness.manager.require_transaction_number()
    operation = harness.manager.commit()
    with pytest.raises(IllegalStateError) as late:
        harness.manager.require_transaction_number(number)
    harness.manager.handle_rejected_record(number, late.value)
    harness.run_until_idle()
    assert get_error(operation) is None


@BOTH_VERSIONS
def test_record_that_fails_before_end_txn_was_sent_fails_the_commit(version: int) -> None:
    harness = TransactionHarness(version).with_added_partitions()
    number = harness.manager.require_transaction_number()
    harness.is_flushed = False
    operation = harness.manager.commit()
    harness.manager.handle_rejected_record(number, RecordTooLargeError("The record has 2000000 bytes."))
    assert isinstance(get_error(operation), TransactionAbortableError)


def test_commit_reports_first_of_several_failures() -> None:
    harness = TransactionHarness(2).with_added_partitions()
    harness.manager.handle_failed_batch(FAILURE, has_sequence=True)
    harness.manager.handle_failed_batch(DeliveryTimeoutError("another"), has_sequence=True)
    with pytest.raises(TransactionAbortableError, match="partition 0: 3 records"):
        harness.manager.commit()


def test_batch_failure_during_abort_has_no_effect() -> None:
    harness = TransactionHarness(2).with_added_partitions()
    operation = harness.manager.abort()
    harness.manager.handle_failed_batch(FAILURE, has_sequence=True)
    assert harness.state() is S.ABORTING
    harness.send_and_respond(EndTransaction)
    assert get_error(operation) is None


def test_batch_failure_outside_of_transaction_has_no_effect() -> None:
    harness = TransactionHarness(2).init()
    harness.manager.handle_failed_batch(FAILURE, has_sequence=True)
    assert harness.state() is S.READY


def test_version_1_requests_new_epoch_when_failed_transaction_is_aborted() -> None:
    harness = TransactionHarness(1).with_added_partitions()
    before = harness.manager.id_and_epoch
    harness.manager.handle_failed_batch(FAILURE, has_sequence=True)
    operation = harness.manager.abort()
    harness.send_and_respond(EndTransaction)
    assert harness.state() is S.INITIALIZING
    assert not operation.done_event.is_set()
    request = harness.send_and_respond(InitProducerId)
    message = request.build_message(4)
    assert isinstance(message, InitProducerIdRequest)
    assert (message.producer_id, message.producer_epoch) == before
    assert request.versions is not None
    assert request.versions.min == 3  # brokers before 2.5 do not support it
    assert get_error(operation) is None
    assert harness.manager.id_and_epoch == ProducerIdAndEpoch(before.producer_id, before.epoch + 1)
    assert harness.state() is S.READY


def test_version_2_gets_new_epoch_from_end_txn_response_of_abort() -> None:
    harness = TransactionHarness(2).with_added_partitions()
    before = harness.manager.id_and_epoch
    harness.manager.handle_failed_batch(FAILURE, has_sequence=True)
    harness.manager.abort()
    harness.send_and_respond(EndTransaction)
    assert harness.manager.id_and_epoch == ProducerIdAndEpoch(before.producer_id, before.epoch + 1)
    assert harness.state() is S.READY
    assert harness.find_due_request() is None


def test_version_1_abort_without_failure_keeps_epoch() -> None:
    harness = TransactionHarness(1).with_added_partitions()
    harness.manager.abort()
    harness.send_and_respond(EndTransaction)
    assert harness.state() is S.READY
    assert harness.find_due_request() is None


@pytest.mark.parametrize("kind", [AddPartitions, AddOffsets, CommitOffsets, EndTransaction])
def test_version_1_abort_after_unknown_producer_id_requests_new_epoch(kind: type[Request]) -> None:
    """After brokers have forgotten a producer id, its leaders expect other sequences."""
    harness = create_harness_before(kind)
    harness.send_and_respond(kind, codes.UNKNOWN_PRODUCER_ID)
    if kind is EndTransaction:
        assert isinstance(get_error(harness.manager.commit()), TransactionAbortableError)
    before = harness.manager.id_and_epoch
    harness.manager.abort()
    harness.run_until_idle()
    assert harness.manager.id_and_epoch == ProducerIdAndEpoch(before.producer_id, before.epoch + 1)


def test_retries_epoch_request_of_abort_after_lost_connection() -> None:
    harness = TransactionHarness(1).with_added_partitions()
    harness.manager.handle_failed_batch(FAILURE, has_sequence=True)
    operation = harness.manager.abort()
    harness.send_and_respond(EndTransaction)
    harness.send_and_lose_response(InitProducerId)
    harness.send_and_respond(InitProducerId)
    assert get_error(operation) is None


@pytest.mark.parametrize("kind", [FindCoordinator, InitProducerId])
def test_abort_recovers_from_transaction_abortable_error_at_init(kind: type[Request]) -> None:
    harness = TransactionHarness()
    operation = harness.manager.init()
    harness.send_and_respond(kind, codes.TRANSACTION_ABORTABLE)
    assert isinstance(get_error(operation), TransactionAbortableError)
    assert harness.state() is S.ABORTABLE_ERROR
    abort = harness.manager.abort()
    harness.run_until_idle()
    assert get_error(abort) is None
    assert harness.state() is S.READY
    harness.manager.begin(1)


def test_abort_after_failed_init_sends_no_end_txn() -> None:
    """The sender checks for records in flight before the abort begins, and selects the next request after it."""
    harness = TransactionHarness()
    init = harness.manager.init()
    harness.send_and_respond(InitProducerId, codes.TRANSACTION_ABORTABLE)
    assert get_error(init) is not None
    operation = harness.manager.abort()
    harness.send_and_respond(InitProducerId)
    harness.is_flushed = False
    assert harness.find_due_request() is None
    harness.is_flushed = True
    assert harness.find_due_request() is None
    assert get_error(operation) is None


@pytest.mark.parametrize("kind", [AddPartitions, AddOffsets, CommitOffsets, EndTransaction])
@pytest.mark.parametrize("code", [codes.TRANSACTION_ABORTABLE, codes.UNKNOWN_PRODUCER_ID])
def test_abortable_error_requires_abort_and_producer_remains_usable(kind: type[Request], code: int) -> None:
    harness = create_harness_before(kind)
    harness.send_and_respond(kind, code)
    assert harness.state() is S.ABORTABLE_ERROR
    if kind is EndTransaction:
        harness.manager.commit().done_event.wait(0)
        with pytest.raises(TransactionAbortableError):
            harness.manager.commit().read_result()
    operation = harness.manager.abort()
    harness.run_until_idle()
    assert get_error(operation) is None
    assert harness.state() is S.READY


@pytest.mark.parametrize("code", [codes.TRANSACTION_ABORTABLE, codes.UNKNOWN_PRODUCER_ID])
def test_abortable_error_of_abort_is_fatal(code: int) -> None:
    harness = TransactionHarness(2).with_added_partitions()
    operation = harness.manager.abort()
    harness.send_and_respond(EndTransaction, code)
    assert harness.state() is S.FATAL_ERROR
    assert codes.lookup_error_code(code).name in str(get_error(operation))


def test_abortable_error_of_coordinator_lookup_during_abort_is_fatal() -> None:
    harness = TransactionHarness(2).with_added_partitions()
    operation = harness.manager.abort()
    harness.respond(harness.send(EndTransaction), codes.NOT_COORDINATOR)
    harness.pass_time()
    harness.send_and_respond(FindCoordinator, codes.TRANSACTION_ABORTABLE)
    assert harness.state() is S.FATAL_ERROR
    assert isinstance(get_error(operation), BrokerError)
    assert harness.find_due_request() is None


def test_abortable_error_of_epoch_request_during_abort_is_fatal() -> None:
    harness = TransactionHarness(1).with_added_partitions().commit()
    harness.manager.begin(2)
    operation = harness.manager.abort()
    harness.send_and_respond(InitProducerId, codes.TRANSACTION_ABORTABLE)
    assert harness.state() is S.FATAL_ERROR
    assert isinstance(get_error(operation), BrokerError)
    assert harness.find_due_request() is None


def test_missing_group_permission_does_not_fail_abort() -> None:
    """The lookup of the group's coordinator is in flight when the abort begins."""
    harness = TransactionHarness(2).with_added_partitions()
    harness.manager.send_offsets(OFFSETS, GROUP)
    lookup = harness.send(FindCoordinator)
    operation = harness.manager.abort()
    harness.respond(lookup, codes.GROUP_AUTHORIZATION_FAILED)
    harness.run_until_idle()
    assert get_error(operation) is None


def test_unauthorized_partition_makes_transaction_abortable_and_is_named() -> None:
    harness = TransactionHarness().with_begun_transaction()
    harness.manager.admit_batch(T0, is_retry=False)
    harness.manager.admit_batch(T1, is_retry=False)
    request = harness.send(AddPartitions)
    codes_by_partition = {T0: codes.OPERATION_NOT_ATTEMPTED, T1: codes.TOPIC_AUTHORIZATION_FAILED}
    harness.respond_with_message(request, build_add_partitions_response(codes_by_partition))
    with pytest.raises(TransactionAbortableError, match=r"topic t, partition 1.*TOPIC_AUTHORIZATION_FAILED"):
        harness.manager.commit()


@pytest.mark.parametrize("code", [codes.TOPIC_AUTHORIZATION_FAILED, codes.INVALID_TOPIC_EXCEPTION, 9999])
def test_abort_sends_no_end_txn_if_no_partition_was_added(code: int) -> None:
    harness = create_harness_before(AddPartitions)
    harness.send_and_respond(AddPartitions, code)
    assert harness.state() is S.ABORTABLE_ERROR
    assert not harness.manager.admit_batch(T0, is_retry=False)
    operation = harness.manager.abort()
    harness.run_until_idle()
    assert get_error(operation) is None
    assert EndTransaction not in harness.sent_request_types


def test_admits_retries_of_added_partitions_after_another_is_rejected() -> None:
    harness = TransactionHarness().with_added_partitions(T0)
    harness.manager.admit_batch(T1, is_retry=False)
    harness.send_and_respond(AddPartitions, codes.TOPIC_AUTHORIZATION_FAILED)
    assert harness.manager.admit_batch(T0, is_retry=True)
    assert not harness.manager.admit_batch(T0, is_retry=False)
    assert not harness.manager.admit_batch(T1, is_retry=True)
    harness.manager.abort()
    harness.send_and_respond(EndTransaction)


@pytest.mark.parametrize("fatal", [False, True])
def test_adds_no_pending_partition_after_an_error(fatal: bool) -> None:
    harness = create_harness_before(AddPartitions)
    if fatal:
        harness.manager.transition_to_fatal_error(KafkaSinkError("over"))
    else:
        harness.manager.handle_failed_batch(FAILURE, has_sequence=True)
    assert harness.find_due_request() is None
    assert not harness.manager.admit_batch(T0, is_retry=False)
    assert not harness.manager.admit_batch(T0, is_retry=True)


@pytest.mark.parametrize("fatal", [False, True])
def test_admits_no_new_batch_of_partition_added_after_an_error(fatal: bool) -> None:
    harness = create_harness_before(AddPartitions)
    request = harness.send(AddPartitions)
    if fatal:
        harness.manager.transition_to_fatal_error(KafkaSinkError("over"))
    else:
        harness.manager.handle_failed_batch(FAILURE, has_sequence=True)
    harness.respond(request)
    assert not harness.manager.admit_batch(T0, is_retry=False)
    assert harness.manager.admit_batch(T0, is_retry=True) == (not fatal)


@BOTH_VERSIONS
def test_does_not_send_commit_if_record_is_rejected_just_before(version: int) -> None:
    """The caller rejects its record after the sender has chosen the request but before the sender has sent it."""
    harness = TransactionHarness(version).with_added_partitions()
    number = harness.manager.require_transaction_number()
    commit = harness.manager.commit()
    request = harness.require_due_request()
    assert isinstance(request, EndTransaction)
    harness.manager.handle_rejected_record(number, FAILURE)
    assert not harness.try_begin_sending(request)
    assert isinstance(get_error(commit), TransactionAbortableError)
    abort = harness.manager.abort()
    assert not harness.try_begin_sending(request)
    assert getattr(harness.send_and_respond(EndTransaction).build_message(5), "committed", None) is False
    assert get_error(abort) is None


def test_recreated_topic_makes_transaction_abortable() -> None:
    first, second = UUID(int=1), UUID(int=2)
    harness = TransactionHarness(2).with_added_partitions()
    for topic_id in (first, None, first):
        harness.manager.detect_recreated_topic("t", topic_id)
    harness.manager.detect_recreated_topic("u", second)
    assert harness.state() is S.IN_TRANSACTION
    harness.is_flushed = False
    commit = harness.manager.commit()
    harness.manager.detect_recreated_topic("t", second)
    with pytest.raises(TransactionAbortableError, match="Topic t was deleted and created again"):
        commit.read_result()
    harness.is_flushed = True
    abort = harness.manager.abort()
    harness.run_until_idle()
    assert get_error(abort) is None
    harness.manager.begin(2)
    harness.manager.detect_recreated_topic("t", second)  # the next transaction does not remember the previous topic id
    assert harness.state() is S.IN_TRANSACTION
