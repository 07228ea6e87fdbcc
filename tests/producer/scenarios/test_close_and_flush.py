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
from tests.producer.virtual_time import loop_of, memory_used, outcome, run_until, sender_of, simulated_producer
from tests.simulated_cluster import SimulatedCluster

DELIVERY_MS = 3000
CLOSE_TIMEOUTS = [None, 0, 1]


class Given:
    """A producer, one record and three rows in some state."""

    def __init__(self, **options: object) -> None:
        self.cluster = SimulatedCluster(FakeSystem(latency_ms=1), nodes=2, topics={"t": 1})
        given: dict[str, object] = {"linger_ms": 1500, "request_timeout_ms": 1000, "delivery_timeout_ms": DELIVERY_MS}
        self.producer: KafkaProducer = simulated_producer(self.cluster, **{**given, **options})
        self.single: Future[RecordMetadata]
        self.columns: Future[ColumnsResult]

    def staged(self) -> Given:
        self.single = self.producer.send(ProducerRecord("t", b"1"))
        self.columns = self.producer.send_columns("t", RecordColumns(pa.array([b"2", b"3", b"4"])))
        return self

    def in_flight(self) -> Given:
        self.staged()
        in_flight = partial(self.producer.metric, "requests-in-flight")
        run_until(self.producer, lambda: bool(self.produce_requests()) and in_flight() > 0, 2000)
        return self

    def produce_requests(self) -> int:
        return sum(len(state.in_flight_batches) for state in sender_of(self.producer).idempotence)

    def silent(self) -> Given:
        self.cluster.control.when(api=ApiKey.PRODUCE, times=None).never_answer()
        return self

    def brokers_gone(self) -> Given:
        for node in range(2):
            self.cluster.control.stop_node(node)
        return self

    def errors(self) -> list[Exception | None]:
        """The errors of the record and of the three rows. All must be done by now."""
        result = self.columns.result(0)
        by_row: dict[int, Exception] = {int(row): f.error for f in result.failures for row in f.rows}
        single = self.single.exception(0)
        assert single is None or isinstance(single, Exception)
        return [single, *(by_row.get(row) for row in range(3))]

    def nothing_is_left(self) -> bool:
        return memory_used(self.producer) == 0 and not self.cluster.system.open_sockets

    @property
    def now(self) -> float:
        return self.cluster.system.now()


@pytest.mark.parametrize("timeout", CLOSE_TIMEOUTS)
def test_unused_producer_closes_immediately(timeout: float | None) -> None:
    given = Given()
    started = given.now
    given.producer.flush()
    given.producer.close(timeout)
    assert given.now - started < 100
    assert given.nothing_is_left()


def test_flush_sends_lingering_records_and_later_records_linger() -> None:
    given = Given().staged()
    started = given.now
    given.producer.flush()
    assert given.now - started < 1000
    assert given.errors() == [None] * 4
    later = given.producer.send(ProducerRecord("t", b"5"))
    loop_of(given.producer).run_until(lambda: False, 1000)
    assert not later.done()
    assert outcome(given.producer, later).offset == 4


def test_close_sends_lingering_records_immediately() -> None:
    given = Given().staged()
    started = given.now
    given.producer.close()
    assert given.now - started < 1000
    assert given.errors() == [None] * 4
    assert given.cluster.values("t") == [b"1", b"2", b"3", b"4"]
    assert given.nothing_is_left()


def test_close_with_zero_timeout_fails_lingering_records() -> None:
    given = Given().staged()
    given.producer.close(timeout=0)
    for error in given.errors():
        assert isinstance(error, ProducerClosedError)
        assert "closed" in str(error)
        assert "may have been stored" not in str(error)
    assert given.cluster.values("t") == []
    assert given.nothing_is_left()


def test_close_with_zero_timeout_reports_records_in_flight_as_possibly_stored() -> None:
    given = Given(linger_ms=0).in_flight()
    given.producer.close(timeout=0)
    given.cluster.system.advance(10)
    stored = given.cluster.values("t")
    assert stored != []
    for error in given.errors()[: len(stored)]:
        assert isinstance(error, ProducerClosedError)
        assert "closed" in str(error)
        assert "may have been stored" in str(error)
    assert given.nothing_is_left()


@pytest.mark.parametrize("state", ["in flight", "brokers gone"])
@pytest.mark.parametrize("call", ["close", "flush"])
def test_close_and_flush_end_when_records_expire_without_response(state: str, call: str) -> None:
    given = Given(linger_ms=0)
    given.producer.partitions_for("t")
    started = given.now
    if state == "in flight":
        given.silent().in_flight()
    else:
        given.brokers_gone().staged()
    if call == "close":
        given.producer.close()
    else:
        given.producer.flush()
    assert given.now - started <= DELIVERY_MS + 1100
    assert all(isinstance(error, DeliveryTimeoutError) for error in given.errors())
    given.producer.close()
    assert given.nothing_is_left()


def test_flush_times_out_and_next_flush_waits_for_the_same_records() -> None:
    given = Given(linger_ms=0).silent().in_flight()
    for timeout in (0, 0.5):
        started = given.now
        with pytest.raises(TimeoutError):
            given.producer.flush(timeout=timeout)
        assert given.now - started <= timeout * 1000 + 1
    assert not given.single.done()
    given.cluster.control.clear()
    given.producer.flush()
    assert given.errors() == [None] * 4


