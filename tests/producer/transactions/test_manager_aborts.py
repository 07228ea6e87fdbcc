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
    Talk,
    create_talk_before,
    get_error,
    partitions_answer,
)

BOTH = pytest.mark.parametrize("version", [1, 2])
FAILURE = DeliveryTimeoutError("topic t, partition 0: 3 records were not acknowledged.")


@BOTH
def test_batch_that_fails_before_end_txn_fails_the_commit(version: int) -> None:
    talk = Talk(version).started()
    talk.is_flushed = False
    operation = talk.manager.commit()
    talk.manager.handle_failed_batch(FAILURE, has_sequence=True)
    error = get_error(operation)
    assert isinstance(error, TransactionAbortableError)
    assert error.__cause__ is FAILURE
    talk.is_flushed = True
    assert talk.next() is None  # the transaction does not end before the abort
    talk.manager.abort()
    message = talk.answer(EndTransaction).build_message(5)
    assert getattr(message, "committed", None) is False


@BOTH
def test_commit_succeeds_when_another_threads_record_fails_after_end_txn_was_sent(version: int) -> None:
    talk = Talk(version).started()
    number = talk.manager.require_transaction_number()
    operation = talk.manager.commit()
    end = talk.send(EndTransaction)
    talk.manager.handle_rejected_record(number, RecordTooLargeError("The record has 2000000 bytes."))
    assert talk.state() is S.COMMITTING
    talk.reply(end)
    assert get_error(operation) is None
    assert talk.state() is S.READY


@BOTH
def test_commit_succeeds_when_another_thread_sends_during_the_commit(version: int) -> None:
    talk = Talk(version).started()
    number = talk.manager.require_transaction_number()
    operation = talk.manager.commit()
    with pytest.raises(IllegalStateError) as late:
        talk.manager.require_transaction_number(number)
    talk.manager.handle_rejected_record(number, late.value)
    talk.settle()
    assert get_error(operation) is None


@BOTH
def test_record_that_fails_before_end_txn_was_sent_fails_the_commit(version: int) -> None:
    talk = Talk(version).started()
    number = talk.manager.require_transaction_number()
    talk.is_flushed = False
    operation = talk.manager.commit()
    talk.manager.handle_rejected_record(number, RecordTooLargeError("The record has 2000000 bytes."))
    assert isinstance(get_error(operation), TransactionAbortableError)


def test_commit_reports_first_of_several_failures() -> None:
    talk = Talk(2).started()
    talk.manager.handle_failed_batch(FAILURE, has_sequence=True)
    talk.manager.handle_failed_batch(DeliveryTimeoutError("another"), has_sequence=True)
    with pytest.raises(TransactionAbortableError, match="partition 0: 3 records"):
        talk.manager.commit()


def test_batch_failure_during_abort_has_no_effect() -> None:
    talk = Talk(2).started()
    operation = talk.manager.abort()
    talk.manager.handle_failed_batch(FAILURE, has_sequence=True)
    assert talk.state() is S.ABORTING
    talk.answer(EndTransaction)
    assert get_error(operation) is None


def test_batch_failure_outside_of_transaction_has_no_effect() -> None:
    talk = Talk(2).init()
    talk.manager.handle_failed_batch(FAILURE, has_sequence=True)
    assert talk.state() is S.READY


def test_version_1_requests_new_epoch_when_failed_transaction_is_aborted() -> None:
    talk = Talk(1).started()
    before = talk.manager.id_and_epoch
    talk.manager.handle_failed_batch(FAILURE, has_sequence=True)
    operation = talk.manager.abort()
    talk.answer(EndTransaction)
    assert talk.state() is S.INITIALIZING
    assert not operation.done_event.is_set()
    request = talk.answer(InitProducerId)
    message = request.build_message(4)
    assert isinstance(message, InitProducerIdRequest)
    assert (message.producer_id, message.producer_epoch) == before
    assert request.versions is not None
    assert request.versions.min == 3  # brokers before 2.5 do not support it
    assert get_error(operation) is None
    assert talk.manager.id_and_epoch == ProducerIdAndEpoch(before.producer_id, before.epoch + 1)
    assert talk.state() is S.READY


def test_version_2_gets_new_epoch_from_end_txn_response_of_abort() -> None:
    talk = Talk(2).started()
    before = talk.manager.id_and_epoch
    talk.manager.handle_failed_batch(FAILURE, has_sequence=True)
    talk.manager.abort()
    talk.answer(EndTransaction)
    assert talk.manager.id_and_epoch == ProducerIdAndEpoch(before.producer_id, before.epoch + 1)
    assert talk.state() is S.READY
    assert talk.next() is None


def test_version_1_abort_without_failure_keeps_epoch() -> None:
    talk = Talk(1).started()
    talk.manager.abort()
    talk.answer(EndTransaction)
    assert talk.state() is S.READY
    assert talk.next() is None


