"""close() and flush() in every state end in time, complete every future, and leak no memory or socket."""

from __future__ import annotations

from concurrent.futures import Future
from functools import partial

import numpy as np
import pyarrow as pa
import pytest

from spark_kafka_sink.errors import (
    AuthorizationError,
    DeliveryError,
    DeliveryTimeoutError,
    MetadataTimeoutError,
    ProducerClosedError,
)
from spark_kafka_sink.producer.producer import KafkaProducer
from spark_kafka_sink.producer.record import ProducerRecord
from spark_kafka_sink.producer.results import ColumnsResult, RecordMetadata
from spark_kafka_sink.protocol import error_codes as codes
from spark_kafka_sink.protocol.message import ApiKey
from spark_kafka_sink.records.columns import RecordColumns
from tests.fake_system import FakeSystem
from tests.producer.virtual_time import (
    create_simulated_producer,
    get_loop,
    get_reserved_bytes,
    get_sender,
    run_until,
    wait_for_result,
)
from tests.simulated_cluster import SimulatedCluster

DELIVERY_MS = 3000
CLOSE_TIMEOUTS = [None, 0, 1]


class ProducerCase:
    """A producer, one record and three rows in some state."""

    def __init__(self, **options: object) -> None:
        self.cluster = SimulatedCluster(FakeSystem(latency_ms=1), nodes=2, topics={"t": 1})
        case: dict[str, object] = {"linger_ms": 1500, "request_timeout_ms": 1000, "delivery_timeout_ms": DELIVERY_MS}
        self.producer: KafkaProducer = create_simulated_producer(self.cluster, **{**case, **options})
        self.single: Future[RecordMetadata]
        self.columns: Future[ColumnsResult]

    def staged(self) -> ProducerCase:
        self.single = self.producer.send(ProducerRecord("t", b"1"))
        self.columns = self.producer.send_columns("t", RecordColumns(pa.array([b"2", b"3", b"4"])))
        return self

    def in_flight(self) -> ProducerCase:
        self.staged()
        in_flight = partial(self.producer.metric, "requests-in-flight")
        run_until(self.producer, lambda: bool(self.produce_requests()) and in_flight() > 0, 2000)
        return self

    def produce_requests(self) -> int:
        return sum(len(state.in_flight_batches) for state in get_sender(self.producer).idempotence)

    def with_unresponsive_brokers(self) -> ProducerCase:
        self.cluster.control.when(api=ApiKey.PRODUCE, times=None).never_respond()
        return self

    def with_stopped_brokers(self) -> ProducerCase:
        for node in range(2):
            self.cluster.control.stop_node(node)
        return self

    def errors(self) -> list[Exception | None]:
        """Return the errors of the record and of the three rows. Fail if one has no outcome."""
        result = self.columns.result(0)
        by_row: dict[int, Exception] = {int(row): f.error for f in result.failures for row in f.row_indices}
        single = self.single.exception(0)
        assert single is None or isinstance(single, Exception)
        return [single, *(by_row.get(row) for row in range(3))]

    def has_released_everything(self) -> bool:
        return get_reserved_bytes(self.producer) == 0 and not self.cluster.system.open_sockets

    @property
    def now(self) -> float:
        return self.cluster.system.now()


@pytest.mark.parametrize("timeout", CLOSE_TIMEOUTS)
def test_unused_producer_closes_immediately(timeout: float | None) -> None:
    case = ProducerCase()
    started = case.now
    case.producer.flush()
    case.producer.close(timeout)
    assert case.now - started < 100
    assert case.has_released_everything()


def test_flush_sends_lingering_records_and_later_records_linger() -> None:
    case = ProducerCase().staged()
    started = case.now
    case.producer.flush()
    assert case.now - started < 1000
    assert case.errors() == [None] * 4
    later = case.producer.send(ProducerRecord("t", b"5"))
    get_loop(case.producer).run_until(lambda: False, 1000)
    assert not later.done()
    assert wait_for_result(case.producer, later).offset == 4


