"""Writes of one task, without a JVM, by a real producer to the embedded broker."""

from __future__ import annotations

import platform
import threading
from collections.abc import Iterator

import pyarrow as pa
import pytest

from spark_kafka_sink.errors import DeliveryError
from spark_kafka_sink.producer.column_plan import ColumnPlan
from spark_kafka_sink.producer.producer import KafkaProducer
from spark_kafka_sink.producer.results import OffsetRange
from spark_kafka_sink.protocol import error_codes
from spark_kafka_sink.protocol.message import ApiKey
from spark_kafka_sink.spark import write_task
from spark_kafka_sink.spark.constants import CONCURRENT_TASKS_OPTION
from spark_kafka_sink.spark.options.parse import parse_options
from spark_kafka_sink.spark.pool import ProducerPool
from spark_kafka_sink.spark.rate_limiter import RateLimiter
from spark_kafka_sink.spark.task_report import TaskReport
from spark_kafka_sink.spark.write_task import write_rows
from spark_kafka_sink.spark.writer import validate_reports
from spark_kafka_sink.testing import EmbeddedBroker
from tests.spark.task_cases import PLAN, TOPIC, batch, options, values
from tests.spark.task_cases import broker as broker
from tests.spark.task_cases import pool as pool


def sender_threads() -> set[threading.Thread]:
    """Return the sender threads of all producers in this process, including those of earlier tests."""
    return {thread for thread in threading.enumerate() if "kafka-producer" in thread.name}


def test_task_reports_acknowledged_rows(broker: EmbeddedBroker, pool: ProducerPool) -> None:
    plan = ColumnPlan(value=0, key=1, partition=2, fixed_topic=TOPIC)
    batches = [
        record_batch.append_column("partition", pa.array([n % 2 for n in range(record_batch.num_rows)], pa.int32()))
        for record_batch in (batch(0), batch(100))
    ]
    report = write_rows(options(broker), plan, iter(batches), pool)
    assert report.written_ranges == {TOPIC: {0: OffsetRange(0, 99, 100), 1: OffsetRange(0, 99, 100)}}
    assert (report.totals.rows, report.totals.producer.retries, report.totals.dead_letters) == (200, 0, 0)
    assert report.totals.bytes == sum(len(f"{n}key-{n}") for n in range(200)), (
        "of keys and values, without Arrow's offsets"
    )
    assert len(pool) == 1


def test_task_reports_latencies_bytes_and_host(broker: EmbeddedBroker, pool: ProducerPool) -> None:
    first = write_rows(options(broker, kafka__compression__type="zstd"), PLAN, iter([batch(0, 5_000)]), pool)
    report = write_rows(options(broker, kafka__compression__type="zstd"), PLAN, iter([batch(5_000, 100)]), pool)
    assert sum(first.totals.producer.latencies.counts.values()) == 5_000
    assert sum(report.totals.producer.latencies.counts.values()) == 100, (
        "of its own rows, though the producer is not new"
    )
    assert 0 < first.totals.producer.bytes < first.totals.producer.uncompressed_bytes
    assert report.totals.producer.uncompressed_bytes < first.totals.producer.uncompressed_bytes / 10
    assert first.started_ms <= report.started_ms
    assert report.host == platform.node()


def test_task_reports_requests_and_batches(broker: EmbeddedBroker, pool: ProducerPool) -> None:
    write_rows(options(broker), PLAN, iter([batch(0, 5_000)]), pool)
    report = write_rows(options(broker), PLAN, iter([batch(5_000, 100)]), pool)
    assert (report.totals.producer.requests, report.totals.producer.batches) == (1, 2), (
        "of this task, though the producer is not new"
    )
    assert (report.totals.producer.throttle_ms, report.totals.paced_ms) == (0, 0)


def test_tasks_without_context_have_different_ids(broker: EmbeddedBroker, pool: ProducerPool) -> None:
    reports = [write_rows(options(broker), PLAN, iter([batch(0, 10)]), pool) for _ in range(2)]
    assert len(validate_reports(list(reports))) == 2
    assert reports[0].task.task_attempt_id != reports[1].task.task_attempt_id
    assert reports[0].task.batch == "batch job"


@pytest.mark.parametrize(("acks", "is_acknowledged"), [("0", False), ("1", True), ("all", True)])
def test_task_reports_whether_brokers_acknowledge_its_rows(
    broker: EmbeddedBroker, pool: ProducerPool, acks: str, is_acknowledged: bool
) -> None:
    report = write_rows(options(broker, kafka__acks=acks), PLAN, iter([batch(0)]), pool)
    assert report.is_acknowledged == is_acknowledged


