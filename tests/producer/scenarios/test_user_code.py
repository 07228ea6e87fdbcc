"""User code in send(): partitioners, interceptors and callbacks that raise or return invalid values."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pyarrow as pa
import pytest

from spark_kafka_sink.client.metadata import Metadata
from spark_kafka_sink.errors import BrokerError, ConfigurationError, InvalidRecordError, MetadataTimeoutError
from spark_kafka_sink.producer.interceptors import Interceptor
from spark_kafka_sink.producer.partitioner import RecordPartitioner
from spark_kafka_sink.producer.producer import KafkaProducer
from spark_kafka_sink.producer.record import ProducerRecord
from spark_kafka_sink.producer.results import RecordMetadata
from spark_kafka_sink.protocol import error_codes as codes
from spark_kafka_sink.protocol.message import ApiKey
from spark_kafka_sink.records.columns import RecordColumns
from tests.fake_system import FakeSystem
from tests.producer.virtual_time import SimulatedProducer, get_loop, get_reserved_bytes, wait_for_result
from tests.simulated_cluster import SimulatedCluster

TOO_LARGE = b"v" * (2 << 20)
"""A value that max.request.size rejects by default."""


def create_cluster() -> SimulatedCluster:
    return SimulatedCluster(FakeSystem(latency_ms=1), nodes=2, topics={"t": 2})


def create_producer(
    partitioner: RecordPartitioner | None = None,
    interceptors: Sequence[Interceptor[ProducerRecord, RecordMetadata]] = (),
    cluster: SimulatedCluster | None = None,
) -> KafkaProducer:
    cluster = cluster or create_cluster()
    return SimulatedProducer(
        cluster.system,
        {"bootstrap.servers": cluster.bootstrap_servers, "linger.ms": 0},
        partitioner=partitioner,
        interceptors=interceptors,
    )


def test_writes_to_topic_that_becomes_known_just_before_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    producer = create_producer()
    loop = get_loop(producer)

    def time_out_after_update(metadata: Metadata, last_version: int, timeout_ms: float) -> None:
        loop.run_until(lambda: metadata.snapshot.partition_count("t") is not None, timeout_ms)
        raise MetadataTimeoutError("just now")

    monkeypatch.setattr(loop, "await_metadata", time_out_after_update)
    assert wait_for_result(producer, producer.send(ProducerRecord("t", b"v"))).offset == 0


@pytest.mark.parametrize("chosen_partition", ["0", 1.5, -1, 2, b"", ValueError("no idea")])
def test_failing_partitioner_fails_only_its_record(chosen_partition: object) -> None:
    def choose(topic: str, key: bytes | None, value: bytes | None, partitions: object) -> int:
        if key is None:
            return 1
        if isinstance(chosen_partition, Exception):
            raise chosen_partition
        return chosen_partition  # type: ignore[return-value]

    producer = create_producer(choose)
    error = producer.send(ProducerRecord("t", b"v", key=b"k")).exception(0)
    assert isinstance(error, InvalidRecordError)
    assert "topic t" in str(error)
    assert wait_for_result(producer, producer.send(ProducerRecord("t", b"v"))).partition == 1
    producer.close()


def test_send_columns_rejects_rows_without_partition_for_custom_partitioner() -> None:
    producer = create_producer(lambda topic, key, value, partitions: 1)
    columns = RecordColumns(pa.array([b"a", b"b"]))
    for partition in (None, pa.array([0, None], pa.int32())):
        with pytest.raises(ConfigurationError, match="partitioner="):
            producer.send_columns("t", columns, partition)
    assert wait_for_result(producer, producer.send_columns("t", columns, 0)).rows_written == 2


@pytest.mark.parametrize("returned", [None, b"v", ProducerRecord("", b"v")])
def test_interceptor_that_returns_no_record_fails_the_call(returned: object) -> None:
    class Wrong:
        def on_send(self, record: ProducerRecord) -> ProducerRecord:
            return returned if record.value == b"bad" else record  # type: ignore[return-value]

        def on_acknowledgement(self, metadata: RecordMetadata, error: Exception | None) -> None:
            raise ValueError("at the wrong time")

    producer = create_producer(interceptors=[Wrong()])
    with pytest.raises(InvalidRecordError):
        producer.send(ProducerRecord("t", b"bad"))
    assert wait_for_result(producer, producer.send(ProducerRecord("t", b"v"))).offset == 0


def test_reports_and_counts_a_record_that_an_interceptor_lost() -> None:
    class Lost:
        def on_send(self, record: ProducerRecord) -> ProducerRecord:
            return None  # type: ignore[return-value]

        def on_acknowledgement(self, metadata: RecordMetadata, error: Exception | None) -> None:
            pass

    witness = Leaves()
    producer = create_producer(interceptors=[witness, Lost()])
    with pytest.raises(InvalidRecordError, match="not NoneType") as raised:
        producer.send(ProducerRecord("t", b"v", partition=1))
    assert [(metadata.topic, metadata.partition, str(error)) for metadata, error in witness.seen] == [
        ("t", 1, str(raised.value))
    ]
    assert producer.metric("record-error-total") == 1


@pytest.mark.parametrize("record", [ProducerRecord("t", 123), ProducerRecord("t", b"v", 123)])
def test_missing_serializer_fails_the_call_and_is_counted(record: ProducerRecord) -> None:
    interceptor = Leaves()
    producer = create_producer(interceptors=[interceptor])
    with pytest.raises(InvalidRecordError, match="int is neither bytes nor str") as raised:
        producer.send(record)
    assert [str(error) for _, error in interceptor.seen] == [str(raised.value)]
    assert producer.metric("record-error-total") == 1


def test_value_converted_by_interceptor_needs_no_serializer() -> None:
    class ToText(Leaves):
        def on_send(self, record: ProducerRecord) -> ProducerRecord:
            return record._replace(value=str(record.value))

    cluster = create_cluster()
    producer = create_producer(interceptors=[ToText()], cluster=cluster)
    wait_for_result(producer, producer.send("t", 123, partition=0))
    assert cluster.values("t", 0) == [b"123"]


class Leaves:
    """Interceptor that records its acknowledgements, and raises in on_acknowledgement if `raised` is set."""

    def __init__(self, raised: type[BaseException] | None = None) -> None:
        self.raised = raised
        self.seen: list[tuple[RecordMetadata, Exception | None]] = []

    def on_send(self, record: ProducerRecord) -> ProducerRecord:
        return record

    def on_acknowledgement(self, metadata: RecordMetadata, error: Exception | None) -> None:
        self.seen.append((metadata, error))
        if self.raised is not None:
            raise self.raised("a user's way out")


@pytest.mark.parametrize("raised", [SystemExit, KeyboardInterrupt, GeneratorExit, asyncio.CancelledError])
@pytest.mark.parametrize("where", ["callback", "done-callback", "interceptor"])
@pytest.mark.parametrize("code", [codes.NONE, codes.POLICY_VIOLATION])
def test_completes_all_futures_when_user_code_raises_on_sender_thread(
    raised: type[BaseException], where: str, code: int
) -> None:
    first, second = Leaves(raised if where == "interceptor" else None), Leaves()
    cluster = create_cluster()
    producer = create_producer(interceptors=[first, second], cluster=cluster)
    if code:
        cluster.control.when(api=ApiKey.PRODUCE).fail(code)

    def leave(*_: object) -> None:
        raise raised("a user's way out")

    callback = leave if where == "callback" else None
    futures = [producer.send(ProducerRecord("t", b"%d" % i, partition=0), callback) for i in range(20)]
    columns = producer.send_columns("t", RecordColumns(pa.array([b"a", b"b"])), 0)
    if where == "done-callback":
        columns.add_done_callback(leave)
        for future in futures:
            future.add_done_callback(leave)
    producer.flush()
    assert columns.done()
    assert all(future.done() for future in futures)
    assert {type(future.exception(0)) for future in futures} == {BrokerError if code else type(None)}
    assert len(first.seen) == len(second.seen) == 20
    assert wait_for_result(producer, producer.send(ProducerRecord("t", b"v", partition=0))).offset == (
        0 if code else 22
    )
    producer.close()
    assert get_reserved_bytes(producer) == 0


def test_interceptors_and_callback_of_rejected_record_get_topic_and_partition() -> None:
    interceptor = Leaves()
    seen: list[tuple[RecordMetadata, Exception | None]] = []
    producer = create_producer(interceptors=[interceptor])
    futures = [
        producer.send(ProducerRecord("t", TOO_LARGE, partition=partition), lambda *arguments: seen.append(arguments))
        for partition in (None, 1)
    ]
    errors = [future.exception(0) for future in futures]
    assert [metadata for metadata, _ in seen] == [RecordMetadata("t", number, -1, -1, -1, -1) for number in (-1, 1)]
    assert [repr(error) for _, error in seen] == [repr(error) for error in errors]
    assert seen == interceptor.seen


@pytest.mark.parametrize("raised", [SystemExit, KeyboardInterrupt])
def test_exception_of_callback_on_callers_thread_reaches_the_caller(raised: type[BaseException]) -> None:
    producer = create_producer()

    def leave(*_: object) -> None:
        raise raised

    with pytest.raises(raised):
        producer.send(ProducerRecord("t", TOO_LARGE), leave)
    assert wait_for_result(producer, producer.send(ProducerRecord("t", b"v"))).offset == 0
