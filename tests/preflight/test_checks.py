"""The error that describes the failed checks."""

from __future__ import annotations

from spark_kafka_sink.preflight import (
    CheckResult,
    Outcome,
    build_preflight_error,
)


def test_error_lists_first_failures_and_counts_the_rest() -> None:
    failed = [CheckResult(f"topic t{number}", Outcome.FAILED, "does not exist") for number in range(300)]
    lines = str(build_preflight_error(failed)).splitlines()
    assert lines[0] == "Kafka cannot be written to, and nothing was written: topic t0: does not exist."
    assert (len(lines), lines[-1]) == (11, "- and 290 more.")


def test_error_begins_with_first_failure_and_its_remedy() -> None:
    failed = [CheckResult(f"topic t{number}", Outcome.FAILED, "does not exist", "Create it") for number in range(2)]
    assert str(build_preflight_error(failed)).splitlines() == [
        "Kafka cannot be written to, and nothing was written: topic t0: does not exist.",
        "What to do: Create it.",
        "- topic t1: does not exist. Create it.",
    ]
