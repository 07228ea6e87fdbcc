"""Idempotence that checks the invariants of all partition states after each step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from spark_kafka_sink.producer.sending.idempotence import Idempotence

Step = TypeVar("Step", bound=Callable[..., Any])


def checked(step: Step) -> Step:
    def check(self: CheckedIdempotence, *arguments: Any, **named: Any) -> Any:
        result = step(self, *arguments, **named)
        assert not self.find_violations(), (step.__name__, self.find_violations())
        return result

    return check  # type: ignore[return-value]


class CheckedIdempotence(Idempotence):
    set_producer_id_and_epoch = checked(Idempotence.set_producer_id_and_epoch)
    admit = checked(Idempotence.admit)
    handle_stored_batch = checked(Idempotence.handle_stored_batch)
    handle_retry = checked(Idempotence.handle_retry)
    handle_split = checked(Idempotence.handle_split)
    handle_failed_batch = checked(Idempotence.handle_failed_batch)
    handle_late_failure = checked(Idempotence.handle_late_failure)
