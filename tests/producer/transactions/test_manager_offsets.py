"""Consumer group offsets that are part of a transaction."""

from __future__ import annotations

import pytest

from spark_kafka_sink.errors import AuthorizationError, IllegalStateError, KafkaSinkError, TransactionAbortableError
from spark_kafka_sink.protocol import error_codes as codes
from spark_kafka_sink.protocol.messages.txn_offset_commit import TxnOffsetCommitRequest
from spark_kafka_sink.protocol.schema import VersionRange
from spark_kafka_sink.requests.consumer_groups import GroupMetadata
from spark_kafka_sink.requests.find_coordinator import FindCoordinator
from spark_kafka_sink.requests.request import CoordinatorRoute
from spark_kafka_sink.requests.transactions import AddOffsets, CommitOffsets, EndTransaction
from tests.producer.transactions.transaction_cases import (
    GROUP,
    OFFSETS,
    T0,
    T1,
    Request,
    S,
    Talk,
    get_error,
    looked_up,
    offsets_answer,
)

BOTH = pytest.mark.parametrize("version", [1, 2])
MEMBER = GroupMetadata("g", 4, "member", "instance")


def get_offsets(message: object) -> dict[tuple[str, int], int]:
    assert isinstance(message, TxnOffsetCommitRequest)
    return {(t.name, row.partition_index): row.committed_offset for t in message.topics for row in t.partitions}


def test_version_1_adds_group_before_it_commits_offsets() -> None:
    talk = Talk(1).begun()
    operation = talk.manager.send_offsets(OFFSETS, GROUP)
    added = talk.answer(AddOffsets)
    assert added.route("x") == CoordinatorRoute(1, "x")
    lookup = talk.answer(FindCoordinator)
    assert looked_up(lookup) == CoordinatorRoute(0, "g")
    written = talk.answer(CommitOffsets)
    assert written.route("g") == CoordinatorRoute(0, "g")
    assert get_offsets(written.build_message(4)) == {("t", 0): 5, ("t", 1): 7}
    assert get_error(operation) is None


def test_version_2_commits_offsets_without_adding_group() -> None:
    talk = Talk(2).begun()
    operation = talk.manager.send_offsets(OFFSETS, GROUP)
    written = talk.answer(CommitOffsets)
    assert written.versions == VersionRange(5, 32767)
    assert AddOffsets not in talk.asked
    assert get_error(operation) is None
    talk.manager.commit()
    talk.answer(EndTransaction)


def test_offset_commit_requires_version_with_member_identity() -> None:
    talk = Talk(1).begun()
    talk.manager.send_offsets(OFFSETS, MEMBER)
    talk.answer(AddOffsets)
    talk.answer(FindCoordinator)
    request = talk.due()
    assert request.versions == VersionRange(3, 4)
    message = request.build_message(4)
    assert isinstance(message, TxnOffsetCommitRequest)
    assert (message.generation_id, message.member_id, message.group_instance_id) == (4, "member", "instance")


def test_commits_offsets_of_several_groups() -> None:
    talk = Talk(2).begun()
    operations = [talk.manager.send_offsets(OFFSETS, GroupMetadata(name)) for name in ("a", "b", "a")]
    talk.settle()
    assert talk.asked.count(CommitOffsets) == 3
    assert [get_error(operation) for operation in operations] == [None, None, None]


def test_no_offsets_need_no_request() -> None:
    talk = Talk(2).begun()
    assert get_error(talk.manager.send_offsets({}, GROUP)) is None
    assert talk.next() is None


@pytest.mark.parametrize(
    "code", [codes.UNKNOWN_TOPIC_OR_PARTITION, codes.COORDINATOR_LOAD_IN_PROGRESS, codes.REQUEST_TIMED_OUT]
)
def test_retries_offsets_of_failed_partitions_only(code: int) -> None:
    talk = Talk(2).begun()
    operation = talk.manager.send_offsets(OFFSETS, GROUP)
    talk.answer(FindCoordinator)
    request = talk.send(CommitOffsets)
    talk.respond(request, offsets_answer({T0: 0, T1: code}))
    assert not operation.done_event.is_set()
    talk.wait()
    again = talk.answer(CommitOffsets)
    assert get_offsets(again.build_message(5)) == {("t", 1): 7}
    assert get_error(operation) is None