def test_close_sends_lingering_records_immediately() -> None:
    case = ProducerCase().staged()
    started = case.now
    case.producer.close()
    assert case.now - started < 1000
    assert case.errors() == [None] * 4
    assert case.cluster.values("t") == [b"1", b"2", b"3", b"4"]
    assert case.has_released_everything()


def test_close_with_zero_timeout_fails_lingering_records() -> None:
    case = ProducerCase().staged()
    case.producer.close(timeout=0)
    for error in case.errors():
        assert isinstance(error, ProducerClosedError)
        assert "closed" in str(error)
        assert "may have been stored" not in str(error)
    assert case.cluster.values("t") == []
    assert case.has_released_everything()


def test_close_with_zero_timeout_reports_records_in_flight_as_possibly_stored() -> None:
    case = ProducerCase(linger_ms=0).in_flight()
    case.producer.close(timeout=0)
    case.cluster.system.advance(10)
    stored = case.cluster.values("t")
    assert stored != []
    for error in case.errors()[: len(stored)]:
        assert isinstance(error, ProducerClosedError)
        assert "closed" in str(error)
        assert "may have been stored" in str(error)
    assert case.has_released_everything()


@pytest.mark.parametrize("state", ["in flight", "brokers gone"])
@pytest.mark.parametrize("call", ["close", "flush"])
def test_close_and_flush_end_when_records_expire_without_response(state: str, call: str) -> None:
    case = ProducerCase(linger_ms=0)
    case.producer.partitions_for("t")
    started = case.now
    if state == "in flight":
        case.with_unresponsive_brokers().in_flight()
    else:
        case.with_stopped_brokers().staged()
    if call == "close":
        case.producer.close()
    else:
        case.producer.flush()
    assert case.now - started <= DELIVERY_MS + 1100
    assert all(isinstance(error, DeliveryTimeoutError) for error in case.errors())
    case.producer.close()
    assert case.has_released_everything()


def test_flush_times_out_and_next_flush_waits_for_the_same_records() -> None:
    case = ProducerCase(linger_ms=0).with_unresponsive_brokers().in_flight()
    for timeout in (0, 0.5):
        started = case.now
        with pytest.raises(TimeoutError):
            case.producer.flush(timeout=timeout)
        assert case.now - started <= timeout * 1000 + 1
    assert not case.single.done()
    case.cluster.control.clear()
    case.producer.flush()
    assert case.errors() == [None] * 4


@pytest.mark.parametrize("second", CLOSE_TIMEOUTS)
@pytest.mark.parametrize("first", CLOSE_TIMEOUTS)
def test_close_is_idempotent(first: float | None, second: float | None) -> None:
    case = ProducerCase(linger_ms=0).with_unresponsive_brokers().in_flight()
    case.producer.close(first)
    errors = case.errors()
    case.producer.close(second)
    assert case.errors() == errors
    assert case.has_released_everything()
    for call in (case.producer.flush, lambda: case.producer.partitions_for("t")):
        with pytest.raises(ProducerClosedError):
            call()


def fatal(case: ProducerCase) -> ProducerCase:
    case.cluster.control.when(api=ApiKey.PRODUCE, times=None).fail(codes.CLUSTER_AUTHORIZATION_FAILED)
    future = case.producer.send(ProducerRecord("t", b"0"))
    run_until(case.producer, future.done)
    assert isinstance(future.exception(0), AuthorizationError)
    return case


@pytest.mark.parametrize("timeout", CLOSE_TIMEOUTS)
def test_flush_raises_fatal_error_and_close_ends_immediately(timeout: float | None) -> None:
    case = fatal(ProducerCase(linger_ms=0))
    started = case.now
    with pytest.raises(ProducerClosedError, match="CLUSTER_AUTHORIZATION_FAILED"):
        case.producer.flush()
    case.producer.close(timeout)
    assert case.now - started < 100
    assert case.has_released_everything()


