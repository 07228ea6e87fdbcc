"""Aborts after requests that may or may not have been executed."""

from __future__ import annotations

import pytest

from spark_kafka_sink.errors import (
    KafkaSinkError,
)
from spark_kafka_sink.protocol import error_codes as codes
from spark_kafka_sink.protocol.messages.init_producer_id import InitProducerIdRequest
from spark_kafka_sink.requests.init_producer_id import InitProducerId
from spark_kafka_sink.requests.transactions import AddOffsets, AddPartitions, EndTransaction
from tests.producer.transactions.transaction_cases import (
    IDENTITY,
    T0,
    T1,
    Request,
    S,
    Talk,
    create_talk_before,
    get_error,
)


@pytest.mark.parametrize("joins", [AddPartitions, AddOffsets])
def test_an_abort_ends_what_may_have_begun_with_a_request_whose_answer_was_lost(joins: type[Request]) -> None:
    talk = create_talk_before(joins)
    talk.lose(joins)
    operation = talk.manager.abort()
    talk.answer(EndTransaction)
    assert get_error(operation) is None


@pytest.mark.parametrize("code", [codes.CONCURRENT_TRANSACTIONS, codes.NOT_COORDINATOR])
def test_an_answer_that_settles_nothing_leaves_in_doubt_what_an_earlier_request_may_add(code: int) -> None:
    talk = create_talk_before(AddPartitions)
    talk.lose(AddPartitions)
    talk.answer(AddPartitions, code)
    talk.wait()
    operation = talk.manager.abort()
    talk.settle()
    assert get_error(operation) is None
    assert EndTransaction in talk.asked


@pytest.mark.parametrize("code", [codes.COORDINATOR_NOT_AVAILABLE, codes.NOT_COORDINATOR, codes.UNKNOWN_SERVER_ERROR])
def test_what_a_coordinator_could_not_store_in_time_is_in_doubt(code: int) -> None:
    talk = create_talk_before(AddPartitions)
    talk.answer(AddPartitions, code)
    talk.wait()
    talk.manager.abort()
    talk.settle()
    assert EndTransaction in talk.asked


@pytest.mark.parametrize("code", [codes.CONCURRENT_TRANSACTIONS, codes.COORDINATOR_LOAD_IN_PROGRESS])
def test_a_request_that_was_not_carried_out_leaves_nothing_to_be_ended(code: int) -> None:
    talk = create_talk_before(AddPartitions)
    talk.answer(AddPartitions, code)
    talk.wait()
    operation = talk.manager.abort()
    talk.settle()
    assert get_error(operation) is None
    assert EndTransaction not in talk.asked


def test_an_abort_ends_although_brokers_do_not_know_a_topic_any_more_that_waits_to_be_added() -> None:
    talk = Talk().started(T0)
    talk.manager.admit_batch(T1, is_retry=False)
    talk.answer(AddPartitions, codes.UNKNOWN_TOPIC_OR_PARTITION)
    talk.wait()
    talk.manager.handle_failed_batch(KafkaSinkError("x"), has_sequence=False)
    operation = talk.manager.abort()
    talk.answer(EndTransaction)
    assert get_error(operation) is None


def test_brokers_may_say_that_nothing_had_begun_of_what_is_in_doubt() -> None:
    talk = create_talk_before(AddPartitions)
    talk.lose(AddPartitions)
    operation = talk.manager.abort()
    talk.answer(EndTransaction, codes.INVALID_TXN_STATE)
    assert get_error(operation) is None
    assert talk.state() is S.READY


def test_brokers_may_not_say_so_of_what_has_begun() -> None:
    talk = Talk().started(T0)
    talk.manager.abort()
    talk.answer(EndTransaction, codes.INVALID_TXN_STATE)
    assert talk.state() is S.FATAL_ERROR


def test_an_abort_while_partitions_are_being_added_waits_for_the_answer() -> None:
    talk = create_talk_before(AddPartitions)
    request = talk.send(AddPartitions)
    operation = talk.manager.abort()
    assert talk.next() is None
    talk.reply(request)
    talk.answer(EndTransaction)
    assert get_error(operation) is None


def test_an_abort_that_comes_just_before_an_addition_is_sent_ends_it_when_its_answer_is_lost() -> None:
    talk = create_talk_before(AddPartitions)
    request = talk.due()
    operation = talk.manager.abort()
    assert talk.try_begin_sending(request)
    talk.engine.mark_sent(talk.attempts[request])
    talk.lose_response(request)
    talk.wait()
    talk.answer(EndTransaction)
    assert get_error(operation) is None


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("fails", [True, False])
def test_after_an_abort_or_an_error_no_batch_for_another_partition_leaves(version: int, fails: bool) -> None:
    talk = Talk(version).started(T0)
    talk.is_flushed = False
    if fails:
        talk.manager.handle_failed_batch(KafkaSinkError("x"), has_sequence=False)
    else:
        talk.manager.abort()
    assert not talk.manager.admit_batch(T1, is_retry=False)
    assert talk.next() is None
    assert talk.manager.admit_batch(T0, is_retry=True), "what was sent may be sent again"


def test_an_end_that_may_come_late_is_followed_by_another_epoch_in_version_1() -> None:
    talk = Talk(1).started()
    operation = talk.manager.commit()
    talk.lose(EndTransaction)
    talk.settle()
    operation.read_result()
    talk.manager.begin(1)
    message = talk.answer(InitProducerId).build_message(4)
    assert isinstance(message, InitProducerIdRequest)
    assert message.producer_epoch == IDENTITY.epoch + 1


def test_what_was_not_asked_for_yet_is_not_asked_for_by_an_abort() -> None:
    talk = create_talk_before(AddPartitions)
    talk.manager.abort()
    assert talk.next() is None
    assert talk.state() is S.READY
