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
    TransactionHarness,
    build_offset_commit_response,
    get_error,
    get_lookup_route,
)

BOTH_VERSIONS = pytest.mark.parametrize("version", [1, 2])
MEMBER = GroupMetadata("g", 4, "member", "instance")


def get_offsets(message: object) -> dict[tuple[str, int], int]:
    assert isinstance(message, TxnOffsetCommitRequest)
    return {(t.name, row.partition_index): row.committed_offset for t in message.topics for row in t.partitions}


def test_version_1_adds_group_before_it_commits_offsets() -> None:
    harness = TransactionHarness(1).with_begun_transaction()
    operation = harness.manager.send_offsets(OFFSETS, GROUP)
    added = harness.send_and_respond(AddOffsets)
    assert added.route("x") == CoordinatorRoute(1, "x")
    lookup = harness.send_and_respond(FindCoordinator)
    assert get_lookup_route(lookup) == CoordinatorRoute(0, "g")
    written = harness.send_and_respond(CommitOffsets)
    assert written.route("g") == CoordinatorRoute(0, "g")
    assert get_offsets(written.build_message(4)) == {("t", 0): 5, ("t", 1): 7}
    assert get_error(operation) is None


def test_version_2_commits_offsets_without_adding_group() -> None:
    harness = TransactionHarness(2).with_begun_transaction()
    operation = harness.manager.send_offsets(OFFSETS, GROUP)
    written = harness.send_and_respond(CommitOffsets)
    assert written.versions == VersionRange(5, 32767)
    assert AddOffsets not in harness.sent_request_types
    assert get_error(operation) is None
    harness.manager.commit()
    harness.send_and_respond(EndTransaction)


def test_offset_commit_requires_version_with_member_identity() -> None:
    harness = TransactionHarness(1).with_begun_transaction()
    harness.manager.send_offsets(OFFSETS, MEMBER)
    harness.send_and_respond(AddOffsets)
    harness.send_and_respond(FindCoordinator)
    request = harness.require_due_request()
    assert request.versions == VersionRange(3, 4)
    message = request.build_message(4)
    assert isinstance(message, TxnOffsetCommitRequest)
    assert (message.generation_id, message.member_id, message.group_instance_id) == (4, "member", "instance")


def test_commits_offsets_of_several_groups() -> None:
    harness = TransactionHarness(2).with_begun_transaction()
    operations = [harness.manager.send_offsets(OFFSETS, GroupMetadata(name)) for name in ("a", "b", "a")]
    harness.run_until_idle()
    assert harness.sent_request_types.count(CommitOffsets) == 3
    assert [get_error(operation) for operation in operations] == [None, None, None]


def test_no_offsets_need_no_request() -> None:
    harness = TransactionHarness(2).with_begun_transaction()
    assert get_error(harness.manager.send_offsets({}, GROUP)) is None
    assert harness.find_due_request() is None


@pytest.mark.parametrize(
    "code", [codes.UNKNOWN_TOPIC_OR_PARTITION, codes.COORDINATOR_LOAD_IN_PROGRESS, codes.REQUEST_TIMED_OUT]
)
def test_retries_offsets_of_failed_partitions_only(code: int) -> None:
    harness = TransactionHarness(2).with_begun_transaction()
    operation = harness.manager.send_offsets(OFFSETS, GROUP)
    harness.send_and_respond(FindCoordinator)
    request = harness.send(CommitOffsets)
    harness.respond_with_message(request, build_offset_commit_response({T0: 0, T1: code}))
    assert not operation.done_event.is_set()
    harness.pass_time()
    again = harness.send_and_respond(CommitOffsets)
    assert get_offsets(again.build_message(5)) == {("t", 1): 7}
    assert get_error(operation) is None


@pytest.mark.parametrize("kind", [FindCoordinator, AddOffsets, CommitOffsets])
def test_group_authorization_failure_is_abortable(kind: type[Request]) -> None:
    harness = TransactionHarness(1).with_begun_transaction()
    operation = harness.manager.send_offsets(OFFSETS, GROUP)
    if kind is not AddOffsets:
        harness.send_and_respond(AddOffsets)
    harness.send_and_respond(kind, codes.GROUP_AUTHORIZATION_FAILED)
    error = get_error(operation)
    assert isinstance(error, TransactionAbortableError)
    assert isinstance(error.__cause__, AuthorizationError)
    assert harness.state() is S.ABORTABLE_ERROR


