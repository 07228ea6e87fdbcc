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
    TransactionHarness,
    create_harness_before,
    get_error,
)


@pytest.mark.parametrize("kind", [AddPartitions, AddOffsets])
def test_abort_sends_end_txn_after_lost_response_to_first_request(kind: type[Request]) -> None:
    harness = create_harness_before(kind)
    harness.send_and_lose_response(kind)
    operation = harness.manager.abort()
    harness.send_and_respond(EndTransaction)
    assert get_error(operation) is None


@pytest.mark.parametrize("code", [codes.CONCURRENT_TRANSACTIONS, codes.NOT_COORDINATOR])
def test_abort_sends_end_txn_if_only_a_retry_after_lost_response_is_rejected(code: int) -> None:
    harness = create_harness_before(AddPartitions)
    harness.send_and_lose_response(AddPartitions)
    harness.send_and_respond(AddPartitions, code)
    harness.pass_time()
    operation = harness.manager.abort()
    harness.run_until_idle()
    assert get_error(operation) is None
    assert EndTransaction in harness.sent_request_types


@pytest.mark.parametrize("code", [codes.COORDINATOR_NOT_AVAILABLE, codes.NOT_COORDINATOR, codes.UNKNOWN_SERVER_ERROR])
def test_abort_sends_end_txn_if_partition_may_have_been_added(code: int) -> None:
    harness = create_harness_before(AddPartitions)
    harness.send_and_respond(AddPartitions, code)
    harness.pass_time()
    harness.manager.abort()
    harness.run_until_idle()
    assert EndTransaction in harness.sent_request_types


@pytest.mark.parametrize("code", [codes.CONCURRENT_TRANSACTIONS, codes.COORDINATOR_LOAD_IN_PROGRESS])
def test_abort_sends_no_end_txn_if_request_was_not_executed(code: int) -> None:
    harness = create_harness_before(AddPartitions)
    harness.send_and_respond(AddPartitions, code)
    harness.pass_time()
    operation = harness.manager.abort()
    harness.run_until_idle()
    assert get_error(operation) is None
    assert EndTransaction not in harness.sent_request_types


def test_abort_succeeds_although_topic_of_pending_partition_is_unknown() -> None:
    harness = TransactionHarness().with_added_partitions(T0)
    harness.manager.admit_batch(T1, is_retry=False)
    harness.send_and_respond(AddPartitions, codes.UNKNOWN_TOPIC_OR_PARTITION)
    harness.pass_time()
    harness.manager.handle_failed_batch(KafkaSinkError("x"), has_sequence=False)
    operation = harness.manager.abort()
    harness.send_and_respond(EndTransaction)
    assert get_error(operation) is None


def test_invalid_txn_state_is_accepted_if_begin_is_in_doubt() -> None:
    harness = create_harness_before(AddPartitions)
    harness.send_and_lose_response(AddPartitions)
    operation = harness.manager.abort()
    harness.send_and_respond(EndTransaction, codes.INVALID_TXN_STATE)
    assert get_error(operation) is None
    assert harness.state() is S.READY


def test_invalid_txn_state_of_begun_transaction_is_fatal() -> None:
    harness = TransactionHarness().with_added_partitions(T0)
    harness.manager.abort()
    harness.send_and_respond(EndTransaction, codes.INVALID_TXN_STATE)
    assert harness.state() is S.FATAL_ERROR


def test_abort_waits_for_response_to_add_partitions() -> None:
    harness = create_harness_before(AddPartitions)
    request = harness.send(AddPartitions)
    operation = harness.manager.abort()
    assert harness.find_due_request() is None
    harness.respond(request)
    harness.send_and_respond(EndTransaction)
    assert get_error(operation) is None


def test_abort_sends_end_txn_if_add_partitions_is_sent_during_abort() -> None:
    harness = create_harness_before(AddPartitions)
    request = harness.require_due_request()
    operation = harness.manager.abort()
    assert harness.try_begin_sending(request)
    harness.engine.mark_sent(harness.attempts[request])
    harness.lose_response(request)
    harness.pass_time()
    harness.send_and_respond(EndTransaction)
    assert get_error(operation) is None


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("fails", [True, False])
def test_admits_only_retries_of_added_partitions_after_abort_or_error(version: int, fails: bool) -> None:
    harness = TransactionHarness(version).with_added_partitions(T0)
    harness.is_flushed = False
    if fails:
        harness.manager.handle_failed_batch(KafkaSinkError("x"), has_sequence=False)
    else:
        harness.manager.abort()
    assert not harness.manager.admit_batch(T1, is_retry=False)
    assert harness.find_due_request() is None
    assert harness.manager.admit_batch(T0, is_retry=True), "a batch that was sent may be sent again"


def test_version_1_requests_new_epoch_after_lost_end_txn_response() -> None:
    harness = TransactionHarness(1).with_added_partitions()
    operation = harness.manager.commit()
    harness.send_and_lose_response(EndTransaction)
    harness.run_until_idle()
    operation.read_result()
    harness.manager.begin(1)
    message = harness.send_and_respond(InitProducerId).build_message(4)
    assert isinstance(message, InitProducerIdRequest)
    assert message.producer_epoch == IDENTITY.epoch + 1


def test_abort_sends_no_request_if_none_was_sent() -> None:
    harness = create_harness_before(AddPartitions)
    harness.manager.abort()
    assert harness.find_due_request() is None
    assert harness.state() is S.READY
