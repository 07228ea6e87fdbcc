"""What ends a transaction and not its producer: failed records, abortable errors, and what is in doubt."""

from __future__ import annotations

import pytest

from spark_kafka_sink.errors import (
    DeliveryTimeoutError,
    KafkaSinkError,
    TransactionAbortableError,
)
from spark_kafka_sink.producer.producer_ids import ProducerIdAndEpoch
from spark_kafka_sink.producer.transactions.requests import (
    AddOffsets,
    AddPartitions,
    CommitOffsets,
    EndTransaction,
    FindCoordinator,
    InitProducerId,
)
from spark_kafka_sink.protocol import error_codes as codes
from spark_kafka_sink.protocol.messages.init_producer_id import InitProducerIdRequest
from tests.producer.transactions.transaction_cases import (
    T0,
    T1,
    Request,
    S,
    Talk,
    about_to,
    error_of,
    partitions_answer,
)

BOTH = pytest.mark.parametrize("version", [1, 2])
FAILURE = DeliveryTimeoutError("topic t, partition 0: 3 records were not acknowledged.")


@BOTH
def test_a_failed_batch_makes_the_transaction_abortable_and_commit_says_which(version: int) -> None:
    talk = Talk(version).started()
    talk.manager.batch_failed(FAILURE, has_sequence=True)
    assert talk.state() is S.ABORTABLE_ERROR
    assert talk.manager.drops_unsent
    for call in (talk.manager.commit, talk.manager.ensure_can_send, lambda: talk.manager.begin(version)):
        with pytest.raises(
            TransactionAbortableError, match=r"topic t, partition 0: 3 records .* abort_transaction\(\)"
        ):
            call()
    assert talk.next() is None


@BOTH
def test_a_batch_that_fails_while_the_commit_waits_fails_the_commit(version: int) -> None:
    talk = Talk(version).started()
    talk.quiet = False
    operation = talk.manager.commit()
    talk.manager.batch_failed(FAILURE, has_sequence=True)
    error = error_of(operation)
    assert isinstance(error, TransactionAbortableError)
    assert error.__cause__ is FAILURE
    talk.quiet = True
    assert talk.next() is None  # nothing ends before the abort
    talk.manager.abort()
    message = talk.answer(EndTransaction).message(5)
    assert getattr(message, "committed", None) is False


def test_of_several_failures_the_first_is_reported() -> None:
    talk = Talk(2).started()
    talk.manager.batch_failed(FAILURE, has_sequence=True)
    talk.manager.batch_failed(DeliveryTimeoutError("another"), has_sequence=True)
    with pytest.raises(TransactionAbortableError, match="partition 0: 3 records"):
        talk.manager.commit()


def test_a_failure_while_the_abort_is_under_way_changes_nothing() -> None:
    talk = Talk(2).started()
    operation = talk.manager.abort()
    talk.manager.batch_failed(FAILURE, has_sequence=True)
    assert talk.state() is S.ABORTING
    talk.answer(EndTransaction)
    assert error_of(operation) is None


def test_a_failure_outside_of_a_transaction_changes_nothing() -> None:
    talk = Talk(2).init()
    talk.manager.batch_failed(FAILURE, has_sequence=True)
    assert talk.state() is S.READY


def test_in_version_1_a_new_epoch_follows_the_abort_of_what_failed() -> None:
    talk = Talk(1).started()
    before = talk.manager.id_and_epoch
    talk.manager.batch_failed(FAILURE, has_sequence=True)
    operation = talk.manager.abort()
    talk.answer(EndTransaction)
    assert talk.state() is S.INITIALIZING
    assert not operation.done.is_set()
    request = talk.answer(InitProducerId)
    message = request.message(4)
    assert isinstance(message, InitProducerIdRequest)
    assert (message.producer_id, message.producer_epoch) == before
    assert request.versions is not None
    assert request.versions.min == 3  # brokers before 2.5 cannot do it
    assert error_of(operation) is None
    assert talk.manager.id_and_epoch == ProducerIdAndEpoch(before.producer_id, before.epoch + 1)
    assert talk.state() is S.READY


def test_in_version_2_the_end_of_what_failed_brings_the_new_epoch() -> None:
    talk = Talk(2).started()
    before = talk.manager.id_and_epoch
    talk.manager.batch_failed(FAILURE, has_sequence=True)
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
    """Of a producer id that brokers do not know any more, leaders expect other sequences."""
    talk = about_to(kind)
    talk.answer(kind, codes.UNKNOWN_PRODUCER_ID)
    if kind is EndTransaction:
        assert isinstance(error_of(talk.manager.commit()), TransactionAbortableError)
    before = talk.manager.id_and_epoch
    talk.manager.abort()
    talk.settle()
    assert talk.manager.id_and_epoch == ProducerIdAndEpoch(before.producer_id, before.epoch + 1)


def test_the_new_epoch_survives_a_lost_connection() -> None:
    talk = Talk(1).started()
    talk.manager.batch_failed(FAILURE, has_sequence=True)
    operation = talk.manager.abort()
    talk.answer(EndTransaction)
    talk.lose(InitProducerId)
    talk.answer(InitProducerId)
    assert error_of(operation) is None


