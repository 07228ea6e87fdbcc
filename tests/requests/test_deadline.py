"""The deadline of an operation, which moves with its progress."""

from __future__ import annotations

import pytest

from spark_kafka_sink.errors import BrokerError, DisconnectedError, KafkaSinkError, MetadataTimeoutError, NetworkError
from spark_kafka_sink.protocol import error_codes
from spark_kafka_sink.protocol.error_codes import build_broker_error
from spark_kafka_sink.requests.deadline import Deadline, compute_pause_ms


class Client:
    """A client whose clock advances only in pauses."""

    def __init__(self) -> None:
        self.now_ms = 1_000.0

    def now(self) -> float:
        return self.now_ms

    def pause(self, pause_ms: float) -> None:
        self.now_ms += pause_ms

    def describe_missing_response(self) -> str:
        return "broker 1 has not responded for 90 ms."


def test_pauses_double_up_to_a_second() -> None:
    assert [compute_pause_ms(failures) for failures in (0, 1, 2, 10, 1_000)] == [20, 40, 80, 1_000, 1_000]


def test_progress_restarts_the_timeout() -> None:
    client = Client()
    deadline = Deadline(client, "the operation", 100)
    for _ in range(3):
        deadline.wait_or_raise(None, 90)
        assert deadline.waited_ms == 90
        deadline.extend()
        assert (deadline.waited_ms, deadline.at_ms) == (0, client.now_ms + 100)


@pytest.mark.parametrize(
    ("failure", "error_type", "cause"),
    [
        (None, MetadataTimeoutError, "broker 1 has not responded for 90 ms."),
        (DisconnectedError("broker 1 is gone."), NetworkError, "Last failure: broker 1 is gone."),
        (build_broker_error(error_codes.NOT_CONTROLLER, "t"), MetadataTimeoutError, "Last failure: t: NOT_CONTROLLER"),
    ],
)
def test_error_names_operation_timeout_and_last_failure(
    failure: KafkaSinkError | None, error_type: type[KafkaSinkError], cause: str
) -> None:
    deadline = Deadline(Client(), "the operation", 100)
    deadline.wait_or_raise(failure, 100)
    with pytest.raises(error_type) as raised:
        deadline.wait_or_raise(failure, 100)
    assert not isinstance(raised.value, BrokerError)
    assert str(raised.value).startswith(f"the operation: timed out after 100 ms. {cause}")
    assert raised.value.__cause__ is failure
