"""KafkaProducer: invalid calls, and the guarantees of close, flush and callbacks."""

from __future__ import annotations

import copy
import math
import os
import pickle
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from pickle import PicklingError
from typing import Any

import pyarrow as pa
import pytest
from pyspark.serializers import CloudPickleSerializer

from spark_kafka_sink.errors import (
    BrokerError,
    DeliveryError,
    IllegalStateError,
    InvalidRecordError,
    KafkaSinkError,
    MetadataTimeoutError,
    ProducerClosedError,
    RecordTooLargeError,
)
from spark_kafka_sink.producer.futures import FUTURE_BYTES
from spark_kafka_sink.producer.producer import KafkaProducer
from spark_kafka_sink.producer.record import ProducerRecord
from spark_kafka_sink.producer.results import RecordMetadata
from spark_kafka_sink.producer.serializers import serialize_json
from spark_kafka_sink.protocol import error_codes as codes
from spark_kafka_sink.protocol.message import ApiKey
from spark_kafka_sink.records.columns import RecordColumns
from tests.fake_system import FakeSystem
from tests.producer.virtual_time import (
    SimulatedProducer,
    create_simulated_producer,
    get_loop,
    get_reserved_bytes,
    get_sender,
    run_until,
    wait_for_result,
)
from tests.simulated_cluster import SimulatedCluster


def simulated(*, auto_create_topics: bool = False, **options: object) -> tuple[SimulatedCluster, KafkaProducer]:
    cluster = SimulatedCluster(
        FakeSystem(latency_ms=1), nodes=2, topics={"t": 2}, auto_create_topics=auto_create_topics
    )
    return cluster, create_simulated_producer(cluster, max_block_ms=2000, **options)


def send_and_get_error(producer: KafkaProducer, record: ProducerRecord) -> Exception:
    future = producer.send(record)
    with pytest.raises(KafkaSinkError) as caught:
        wait_for_result(producer, future)
    return caught.value


def test_returns_offsets_of_records_and_columns() -> None:
    cluster, producer = simulated()
    one = producer.send(ProducerRecord("t", "v", key=b"k", headers=[("h", b"1")], partition=1, timestamp_ms=5))
    many = producer.send_columns("t", RecordColumns(pa.array([b"a", b"b"])), 1)
    assert wait_for_result(producer, one) == RecordMetadata("t", 1, 0, 5, 1, 1)
    written = wait_for_result(producer, many).partitions[1]
    assert (written.first_offset, written.last_offset, written.rows) == (1, 2, 2)
    producer.close()
    assert cluster.values("t", 1) == [b"v", b"a", b"b"]
    assert not cluster.system.open_sockets


def test_rejects_pickling_of_a_closure_with_a_producer() -> None:
    """On the driver, Spark pickles the function of foreachPartition and all objects that it refers to."""
    _, producer = simulated()

    def send_rows(rows: Iterable[bytes]) -> None:
        for row in rows:
            producer.send("t", row)

    with pytest.raises(PicklingError, match=r"A KafkaProducer cannot be pickled: .* create one in each partition"):
        CloudPickleSerializer().dumps(send_rows)  # type: ignore[no-untyped-call]
    calls: tuple[Callable[[object], object], ...] = (pickle.dumps, copy.copy, copy.deepcopy)
    for call in calls:
        with pytest.raises(TypeError, match="A KafkaProducer cannot be pickled"):
            call(producer)
    producer.close()


def test_record_for_unknown_topic_fails_within_max_block_ms() -> None:
    cluster, producer = simulated()
    started = cluster.system.now()
    error = send_and_get_error(producer, ProducerRecord("missing", b"v"))
    assert isinstance(error, MetadataTimeoutError)
    assert "missing" in str(error)
    assert cluster.system.now() - started <= 2100


def test_writes_to_topic_that_broker_creates() -> None:
    _, producer = simulated(auto_create_topics=True)
    assert wait_for_result(producer, producer.send(ProducerRecord("made", b"v"))).offset == 0


