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
def test_a_batch_that_fails_while_the_commit_waits_fails_the_commit(version: int) -> None:
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
def test_commit_succeeds_when_another_threads_record_comes_too_late(version: int) -> None:
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


def test_of_several_failures_the_first_is_reported() -> None:
    talk = Talk(2).started()
    talk.manager.handle_failed_batch(FAILURE, has_sequence=True)
    talk.manager.handle_failed_batch(DeliveryTimeoutError("another"), has_sequence=True)
    with pytest.raises(TransactionAbortableError, match="partition 0: 3 records"):
        talk.manager.commit()


def test_a_failure_while_the_abort_is_under_way_changes_nothing() -> None:
    talk = Talk(2).started()
    operation = talk.manager.abort()
    talk.manager.handle_failed_batch(FAILURE, has_sequence=True)
    assert talk.state() is S.ABORTING
    talk.answer(EndTransaction)
    assert get_error(operation) is None


def test_a_failure_outside_of_a_transaction_changes_nothing() -> None:
    talk = Talk(2).init()
    talk.manager.handle_failed_batch(FAILURE, has_sequence=True)
    assert talk.state() is S.READY


def test_in_version_1_a_new_epoch_follows_the_abort_of_what_failed() -> None:
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


def test_in_version_2_the_end_of_what_failed_brings_the_new_epoch() -> None:
    talk = Talk(2).started()
    before = talk.manager.id_and_epoch
    talk.manager.handle_failed_batch(FAILURE, has_sequence=True)
    talk.manager.abort()
    talk.answer(EndTransaction)
    assert talk.manager.id_and_epoch == ProducerIdAndEpoch(before.producer_id, before.epoch + 1)
    assert talk.state() is S.READY
    assert talk.next() is None


def test_an_abort_without_a_failure_keeps_the_epoch_in_version_1() -> None:
    talk = Talk(1).started()
    talk.manager.abort()
    talk.answer(EndTransaction)
    assert talk.state() is S.READY
    assert talk.next() is None


@pytest.mark.parametrize("kind", [AddPartitions, AddOffsets, CommitOffsets, EndTransaction])
def test_in_version_1_a_new_epoch_follows_the_abort_of_what_a_coordinator_had_aborted(kind: type[Request]) -> None:
    """After brokers have forgotten a producer id, its leaders expect other sequences."""
    talk = create_talk_before(kind)
    talk.answer(kind, codes.UNKNOWN_PRODUCER_ID)
    if kind is EndTransaction:
        assert isinstance(get_error(talk.manager.commit()), TransactionAbortableError)
    before = talk.manager.id_and_epoch
    talk.manager.abort()
    talk.settle()
    assert talk.manager.id_and_epoch == ProducerIdAndEpoch(before.producer_id, before.epoch + 1)


def test_the_new_epoch_survives_a_lost_connection() -> None:
    talk = Talk(1).started()
    talk.manager.handle_failed_batch(FAILURE, has_sequence=True)
    operation = talk.manager.abort()
    talk.answer(EndTransaction)
    talk.lose(InitProducerId)
    talk.answer(InitProducerId)
    assert get_error(operation) is None


@pytest.mark.parametrize("kind", [FindCoordinator, InitProducerId])
def test_transaction_abortable_at_init_is_mended_by_an_abort(kind: type[Request]) -> None:
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


def test_an_abort_that_begins_between_two_looks_of_the_sender_asks_for_nothing_yet() -> None:
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
def test_these_errors_end_the_transaction_and_the_producer_goes_on(kind: type[Request], code: int) -> None:
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
def test_an_abort_that_is_itself_refused_ends_the_producer(code: int) -> None:
    talk = Talk(2).started()
    operation = talk.manager.abort()
    talk.answer(EndTransaction, code)
    assert talk.state() is S.FATAL_ERROR
    assert codes.lookup_error_code(code).name in str(get_error(operation))