def test_task_limits_its_rate_and_reports_wait_time(
    broker: EmbeddedBroker, pool: ProducerPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    slept: list[float] = []
    monkeypatch.setattr(write_task, "RateLimiter", lambda share: RateLimiter(share, lambda: sum(slept), slept.append))
    slow = options(broker, maxBytesPerSecond="2000", **{CONCURRENT_TASKS_OPTION: "2"})
    report = write_rows(slow, PLAN, iter([batch(0, 1_000)]), pool)
    assert report.totals.rows == len(values(broker)) == 1_000
    assert report.totals.bytes / 1e3 - 1e-6 <= sum(slept), "a thousand a second for one of two tasks"
    assert report.totals.paced_ms == round(sum(slept) * 1e3)


def test_task_reports_wait_time_for_memory(broker: EmbeddedBroker, pool: ProducerPool) -> None:
    broker.control.when(api=ApiKey.PRODUCE, times=None).delay(50)
    slow = options(broker, kafka__buffer__memory="300000", kafka__batch__size="65536")
    report = write_rows(slow, PLAN, iter([batch(start, 2_000) for start in range(0, 40_000, 2_000)]), pool)
    assert report.totals.rows == 40_000
    assert report.totals.producer.blocked_ms >= 50


def test_next_task_reuses_producer(broker: EmbeddedBroker, pool: ProducerPool) -> None:
    write_rows(options(broker), PLAN, iter([batch(0)]), pool)
    before = sender_threads()
    write_rows(options(broker), PLAN, iter([batch(100)]), pool)
    assert sender_threads() <= before
    assert len(pool) == 1
    assert len(values(broker)) == 200


def test_task_without_rows_creates_no_producer(pool: ProducerPool) -> None:
    nowhere = parse_options({"kafka.bootstrap.servers": "no-such-host.invalid:1", "topic": TOPIC})
    report = write_rows(nowhere, PLAN, iter([batch(0, 0), batch(0, 0)]), pool)
    assert (report.totals.rows, len(pool)) == (0, 0)


def test_retries_are_counted(broker: EmbeddedBroker, pool: ProducerPool) -> None:
    broker.control.when(api=ApiKey.PRODUCE).fail(error_codes.NOT_LEADER_OR_FOLLOWER)
    report = write_rows(options(broker), PLAN, iter([batch(0)]), pool)
    assert report.totals.producer.retries > 0
    assert len(values(broker)) == 100


def test_task_does_not_compute_all_metrics(
    broker: EmbeddedBroker, pool: ProducerPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(KafkaProducer, "metrics")
    assert write_rows(options(broker), PLAN, iter([batch(0)]), pool).totals.rows == 100


@pytest.mark.parametrize("end", [EOFError, KeyboardInterrupt, GeneratorExit, SystemExit])
def test_killed_task_leaves_no_threads_or_connections(
    broker: EmbeddedBroker, pool: ProducerPool, end: type[BaseException]
) -> None:
    before = set(threading.enumerate())

    def interrupted() -> Iterator[pa.RecordBatch]:
        yield batch(0)
        raise end

    def task() -> TaskReport:
        return write_rows(options(broker), PLAN, interrupted(), pool)

    with pytest.raises(end):
        task()
    assert set(threading.enumerate()) <= before
    assert len(pool) == 0


@pytest.mark.parametrize("codec", ["none", "lz4"])
def test_memory_of_pending_rows_is_bounded(broker: EmbeddedBroker, pool: ProducerPool, codec: str) -> None:
    """A slow broker slows the task down, so that its memory does not grow with the input.

    With compression, rows take much less of the producer's memory than of the task's.
    """
    broker.control.when(api=ApiKey.PRODUCE, times=None).delay(20)
    pending: list[int] = []

    def watched(writing: write_task.TaskWriter, rows: pa.RecordBatch) -> None:
        write(writing, rows)
        pending.append(writing._columns_writer.pending_bytes)

    write = write_task.TaskWriter.write
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(write_task.TaskWriter, "write", watched)
        overrides = {
            "kafka__buffer__memory": "300000",
            "kafka__batch__size": "20000",
            "kafka__compression__type": codec,
        }
        write_rows(options(broker, **overrides), PLAN, (batch(n * 1000, 1000) for n in range(60)), pool)
    assert 0 < max(pending) <= 300_000
    assert len(values(broker)) == 60_000


def test_failed_record_ends_task_before_its_remaining_rows(broker: EmbeddedBroker, pool: ProducerPool) -> None:
    read: list[int] = []

    def batches() -> Iterator[pa.RecordBatch]:
        for number in range(100):
            read.append(number)
            yield pa.record_batch({"value": ["v"], "topic": pa.array([None], pa.string())})

    with pytest.raises(DeliveryError, match=r"1 record to Kafka.*null topic present in the data"):
        write_rows(options(broker), ColumnPlan(value=0, topic=1), batches(), pool)
    assert read == [0]


def test_row_whose_topic_is_not_utf8_becomes_dead_letter(broker: EmbeddedBroker, pool: ProducerPool) -> None:
    topic = pa.array([b"\xff", TOPIC.encode()]).view(pa.string())
    rows = pa.record_batch({"value": ["invalid", "valid"], "topic": topic})
    dead_letter_options = options(broker, onRecordError="deadLetter", deadLetterTopic="dead")
    report = write_rows(dead_letter_options, ColumnPlan(value=0, topic=1), iter([rows]), pool)
    assert (report.totals.rows, report.totals.dead_letters) == (1, 1)
    assert (values(broker), values(broker, "dead")) == ([b"valid"], [b"invalid"])
