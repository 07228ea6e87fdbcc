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
    OFFSETS,
    PAUSE_MS,
    T0,
    T1,
    Request,
    S,
    Talk,
    create_talk_before,
    get_error,
    offsets_answer,
    partitions_answer,
)

BOTH = pytest.mark.parametrize("version", [1, 2])
FAILURE = DeliveryTimeoutError("topic t, partition 0: 3 records were not acknowledged.")
COORDINATED = (InitProducerId, AddPartitions, AddOffsets, CommitOffsets, EndTransaction)


def finish(call: Callable[[], Operation | None]) -> None:
    operation = call()
    if operation is not None:
        operation.read_result()


# --- retriable errors


@pytest.mark.parametrize("kind", [FindCoordinator, *COORDINATED])
@pytest.mark.parametrize("code", [codes.COORDINATOR_LOAD_IN_PROGRESS, codes.UNKNOWN_TOPIC_OR_PARTITION])
def test_retries_request_after_backoff_on_retriable_error(kind: type[Request], code: int) -> None:
    talk = create_talk_before(kind)
    state = talk.state()
    talk.answer(kind, code)
    assert talk.next() is None
    assert talk.pause_left_ms() == PAUSE_MS
    talk.wait(PAUSE_MS - 1)
    assert talk.next() is None
    talk.wait(1)
    assert type(talk.due()) is kind
    assert talk.state() is state


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (AddPartitions, AddPartitionsToTxnResponse()),
        (AddPartitions, partitions_answer({T1: codes.NONE})),
        (CommitOffsets, TxnOffsetCommitResponse()),
        (CommitOffsets, offsets_answer({T1: codes.NONE})),
    ],
)
def test_retries_after_backoff_if_response_omits_partitions(kind: type[Request], message: Message) -> None:
    talk = create_talk_before(kind)
    if type(talk.due()) is FindCoordinator:
        talk.answer(FindCoordinator)
    talk.respond(talk.send(kind), message)
    assert talk.next() is None
    assert talk.pause_left_ms() == PAUSE_MS
    talk.wait(PAUSE_MS)
    talk.answer(kind)
    assert talk.state() is S.IN_TRANSACTION


@pytest.mark.parametrize("kind", [InitProducerId, AddPartitions, AddOffsets, EndTransaction])
def test_retries_concurrent_transactions_error_with_short_backoff(kind: type[Request]) -> None:
    talk = create_talk_before(kind)
    for pause_ms in (20, 40, 80, 100, 100):
        talk.answer(kind, codes.CONCURRENT_TRANSACTIONS)
        assert talk.pause_left_ms() == pause_ms
        talk.wait(pause_ms)
    talk.answer(kind)
    assert talk.state() in (S.READY, S.IN_TRANSACTION)


def test_concurrent_transactions_backoff_restarts_after_success() -> None:
    talk = create_talk_before(EndTransaction)
    for pause_ms in (20, 40):
        talk.answer(EndTransaction, codes.CONCURRENT_TRANSACTIONS)
        talk.wait(pause_ms)
    talk.answer(EndTransaction)
    talk.manager.commit().read_result()
    talk.manager.begin(1)
    talk.write(T0)
    talk.manager.commit()
    talk.answer(EndTransaction, codes.CONCURRENT_TRANSACTIONS)
    assert talk.pause_left_ms() == 20


# --- fatal errors


@pytest.mark.parametrize("kind", COORDINATED)
@pytest.mark.parametrize("code", [codes.PRODUCER_FENCED, codes.INVALID_PRODUCER_EPOCH])
def test_after_fencing_every_call_fails_with_producer_fenced(kind: type[Request], code: int) -> None:
    talk = create_talk_before(kind)
    talk.answer(kind, code)
    assert talk.state() is S.FATAL_ERROR
    calls = (talk.manager.init, lambda: talk.manager.begin(1), talk.manager.commit, talk.manager.abort)
    message = r"transactional id x.*Another producer with the same transactional\.id"
    for call in calls:
        with pytest.raises(ProducerFencedError, match=message):
            finish(call)
    with pytest.raises(ProducerFencedError, match=message):
        talk.manager.require_transaction_number()
    assert talk.next() is None
    assert not talk.manager.admit_batch(T0, is_retry=True)


@pytest.mark.parametrize("kind", [AddPartitions, AddOffsets, CommitOffsets, EndTransaction])
@pytest.mark.parametrize(
    "code",
    [codes.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, codes.INVALID_TXN_STATE, codes.INVALID_PRODUCER_ID_MAPPING],
)
def test_non_abortable_errors_are_fatal_after_init(kind: type[Request], code: int) -> None:
    talk = create_talk_before(kind)
    talk.answer(kind, code)
    assert talk.state() is S.FATAL_ERROR
    assert codes.lookup_error_code(code).name in str(talk.manager.error)