@pytest.mark.parametrize("code", [codes.FENCED_INSTANCE_ID, codes.UNKNOWN_MEMBER_ID, codes.ILLEGAL_GENERATION])
def test_stale_group_member_error_is_abortable(code: int) -> None:
    harness = TransactionHarness(2).with_begun_transaction()
    operation = harness.manager.send_offsets(OFFSETS, MEMBER)
    harness.send_and_respond(CommitOffsets, code)
    assert isinstance(get_error(operation), TransactionAbortableError)
    assert harness.state() is S.ABORTABLE_ERROR


def test_abort_sends_no_end_txn_if_group_was_not_added() -> None:
    harness = TransactionHarness(1).with_begun_transaction()
    harness.manager.send_offsets(OFFSETS, GROUP)
    harness.send_and_respond(AddOffsets, codes.GROUP_AUTHORIZATION_FAILED)
    operation = harness.manager.abort()
    harness.run_until_idle()
    assert get_error(operation) is None
    assert EndTransaction not in harness.sent_request_types


def test_fatal_response_to_add_offsets_fails_abort() -> None:
    harness = TransactionHarness(1).with_begun_transaction()
    harness.manager.send_offsets(OFFSETS, GROUP)
    request = harness.send(AddOffsets)
    operation = harness.manager.abort()
    harness.respond(request, codes.INVALID_TXN_STATE)
    assert isinstance(get_error(operation), KafkaSinkError)
    assert harness.state() is S.FATAL_ERROR


@BOTH_VERSIONS
def test_abort_drops_pending_offsets_and_fails_their_call(version: int) -> None:
    harness = TransactionHarness(version).with_added_partitions()
    operation = harness.manager.send_offsets(OFFSETS, GROUP)
    harness.manager.abort()
    assert isinstance(get_error(operation), TransactionAbortableError)
    harness.send_and_respond(EndTransaction)
    assert CommitOffsets not in harness.sent_request_types


def test_unsupported_message_format_is_fatal() -> None:
    harness = TransactionHarness(2).with_begun_transaction()
    operation = harness.manager.send_offsets(OFFSETS, GROUP)
    harness.send_and_respond(CommitOffsets, codes.UNSUPPORTED_FOR_MESSAGE_FORMAT)
    assert "UNSUPPORTED_FOR_MESSAGE_FORMAT" in str(get_error(operation))
    assert harness.state() is S.FATAL_ERROR


@BOTH_VERSIONS
def test_abort_ends_a_commit_that_waits_for_offsets_of_an_unknown_topic(version: int) -> None:
    harness = TransactionHarness(version).with_begun_transaction()
    offsets = harness.manager.send_offsets(OFFSETS, GROUP)
    commit = harness.manager.commit()
    if version == 1:
        harness.send_and_respond(AddOffsets)
    for _ in range(3):
        harness.send_and_respond(CommitOffsets, codes.UNKNOWN_TOPIC_OR_PARTITION)
        harness.pass_time()
    abort = harness.manager.abort()
    assert isinstance(get_error(offsets), TransactionAbortableError)
    assert isinstance(get_error(commit), TransactionAbortableError)
    assert getattr(harness.send_and_respond(EndTransaction).build_message(5), "committed", None) is False
    assert get_error(abort) is None
    assert harness.state() is S.READY


@BOTH_VERSIONS
def test_abort_is_rejected_while_a_commit_waits_for_the_response_to_end_txn(version: int) -> None:
    harness = TransactionHarness(version).with_added_partitions()
    commit = harness.manager.commit()
    request = harness.send(EndTransaction)
    with pytest.raises(IllegalStateError, match=r"Call commit_transaction\(\) again"):
        harness.manager.abort()
    harness.respond(request)
    assert get_error(commit) is None