def test_an_abort_whose_coordinator_cannot_be_looked_up_ends_the_producer() -> None:
    talk = Talk(2).started()
    operation = talk.manager.abort()
    talk.reply(talk.send(EndTransaction), codes.NOT_COORDINATOR)
    talk.wait()
    talk.answer(FindCoordinator, codes.TRANSACTION_ABORTABLE)
    assert talk.state() is S.FATAL_ERROR
    assert isinstance(get_error(operation), BrokerError)
    assert talk.next() is None


def test_an_abort_that_gets_no_new_epoch_ends_the_producer() -> None:
    talk = Talk(1).started().commit()
    talk.manager.begin(2)
    operation = talk.manager.abort()
    talk.answer(InitProducerId, codes.TRANSACTION_ABORTABLE)
    assert talk.state() is S.FATAL_ERROR
    assert isinstance(get_error(operation), BrokerError)
    assert talk.next() is None


def test_a_group_without_its_right_does_not_end_an_abort() -> None:
    """The lookup of the group's coordinator is in flight when the abort begins."""
    talk = Talk(2).started()
    talk.manager.send_offsets(OFFSETS, GROUP)
    lookup = talk.send(FindCoordinator)
    operation = talk.manager.abort()
    talk.reply(lookup, codes.GROUP_AUTHORIZATION_FAILED)
    talk.settle()
    assert get_error(operation) is None


def test_a_topic_without_the_right_to_write_is_named_and_the_transaction_abortable() -> None:
    talk = Talk().begun()
    talk.manager.admit_batch(T0, is_retry=False)
    talk.manager.admit_batch(T1, is_retry=False)
    request = talk.send(AddPartitions)
    codes_by_partition = {T0: codes.OPERATION_NOT_ATTEMPTED, T1: codes.TOPIC_AUTHORIZATION_FAILED}
    talk.respond(request, partitions_answer(codes_by_partition))
    with pytest.raises(TransactionAbortableError, match=r"topic t, partition 1.*TOPIC_AUTHORIZATION_FAILED"):
        talk.manager.commit()


@pytest.mark.parametrize("code", [codes.TOPIC_AUTHORIZATION_FAILED, codes.INVALID_TOPIC_EXCEPTION, 9999])
def test_partitions_that_cannot_be_added_leave_nothing_to_be_ended_at_the_broker(code: int) -> None:
    talk = create_talk_before(AddPartitions)
    talk.answer(AddPartitions, code)
    assert talk.state() is S.ABORTABLE_ERROR
    assert not talk.manager.admit_batch(T0, is_retry=False)
    operation = talk.manager.abort()
    talk.settle()
    assert get_error(operation) is None
    assert EndTransaction not in talk.asked


def test_partitions_that_were_added_before_are_ended_and_may_send_what_is_under_way() -> None:
    talk = Talk().started(T0)
    talk.manager.admit_batch(T1, is_retry=False)
    talk.answer(AddPartitions, codes.TOPIC_AUTHORIZATION_FAILED)
    assert talk.manager.admit_batch(T0, is_retry=True)
    assert not talk.manager.admit_batch(T0, is_retry=False)
    assert not talk.manager.admit_batch(T1, is_retry=True)
    talk.manager.abort()
    talk.answer(EndTransaction)


@pytest.mark.parametrize("fatal", [False, True])
def test_a_partition_that_waits_is_not_added_after_an_error(fatal: bool) -> None:
    talk = create_talk_before(AddPartitions)
    if fatal:
        talk.manager.transition_to_fatal_error(KafkaSinkError("over"))
    else:
        talk.manager.handle_failed_batch(FAILURE, has_sequence=True)
    assert talk.next() is None
    assert not talk.manager.admit_batch(T0, is_retry=False)
    assert not talk.manager.admit_batch(T0, is_retry=True)


@pytest.mark.parametrize("fatal", [False, True])
def test_a_partition_whose_addition_was_under_way_takes_no_new_batches_after_an_error(fatal: bool) -> None:
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
def test_end_txn_does_not_commit_if_a_record_was_rejected_right_before_it_left(version: int) -> None:
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


def test_records_acknowledged_under_two_ids_of_a_topic_make_the_transaction_abortable() -> None:
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
