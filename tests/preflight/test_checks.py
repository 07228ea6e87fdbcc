"""The error that describes the failed checks."""

from __future__ import annotations

from spark_kafka_sink.preflight import (
    CheckResult,
    Outcome,
    build_preflight_error,
)


def test_error_lists_first_failures_and_counts_the_rest() -> None:
    failed = [CheckResult(f"topic t{number}", Outcome.FAILED, "no response") for number in range(300)]
    lines = str(build_preflight_error(failed)).splitlines()
    assert lines[0] == "Cannot write to Kafka; nothing was written. Topic t0: no response."
    assert (len(lines), lines[-1]) == (11, "- and 290 more.")


def test_error_begins_with_first_failure_and_its_remedy() -> None:
    failed = [CheckResult(f"topic t{number}", Outcome.FAILED, "no response", "Try again") for number in range(2)]
    assert str(build_preflight_error(failed)).splitlines() == [
        "Cannot write to Kafka; nothing was written. Topic t0: no response.",
        "What to do: Try again.",
        "- Topic t1: no response. Try again.",
    ]
