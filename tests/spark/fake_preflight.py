"""A fake preflight that does not connect. The fixture `preflights` installs it."""

from __future__ import annotations

from dataclasses import replace

from spark_kafka_sink.preflight import CheckResult, Outcome, Target


class Preflights:
    """Fake of `preflight` that records its targets and returns one check."""

    def __init__(self) -> None:
        self.targets: list[Target] = []
        self.outcome = Outcome.PASSED
        self.remedy = ""
        self.is_connectivity_failure = True

    def __call__(self, config: object, target: Target) -> list[CheckResult]:
        self.targets.append(target)
        check = CheckResult("bootstrap servers", self.outcome, "connection refused", self.remedy)
        return [replace(check, is_connectivity_failure=self.is_connectivity_failure)]
