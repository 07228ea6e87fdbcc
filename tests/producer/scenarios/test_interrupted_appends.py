"""Ctrl-C in the middle of an append ends the producer: every record is acknowledged or fails, and nothing hangs."""

from __future__ import annotations

import linecache
import os
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

import pyarrow as pa
import pytest

from spark_kafka_sink import KafkaProducer, ProducerRecord, RecordColumns
from spark_kafka_sink.errors import KafkaSinkError, ProducerClosedError
from spark_kafka_sink.protocol import error_codes as codes
from spark_kafka_sink.protocol.message import ApiKey
from tests.fake_system import FakeSystem
from tests.locks import held_locks
from tests.producer.virtual_time import create_simulated_producer, get_sender, run_until, wait_for_result
from tests.simulated_cluster import SimulatedCluster

ROOM = "spark_kafka_sink/producer/batching/"
VALUE = b"v" * 100
BATCH_BYTES = 1024
LINGER_MS = 1_000
NOT_INTERRUPTED = ("try:", "with ", "finally:")
"""Prefixes of lines that take or release a lock. No exception is raised there, between a lock and its block."""


class Interrupting:
    """Trace function that raises before the nth executed line of ROOM, as Ctrl-C does. 0: only record the lines."""

    def __init__(self, nth: int = 0) -> None:
        self._nth = nth
        self.where = ""
        self.lines: list[str] = []

    def __call__(self, frame: FrameType, event: str, argument: object) -> Any:
        return self._line if ROOM in frame.f_code.co_filename else None

    def _line(self, frame: FrameType, event: str, argument: object) -> Any:
        text = linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip()
        if event == "line" and not self.where and not text.startswith(NOT_INTERRUPTED):
            self.lines.append(f"{frame.f_code.co_filename}:{frame.f_lineno} {text}")
            if len(self.lines) == self._nth:
                self.where = self.lines[-1]
                raise KeyboardInterrupt(self.where)
        return self._line


@dataclass
class Case:
    """A producer of a topic with three partitions, and the records that were sent before the interrupted call."""

    cluster: SimulatedCluster
    producer: KafkaProducer
    earlier: dict[bytes, Future[Any]] = field(default_factory=dict)
    columns: list[tuple[int, list[bytes], Future[Any]]] = field(default_factory=list)

    def send(self, partition: int, value: bytes) -> None:
        self.earlier[value] = self.producer.send(ProducerRecord("t", value, partition=partition))

    def send_columns(self, partitions: list[int], prefix: bytes) -> None:
        values = [prefix + b"%03d" % row + VALUE for row in range(len(partitions))]
        call = self.producer.send_columns("t", RecordColumns(pa.array(values)), pa.array(partitions, pa.int32()))
        self.columns.append((len(values), values, call))

    def stored(self) -> list[bytes | None]:
        return [value for partition in range(3) for value in self.cluster.values("t", partition)]

    def interrupt(self, call: Callable[[], object], interrupting: Interrupting) -> str:
        """Interrupt an append. Return the interrupted line, or an empty string if the append ended before."""
        accumulator = get_sender(self.producer).accumulator

        def traced(append: Callable[..., object]) -> Callable[..., object]:
            def traced_append(*arguments: Any, **named: Any) -> object:
                before = sys.gettrace()
                sys.settrace(interrupting)
                try:
                    return append(*arguments, **named)
                finally:
                    sys.settrace(before)

            return traced_append

        for name in ("append_columns", "append_record"):
            setattr(accumulator, name, traced(getattr(accumulator, name)))
        try:
            call()
        except KeyboardInterrupt:
            assert interrupting.where
        for name in ("append_columns", "append_record"):
            delattr(accumulator, name)
        return interrupting.where


def create_case(**options: object) -> Case:
    cluster = SimulatedCluster(FakeSystem(latency_ms=1), nodes=1, topics={"t": 3})
    producer = create_simulated_producer(cluster, linger_ms=LINGER_MS, batch_size=BATCH_BYTES, **options)
    case = Case(cluster, producer)
    case.send(0, b"first")
    wait_for_result(producer, case.earlier[b"first"])
    return case


def prepare_filling_rows(case: Case) -> Callable[[], object]:
    case.send_columns([0, 0, 0, 1], b"a")
    case.send(1, b"single")
    return lambda: case.producer.send_columns("t", RecordColumns(pa.array([VALUE] * 40)), pa.array([0, 1] * 20))


def prepare_skewed_filling_rows(case: Case) -> Callable[[], object]:
    case.send_columns([0, 1, 1, 1], b"a")
    case.send(0, b"single")
    partitions = [2, *[0] * 22, 1]
    return lambda: case.producer.send_columns("t", RecordColumns(pa.array([VALUE] * 24)), pa.array(partitions))


def prepare_filling_record(case: Case) -> Callable[[], object]:
    case.send_columns([0, 0, 1, 1], b"a")
    for number in range(25):
        case.send(1, b"%d" % number + VALUE)
    return lambda: [case.producer.send(ProducerRecord("t", VALUE, partition=1)) for _ in range(3)]


def iterate_interruptions(
    prepare: Callable[[Case], Callable[[], object]], occurrence: int, **options: object
) -> Iterator[Case]:
    """Interrupt each line once (every eighth line unless SOAK is set), and yield the case.

    `occurrence`: for lines in loops, interrupt the first (0) or last (-1) execution.
    """
    recorded, case = Interrupting(), create_case(**options)
    case.interrupt(prepare(case), recorded)
    executions_by_line: dict[str, list[int]] = {}
    for nth, line in enumerate(recorded.lines, 1):
        executions_by_line.setdefault(line, []).append(nth)
    assert len(executions_by_line) > 100
    interrupted = [times[occurrence] for times in executions_by_line.values()]
    for nth in interrupted if os.environ.get("SOAK") else interrupted[::8]:
        case = create_case(**options)
        print(case.interrupt(prepare(case), Interrupting(nth)))  # shown if the test fails
        yield case