@pytest.mark.parametrize("kind", [AddPartitions, AddOffsets, CommitOffsets, EndTransaction])
def test_version_1_abort_after_unknown_producer_id_requests_new_epoch(kind: type[Request]) -> None:
    """After brokers have forgotten a producer id, its leaders expect other sequences."""
    talk = create_talk_before(kind)
    talk.answer(kind, codes.UNKNOWN_PRODUCER_ID)
    if kind is EndTransaction:
        assert isinstance(get_error(talk.manager.commit()), TransactionAbortableError)
    before = talk.manager.id_and_epoch
    talk.manager.abort()
    talk.settle()
    assert talk.manager.id_and_epoch == ProducerIdAndEpoch(before.producer_id, before.epoch + 1)


def test_retries_epoch_request_of_abort_after_lost_connection() -> None:
    talk = Talk(1).started()
    talk.manager.handle_failed_batch(FAILURE, has_sequence=True)
    operation = talk.manager.abort()
    talk.answer(EndTransaction)
    talk.lose(InitProducerId)
    talk.answer(InitProducerId)
    assert get_error(operation) is None


@pytest.mark.parametrize("kind", [FindCoordinator, InitProducerId])
def test_abort_recovers_from_transaction_abortable_error_at_init(kind: type[Request]) -> None:
    talk = Talk()
    operation = talk.manager.init()
    talk.answer(kind, codes.TRANSACTION_ABORTABLE)
    assert isinstance(get_error(operation), TransactionAbortableError)
    assert talk.state() is S.ABORTABLE_ERROR
    abort = talk.manager.abort()
    talk.settle()
    assert get_error(abort) is None
    assert talk.state() is S.READY
    talk.manager.begin(1)


def test_abort_after_failed_init_sends_no_end_txn() -> None:
    """The sender checked for records in flight before the abort began, and asks for the next request after it."""
    talk = Talk()
    init = talk.manager.init()
    talk.answer(InitProducerId, codes.TRANSACTION_ABORTABLE)
    assert get_error(init) is not None
    operation = talk.manager.abort()
    talk.answer(InitProducerId)
    talk.is_flushed = False
    assert talk.next() is None
    talk.is_flushed = True
    assert talk.next() is None
    assert get_error(operation) is None


@pytest.mark.parametrize("kind", [AddPartitions, AddOffsets, CommitOffsets, EndTransaction])
@pytest.mark.parametrize("code", [codes.TRANSACTION_ABORTABLE, codes.UNKNOWN_PRODUCER_ID])
def test_abortable_error_requires_abort_and_producer_remains_usable(kind: type[Request], code: int) -> None:
    talk = create_talk_before(kind)
    talk.answer(kind, code)
    assert talk.state() is S.ABORTABLE_ERROR
    if kind is EndTransaction:
        talk.manager.commit().done_event.wait(0)
        with pytest.raises(TransactionAbortableError):
            talk.manager.commit().read_result()
    operation = talk.manager.abort()
    talk.settle()
    assert get_error(operation) is None
    assert talk.state() is S.READY


@pytest.mark.parametrize("code", [codes.TRANSACTION_ABORTABLE, codes.UNKNOWN_PRODUCER_ID])
def test_abortable_error_of_abort_is_fatal(code: int) -> None:
    talk = Talk(2).started()
    operation = talk.manager.abort()
    talk.answer(EndTransaction, code)
    assert talk.state() is S.FATAL_ERROR
    assert codes.lookup_error_code(code).name in str(get_error(operation))


def test_abortable_error_of_coordinator_lookup_during_abort_is_fatal() -> None:
    talk = Talk(2).started()
    operation = talk.manager.abort()
    talk.reply(talk.send(EndTransaction), codes.NOT_COORDINATOR)
    talk.wait()
    talk.answer(FindCoordinator, codes.TRANSACTION_ABORTABLE)
    assert talk.state() is S.FATAL_ERROR
    assert isinstance(get_error(operation), BrokerError)
    assert talk.next() is None


def test_abortable_error_of_epoch_request_during_abort_is_fatal() -> None:
    talk = Talk(1).started().commit()
    talk.manager.begin(2)
    operation = talk.manager.abort()
    talk.answer(InitProducerId, codes.TRANSACTION_ABORTABLE)
    assert talk.state() is S.FATAL_ERROR
    assert isinstance(get_error(operation), BrokerError)
    assert talk.next() is None


def test_missing_group_permission_does_not_fail_abort() -> None:
    """The lookup of the group's coordinator is in flight when the abort begins."""
    talk = Talk(2).started()
    talk.manager.send_offsets(OFFSETS, GROUP)
    lookup = talk.send(FindCoordinator)
    operation = talk.manager.abort()
    talk.reply(lookup, codes.GROUP_AUTHORIZATION_FAILED)
    talk.settle()
    assert get_error(operation) is None


