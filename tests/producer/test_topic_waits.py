"""Waits of send() and send_columns() for a topic's partitions, including recently added ones."""

from __future__ import annotations

from collections.abc import Callable
from unittest.mock import Mock, PropertyMock

import pyarrow as pa
import pytest

from spark_kafka_sink.broker.handlers import load_handler
from spark_kafka_sink.client.cluster import ClusterSnapshot
from spark_kafka_sink.client.metadata import Metadata
from spark_kafka_sink.errors import InvalidRecordError, MetadataTimeoutError
from spark_kafka_sink.producer.murmur2 import compute_partitions
from spark_kafka_sink.producer.producer import KafkaProducer
from spark_kafka_sink.producer.record import ProducerRecord
from spark_kafka_sink.producer.results import RecordMetadata
from spark_kafka_sink.producer.table_plan import ColumnMapping, plan_table
from spark_kafka_sink.producer.tables import TableSender
from spark_kafka_sink.producer.topic_waits import TopicMetadataWaiter
from spark_kafka_sink.protocol.message import ApiKey
from spark_kafka_sink.protocol.messages.metadata import MetadataResponse, MetadataResponseBroker
from spark_kafka_sink.records.byte_column import ByteColumn
from spark_kafka_sink.records.columns import RecordColumns
from tests.fake_system import FakeSystem
from tests.producer.virtual_time import create_simulated_producer, get_loop, get_sender, run_until, wait_for_result
from tests.simulated_cluster import SimulatedCluster

MAX_BLOCK_MS = 20_000

Failures = Callable[[KafkaProducer, int], list[Exception]]


def simulated(**options: object) -> tuple[SimulatedCluster, KafkaProducer]:
    """Create a producer that has the metadata of topic t, which has two partitions."""
    cluster = SimulatedCluster(FakeSystem(latency_ms=1), nodes=2, topics={"t": 2})
    producer = create_simulated_producer(cluster, max_block_ms=MAX_BLOCK_MS, linger_ms=0, **options)
    producer.partitions_for("t")
    return cluster, producer


def by_record(producer: KafkaProducer, partition: int) -> list[Exception]:
    future = producer.send(ProducerRecord("t", b"v", partition=partition))
    run_until(producer, future.done)
    error = future.exception(0)
    return [error] if isinstance(error, Exception) else []


def by_columns(producer: KafkaProducer, partition: int) -> list[Exception]:
    """Send a row to partition 0 and a row to the given partition. Return the errors."""
    rows = RecordColumns(pa.array([b"zero", b"v"]))
    result = wait_for_result(producer, producer.send_columns("t", rows, pa.array([0, partition], pa.int32())))
    assert result.rows_written + result.rows_failed == 2
    assert result.rows_failed == sum(failure.row_indices.tolist() == [1] for failure in result.failures)
    return [failure.error for failure in result.failures]


BOTH_CALLS = pytest.mark.parametrize("failures", [by_record, by_columns])


@BOTH_CALLS
def test_14_writes_to_added_partition_without_delay(failures: Failures) -> None:
    cluster, producer = simulated()
    cluster.control.add_partitions("t", 4)
    started = cluster.system.now()
    assert failures(producer, 3) == []
    assert cluster.values("t", 3) == [b"v"]
    assert cluster.system.now() - started < 500


@BOTH_CALLS
def test_writes_to_partition_added_during_wait(failures: Failures) -> None:
    cluster, producer = simulated()
    cluster.system.after(800, lambda: cluster.control.add_partitions("t", 4))
    assert failures(producer, 3) == []
    assert cluster.values("t", 3) == [b"v"]


