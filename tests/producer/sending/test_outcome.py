"""decide_outcome: a test for each row of the table of error codes."""

from __future__ import annotations

import pytest

from spark_kafka_sink.producer.sending.outcome import BatchFacts, Done, Fail, Outcome, Retry, Split, decide_outcome
from spark_kafka_sink.protocol import error_codes as codes
from spark_kafka_sink.protocol.error_codes import ERROR_CODES, lookup_error_code

FACTS = BatchFacts(
    record_count=10,
    failed_attempts=0,
    max_retries=5,
    is_expired=False,
    has_sequence=True,
    is_head=True,
    is_in_doubt=False,
)
FATAL = (
    codes.CLUSTER_AUTHORIZATION_FAILED,
    codes.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    codes.UNSUPPORTED_VERSION,
    codes.PRODUCER_FENCED,
    codes.INVALID_PRODUCER_ID_MAPPING,
    codes.INVALID_TRANSACTION_TIMEOUT,
)
DOUBTFUL = (
    codes.REQUEST_TIMED_OUT,
    codes.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    codes.NETWORK_EXCEPTION,
    codes.UNKNOWN_SERVER_ERROR,
    9_999,
)
STALE = Retry(should_refresh_metadata=True)
TABLE: dict[int, Outcome] = {
    codes.NONE: Done(),
    codes.DUPLICATE_SEQUENCE_NUMBER: Done(duplicate=True),
    codes.CORRUPT_MESSAGE: Retry(),
    codes.UNKNOWN_TOPIC_OR_PARTITION: STALE,
    codes.LEADER_NOT_AVAILABLE: STALE,
    codes.NOT_LEADER_OR_FOLLOWER: STALE,
    codes.KAFKA_STORAGE_ERROR: STALE,
    codes.FENCED_LEADER_EPOCH: STALE,
    codes.UNKNOWN_TOPIC_ID: STALE,
    codes.INCONSISTENT_TOPIC_ID: STALE,
    codes.NETWORK_EXCEPTION: STALE,
    codes.REQUEST_TIMED_OUT: Retry(),
    codes.NOT_ENOUGH_REPLICAS: Retry(),
    codes.NOT_ENOUGH_REPLICAS_AFTER_APPEND: Retry(),
    codes.MESSAGE_TOO_LARGE: Split(),
    codes.RECORD_LIST_TOO_LARGE: Fail(),
    codes.INVALID_TOPIC_EXCEPTION: Fail(),
    codes.INVALID_REQUIRED_ACKS: Fail(),
    codes.INVALID_TIMESTAMP: Fail(),
    codes.UNSUPPORTED_FOR_MESSAGE_FORMAT: Fail(),
    codes.POLICY_VIOLATION: Fail(),
    codes.UNSUPPORTED_COMPRESSION_TYPE: Fail(),
    codes.INVALID_RECORD: Fail(),
    codes.TOPIC_AUTHORIZATION_FAILED: Fail(),
    codes.INVALID_PRODUCER_EPOCH: Fail(),
    codes.UNKNOWN_SERVER_ERROR: Fail(),
    codes.OUT_OF_ORDER_SEQUENCE_NUMBER: Retry(needs_new_sequence=True),
    codes.UNKNOWN_PRODUCER_ID: Retry(),  # the broker did not report where the log starts
    **dict.fromkeys(FATAL, Fail(fatal=True)),
}


def test_each_error_code_has_the_outcome_in_the_table() -> None:
    by_kind: dict[int, Outcome] = {
        code: Retry(row.requires_metadata_refresh) if row.retriable else Fail() for code, row in ERROR_CODES.items()
    }
    expected = by_kind | TABLE
    assert {code: decide_outcome(FACTS, code) for code in expected} == expected


def test_unknown_error_code_fails_the_batch() -> None:
    assert decide_outcome(FACTS, 9_999) == Fail()


