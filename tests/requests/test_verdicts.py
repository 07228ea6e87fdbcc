"""The classification of responses with several error codes."""

from __future__ import annotations

from spark_kafka_sink.protocol import error_codes as codes
from spark_kafka_sink.requests.verdicts import (
    MISSING_IN_RESPONSE,
    Classification,
    Verdict,
    is_worth_retrying,
    select_most_severe,
)

NOT_ATTEMPTED = Classification(Verdict.FATAL, codes.OPERATION_NOT_ATTEMPTED)
RETRIED = Classification(Verdict.RETRY, codes.NOT_LEADER_OR_FOLLOWER)
DONE = Classification(Verdict.DONE, codes.NONE)


def test_most_severe_classification_wins() -> None:
    assert select_most_severe([DONE, RETRIED, DONE]) is RETRIED
    assert select_most_severe([NOT_ATTEMPTED, RETRIED]) is RETRIED
    assert select_most_severe(iter([NOT_ATTEMPTED])) is NOT_ATTEMPTED
    assert select_most_severe([]) is MISSING_IN_RESPONSE


def test_unknown_error_is_worth_retrying_and_missing_permission_is_not() -> None:
    assert is_worth_retrying(codes.UNKNOWN_SERVER_ERROR)
    assert is_worth_retrying(codes.NOT_COORDINATOR)
    assert not is_worth_retrying(codes.CLUSTER_AUTHORIZATION_FAILED)