def test_unauthorized_partition_makes_transaction_abortable_and_is_named() -> None:
    talk = Talk().begun()
    talk.manager.admit_batch(T0, is_retry=False)
    talk.manager.admit_batch(T1, is_retry=False)
    request = talk.send(AddPartitions)
    codes_by_partition = {T0: codes.OPERATION_NOT_ATTEMPTED, T1: codes.TOPIC_AUTHORIZATION_FAILED}
    talk.respond(request, partitions_answer(codes_by_partition))
    with pytest.raises(TransactionAbortableError, match=r"topic t, partition 1.*TOPIC_AUTHORIZATION_FAILED"):
        talk.manager.commit()


@pytest.mark.parametrize("code", [codes.TOPIC_AUTHORIZATION_FAILED, codes.INVALID_TOPIC_EXCEPTION, 9999])
def test_abort_sends_no_end_txn_if_no_partition_was_added(code: int) -> None:
    talk = create_talk_before(AddPartitions)
    talk.answer(AddPartitions, code)
    assert talk.state() is S.ABORTABLE_ERROR
    assert not talk.manager.admit_batch(T0, is_retry=False)
    operation = talk.manager.abort()
    talk.settle()
    assert get_error(operation) is None
    assert EndTransaction not in talk.asked


def test_admits_retries_of_added_partitions_after_another_is_rejected() -> None:
    talk = Talk().started(T0)
    talk.manager.admit_batch(T1, is_retry=False)
    talk.answer(AddPartitions, codes.TOPIC_AUTHORIZATION_FAILED)
    assert talk.manager.admit_batch(T0, is_retry=True)
    assert not talk.manager.admit_batch(T0, is_retry=False)
    assert not talk.manager.admit_batch(T1, is_retry=True)
    talk.manager.abort()
    talk.answer(EndTransaction)


@pytest.mark.parametrize("fatal", [False, True])
def test_adds_no_pending_partition_after_an_error(fatal: bool) -> None:
    talk = create_talk_before(AddPartitions)
    if fatal:
        talk.manager.transition_to_fatal_error(KafkaSinkError("over"))
    else:
        talk.manager.handle_failed_batch(FAILURE, has_sequence=True)
    assert talk.next() is None
    assert not talk.manager.admit_batch(T0, is_retry=False)
    assert not talk.manager.admit_batch(T0, is_retry=True)


@pytest.mark.parametrize("fatal", [False, True])
def test_admits_no_new_batch_of_partition_added_after_an_error(fatal: bool) -> None:
    talk = create_talk_before(AddPartitions)
    request = talk.send(AddPartitions)
    if fatal:
        talk.manager.transition_to_fatal_error(KafkaSinkError("over"))
    else:
        talk.manager.handle_failed_batch(FAILURE, has_sequence=True)
    talk.reply(request)
    assert not talk.manager.admit_batch(T0, is_retry=False)
    assert talk.manager.admit_batch(T0, is_retry=True) == (not fatal)


@BOTH
def test_does_not_send_commit_if_record_is_rejected_just_before(version: int) -> None:
    """The caller rejects its record after the sender has chosen the request but before the sender has sent it."""
    talk = Talk(version).started()
    number = talk.manager.require_transaction_number()
    commit = talk.manager.commit()
    request = talk.due()
    assert isinstance(request, EndTransaction)
    talk.manager.handle_rejected_record(number, FAILURE)
    assert not talk.try_begin_sending(request)
    assert isinstance(get_error(commit), TransactionAbortableError)
    abort = talk.manager.abort()
    assert not talk.try_begin_sending(request)
    assert getattr(talk.answer(EndTransaction).build_message(5), "committed", None) is False
    assert get_error(abort) is None


def test_recreated_topic_makes_transaction_abortable() -> None:
    first, second = UUID(int=1), UUID(int=2)
    talk = Talk(2).started()
    for topic_id in (first, None, first):
        talk.manager.detect_recreated_topic("t", topic_id)
    talk.manager.detect_recreated_topic("u", second)
    assert talk.state() is S.IN_TRANSACTION
    talk.is_flushed = False
    commit = talk.manager.commit()
    talk.manager.detect_recreated_topic("t", second)
    with pytest.raises(TransactionAbortableError, match="Topic t was deleted and created again"):
        commit.read_result()
    talk.is_flushed = True
    abort = talk.manager.abort()
    talk.settle()
    assert get_error(abort) is None
    talk.manager.begin(2)
    talk.manager.detect_recreated_topic("t", second)  # the next transaction does not remember the previous topic id
    assert talk.state() is S.IN_TRANSACTION
