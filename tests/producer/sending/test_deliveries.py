"""Deliveries: all other records are completed or failed when user code raises for one of them."""

from __future__ import annotations

import asyncio
import gc
import logging
from concurrent.futures import Future
from typing import Any

import pyarrow as pa
import pytest

from spark_kafka_sink.errors import BrokerError, DeliveryTimeoutError, ProducerClosedError
from spark_kafka_sink.producer.futures import Callback
from spark_kafka_sink.producer.producer import KafkaProducer
from spark_kafka_sink.producer.record import ProducerRecord
from spark_kafka_sink.producer.results import RecordMetadata
from spark_kafka_sink.producer.sending import deliveries
from spark_kafka_sink.protocol import error_codes as codes
from spark_kafka_sink.protocol.message import ApiKey
from spark_kafka_sink.protocol.messages.produce import PartitionProduceData
from spark_kafka_sink.records.columns import RecordColumns
from tests.producer.sending.sender_cases import Sent, established, in_flight_count, pass_time, send, simulated, wait
from tests.producer.virtual_time import get_loop, get_reserved_bytes, get_sender, wait_for_result
from tests.simulated_cluster import SimulatedCluster

RAISED = [ValueError, SystemExit, KeyboardInterrupt, GeneratorExit, asyncio.CancelledError]
Partitions = tuple[int, int, int]
TOGETHER: list[Partitions] = [(0, 1, 2), (0, 0, 0)]
"""Partitions of three records, which make up three batches or one."""


def three_at_once(
    producer: KafkaProducer, monkeypatch: pytest.MonkeyPatch, raised: type[BaseException], partitions: Partitions
) -> tuple[Sent, list[object], Sent]:
    """Send three records. Completing the second future raises, as if user code had already resolved it.

    Return the first future, a list that receives the outcome of the second one, and the third future.
    """
    first, second, third = (producer.send(ProducerRecord("t", b"v", partition=partition)) for partition in partitions)
    assert not second.done()  # this access creates the future, whose methods are replaced below
    ends: list[object] = []

    def leave(end: object) -> None:
        ends.append(end)
        raise raised("from a user's code")

    monkeypatch.setattr(second, "set_result", leave)
    monkeypatch.setattr(second, "set_exception", leave)
    return first, ends, third


def assert_producer_works(cluster: SimulatedCluster, producer: KafkaProducer) -> None:
    assert wait_for_result(producer, send(producer, b"later", 2)).offset >= 1
    producer.flush(10)
    producer.close()
    assert get_reserved_bytes(producer) == 0
    assert not cluster.system.open_sockets


