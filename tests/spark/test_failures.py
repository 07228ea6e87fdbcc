"""A task with failed records stops reading and raises one error, whose size does not grow with their number."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pyarrow as pa
import pytest

from spark_kafka_sink.diagnostics.text import format_partition
from spark_kafka_sink.errors import (
    DeliveryError,
    DeliveryTimeoutError,
    DisconnectedError,
    InvalidRecordError,
    KafkaSinkError,
)
from spark_kafka_sink.producer.column_plan import ColumnPlan
from spark_kafka_sink.records.columns import RecordColumns
from spark_kafka_sink.spark.failures import Failures
from spark_kafka_sink.spark.options.parse import parse_options
from spark_kafka_sink.spark.pool import create_pool
from spark_kafka_sink.spark.task_report import TaskIdentity
from spark_kafka_sink.spark.write_task import write_rows
from spark_kafka_sink.testing import embedded_broker

PARTITION_COUNT = 1_000


def test_error_lists_few_partitions_and_counts_all_records() -> None:
    failures = Failures(TaskIdentity(partition_id=0, attempt_number=0, task_attempt_id=0, stage_id=0))
    for partition in range(PARTITION_COUNT):
        failures.add("t", partition, InvalidRecordError("no"), RecordColumns(pa.array([b"a", b"b"])))
    text = str(failures.build_error(parse_options({"kafka.bootstrap.servers": "host:9092"})))
    assert f"failed to write {2 * PARTITION_COUNT:,} records to Kafka" in text
    assert text.count("topic 't'") == 10
    assert f"and {2 * PARTITION_COUNT - 20:,} more records (other topics, partitions or reasons)" in text


@pytest.mark.parametrize("guarantee", ["at-least-once", "exactly-once"])
def test_error_suggests_dead_letters_only_where_they_are_allowed(guarantee: str) -> None:
    failures = Failures(TaskIdentity(0, 0, 0, 0))
    failures.add("t", 0, InvalidRecordError("too old"), RecordColumns(pa.array([b"v"])))
    options = parse_options({"kafka.bootstrap.servers": "host:9092", "topic": "t", "deliveryGuarantee": guarantee})
    assert ("deadLetter" in str(failures.build_error(options))) == (guarantee == "at-least-once")


def with_cause(error: KafkaSinkError, cause: Exception) -> KafkaSinkError:
    error.__cause__ = cause
    return error


def test_error_has_one_line_per_partition_and_cause() -> None:
    failures = Failures(TaskIdentity(partition_id=0, attempt_number=0, task_attempt_id=0, stage_id=0))
    connection_failure = (
        "The partition's leader, broker 1 (b:9092), cannot be reached: Connection refused. "
        "Check that the broker is running."
    )
    for number, reason in enumerate([", and never sent.", ". The last error was:", ", and never sent."]):
        text = f"not acknowledged within 500 ms{reason} {connection_failure}"
        rows = RecordColumns(pa.array([b"v"] * 10), pa.array([b"k%d" % number] * 10))
        error = DeliveryTimeoutError(text, destination="topic t, partition 3", possibly_stored=number == 1)
        failures.add("t", 3, with_cause(error, DisconnectedError(connection_failure)), rows)
    timeout = DeliveryTimeoutError("not acknowledged.", destination="topic t, partition 3")
    other_error = with_cause(timeout, DisconnectedError("Silence."))
    failures.add("t", 3, other_error, RecordColumns(pa.array([b"v"])))
    lines = str(failures.build_error(parse_options({"kafka.bootstrap.servers": "host:9092"}))).splitlines()
    assert lines == [
        "The task for Spark partition 0 (stage 0, attempt 0) failed to write 31 records to Kafka. "
        f"DeliveryTimeoutError: not acknowledged within 500 ms. The last error was: {connection_failure} The "
        "records may have been stored.",
        "- topic 't', partition 3: 30 records, for example with key 'k0'.",
        "- topic 't', partition 3: 1 record, for example with no key. DeliveryTimeoutError: not acknowledged.",
    ]


def test_error_names_topic_once_even_if_it_is_named_like_an_option() -> None:
    topic = "linger.ms"
    failures = Failures(TaskIdentity(partition_id=0, attempt_number=0, task_attempt_id=0, stage_id=0))
    failures.add(
        topic,
        3,
        DeliveryTimeoutError("not acknowledged.", destination=format_partition(topic, 3)),
        RecordColumns(pa.array([b"v"])),
    )
    lines = str(failures.build_error(parse_options({"kafka.bootstrap.servers": "host:9092"}))).splitlines()
    assert lines == [
        "The task for Spark partition 0 (stage 0, attempt 0) failed to write 1 record to Kafka. "
        "DeliveryTimeoutError: not acknowledged.",
        "- topic 'linger.ms', partition 3: 1 record, for example with no key.",
    ]


def test_error_of_task_that_reaches_no_broker_has_remedy() -> None:
    """Without the check before the write, the task is the first to connect."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        servers = f"127.0.0.1:{unused.getsockname()[1]}"
        options = {"kafka.bootstrap.servers": servers, "kafka.max.block.ms": "200", "checkConnection": "false"}
        batches = iter([pa.record_batch({"value": [b"v"]})])
        with pytest.raises(DeliveryError) as error:
            write_rows(parse_options(options), ColumnPlan(value=0, fixed_topic="t"), batches, create_pool())
    message = str(error.value)
    assert "did not become known within kafka.max.block.ms (200 ms). Tried: " in message
    assert f"{servers}: Connection refused. Check the host and port, that a broker listens there, " in message


def test_task_stops_reading_after_failed_record() -> None:
    batches_read: list[int] = []

    def batches() -> Iterator[pa.RecordBatch]:
        for number in range(100):
            batches_read.append(number)
            yield pa.record_batch({"value": [b"x" * 300_000]})

    pool = create_pool()
    with embedded_broker(topics={"t": 1}) as broker:
        options = {"kafka.bootstrap.servers": broker.bootstrap_servers, "kafka.max.request.size": "200000"}
        with pytest.raises(DeliveryError, match="failed to write 1 record to Kafka"):
            write_rows(parse_options(options), ColumnPlan(value=0, fixed_topic="t"), batches(), pool)
    assert batches_read == [0]
