"""Effects of errors on a transaction: they are retried, require an abort, or are fatal for the producer."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from spark_kafka_sink.errors import (
    AuthorizationError,
    DecodeError,
    DeliveryTimeoutError,
    IllegalStateError,
    KafkaSinkError,
    ProducerFencedError,
    UnsupportedVersionError,
)
from spark_kafka_sink.producer.transactions.states import Operation
from spark_kafka_sink.protocol import error_codes as codes
from spark_kafka_sink.protocol.message import Message
from spark_kafka_sink.protocol.messages.add_partitions_to_txn import AddPartitionsToTxnResponse
from spark_kafka_sink.protocol.messages.init_producer_id import InitProducerIdResponse
from spark_kafka_sink.protocol.messages.txn_offset_commit import TxnOffsetCommitResponse
from spark_kafka_sink.requests.consumer_groups import GroupMetadata
from spark_kafka_sink.requests.find_coordinator import FindCoordinator
from spark_kafka_sink.requests.init_producer_id import InitProducerId
from spark_kafka_sink.requests.transactions import AddOffsets, AddPartitions, CommitOffsets, EndTransaction
from tests.producer.transactions.transaction_cases import (
    BACKOFF_MS,
    OFFSETS,
    T0,
    T1,
    Request,
    S,
    TransactionHarness,
    build_add_partitions_response,
    build_offset_commit_response,
    create_harness_before,
    get_error,
)

BOTH_VERSIONS = pytest.mark.parametrize("version", [1, 2])
FAILURE = DeliveryTimeoutError("topic t, partition 0: 3 records were not acknowledged.")
COORDINATOR_REQUESTS = (InitProducerId, AddPartitions, AddOffsets, CommitOffsets, EndTransaction)


def finish(call: Callable[[], Operation | None]) -> None:
    operation = call()
    if operation is not None:
        operation.read_result()


# --- retriable errors


@pytest.mark.parametrize("kind", [FindCoordinator, *COORDINATOR_REQUESTS])
@pytest.mark.parametrize("code", [codes.COORDINATOR_LOAD_IN_PROGRESS, codes.UNKNOWN_TOPIC_OR_PARTITION])
def test_retries_request_after_backoff_on_retriable_error(kind: type[Request], code: int) -> None:
    harness = create_harness_before(kind)
    state = harness.state()
    harness.send_and_respond(kind, code)
    assert harness.find_due_request() is None
    assert harness.remaining_backoff_ms() == BACKOFF_MS
    harness.pass_time(BACKOFF_MS - 1)
    assert harness.find_due_request() is None
    harness.pass_time(1)
    assert type(harness.require_due_request()) is kind
    assert harness.state() is state


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (AddPartitions, AddPartitionsToTxnResponse()),
        (AddPartitions, build_add_partitions_response({T1: codes.NONE})),
        (CommitOffsets, TxnOffsetCommitResponse()),
        (CommitOffsets, build_offset_commit_response({T1: codes.NONE})),
    ],
)
def test_retries_after_backoff_if_response_omits_partitions(kind: type[Request], message: Message) -> None:
    harness = create_harness_before(kind)
    if type(harness.require_due_request()) is FindCoordinator:
        harness.send_and_respond(FindCoordinator)
    harness.respond_with_message(harness.send(kind), message)
    assert harness.find_due_request() is None
    assert harness.remaining_backoff_ms() == BACKOFF_MS
    harness.pass_time(BACKOFF_MS)
    harness.send_and_respond(kind)
    assert harness.state() is S.IN_TRANSACTION


@pytest.mark.parametrize("kind", [InitProducerId, AddPartitions, AddOffsets, EndTransaction])
def test_retries_concurrent_transactions_error_with_short_backoff(kind: type[Request]) -> None:
    harness = create_harness_before(kind)
    for backoff_ms in (20, 40, 80, 100, 100):
        harness.send_and_respond(kind, codes.CONCURRENT_TRANSACTIONS)
        assert harness.remaining_backoff_ms() == backoff_ms
        harness.pass_time(backoff_ms)
    harness.send_and_respond(kind)
    assert harness.state() in (S.READY, S.IN_TRANSACTION)


def test_concurrent_transactions_backoff_restarts_after_success() -> None:
    harness = create_harness_before(EndTransaction)
    for backoff_ms in (20, 40):
        harness.send_and_respond(EndTransaction, codes.CONCURRENT_TRANSACTIONS)
        harness.pass_time(backoff_ms)
    harness.send_and_respond(EndTransaction)
    harness.manager.commit().read_result()
    harness.manager.begin(1)
    harness.add_partitions(T0)
    harness.manager.commit()
    harness.send_and_respond(EndTransaction, codes.CONCURRENT_TRANSACTIONS)
    assert harness.remaining_backoff_ms() == 20


# --- fatal errors


@pytest.mark.parametrize("kind", COORDINATOR_REQUESTS)
@pytest.mark.parametrize("code", [codes.PRODUCER_FENCED, codes.INVALID_PRODUCER_EPOCH])
def test_after_fencing_every_call_fails_with_producer_fenced(kind: type[Request], code: int) -> None:
    harness = create_harness_before(kind)
    harness.send_and_respond(kind, code)
    assert harness.state() is S.FATAL_ERROR
    calls = (harness.manager.init, lambda: harness.manager.begin(1), harness.manager.commit, harness.manager.abort)
    message = r"transactional id x.*Another producer with the same transactional\.id"
    for call in calls:
        with pytest.raises(ProducerFencedError, match=message):
            finish(call)
    with pytest.raises(ProducerFencedError, match=message):
        harness.manager.require_transaction_number()
    assert harness.find_due_request() is None
    assert not harness.manager.admit_batch(T0, is_retry=True)


@pytest.mark.parametrize("kind", [AddPartitions, AddOffsets, CommitOffsets, EndTransaction])
@pytest.mark.parametrize(
    "code",
    [codes.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, codes.INVALID_TXN_STATE, codes.INVALID_PRODUCER_ID_MAPPING],
)
def test_non_abortable_errors_are_fatal_after_init(kind: type[Request], code: int) -> None:
    harness = create_harness_before(kind)
    harness.send_and_respond(kind, code)
    assert harness.state() is S.FATAL_ERROR
    assert codes.lookup_error_code(code).name in str(harness.manager.error)


def test_unknown_error_code_is_fatal_and_named() -> None:
    harness = create_harness_before(EndTransaction)
    operation = harness.manager.commit()
    harness.send_and_respond(EndTransaction, 9999)
    assert "the attempt to end the transaction was rejected: UNKNOWN_9999" in str(get_error(operation))


def test_logs_fatal_error_once(caplog: pytest.LogCaptureFixture) -> None:
    harness = TransactionHarness().with_begun_transaction()
    for value in ("first", "second"):
        harness.manager.transition_to_fatal_error(KafkaSinkError(value))
    assert caplog.text.count("TransactionManager(x, in transaction) failed permanently: first") == 1
    assert "second" not in caplog.text


def test_logs_abortable_error(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    harness = TransactionHarness().with_added_partitions()
    harness.manager.handle_failed_batch(FAILURE, has_sequence=True)
    assert f"TransactionManager(x, in transaction): the transaction must be aborted: {FAILURE}" in caplog.text


def test_keeps_first_fatal_error() -> None:
    harness = TransactionHarness().with_begun_transaction()
    harness.manager.transition_to_fatal_error(UnsupportedVersionError("first"))
    harness.manager.transition_to_fatal_error(KafkaSinkError("second"))
    with pytest.raises(UnsupportedVersionError, match="first"):
        harness.manager.begin(1)


@pytest.mark.parametrize(("producer_id", "epoch"), [(-5, 0), (70, -1), (-1, -1)])
def test_negative_producer_id_or_epoch_is_fatal(producer_id: int, epoch: int) -> None:
    harness = TransactionHarness()
    operation = harness.manager.init()
    harness.send_and_respond(FindCoordinator)
    harness.respond_with_message(
        harness.send(InitProducerId), InitProducerIdResponse(producer_id=producer_id, producer_epoch=epoch)
    )
    assert harness.state() is S.FATAL_ERROR
    assert harness.find_due_request() is None
    error = get_error(operation)
    assert isinstance(error, DecodeError)
    assert f"A broker returned the producer id {producer_id} with the epoch {epoch}" in str(error)


def test_fatal_error_fails_pending_offsets() -> None:
    harness = create_harness_before(CommitOffsets)
    operation = harness.manager.send_offsets(OFFSETS, GroupMetadata("h"))
    harness.send_and_respond(CommitOffsets, codes.PRODUCER_FENCED)
    assert isinstance(get_error(operation), ProducerFencedError)


# --- other errors


@pytest.mark.parametrize("kind", [FindCoordinator, InitProducerId])
def test_init_can_be_repeated_after_authorization_failure(kind: type[Request]) -> None:
    harness = TransactionHarness()
    operation = harness.manager.init()
    harness.send_and_respond(kind, codes.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    error = get_error(operation)
    assert isinstance(error, AuthorizationError)
    assert "Grant this user the Write and Describe permissions on the transactional id" in str(error)
    assert harness.state() is S.UNINITIALIZED
    harness.pass_time()
    assert harness.find_due_request() is None, "no request is due until the call is repeated"
    harness.init()
    assert harness.state() is S.READY


def test_init_fails_if_timeout_exceeds_limit_of_broker() -> None:
    harness = TransactionHarness()
    operation = harness.manager.init()
    harness.send_and_respond(InitProducerId, codes.INVALID_TRANSACTION_TIMEOUT)
    assert "transaction.timeout.ms exceeds the broker's transaction.max.timeout.ms" in str(get_error(operation))


def test_rejects_init_of_second_id_while_first_is_pending() -> None:
    harness = TransactionHarness()
    pending = harness.manager.init("one")
    with pytest.raises(
        IllegalStateError,
        match=r"id one: init_transactions\(\) for two is not possible, because .* init_transactions\(",
    ):
        harness.manager.init("two")
    assert harness.manager.init("one") is pending
    harness.run_until_idle()
    pending.read_result()
    second = harness.manager.init("two")
    harness.run_until_idle()
    second.read_result()
    assert harness.manager.transactional_id == "two"


@pytest.mark.parametrize(("open_ms", "has_timed_out"), [(59_999, False), (60_000, True)])
def test_fencing_error_names_exceeded_transaction_timeout(open_ms: float, has_timed_out: bool) -> None:
    harness = TransactionHarness().with_added_partitions()
    harness.pass_time(open_ms)
    operation = harness.manager.commit()
    harness.send_and_respond(EndTransaction, codes.PRODUCER_FENCED)
    explanation = "aborts transactions that stay open for longer than transaction.timeout.ms (60000 ms)"
    assert (explanation in str(get_error(operation))) is has_timed_out