def test_error_names_missing_partition() -> None:
    _, producer = simulated()
    assert "no partition 7" in str(send_and_get_error(producer, ProducerRecord("t", b"v", partition=7)))
    result = wait_for_result(
        producer, producer.send_columns("t", RecordColumns(pa.array([b"a", b"b"])), pa.array([0, 7], pa.int32()))
    )
    assert (result.rows_written, result.rows_failed) == (1, 1)


def test_send_copies_headers() -> None:
    cluster, producer = simulated(max_request_size=1000, linger_ms=1000)
    headers: list[tuple[str, bytes | None]] = [("h", b"1")]
    grouped = [producer.send(ProducerRecord("t", b"v", headers=headers, partition=0)) for _ in range(3)]
    generated = producer.send(ProducerRecord("t", b"v", headers=(pair for pair in [("g", b"2")]), partition=0))  # type: ignore[arg-type]
    headers[0] = ("h", 5)  # type: ignore[assignment]
    headers.append(("large", b"x" * 5000))
    producer.flush()
    assert [future.result(0).offset for future in [*grouped, generated]] == [0, 1, 2, 3]
    stored = cluster.table("t", 0).column("headers").to_pylist()
    assert [[(pair["key"], pair["value"]) for pair in pairs] for pairs in stored] == [[("h", b"1")]] * 3 + [
        [("g", b"2")]
    ]


def test_record_above_max_request_size_fails_only_itself() -> None:
    _, producer = simulated(max_request_size=1000)
    accepted = producer.send(ProducerRecord("t", b"v"))
    assert isinstance(send_and_get_error(producer, ProducerRecord("t", b"v" * 1000)), RecordTooLargeError)
    assert wait_for_result(producer, accepted).offset == 0


@pytest.mark.parametrize(
    "record",
    [
        ProducerRecord(None, b"v"),  # type: ignore[arg-type]
        ProducerRecord("", b"v"),
        ProducerRecord("a/b", b"v"),
        ProducerRecord("t", b"v", timestamp_ms=-1),
        ProducerRecord("t", b"v", partition=-1),
        ProducerRecord("t", b"v", partition="0"),  # type: ignore[arg-type]
        ProducerRecord("t", b"v", headers=[("h", "text")]),  # type: ignore[list-item]
        ProducerRecord("t", b"v", headers=[("\udcff", b"")]),
        ProducerRecord("t", b"v", headers=[["h", b""]]),  # type: ignore[list-item]
        ProducerRecord("t", b"v", headers={"h": b""}),  # type: ignore[arg-type]
        ProducerRecord("t", b"v", headers=5),  # type: ignore[arg-type]
        b"not a record",
    ],
)
def test_send_raises_for_invalid_record(record: ProducerRecord) -> None:
    _, producer = simulated()
    with pytest.raises(InvalidRecordError):
        producer.send(record)


@pytest.mark.parametrize(
    ("header", "description"),
    [
        ((None, b"hush"), r"\(NoneType, bytes\)"),
        (("h", {"hush": 1}), r"\(str, dict\)"),
        ("hush", "str"),
        (("\udcff", b"hush"), r"one with the name '\\udcff', which cannot be encoded as UTF-8"),
    ],
)
def test_error_describes_invalid_header_without_its_value(header: Any, description: str) -> None:
    _, producer = simulated()
    with pytest.raises(InvalidRecordError, match=rf"a header must be a tuple .*, not {description}\.$") as caught:
        producer.send("t", b"v", headers=[header])
    assert "hush" not in str(caught.value)


def test_send_columns_without_rows_needs_no_metadata() -> None:
    cluster, producer = simulated()
    cluster.control.when(api=ApiKey.METADATA, times=None).never_respond()
    started = cluster.system.now()
    future = producer.send_columns("unknown", RecordColumns(pa.array([], pa.binary())))
    assert future.done()
    assert future.result(0).rows_written == 0
    assert cluster.system.now() == started


