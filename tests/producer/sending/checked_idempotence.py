"""Idempotence whose partitions are looked at after each step: what should hold in their states must hold."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from spark_kafka_sink.producer.sending.idempotence import Idempotence

Step = TypeVar("Step", bound=Callable[..., Any])


def checked(step: Step) -> Step:
    def check(self: CheckedIdempotence, *arguments: Any, **named: Any) -> Any:
        result = step(self, *arguments, **named)
        assert not self.violations(), (step.__name__, self.violations())
        return result

    return check  # type: ignore[return-value]


class CheckedIdempotence(Idempotence):
    adopt = checked(Idempotence.adopt)
    admit = checked(Idempotence.admit)
    stored = checked(Idempotence.stored)
    retried = checked(Idempotence.retried)
    split = checked(Idempotence.split)
    failed = checked(Idempotence.failed)
    answered_late = checked(Idempotence.answered_late)