def test_unknown_error_code_is_fatal_and_named() -> None:
    talk = create_talk_before(EndTransaction)
    operation = talk.manager.commit()
    talk.answer(EndTransaction, 9999)
    assert "the attempt to end the transaction was rejected: UNKNOWN_9999" in str(get_error(operation))


def test_logs_fatal_error_once(caplog: pytest.LogCaptureFixture) -> None:
    talk = Talk().begun()
    for value in ("first", "second"):
        talk.manager.transition_to_fatal_error(KafkaSinkError(value))
    assert caplog.text.count("TransactionManager(x, in transaction) failed permanently: first") == 1
    assert "second" not in caplog.text


def test_logs_abortable_error(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    talk = Talk().started()
    talk.manager.handle_failed_batch(FAILURE, has_sequence=True)
    assert f"TransactionManager(x, in transaction): the transaction must be aborted: {FAILURE}" in caplog.text


def test_keeps_first_fatal_error() -> None:
    talk = Talk().begun()
    talk.manager.transition_to_fatal_error(UnsupportedVersionError("first"))
    talk.manager.transition_to_fatal_error(KafkaSinkError("second"))
    with pytest.raises(UnsupportedVersionError, match="first"):
        talk.manager.begin(1)


@pytest.mark.parametrize(("producer_id", "epoch"), [(-5, 0), (70, -1), (-1, -1)])
def test_negative_producer_id_or_epoch_is_fatal(producer_id: int, epoch: int) -> None:
    talk = Talk()
    operation = talk.manager.init()
    talk.answer(FindCoordinator)
    talk.respond(talk.send(InitProducerId), InitProducerIdResponse(producer_id=producer_id, producer_epoch=epoch))
    assert talk.state() is S.FATAL_ERROR
    assert talk.next() is None
    error = get_error(operation)
    assert isinstance(error, DecodeError)
    assert f"A broker returned the producer id {producer_id} with the epoch {epoch}" in str(error)


def test_fatal_error_fails_pending_offsets() -> None:
    talk = create_talk_before(CommitOffsets)
    operation = talk.manager.send_offsets(OFFSETS, GroupMetadata("h"))
    talk.answer(CommitOffsets, codes.PRODUCER_FENCED)
    assert isinstance(get_error(operation), ProducerFencedError)


# --- other errors


@pytest.mark.parametrize("kind", [FindCoordinator, InitProducerId])
def test_init_can_be_repeated_after_authorization_failure(kind: type[Request]) -> None:
    talk = Talk()
    operation = talk.manager.init()
    talk.answer(kind, codes.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    error = get_error(operation)
    assert isinstance(error, AuthorizationError)
    assert "Grant this user the Write and Describe permissions on the transactional id" in str(error)
    assert talk.state() is S.UNINITIALIZED
    talk.wait()
    assert talk.next() is None, "nothing is asked until the call is repeated"
    talk.init()
    assert talk.state() is S.READY


def test_init_fails_if_timeout_exceeds_limit_of_broker() -> None:
    talk = Talk()
    operation = talk.manager.init()
    talk.answer(InitProducerId, codes.INVALID_TRANSACTION_TIMEOUT)
    assert "transaction.timeout.ms exceeds the broker's transaction.max.timeout.ms" in str(get_error(operation))


def test_rejects_init_of_second_id_while_first_is_pending() -> None:
    talk = Talk()
    pending = talk.manager.init("one")
    with pytest.raises(
        IllegalStateError,
        match=r"id one: init_transactions\(\) for two is not possible, because .* init_transactions\(",
    ):
        talk.manager.init("two")
    assert talk.manager.init("one") is pending
    talk.settle()
    pending.read_result()
    second = talk.manager.init("two")
    talk.settle()
    second.read_result()
    assert talk.manager.transactional_id == "two"


@pytest.mark.parametrize(("open_ms", "has_timed_out"), [(59_999, False), (60_000, True)])
def test_fencing_error_names_exceeded_transaction_timeout(open_ms: float, has_timed_out: bool) -> None:
    talk = Talk().started()
    talk.wait(open_ms)
    operation = talk.manager.commit()
    talk.answer(EndTransaction, codes.PRODUCER_FENCED)
    explanation = "aborts transactions that stay open for longer than transaction.timeout.ms (60000 ms)"
    assert (explanation in str(get_error(operation))) is has_timed_out
