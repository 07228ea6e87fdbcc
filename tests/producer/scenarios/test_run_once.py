"""A round of the sender runs its steps in the order of docs/architecture.md, and reports failures immediately."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from spark_kafka_sink.client.network_client import NetworkClient
from spark_kafka_sink.errors import DeliveryError
from spark_kafka_sink.producer.batching import batch_filler
from spark_kafka_sink.producer.batching.accumulator import RecordAccumulator
from spark_kafka_sink.producer.producer import KafkaProducer
from spark_kafka_sink.producer.record import ProducerRecord
from spark_kafka_sink.producer.sending.deliveries import Deliveries
from spark_kafka_sink.records.columns import RecordColumns
from tests.producer.sending.sender_cases import established, simulated
from tests.producer.virtual_time import get_loop, get_reserved_bytes, get_sender, run_until

ARCHITECTURE = Path(__file__).parents[3] / "docs" / "architecture.md"
STEPS: dict[str, type] = {
    "fill_and_find_ready_nodes": RecordAccumulator,
    "take_failed_batches": RecordAccumulator,
    "take_expired_batches": RecordAccumulator,
    "drain": RecordAccumulator,
    "send": NetworkClient,
    "poll": NetworkClient,
    "handle_response": Deliveries,
}
"""The calls of a round, in order, and the classes that have the methods."""


def record_round_steps(producer: KafkaProducer, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the steps of the round that sends a request, and the first step that handles the response."""
    seen: list[str] = []

    def noting(step: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def noted(*arguments: object, **named: object) -> object:
            seen.append(step)
            return call(*arguments, **named)

        return noted

    for step, part in STEPS.items():
        monkeypatch.setattr(part, step, noting(step, getattr(part, step)))
    producer.send(ProducerRecord("t", b"v"))
    rounds: list[list[str]] = []
    while not any("send" in steps for steps in rounds) or "handle_response" not in rounds[-1]:
        seen.clear()
        get_loop(producer).run_once()
        rounds.append(list(seen))
    first = next(steps for steps in rounds if "send" in steps)
    return first + [step for step in rounds[-1] if step == "handle_response"][:1]


def test_sender_round_has_the_documented_order_of_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    _, producer = simulated()
    established(producer)
    text = re.search(r"`producer/sending/sender.py`.*?\n\d+\. ", ARCHITECTURE.read_text(), re.DOTALL)
    assert text is not None
    documented = [name for name in re.findall(r"`(\w+)`", text[0]) if name in STEPS]
    assert documented == record_round_steps(producer, monkeypatch) == list(STEPS)
    producer.close()


def test_unencodable_rows_fail_in_the_round_that_encodes_them(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster, producer = simulated(linger_ms=50)
    established(producer)
    started = cluster.system.now()
    future = producer.send_columns("t", RecordColumns(pa.array([b"v", b"w"])))

    def fails(*arguments: object, **named: object) -> object:
        raise MemoryError("no room")

    monkeypatch.setattr(batch_filler, "encode_records", fails)
    failed_ms: list[float] = []
    future.add_done_callback(lambda done: failed_ms.append(cluster.system.now() - started))
    run_until(producer, future.done)  # no wake-up follows, so the next round may come much later
    assert failed_ms == [50]
    (failure,) = future.result(0).failures
    assert isinstance(failure.error, DeliveryError)
    assert failure.row_indices.tolist() == [0, 1]
    run_until(producer, lambda: not get_sender(producer).has_incomplete_rows)
    assert get_reserved_bytes(producer) == 0
    producer.close()