@pytest.mark.parametrize("raised", RAISED)
@pytest.mark.parametrize("partitions", TOGETHER)
def test_completes_records_of_a_response_when_one_future_raises(
    partitions: Partitions, raised: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster, producer = simulated(partitions=3)
    established(producer, 0, 1, 2)
    first, ends, third = three_at_once(producer, monkeypatch, raised, partitions)
    wait(producer, first, third)
    in_one_batch = partitions[0] == partitions[2]
    assert (first.result(0).offset, third.result(0).offset) == (1, 3 if in_one_batch else 1)
    assert [type(end) for end in ends] == [RecordMetadata]
    assert_producer_works(cluster, producer)


@pytest.mark.parametrize("raised", RAISED)
@pytest.mark.parametrize("partitions", TOGETHER)
def test_fails_records_of_a_response_when_one_future_raises(
    partitions: Partitions, raised: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster, producer = simulated(partitions=3)
    established(producer, 0, 1, 2)
    cluster.control.when(api=ApiKey.PRODUCE).fail(codes.POLICY_VIOLATION)
    first, ends, third = three_at_once(producer, monkeypatch, raised, partitions)
    wait(producer, first, third)
    assert [type(end) for end in (first.exception(0), *ends, third.exception(0))] == [BrokerError] * 3
    assert_producer_works(cluster, producer)


@pytest.mark.parametrize("raised", RAISED)
@pytest.mark.parametrize("partitions", TOGETHER)
def test_fails_expired_records_when_one_future_raises(
    partitions: Partitions, raised: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster, producer = simulated(partitions=3, request_timeout_ms=500, delivery_timeout_ms=800)
    established(producer, 0, 1, 2)
    rule = cluster.control.when(api=ApiKey.PRODUCE, times=None).never_respond()
    first, ends, third = three_at_once(producer, monkeypatch, raised, partitions)
    wait(producer, first, third)
    assert [type(end) for end in (first.exception(0), *ends, third.exception(0))] == [DeliveryTimeoutError] * 3
    rule.remove()
    assert_producer_works(cluster, producer)


@pytest.mark.parametrize("raised", RAISED)
@pytest.mark.parametrize("partitions", TOGETHER)
def test_end_of_producer_fails_remaining_records_when_one_future_raises(
    partitions: Partitions, raised: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster, producer = simulated(partitions=3)
    established(producer, 0, 1, 2)
    cluster.control.when(api=ApiKey.PRODUCE, times=None).never_respond()
    first, ends, third = three_at_once(producer, monkeypatch, raised, partitions)
    get_loop(producer).run_until(lambda: False, 10)
    producer.close(timeout=0)
    assert [type(end) for end in (first.exception(0), *ends, third.exception(0))] == [ProducerClosedError] * 3
    assert get_reserved_bytes(producer) == 0
    assert not cluster.system.open_sockets


class CannotBeShown:
    """A callback that raises when it is called, and again when its name is formatted."""

    def __call__(self, metadata: RecordMetadata, error: Exception | None) -> None:
        raise ValueError("from a user's code")

    def __repr__(self) -> str:
        raise RuntimeError("from a user's code")

    def __getattr__(self, name: str) -> object:
        raise RuntimeError("from a user's code")


class Raises(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        raise RuntimeError("from a user's code")


@pytest.mark.parametrize("code", [codes.NONE, codes.POLICY_VIOLATION])
@pytest.mark.parametrize("handler", [logging.NullHandler(), Raises()], ids=["log", "log that raises"])
@pytest.mark.parametrize("method", [False, True])
def test_raising_callback_leaves_no_future_incomplete_even_if_logging_fails(
    method: bool, handler: logging.Handler, code: int
) -> None:
    callback: Callback = CannotBeShown().__call__ if method else CannotBeShown()
    cluster, producer = simulated(partitions=3)
    established(producer, 0, 1, 2)
    if code:
        cluster.control.when(api=ApiKey.PRODUCE).fail(code)
    futures: list[Future[Any]] = [
        producer.send_columns("t", RecordColumns(pa.array([b"a", b"b"])), 0),
        producer.send(ProducerRecord("t", b"v", partition=1), callback),
        producer.send(ProducerRecord("t", b"v", partition=1)),
        producer.send_columns("t", RecordColumns(pa.array([b"a", b"b"])), 2),
    ]
    log = logging.getLogger("spark_kafka_sink")
    log.addHandler(handler)
    try:
        producer.flush(10)
    finally:
        log.removeHandler(handler)
    assert [future.done() for future in futures] == [True] * 4
    assert_producer_works(cluster, producer)


def test_future_completes_after_metrics_and_before_flush_returns() -> None:
    _, producer = simulated(partitions=3)
    established(producer, 0, 1, 2)
    before = producer.totals().records
    seen: list[tuple[int, bool]] = []

    def look(_: object) -> None:
        seen.append((producer.totals().records - before, get_sender(producer).has_incomplete_rows))

    call = producer.send_columns("t", RecordColumns(pa.array([b"a", b"b"])), 0)
    call.add_done_callback(look)
    wait_for_result(producer, call)
    assert seen == [(2, True)]


def test_completes_stored_batches_when_sender_fails_at_another_batch_of_the_response(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster, producer = simulated(partitions=3)
    established(producer, 0, 1, 2)
    cluster.control.when(api=ApiKey.PRODUCE, topic="t", partition=1).fail(codes.POLICY_VIOLATION)

    def end(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr(deliveries, "decide_outcome", end)
    stored = producer.send(ProducerRecord("t", b"v", partition=0))
    rejected_future = producer.send(ProducerRecord("t", b"v", partition=1))
    with pytest.raises(MemoryError):
        wait(producer, stored, rejected_future)
    assert stored.result(0).offset == 1
    producer.close(timeout=0)
    assert isinstance(rejected_future.exception(0), ProducerClosedError)


def test_reports_stored_records_as_possibly_stored_when_their_results_are_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    _, producer = simulated()
    established(producer)

    def run_out_of_memory(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr(deliveries, "collect_stored_rows", run_out_of_memory)
    future = producer.send(ProducerRecord("t", b"v", partition=0))
    with pytest.raises(MemoryError):
        wait(producer, future)
    producer.close(timeout=0)
    error = future.exception(0)
    assert isinstance(error, ProducerClosedError)
    assert error.possibly_stored
    assert get_reserved_bytes(producer) == 0


def test_completes_all_calls_when_one_future_raises(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster, producer = simulated(partitions=3)
    established(producer, 0, 1, 2)
    calls = [producer.send_columns("t", RecordColumns(pa.array([b"a", b"b"])), 0) for _ in range(3)]

    def leave(end: object) -> None:
        raise SystemExit("from a user's code")

    monkeypatch.setattr(calls[1], "set_result", leave)
    wait_for_result(producer, calls[0])
    wait_for_result(producer, calls[2])
    assert [call.result(0).rows_written for call in (calls[0], calls[2])] == [2, 2]
    assert_producer_works(cluster, producer)


def test_call_gets_results_of_simultaneous_responses_together() -> None:
    cluster, producer = simulated(partitions=4, nodes=4)
    established(producer, 0, 1, 2, 3)
    partitions = pa.array([0, 1, 2, 3] * 2, pa.int32())
    result = wait_for_result(producer, producer.send_columns("t", RecordColumns(pa.array([b"v"] * 8)), partitions))
    assert {partition: written.rows for partition, written in result.partitions.items()} == dict.fromkeys(range(4), 2)
    assert len(result.stored) == 1
    assert_producer_works(cluster, producer)


def test_request_in_flight_keeps_no_objects_for_its_batches() -> None:
    _, producer = simulated()
    established(producer)
    future = producer.send(ProducerRecord("t", b"v", partition=0))
    pass_time(producer, 1)
    assert in_flight_count(producer) == 1
    gc.collect()
    assert not [value for value in gc.get_objects() if type(value) is PartitionProduceData and value.records]
    assert wait_for_result(producer, future).offset == 1