def test_raising_serializer_fails_only_its_record() -> None:
    cluster = SimulatedCluster(FakeSystem(), topics={"t": 1})
    producer = SimulatedProducer(
        cluster.system, {"bootstrap.servers": cluster.bootstrap_servers}, value_serializer=serialize_json
    )
    assert isinstance(send_and_get_error(producer, ProducerRecord("t", object())), InvalidRecordError)
    assert wait_for_result(producer, producer.send(ProducerRecord("t", "v"))).offset == 0


def test_header_added_by_serializer_is_sent_only_with_its_record() -> None:
    class Marks:
        def serialize(self, topic: str, headers: list[tuple[str, bytes | None]], data: object) -> bytes | None:
            if headers:
                headers.append(("marked", b"yes"))
            return str(data).encode()

    cluster = SimulatedCluster(FakeSystem(), topics={"t": 1})
    producer = SimulatedProducer(
        cluster.system, {"bootstrap.servers": cluster.bootstrap_servers}, value_serializer=Marks()
    )
    given: list[tuple[str, bytes | None]] = [("h", b"1")]
    for headers in (given, None):
        wait_for_result(producer, producer.send(ProducerRecord("t", 5, headers=headers, partition=0)))
    stored = cluster.table("t", 0).column("headers").to_pylist()
    assert [[(header["key"], header["value"]) for header in row or ()] for row in stored] == [
        [("h", b"1"), ("marked", b"yes")],
        [],
    ]
    assert given == [("h", b"1")]


def test_callbacks_run_in_order_although_one_raises(caplog: pytest.LogCaptureFixture) -> None:
    _, producer = simulated()
    seen: list[int] = []

    def note(metadata: RecordMetadata | None, error: Exception | None) -> None:
        assert metadata is not None
        seen.append(metadata.offset)
        if metadata.offset == 1:
            raise ValueError("a user's fault")

    futures = [producer.send(ProducerRecord("t", b"v", partition=0), note) for _ in range(4)]
    assert [wait_for_result(producer, future).offset for future in futures] == [0, 1, 2, 3]
    assert seen == [0, 1, 2, 3]
    assert "a user's fault" in caplog.text


def test_closed_producer_rejects_records_and_can_be_closed_again() -> None:
    _, producer = simulated()
    producer.close()
    producer.close()
    with pytest.raises(ProducerClosedError):
        producer.send(ProducerRecord("t", b"v"))


def test_failure_while_a_call_waits_for_its_topic_is_the_cause_of_its_error(monkeypatch: pytest.MonkeyPatch) -> None:
    _, producer = simulated()
    failure = codes.build_broker_error(codes.CLUSTER_AUTHORIZATION_FAILED)

    def fail_while_waiting(*_: object) -> None:
        get_sender(producer).fatal_error = failure
        raise ProducerClosedError("The producer was closed.")

    monkeypatch.setattr(producer._topic_waiter, "await_partitions", fail_while_waiting)
    with pytest.raises(ProducerClosedError, match="The producer failed permanently: ") as caught:
        producer.send(ProducerRecord("t", b"v"))
    assert caught.value.__cause__ is failure


def test_error_of_a_record_that_cannot_be_staged_keeps_its_cause(monkeypatch: pytest.MonkeyPatch) -> None:
    _, producer = simulated()
    cause = OSError("gone")

    def reject_record(*_: object, **__: object) -> None:
        raise DeliveryError("not now") from cause

    monkeypatch.setattr(producer._accumulator, "append_record", reject_record)
    assert send_and_get_error(producer, ProducerRecord("t", b"v")).__cause__ is cause


