"""What counts of an answer that says several things."""

from __future__ import annotations

from spark_kafka_sink.producer.transactions.verdicts import NO_ANSWER, Judgement, Verdict, may_pass, worst
from spark_kafka_sink.protocol import error_codes as codes

NOT_LOOKED_AT = Judgement(Verdict.FATAL, codes.OPERATION_NOT_ATTEMPTED)
RETRIED = Judgement(Verdict.RETRY, codes.NOT_LEADER_OR_FOLLOWER)
DONE = Judgement(Verdict.DONE, codes.NONE)


def test_the_worst_that_was_looked_at_counts() -> None:
    assert worst([DONE, RETRIED, DONE]) is RETRIED
    assert worst([NOT_LOOKED_AT, RETRIED]) is RETRIED
    assert worst(iter([NOT_LOOKED_AT])) is NOT_LOOKED_AT
    assert worst([]) is NO_ANSWER


def test_a_failure_without_a_name_may_pass_and_a_missing_right_does_not() -> None:
    assert may_pass(codes.UNKNOWN_SERVER_ERROR)
    assert may_pass(codes.NOT_COORDINATOR)
    assert not may_pass(codes.CLUSTER_AUTHORIZATION_FAILED)