def test_fatal_error_fails_queued_records_and_lets_those_in_flight_complete() -> None:
    case = ProducerCase(linger_ms=0, batch_size=0)
    wait_for_result(case.producer, case.producer.send(ProducerRecord("t", b"0")))
    control = case.cluster.control
    control.when(api=ApiKey.PRODUCE).fail(codes.CLUSTER_AUTHORIZATION_FAILED)
    futures = [case.producer.send(ProducerRecord("t", b"%d" % i)) for i in range(1, 20)]
    run_until(case.producer, lambda: all(future.done() for future in futures), 2000)
    errors = [future.exception(0) for future in futures]
    assert isinstance(errors[0], AuthorizationError)
    assert isinstance(errors[-1], AuthorizationError)
    assert all(error is not None for error in errors)
    case.producer.close()
    assert case.has_released_everything()
    assert case.cluster.values("t") == [b"0"]


def test_close_with_zero_timeout_fails_unencodable_rows_with_their_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def raise_memory_error(*_: object) -> None:
        raise MemoryError("none left")

    case = ProducerCase(batch_size=0)
    case.producer.partitions_for("t")
    monkeypatch.setattr("spark_kafka_sink.producer.batching.batch_filler.encode_records", raise_memory_error)
    case.staged()  # with batch_size=0, rows are grouped immediately in the caller's thread
    case.producer.close(timeout=0)
    for error in case.errors():
        assert isinstance(error, DeliveryError)
        assert "none left" in str(error)
    assert case.has_released_everything()


def test_send_to_unknown_topic_in_callback_fails_immediately() -> None:
    case = ProducerCase(linger_ms=0)
    errors: list[Exception | None] = []

    def send_elsewhere(metadata: RecordMetadata | None, error: Exception | None) -> None:
        errors.append(case.producer.send(ProducerRecord("elsewhere", b"v")).exception(0))  # type: ignore[arg-type]

    wait_for_result(case.producer, case.producer.send(ProducerRecord("t", b"v"), send_elsewhere))
    assert isinstance(errors[0], MetadataTimeoutError)


def test_callback_during_close_may_close_but_not_send() -> None:
    case = ProducerCase().staged()
    call: list[Exception] = []

    def close_and_send(metadata: RecordMetadata | None, error: Exception | None) -> None:
        case.producer.close()
        try:
            case.producer.send(ProducerRecord("t", b"v"))
        except ProducerClosedError as closed:
            call.append(closed)

    future = case.producer.send(ProducerRecord("t", b"v"), close_and_send)
    case.producer.close(timeout=0)
    assert isinstance(future.exception(0), ProducerClosedError)
    assert len(call) == 1
    assert case.has_released_everything()


@pytest.mark.parametrize("raised", [ValueError, SystemExit])
@pytest.mark.parametrize("result", ["stored", "failed"])
def test_raising_callback_does_not_affect_other_records(
    raised: type[BaseException], result: str, caplog: pytest.LogCaptureFixture
) -> None:
    case = ProducerCase(linger_ms=0)
    if result == "failed":
        case.cluster.control.when(api=ApiKey.PRODUCE).fail(codes.POLICY_VIOLATION)

    def give_up(metadata: RecordMetadata | None, error: Exception | None) -> None:
        raise raised("a user's way to give up")

    first = case.producer.send(ProducerRecord("t", b"1"), give_up)
    together = case.producer.send(ProducerRecord("t", b"2"))
    run_until(case.producer, lambda: first.done() and together.done())
    assert (first.exception(0) is None) == (result == "stored")
    assert wait_for_result(case.producer, case.producer.send(ProducerRecord("t", b"3"))).offset >= 0
    assert "a user's way to give up" in caplog.text
    case.producer.close()
    assert case.has_released_everything()


def test_reports_each_row_once_when_close_splits_a_call() -> None:
    case = ProducerCase(linger_ms=0, batch_size=200)
    many = case.producer.send_columns("t", RecordColumns(pa.array([b"%04d" % i for i in range(500)])))
    run_until(case.producer, lambda: len(case.cluster.values("t")) > 20, 2000)
    case.producer.close(timeout=0)
    result = many.result(0)
    failed = np.concatenate([failure.row_indices for failure in result.failures])
    assert result.rows_written + len(failed) == 500
    assert len(set(failed.tolist())) == len(failed)
    assert case.has_released_everything()