@pytest.mark.parametrize("kind", [FindCoordinator, AddOffsets, CommitOffsets])
def test_group_authorization_failure_is_abortable(kind: type[Request]) -> None:
    talk = Talk(1).begun()
    operation = talk.manager.send_offsets(OFFSETS, GROUP)
    if kind is not AddOffsets:
        talk.answer(AddOffsets)
    talk.answer(kind, codes.GROUP_AUTHORIZATION_FAILED)
    error = get_error(operation)
    assert isinstance(error, TransactionAbortableError)
    assert isinstance(error.__cause__, AuthorizationError)
    assert talk.state() is S.ABORTABLE_ERROR


@pytest.mark.parametrize("code", [codes.FENCED_INSTANCE_ID, codes.UNKNOWN_MEMBER_ID, codes.ILLEGAL_GENERATION])
def test_stale_group_member_error_is_abortable(code: int) -> None:
    talk = Talk(2).begun()
    operation = talk.manager.send_offsets(OFFSETS, MEMBER)
    talk.answer(CommitOffsets, code)
    assert isinstance(get_error(operation), TransactionAbortableError)
    assert talk.state() is S.ABORTABLE_ERROR


def test_abort_sends_no_end_txn_if_group_was_not_added() -> None:
    talk = Talk(1).begun()
    talk.manager.send_offsets(OFFSETS, GROUP)
    talk.answer(AddOffsets, codes.GROUP_AUTHORIZATION_FAILED)
    operation = talk.manager.abort()
    talk.settle()
    assert get_error(operation) is None
    assert EndTransaction not in talk.asked


def test_fatal_response_to_add_offsets_fails_abort() -> None:
    talk = Talk(1).begun()
    talk.manager.send_offsets(OFFSETS, GROUP)
    request = talk.send(AddOffsets)
    operation = talk.manager.abort()
    talk.reply(request, codes.INVALID_TXN_STATE)
    assert isinstance(get_error(operation), KafkaSinkError)
    assert talk.state() is S.FATAL_ERROR


@BOTH
def test_abort_drops_pending_offsets_and_fails_their_call(version: int) -> None:
    talk = Talk(version).started()
    operation = talk.manager.send_offsets(OFFSETS, GROUP)
    talk.manager.abort()
    assert isinstance(get_error(operation), TransactionAbortableError)
    talk.answer(EndTransaction)
    assert CommitOffsets not in talk.asked


def test_unsupported_message_format_is_fatal() -> None:
    talk = Talk(2).begun()
    operation = talk.manager.send_offsets(OFFSETS, GROUP)
    talk.answer(CommitOffsets, codes.UNSUPPORTED_FOR_MESSAGE_FORMAT)
    assert "UNSUPPORTED_FOR_MESSAGE_FORMAT" in str(get_error(operation))
    assert talk.state() is S.FATAL_ERROR


@BOTH
def test_abort_ends_a_commit_that_waits_for_offsets_of_an_unknown_topic(version: int) -> None:
    talk = Talk(version).begun()
    offsets = talk.manager.send_offsets(OFFSETS, GROUP)
    commit = talk.manager.commit()
    if version == 1:
        talk.answer(AddOffsets)
    for _ in range(3):
        talk.answer(CommitOffsets, codes.UNKNOWN_TOPIC_OR_PARTITION)
        talk.wait()
    abort = talk.manager.abort()
    assert isinstance(get_error(offsets), TransactionAbortableError)
    assert isinstance(get_error(commit), TransactionAbortableError)
    assert getattr(talk.answer(EndTransaction).build_message(5), "committed", None) is False
    assert get_error(abort) is None
    assert talk.state() is S.READY


@BOTH
def test_abort_is_rejected_while_a_commit_waits_for_the_response_to_end_txn(version: int) -> None:
    talk = Talk(version).started()
    commit = talk.manager.commit()
    request = talk.send(EndTransaction)
    with pytest.raises(IllegalStateError, match=r"Call commit_transaction\(\) again"):
        talk.manager.abort()
    talk.reply(request)
    assert get_error(commit) is None
