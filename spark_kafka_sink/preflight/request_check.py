"""RequestCheck: a check that sends one request and evaluates the response."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic

from spark_kafka_sink.errors import NetworkError, UnsupportedVersionError
from spark_kafka_sink.preflight.checks import CheckResult, Outcome
from spark_kafka_sink.preflight.probe import Exchange, Probe
from spark_kafka_sink.requests.request import Request, ResponseT


@dataclass(frozen=True)
class RequestCheck(Generic[ResponseT]):
    """A check that sends `request`, and calls `evaluate` to turn the response into the result."""

    name: str
    request: Request[ResponseT]
    evaluate: Callable[[Exchange[ResponseT]], CheckResult]

    def run(self, probe: Probe) -> CheckResult:
        """Send the request and evaluate the response.

        If the brokers do not support the request or do not respond, the check is skipped.
        """
        try:
            return self.evaluate(probe.send(self.request))
        except UnsupportedVersionError as error:
            return CheckResult(self.name, Outcome.SKIPPED, str(error))
        except NetworkError as error:
            return CheckResult(self.name, Outcome.SKIPPED, f"no response: {error}")
