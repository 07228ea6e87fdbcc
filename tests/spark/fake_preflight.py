"""A preflight of the driver that connects to nothing: the fixture `preflights` has it."""

from __future__ import annotations

from spark_kafka_sink.preflight import Check, Outcome, Target


class Preflights:
    """In place of those that connect."""

    def __init__(self) -> None:
        self.targets: list[Target] = []
        self.outcome = Outcome.PASSED
        self.remedy = ""
        self.concerns_address = True

    def __call__(self, config: object, target: Target) -> list[Check]:
        self.targets.append(target)
        address = self.concerns_address
        return [Check("bootstrap servers", self.outcome, "connection refused", self.remedy, concerns_address=address)]