@pytest.mark.parametrize("code", [code for code, outcome in TABLE.items() if isinstance(outcome, Retry)])
def test_retriable_error_fails_when_time_or_retries_are_used_up(code: int) -> None:
    late = decide_outcome(FACTS._replace(is_expired=True), code)
    often = decide_outcome(FACTS._replace(failed_attempts=5), code)
    assert isinstance(late, Fail)
    assert late.timed_out
    assert isinstance(often, Fail)
    assert often.has_used_up_retries


def test_single_record_that_is_too_large_fails() -> None:
    assert decide_outcome(FACTS._replace(record_count=1), codes.MESSAGE_TOO_LARGE) == Fail()


def test_expired_batch_is_not_split() -> None:
    assert decide_outcome(FACTS._replace(is_expired=True), codes.MESSAGE_TOO_LARGE) == Fail()


def test_out_of_order_error_behind_head_is_retried_with_same_sequence() -> None:
    assert decide_outcome(FACTS._replace(is_head=False), codes.OUT_OF_ORDER_SEQUENCE_NUMBER) == Retry()


def test_out_of_order_error_after_lost_response_fails_in_doubt() -> None:
    assert decide_outcome(FACTS._replace(is_in_doubt=True), codes.OUT_OF_ORDER_SEQUENCE_NUMBER) == Fail(in_doubt=True)


def test_forgotten_producer_restarts_sequences() -> None:
    assert decide_outcome(FACTS, codes.UNKNOWN_PRODUCER_ID, log_start_offset=7) == Retry(needs_new_sequence=True)


def test_sequence_errors_have_no_effect_without_idempotence() -> None:
    assert decide_outcome(FACTS._replace(has_sequence=False), codes.OUT_OF_ORDER_SEQUENCE_NUMBER) == Fail()


def test_only_listed_error_codes_leave_doubt() -> None:
    assert {code for code in (*ERROR_CODES, 9_999) if lookup_error_code(code).in_doubt} == set(DOUBTFUL)


@pytest.mark.parametrize("code", [codes.POLICY_VIOLATION, codes.CLUSTER_AUTHORIZATION_FAILED, 9_999])
def test_batch_that_fails_after_lost_response_may_be_stored(code: int) -> None:
    outcome = decide_outcome(FACTS._replace(is_in_doubt=True), code)
    assert isinstance(outcome, Fail)
    assert outcome.in_doubt


@pytest.mark.parametrize("spent", [FACTS._replace(failed_attempts=5), FACTS._replace(is_expired=True)])
def test_batch_without_retries_left_after_lost_response_may_be_stored(spent: BatchFacts) -> None:
    outcome = decide_outcome(spent._replace(is_in_doubt=True), codes.NOT_LEADER_OR_FOLLOWER)
    assert isinstance(outcome, Fail)
    assert outcome.in_doubt


@pytest.mark.parametrize("in_doubt", [False, True])
@pytest.mark.parametrize("code", [codes.OUT_OF_ORDER_SEQUENCE_NUMBER, codes.UNKNOWN_PRODUCER_ID])
def test_batch_in_transaction_fails_instead_of_restarting_sequences(code: int, in_doubt: bool) -> None:
    facts = FACTS._replace(is_in_doubt=in_doubt)
    assert decide_outcome(facts, code, 0) == (Fail(in_doubt=True) if in_doubt else Retry(needs_new_sequence=True))
    assert decide_outcome(facts._replace(is_transactional=True), code, 0) == Fail(in_doubt=in_doubt)


@pytest.mark.parametrize("spent", [FACTS._replace(failed_attempts=5), FACTS._replace(is_expired=True)])
def test_failure_by_sequence_error_does_not_blame_used_up_time_or_retries(spent: BatchFacts) -> None:
    facts = spent._replace(is_in_doubt=True)
    assert decide_outcome(facts, codes.OUT_OF_ORDER_SEQUENCE_NUMBER) == Fail(in_doubt=True)