def test_interrupt_raised_by_callback_of_invalid_record_keeps_its_cause() -> None:
    _, producer = simulated()
    cause = OSError("gone")

    def interrupt(_metadata: RecordMetadata | None, _error: Exception | None) -> None:
        raise KeyboardInterrupt from cause

    with pytest.raises(KeyboardInterrupt) as caught:
        producer.send(ProducerRecord("t", b"v", partition=9), interrupt)
    assert caught.value.__cause__ is cause


def test_close_fails_remaining_records_after_timeout_and_releases_memory() -> None:
    cluster, producer = simulated()
    cluster.control.when(api=ApiKey.PRODUCE, times=None).never_respond()
    future = producer.send(ProducerRecord("t", b"v"))
    producer.close(timeout=1)
    assert isinstance(future.exception(0), ProducerClosedError)
    assert get_reserved_bytes(producer) == 0
    assert not cluster.system.open_sockets


def test_close_in_a_callback_does_not_wait_for_itself() -> None:
    _, producer = simulated()
    first: Future[RecordMetadata] = producer.send(ProducerRecord("t", b"v"), lambda metadata, error: producer.close())
    assert wait_for_result(producer, first).offset == 0
    assert get_loop(producer).join(0)


def test_flush_in_callback_raises() -> None:
    _, producer = simulated()
    caught: list[Exception] = []

    def flush(metadata: RecordMetadata | None, error: Exception | None) -> None:
        try:
            producer.flush()
        except IllegalStateError as error:
            caught.append(error)

    wait_for_result(producer, producer.send(ProducerRecord("t", b"v"), flush))
    assert len(caught) == 1


def test_flush_with_a_timeout_raises_while_records_are_pending() -> None:
    cluster, producer = simulated()
    cluster.control.when(api=ApiKey.PRODUCE, times=None).never_respond()
    producer.send(ProducerRecord("t", b"v"))
    with pytest.raises(TimeoutError):
        producer.flush(timeout=1)


def test_send_in_forked_child_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    _, producer = simulated()
    with monkeypatch.context() as child:
        child.setattr(os, "getpid", lambda: os.getppid())
        with pytest.raises(IllegalStateError, match="fork"):
            producer.send(ProducerRecord("t", b"v"))
    producer.close()


def test_authorization_failure_fails_only_its_records() -> None:
    cluster, producer = simulated()
    cluster.control.when(api=ApiKey.PRODUCE, topic="t", partition=0).fail(codes.TOPIC_AUTHORIZATION_FAILED)
    rejected = producer.send(ProducerRecord("t", b"v", partition=0))
    accepted = producer.send(ProducerRecord("t", b"v", partition=1))
    with pytest.raises(BrokerError, match="topic t"):
        wait_for_result(producer, rejected)
    assert wait_for_result(producer, accepted).partition == 1


def test_record_with_acks_0_completes_without_acknowledgement() -> None:
    cluster, producer = simulated(acks="0")
    assert wait_for_result(producer, producer.send(ProducerRecord("t", b"v", partition=0))).offset == -1
    producer.close()
    cluster.system.advance(10)
    assert cluster.values("t", 0) == [b"v"]


def test_blocked_partition_delays_no_other_and_sender_does_not_spin() -> None:
    cluster, producer = simulated(request_timeout_ms=5000)
    cluster.control.when(api=ApiKey.PRODUCE, topic="t", partition=0).delay(3000)
    producer.partitions_for("t")
    for partition in (0, 1):
        cluster.control.move_leader("t", partition, partition)
    held = [producer.send(ProducerRecord("t", b"v", partition=0)) for _ in range(3)]
    rounds = get_loop(producer).rounds
    assert wait_for_result(producer, producer.send(ProducerRecord("t", b"v", partition=1))).offset == 0
    assert not held[0].done()
    wait_for_result(producer, held[2])
    assert get_loop(producer).rounds - rounds < 60