def require_closed_error(case: Case) -> ProducerClosedError:
    with pytest.raises(
        ProducerClosedError, match=r"interrupted by KeyboardInterrupt.* Create a new KafkaProducer"
    ) as raised:
        case.producer.send("t", b"next")
    with pytest.raises(ProducerClosedError, match="Create a new KafkaProducer"):
        case.producer.flush(1)
    return raised.value


@pytest.mark.parametrize(
    ("action", "occurrence", "compression"),
    [
        (prepare_filling_rows, 0, "none"),
        (prepare_skewed_filling_rows, -1, "gzip"),
        (prepare_filling_record, -1, "none"),
    ],
)
def test_append_interrupted_at_any_line_ends_producer_and_all_records(
    action: Callable[[Case], Callable[[], object]], occurrence: int, compression: str
) -> None:
    for case in iterate_interruptions(action, occurrence, compression_type=compression):
        require_closed_error(case)
        began_ms = case.cluster.system.now()
        case.producer.close()
        assert case.cluster.system.now() - began_ms < 100
        check_nothing_remains(case)
        check_outcomes(case)


def check_nothing_remains(case: Case) -> None:
    assert not get_sender(case.producer).has_incomplete_rows
    assert held_locks(case.producer) == []


def check_outcomes(case: Case) -> None:
    stored = case.stored()
    for value, future in case.earlier.items():
        error = future.exception(0)
        assert error is not None or value in stored
        assert error is None or "Create a new KafkaProducer" in str(error)
    for count, values, call in case.columns:
        result = call.result(0)
        failed = [row for failure in result.failures for row in failure.row_indices.tolist()]
        assert len(set(failed)) == len(failed)
        assert result.rows_written + len(failed) == count
        assert all(values[row] in stored for row in range(count) if row not in failed)


def test_records_in_flight_are_acknowledged_when_later_call_is_interrupted() -> None:
    case = create_case()
    case.send_columns([0] * 40, b"a")
    run_until(case.producer, lambda: case.producer.metric("requests-in-flight") > 0)
    assert case.interrupt(prepare_filling_rows(case), Interrupting(30))
    run_until(case.producer, lambda: all(call.done() for _, _, call in case.columns))
    assert case.columns[0][2].result(0).rows_written > 0
    case.producer.close()
    check_outcomes(case)


def test_close_after_interruption_does_not_wait_for_unresponsive_brokers() -> None:
    case = create_case()
    case.cluster.control.when(api=ApiKey.PRODUCE, times=None).never_respond()
    case.send_columns([0] * 40, b"a")
    run_until(case.producer, lambda: case.producer.metric("requests-in-flight") > 0)
    assert case.interrupt(prepare_filling_rows(case), Interrupting(30))
    began_ms = case.cluster.system.now()
    case.producer.close()
    assert case.cluster.system.now() - began_ms < 100
    assert all("may have been stored" in str(failure.error) for failure in case.columns[0][2].result(0).failures[:1])
    check_nothing_remains(case)


def test_fatal_response_after_interruption_does_not_replace_its_error() -> None:
    case = create_case()
    case.cluster.control.when(api=ApiKey.PRODUCE).fail(codes.CLUSTER_AUTHORIZATION_FAILED)
    case.send_columns([0] * 40, b"a")
    run_until(case.producer, lambda: case.producer.metric("requests-in-flight") > 0)
    assert case.interrupt(prepare_filling_rows(case), Interrupting(30))
    run_until(case.producer, lambda: all(call.done() for _, _, call in case.columns))
    assert any(
        "CLUSTER_AUTHORIZATION_FAILED" in str(failure.error) for failure in case.columns[0][2].result(0).failures
    )
    require_closed_error(case)
    case.producer.close()


def test_transaction_with_interrupted_append_cannot_be_committed() -> None:
    cluster = SimulatedCluster(FakeSystem(latency_ms=1), nodes=1, topics={"t": 3})
    producer = create_simulated_producer(cluster, linger_ms=LINGER_MS, batch_size=BATCH_BYTES, transactional_id="x")
    producer.init_transactions()
    producer.begin_transaction()
    case = Case(cluster, producer)
    assert case.interrupt(lambda: producer.send("t", VALUE), Interrupting(5))
    with pytest.raises(KafkaSinkError, match="Create a new KafkaProducer"):
        producer.commit_transaction()
    producer.close()
    assert cluster.values("t") == []


def test_exception_while_appending_to_batches_ends_the_producer(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a MemoryError, the contents of the batches are as uncertain as after Ctrl-C."""
    case = create_case()
    action = prepare_filling_rows(case)

    def raise_memory_error(*_: object) -> None:
        raise MemoryError("none left")

    with monkeypatch.context() as patch:
        patch.setattr("spark_kafka_sink.producer.batching.batch_filler.ProducerBatch.append", raise_memory_error)
        with pytest.raises(MemoryError):
            action()
    with pytest.raises(ProducerClosedError, match="Create a new KafkaProducer"):
        case.producer.send("t", b"next")
    case.producer.close()
    check_nothing_remains(case)
    check_outcomes(case)