@BOTH_CALLS
def test_waits_for_missing_partition_once_until_topic_grows(failures: Failures) -> None:
    cluster, producer = simulated()
    started = cluster.system.now()
    (error,) = failures(producer, 7)
    assert isinstance(error, InvalidRecordError)
    assert "topic t has no partition 7: it has 2, numbered from 0" in str(error)
    assert 1_000 <= cluster.system.now() - started < 2_500
    for partition in (7, 8, 99):
        again = cluster.system.now()
        assert len(failures(producer, partition)) == 1
        assert cluster.system.now() - again < 10
    cluster.control.add_partitions("t", 8)
    request_count = metadata_requests(cluster)
    failures(producer, 7)
    run_until(producer, lambda: metadata_requests(cluster) > request_count)  # requested without a wait
    pass_time(producer, 10)
    assert failures(producer, 7) == []
    again = cluster.system.now()
    assert len(failures(producer, 8)) == 1
    assert cluster.system.now() - again >= 1_000  # waits again, because the topic has grown since the last failed wait


def test_refreshes_metadata_for_missing_partition_despite_slow_response() -> None:
    cluster, producer = simulated()
    cluster.control.add_partitions("t", 4)
    cluster.control.when("METADATA").delay(3_000)
    assert by_record(producer, 3) == []


def test_rows_of_call_wait_once_for_highest_requested_partition() -> None:
    cluster, producer = simulated()
    cluster.control.add_partitions("t", 4)
    started = cluster.system.now()
    rows = RecordColumns(pa.array([b"%d" % row for row in range(5)]))
    result = wait_for_result(producer, producer.send_columns("t", rows, pa.array([3, 9, 2, 8, None], pa.int32())))
    assert cluster.system.now() - started < 2_500
    assert [failure.row_indices.tolist() for failure in result.failures] == [[1, 3]]
    assert "has no partition 8 or 9: it has 4" in str(result.failures[0].error)
    assert result.rows_written == 3
    assert (cluster.values("t", 3), cluster.values("t", 2)) == ([b"0"], [b"2"])


@pytest.mark.parametrize("partition", [-1, 2**31, -(2**40), 2**40])
def test_out_of_range_partition_fails_without_wait(partition: int) -> None:
    cluster, producer = simulated()
    started = cluster.system.now()
    for request_count in (partition, pa.array([partition], pa.int64())):
        result = wait_for_result(producer, producer.send_columns("t", RecordColumns(pa.array([b"v"])), request_count))
        assert f"has no partition {partition}: it has 2" in str(result.failures[0].error)
    assert cluster.system.now() == started


@BOTH_CALLS
def test_missing_partition_in_callback_fails_immediately(failures: Failures) -> None:
    _, producer = simulated()
    errors: list[Exception] = []

    def send_more(metadata: RecordMetadata, error: Exception | None) -> None:
        columns = RecordColumns(pa.array([b"v"]))
        call = producer.send_columns("t", columns, 5) if failures is by_columns else None
        if call is not None:
            errors.append(call.result(0).failures[0].error)
        else:
            error = producer.send(ProducerRecord("t", b"v", partition=5)).exception(0)  # type: ignore[assignment]
            assert error is not None
            errors.append(error)

    wait_for_result(producer, producer.send(ProducerRecord("t", b"v"), send_more))
    assert isinstance(errors[0], InvalidRecordError)
    assert "no partition 5: it has 2" in str(errors[0])


def test_rejects_rows_above_max_request_size_before_it_hashes_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    _, producer = simulated(max_request_size=1_000)
    hashed: list[int] = []

    def counted(keys: ByteColumn, count: int) -> object:
        hashed.append(int(keys.offsets[-1] - keys.offsets[0]))
        return compute_partitions(keys, count)

    monkeypatch.setattr("spark_kafka_sink.producer.partitioner.compute_partitions", counted)
    columns = RecordColumns(pa.array([b"v"] * 3), pa.array([b"k", b"k" * 100_000, b"key"]))
    result = wait_for_result(producer, producer.send_columns("t", columns))
    assert [failure.row_indices.tolist() for failure in result.failures] == [[1]]
    assert hashed == [4]