@pytest.mark.parametrize("codec", ["none", "gzip"])
def test_memory_of_future_is_reserved_until_record_is_acknowledged(codec: str) -> None:
    cluster, producer = simulated(compression_type=codec)
    cluster.control.when(api=ApiKey.PRODUCE).delay(500)
    futures = [producer.send(ProducerRecord("t", b"v" * 50, partition=0)) for _ in range(100)]
    assert get_reserved_bytes(producer) > 100 * FUTURE_BYTES
    run_until(producer, lambda: producer.metrics()["requests-in-flight"] > 0)
    sender = get_sender(producer)
    run_until(producer, lambda: sender.has_incomplete_rows and not sender.accumulator.has_undrained_rows())
    assert get_reserved_bytes(producer) > 100 * FUTURE_BYTES
    for future in futures:
        wait_for_result(producer, future)
    producer.flush()
    assert get_reserved_bytes(producer) == 0


def test_counts_records_rejected_by_call_or_broker_as_errors() -> None:
    cluster, producer = simulated(max_request_size=1000)

    def errors() -> float:
        return producer.metrics()["record-error-total"]

    producer.send(ProducerRecord("t", b"v" * 1000))
    with pytest.raises(InvalidRecordError):
        producer.send(ProducerRecord("t", object()))
    producer.send(ProducerRecord("missing", b"v"))
    assert errors() == 3
    columns = RecordColumns(pa.array([b"v", b"v" * 1000, b"v", b"v"]))
    wait_for_result(producer, producer.send_columns("t", columns, pa.array([0, 0, -1, 0])))
    assert errors() == 5
    with pytest.raises(MetadataTimeoutError):
        producer.send_columns("missing", columns)
    assert errors() == 9
    cluster.control.when(api=ApiKey.PRODUCE).fail(codes.POLICY_VIOLATION)
    wait_for_result(producer, producer.send_columns("t", RecordColumns(pa.array([b"v"] * 3)), 0))
    assert (errors(), producer.metrics()["record-error-total{topic=t}"]) == (12, 3)
    memory = get_sender(producer).accumulator.pool
    assert memory.try_reserve(memory.free_bytes)
    result = producer.send_columns("t", RecordColumns(pa.array([b"v"] * 3)), 0).result(0)
    assert result.rows_failed == 3
    assert errors() == 15


def test_metrics_include_network_traffic_connections_and_metadata_age() -> None:
    cluster, producer = simulated(linger_ms=0, connections_max_idle_ms=60_000)
    assert math.isnan(producer.metric("metadata-age"))
    free = producer.metric("buffer-available-bytes")
    assert free == producer.metric("buffer-total-bytes") == producer.config.buffer_memory
    wait_for_result(producer, producer.send(ProducerRecord("t", b"v" * 500, partition=0)))
    values = producer.metrics()
    taken = sum(4 + len(frame) for _, _, frame in cluster.requests)
    assert (values["outgoing-byte-total"], values["request-total"]) == (taken, len(cluster.requests))
    assert values["response-total"] == len(cluster.requests)
    assert values["request-size-max"] == max(4 + len(frame) for _, _, frame in cluster.requests)
    assert values["incoming-byte-total"] > 100
    assert values["connection-count"] == values["connection-creation-total"] == len(cluster.system.open_sockets) == 2
    assert 0 <= values["metadata-age"] < 1
    get_loop(producer).run_until(lambda: False, 90_000)
    assert producer.metric("metadata-age") == pytest.approx(90, abs=1)
    assert (producer.metric("connection-count"), producer.metric("connection-close-total")) == (0, 2)
    assert producer.metric("io-wait-time-ns-total") > 80e9


def test_refused_connection_is_not_counted_as_opened() -> None:
    cluster, producer = simulated()
    for node in range(2):
        cluster.control.stop_node(node)
    producer.send(ProducerRecord("t", b"v"))
    assert len(cluster.system.connects) > 1
    assert [producer.metric(f"connection-{suffix}") for suffix in ("count", "creation-total", "close-total")] == [
        0,
        0,
        0,
    ]
