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
def test_abort_sends_end_txn_after_lost_response_to_first_request(joins: type[Request]) -> None:
    talk = create_talk_before(joins)
    talk.lose(joins)
    operation = talk.manager.abort()
    talk.answer(EndTransaction)
    assert get_error(operation) is None


@pytest.mark.parametrize("code", [codes.CONCURRENT_TRANSACTIONS, codes.NOT_COORDINATOR])
def test_abort_sends_end_txn_if_only_a_retry_after_lost_response_is_rejected(code: int) -> None:
    talk = create_talk_before(AddPartitions)
    talk.lose(AddPartitions)
    talk.answer(AddPartitions, code)
    talk.wait()
    operation = talk.manager.abort()
    talk.settle()
    assert get_error(operation) is None
    assert EndTransaction in talk.asked


@pytest.mark.parametrize("code", [codes.COORDINATOR_NOT_AVAILABLE, codes.NOT_COORDINATOR, codes.UNKNOWN_SERVER_ERROR])
def test_abort_sends_end_txn_if_partition_may_have_been_added(code: int) -> None:
    talk = create_talk_before(AddPartitions)
    talk.answer(AddPartitions, code)
    talk.wait()
    talk.manager.abort()
    talk.settle()
    assert EndTransaction in talk.asked


@pytest.mark.parametrize("code", [codes.CONCURRENT_TRANSACTIONS, codes.COORDINATOR_LOAD_IN_PROGRESS])
def test_abort_sends_no_end_txn_if_request_was_not_executed(code: int) -> None:
    talk = create_talk_before(AddPartitions)
    talk.answer(AddPartitions, code)
    talk.wait()
    operation = talk.manager.abort()
    talk.settle()
    assert get_error(operation) is None
    assert EndTransaction not in talk.asked


def test_abort_succeeds_although_topic_of_pending_partition_is_unknown() -> None:
    talk = Talk().started(T0)
    talk.manager.admit_batch(T1, is_retry=False)
    talk.answer(AddPartitions, codes.UNKNOWN_TOPIC_OR_PARTITION)
    talk.wait()
    talk.manager.handle_failed_batch(KafkaSinkError("x"), has_sequence=False)
    operation = talk.manager.abort()
    talk.answer(EndTransaction)
    assert get_error(operation) is None


def test_invalid_txn_state_is_accepted_if_begin_is_in_doubt() -> None:
    talk = create_talk_before(AddPartitions)
    talk.lose(AddPartitions)
    operation = talk.manager.abort()
    talk.answer(EndTransaction, codes.INVALID_TXN_STATE)
    assert get_error(operation) is None
    assert talk.state() is S.READY


def test_invalid_txn_state_of_begun_transaction_is_fatal() -> None:
    talk = Talk().started(T0)
    talk.manager.abort()
    talk.answer(EndTransaction, codes.INVALID_TXN_STATE)
    assert talk.state() is S.FATAL_ERROR


def test_abort_waits_for_response_to_add_partitions() -> None:
    talk = create_talk_before(AddPartitions)
    request = talk.send(AddPartitions)
    operation = talk.manager.abort()
    assert talk.next() is None
    talk.reply(request)
    talk.answer(EndTransaction)
    assert get_error(operation) is None


def test_abort_sends_end_txn_if_add_partitions_is_sent_during_abort() -> None:
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
def test_admits_only_retries_of_added_partitions_after_abort_or_error(version: int, fails: bool) -> None:
    talk = Talk(version).started(T0)
    talk.is_flushed = False
    if fails:
        talk.manager.handle_failed_batch(KafkaSinkError("x"), has_sequence=False)
    else:
        talk.manager.abort()
    assert not talk.manager.admit_batch(T1, is_retry=False)
    assert talk.next() is None
    assert talk.manager.admit_batch(T0, is_retry=True), "what was sent may be sent again"


def test_version_1_requests_new_epoch_after_lost_end_txn_response() -> None:
    talk = Talk(1).started()
    operation = talk.manager.commit()
    talk.lose(EndTransaction)
    talk.settle()
    operation.read_result()
    talk.manager.begin(1)
    message = talk.answer(InitProducerId).build_message(4)
    assert isinstance(message, InitProducerIdRequest)
    assert message.producer_epoch == IDENTITY.epoch + 1


def test_abort_sends_no_request_if_none_was_sent() -> None:
    talk = create_talk_before(AddPartitions)
    talk.manager.abort()
    assert talk.next() is None
    assert talk.state() is S.READY
