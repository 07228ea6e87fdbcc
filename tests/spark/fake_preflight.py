"""A preflight of the driver that connects to nothing: the fixture `preflights` has it."""

from __future__ import annotations

from dataclasses import replace

from spark_kafka_sink.preflight import Check, Outcome, Target


class Preflights:
    """In place of those that connect."""

    def __init__(self) -> None:
        self.targets: list[Target] = []
        self.outcome = Outcome.PASSED
        self.remedy = ""
        self.is_connectivity_failure = True

    def __call__(self, config: object, target: Target) -> list[Check]:
        self.targets.append(target)
        check = Check("bootstrap servers", self.outcome, "connection refused", self.remedy)
        return [replace(check, is_connectivity_failure=self.is_connectivity_failure)]