@pytest.mark.parametrize("kind", [FindCoordinator, InitProducerId])
def test_transaction_abortable_at_init_is_mended_by_an_abort(kind: type[Request]) -> None:
    talk = Talk()
    operation = talk.manager.init()
    talk.answer(kind, codes.TRANSACTION_ABORTABLE)
    assert isinstance(error_of(operation), TransactionAbortableError)
    assert talk.state() is S.ABORTABLE_ERROR
    abort = talk.manager.abort()
    talk.settle()
    assert error_of(abort) is None
    assert talk.state() is S.READY
    talk.manager.begin(1)


def test_an_abort_that_begins_between_two_looks_of_the_sender_asks_for_nothing_yet() -> None:
    """The sender has looked for records on their way before the abort began, and asks what to do after it."""
    talk = Talk()
    init = talk.manager.init()
    talk.answer(InitProducerId, codes.TRANSACTION_ABORTABLE)
    assert error_of(init) is not None
    operation = talk.manager.abort()
    talk.answer(InitProducerId)
    talk.quiet = False
    assert talk.next() is None
    talk.quiet = True
    assert talk.next() is None
    assert error_of(operation) is None


@pytest.mark.parametrize("kind", [AddPartitions, AddOffsets, CommitOffsets, EndTransaction])
@pytest.mark.parametrize("code", [codes.TRANSACTION_ABORTABLE, codes.UNKNOWN_PRODUCER_ID])
def test_these_errors_end_the_transaction_and_the_producer_goes_on(kind: type[Request], code: int) -> None:
    talk = about_to(kind)
    talk.answer(kind, code)
    assert talk.state() is S.ABORTABLE_ERROR
    if kind is EndTransaction:
        talk.manager.commit().done.wait(0)
        with pytest.raises(TransactionAbortableError):
            talk.manager.commit().result()
    operation = talk.manager.abort()
    talk.settle()
    assert error_of(operation) is None
    assert talk.state() is S.READY


@pytest.mark.parametrize("code", [codes.TRANSACTION_ABORTABLE, codes.UNKNOWN_PRODUCER_ID])
def test_an_abort_that_is_itself_refused_ends_the_producer(code: int) -> None:
    talk = Talk(2).started()
    operation = talk.manager.abort()
    talk.answer(EndTransaction, code)
    assert talk.state() is S.FATAL_ERROR
    assert codes.error_code(code).name in str(error_of(operation))


def test_a_topic_without_the_right_to_write_is_named_and_the_transaction_abortable() -> None:
    talk = Talk().begun()
    talk.manager.admits(T0, is_retry=False)
    talk.manager.admits(T1, is_retry=False)
    request = talk.send(AddPartitions)
    codes_by_partition = {T0: codes.OPERATION_NOT_ATTEMPTED, T1: codes.TOPIC_AUTHORIZATION_FAILED}
    talk.manager.answered(request, partitions_answer(codes_by_partition), talk.now)
    with pytest.raises(TransactionAbortableError, match=r"topic t, partition 1.*TOPIC_AUTHORIZATION_FAILED"):
        talk.manager.commit()


@pytest.mark.parametrize("code", [codes.TOPIC_AUTHORIZATION_FAILED, codes.INVALID_TOPIC_EXCEPTION, 9999])
def test_partitions_that_cannot_be_added_leave_nothing_to_be_ended_at_the_broker(code: int) -> None:
    talk = about_to(AddPartitions)
    talk.answer(AddPartitions, code)
    assert talk.state() is S.ABORTABLE_ERROR
    assert not talk.manager.admits(T0, is_retry=False)
    operation = talk.manager.abort()
    talk.settle()
    assert error_of(operation) is None
    assert EndTransaction not in talk.asked


def test_partitions_that_were_added_before_are_ended_and_may_send_what_is_under_way() -> None:
    talk = Talk().started(T0)
    talk.manager.admits(T1, is_retry=False)
    talk.answer(AddPartitions, codes.TOPIC_AUTHORIZATION_FAILED)
    assert talk.manager.admits(T0, is_retry=True)
    assert not talk.manager.admits(T0, is_retry=False)
    assert not talk.manager.admits(T1, is_retry=True)
    talk.manager.abort()
    talk.answer(EndTransaction)


@pytest.mark.parametrize("fatal", [False, True])
def test_a_partition_that_waits_is_not_added_after_an_error(fatal: bool) -> None:
    talk = about_to(AddPartitions)
    if fatal:
        talk.manager.fail_for_good(KafkaSinkError("over"))
    else:
        talk.manager.batch_failed(FAILURE, has_sequence=True)
    assert talk.next() is None
    assert not talk.manager.admits(T0, is_retry=False)
    assert not talk.manager.admits(T0, is_retry=True)


@pytest.mark.parametrize("fatal", [False, True])
def test_a_partition_whose_addition_was_under_way_takes_no_new_batches_after_an_error(fatal: bool) -> None:
    talk = about_to(AddPartitions)
    request = talk.send(AddPartitions)
    if fatal:
        talk.manager.fail_for_good(KafkaSinkError("over"))
    else:
        talk.manager.batch_failed(FAILURE, has_sequence=True)
    talk.reply(request)
    assert not talk.manager.admits(T0, is_retry=False)
    assert talk.manager.admits(T0, is_retry=True) == (not fatal)