def pass_time(producer: KafkaProducer, ms: float) -> None:
    get_loop(producer).run_until(lambda: False, ms)


def metadata_requests(cluster: SimulatedCluster) -> int:
    """Count the metadata requests. A frame begins with the API key."""
    return sum(frame[:2] == ApiKey.METADATA.value.to_bytes(2, "big") for _, _, frame in cluster.requests)


def test_one_metadata_request_covers_all_topics_of_a_table() -> None:
    cluster, producer = simulated(metadata_max_age_ms=3_600_000)
    topics = [f"topic-{number}" for number in range(50)]
    for topic in topics:
        cluster.core.create_topic(topic)
    table = pa.table({"topic": [*topics, None, "not/a/topic"], "value": ["v"] * 52})
    sender = TableSender(producer, plan_table(None, table.schema, ColumnMapping(), {}), 10)
    requests = metadata_requests(cluster)
    (batch,) = table.to_batches()
    sender._send_batch(batch, 0)
    assert metadata_requests(cluster) == requests + 1


def test_writes_to_topic_created_after_its_first_rows_failed() -> None:
    cluster, producer = simulated(metadata_max_age_ms=3_600_000, metadata_max_idle_ms=5_000)
    batch = pa.record_batch({"topic": ["late", "t"], "value": ["v", "v"]})
    other = pa.record_batch({"topic": ["t"], "value": ["v"]})
    sender = TableSender(producer, plan_table(None, batch.schema, ColumnMapping(), {}), 1_000)
    sender._send_batch(batch, 0)
    requests, started = metadata_requests(cluster), cluster.system.now()
    for row in range(60):  # no row waits again, and the topic remains in use
        sender._send_batch(batch, row)
        sender._send_batch(other, row)
        pass_time(producer, 1_000)
    assert cluster.system.now() - started == pytest.approx(60_000, abs=1_000)
    assert metadata_requests(cluster) - requests <= 80
    assert sender.result.rows_failed == 61
    cluster.core.create_topic("late", 1)
    pass_time(producer, 3_000)
    sender._send_batch(batch, 60)
    pass_time(producer, 1_000)
    assert sender.result.rows_failed == 61
    assert cluster.values("late") == [b"v"]


def test_sender_does_not_spin_during_wait_for_metadata() -> None:
    cluster, producer = simulated()
    rounds, request_count = get_loop(producer).rounds, metadata_requests(cluster)
    by_columns(producer, 5)
    assert metadata_requests(cluster) - request_count < 40
    assert get_loop(producer).rounds - rounds < 200


def test_retries_with_backoff_if_metadata_response_omits_topic() -> None:
    cluster, producer = simulated(retry_backoff_ms=100)
    cluster.core.create_topic("left-out")
    response = MetadataResponse(brokers=[MetadataResponseBroker(node_id=0, host="broker0", port=9092)], topics=[])
    request_count = metadata_requests(cluster)
    with pytest.MonkeyPatch.context() as leaving_out:
        leaving_out.setattr(load_handler(ApiKey.METADATA), "handle", lambda context, request: response)
        error = producer.send("left-out", b"v").exception(0)
    assert isinstance(error, MetadataTimeoutError)
    assert "Brokers responded, but their response does not contain this topic." in str(error)
    assert metadata_requests(cluster) - request_count < 40


def test_returns_snapshot_that_contains_topic_although_next_one_does_not() -> None:
    cluster, producer = simulated()
    known, gone = get_sender(producer).metadata.snapshot, ClusterSnapshot()
    metadata = Mock(spec=Metadata)
    type(metadata).snapshot = PropertyMock(side_effect=[gone, known, gone, gone])
    topics = TopicMetadataWaiter(
        metadata, Mock(), Mock(), wake_sender=Mock(), max_block_ms=MAX_BLOCK_MS, system=cluster.system
    )
    assert topics.await_partitions("t", 0, 1) is known