@pytest.mark.parametrize("second", CLOSE_TIMEOUTS)
@pytest.mark.parametrize("first", CLOSE_TIMEOUTS)
def test_close_is_idempotent(first: float | None, second: float | None) -> None:
    given = Given(linger_ms=0).silent().in_flight()
    given.producer.close(first)
    errors = given.errors()
    given.producer.close(second)
    assert given.errors() == errors
    assert given.nothing_is_left()
    for refused in (given.producer.flush, lambda: given.producer.partitions_for("t")):
        with pytest.raises(ProducerClosedError):
            refused()


def fatal(given: Given) -> Given:
    given.cluster.control.when(api=ApiKey.PRODUCE, times=None).fail(codes.CLUSTER_AUTHORIZATION_FAILED)
    future = given.producer.send(ProducerRecord("t", b"0"))
    run_until(given.producer, future.done)
    assert isinstance(future.exception(0), AuthorizationError)
    return given


@pytest.mark.parametrize("timeout", CLOSE_TIMEOUTS)
def test_flush_raises_fatal_error_and_close_ends_immediately(timeout: float | None) -> None:
    given = fatal(Given(linger_ms=0))
    started = given.now
    with pytest.raises(ProducerClosedError, match="CLUSTER_AUTHORIZATION_FAILED"):
        given.producer.flush()
    given.producer.close(timeout)
    assert given.now - started < 100
    assert given.nothing_is_left()


def test_fatal_error_fails_queued_records_and_lets_those_in_flight_complete() -> None:
    given = Given(linger_ms=0, batch_size=0)
    outcome(given.producer, given.producer.send(ProducerRecord("t", b"0")))
    control = given.cluster.control
    control.when(api=ApiKey.PRODUCE).fail(codes.CLUSTER_AUTHORIZATION_FAILED)
    futures = [given.producer.send(ProducerRecord("t", b"%d" % i)) for i in range(1, 20)]
    run_until(given.producer, lambda: all(future.done() for future in futures), 2000)
    errors = [future.exception(0) for future in futures]
    assert isinstance(errors[0], AuthorizationError)
    assert isinstance(errors[-1], AuthorizationError)
    assert all(error is not None for error in errors)
    given.producer.close()
    assert given.nothing_is_left()
    assert given.cluster.values("t") == [b"0"]


def test_close_with_zero_timeout_fails_unencodable_rows_with_their_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def out_of_memory(*_: object) -> None:
        raise MemoryError("none left")

    given = Given(batch_size=0)
    given.producer.partitions_for("t")
    monkeypatch.setattr("spark_kafka_sink.producer.batching.batch_filler.encode_records", out_of_memory)
    given.staged()  # with batches of one row they are grouped at once, in the caller's thread
    given.producer.close(timeout=0)
    for error in given.errors():
        assert isinstance(error, DeliveryError)
        assert "none left" in str(error)
    assert given.nothing_is_left()


def test_send_to_unknown_topic_in_callback_fails_immediately() -> None:
    given = Given(linger_ms=0)
    errors: list[Exception | None] = []

    def send_elsewhere(metadata: RecordMetadata | None, error: Exception | None) -> None:
        errors.append(given.producer.send(ProducerRecord("elsewhere", b"v")).exception(0))  # type: ignore[arg-type]

    outcome(given.producer, given.producer.send(ProducerRecord("t", b"v"), send_elsewhere))
    assert isinstance(errors[0], MetadataTimeoutError)


def test_callback_during_close_may_close_but_not_send() -> None:
    given = Given().staged()
    refused: list[Exception] = []

    def close_and_send(metadata: RecordMetadata | None, error: Exception | None) -> None:
        given.producer.close()
        try:
            given.producer.send(ProducerRecord("t", b"v"))
        except ProducerClosedError as closed:
            refused.append(closed)

    future = given.producer.send(ProducerRecord("t", b"v"), close_and_send)
    given.producer.close(timeout=0)
    assert isinstance(future.exception(0), ProducerClosedError)
    assert len(refused) == 1
    assert given.nothing_is_left()


@pytest.mark.parametrize("raised", [ValueError, SystemExit])
@pytest.mark.parametrize("result", ["stored", "failed"])
def test_raising_callback_does_not_affect_other_records(
    raised: type[BaseException], result: str, caplog: pytest.LogCaptureFixture
) -> None:
    given = Given(linger_ms=0)
    if result == "failed":
        given.cluster.control.when(api=ApiKey.PRODUCE).fail(codes.POLICY_VIOLATION)

    def give_up(metadata: RecordMetadata | None, error: Exception | None) -> None:
        raise raised("a user's way to give up")

    first = given.producer.send(ProducerRecord("t", b"1"), give_up)
    together = given.producer.send(ProducerRecord("t", b"2"))
    run_until(given.producer, lambda: first.done() and together.done())
    assert (first.exception(0) is None) == (result == "stored")
    assert outcome(given.producer, given.producer.send(ProducerRecord("t", b"3"))).offset >= 0
    assert "a user's way to give up" in caplog.text
    given.producer.close()
    assert given.nothing_is_left()


def test_reports_each_row_once_when_close_splits_a_call() -> None:
    given = Given(linger_ms=0, batch_size=200)
    many = given.producer.send_columns("t", RecordColumns(pa.array([b"%04d" % i for i in range(500)])))
    run_until(given.producer, lambda: len(given.cluster.values("t")) > 20, 2000)
    given.producer.close(timeout=0)
    result = many.result(0)
    failed = np.concatenate([failure.rows for failure in result.failures])
    assert result.rows_written + len(failed) == 500
    assert len(set(failed.tolist())) == len(failed)
    assert given.nothing_is_left()
