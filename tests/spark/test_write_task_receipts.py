"""Receipts of a task: the digest of each partition matches the rows that a consumer reads from it."""

from __future__ import annotations

import pyarrow as pa
import pytest

from spark_kafka_sink.errors import ConfigurationError
from spark_kafka_sink.producer.results import OffsetRange
from spark_kafka_sink.records.columns import RecordColumns
from spark_kafka_sink.records.record_hash import compute_digest, hash_records
from spark_kafka_sink.reports.write_report import parse_report
from spark_kafka_sink.spark.options.parse import parse_options
from spark_kafka_sink.spark.pool import ProducerPool
from spark_kafka_sink.spark.task_report import build_write_report
from spark_kafka_sink.spark.write_task import write_rows
from spark_kafka_sink.testing import EmbeddedBroker, read_topic
from tests.spark.task_cases import PLAN, TOPIC, batch, options
from tests.spark.task_cases import broker as broker
from tests.spark.task_cases import pool as pool

RECEIPT = {"receipt": "true", "reportTopic": "reports"}


def stored_ranges(broker: EmbeddedBroker) -> dict[int, OffsetRange]:
    """Compute the receipt of each partition from its stored rows."""
    table = read_topic(broker.bootstrap_servers, TOPIC)
    ranges = {}
    for partition in set(table["partition"].to_pylist()):
        rows = table.filter(pa.compute.equal(table["partition"], partition))
        offsets = rows["offset"].to_pylist()
        columns = RecordColumns(rows["value"], rows["key"], rows["headers"])
        ranges[partition] = OffsetRange(min(offsets), max(offsets), len(offsets), compute_digest(hash_records(columns)))
    return ranges


def test_report_has_digests_of_all_partitions(broker: EmbeddedBroker, pool: ProducerPool) -> None:
    tasks = [
        write_rows(options(broker, **RECEIPT), PLAN, iter([batch(0), batch(50, 200)]), pool),
        write_rows(options(broker, **RECEIPT), PLAN, iter([batch(1_000)]), pool),
    ]
    report = build_write_report(tasks)
    assert report.partitions == {TOPIC: stored_ranges(broker)}
    assert parse_report(report.to_json()).partitions == report.partitions
    assert f'"digest": "{report.partitions[TOPIC][0].digest:032x}"' in report.to_json()


def test_report_has_no_digests_by_default(broker: EmbeddedBroker, pool: ProducerPool) -> None:
    report = build_write_report([write_rows(options(broker), PLAN, iter([batch(0)]), pool)])
    assert [written.digest for written in report.partitions[TOPIC].values()] == [None, None]
    assert "digest" not in report.to_json()


def test_dead_letters_are_not_part_of_a_receipt(broker: EmbeddedBroker, pool: ProducerPool) -> None:
    rows = pa.record_batch({"value": [b"1", b"x" * 5_000_000, b"2", b"3"], "key": ["a", "b", "c", "d"]})
    sink_options = options(
        broker, **RECEIPT, onRecordError="deadLetter", deadLetterTopic="dead", kafka__max__request__size="2000000"
    )
    report = build_write_report([write_rows(sink_options, PLAN, iter([rows]), pool)])
    assert report.dead_letters == 1
    assert report.partitions == {TOPIC: stored_ranges(broker)}
    assert sum(written.rows for written in report.partitions[TOPIC].values()) == 3


def test_rejects_receipt_without_acknowledgements() -> None:
    base_options = {"kafka.bootstrap.servers": "localhost:9092", "topic": TOPIC, "kafka.acks": "0"} | RECEIPT
    with pytest.raises(ConfigurationError, match=r"'receipt' is true, so kafka\.acks must not be 0"):
        parse_options(base_options)


def test_rejects_receipt_without_report_destination() -> None:
    base_options = {"kafka.bootstrap.servers": "localhost:9092", "topic": TOPIC, "receipt": "true"}
    message = r"Option 'receipt' is true, so 'reportPath', 'reportTopic' or 'reportCallback' must be set"
    with pytest.raises(ConfigurationError, match=message):
        parse_options(base_options)
    for destination in ({"reportPath": "/tmp/reports"}, {"reportTopic": "reports"}, {"reportCallback": "job:report"}):
        assert parse_options(base_options | destination).include_digests


def test_receipt_is_no_second_fault_if_the_report_destination_is_invalid() -> None:
    base_options = {"kafka.bootstrap.servers": "localhost:9092", "receipt": "true", "reportTopic": "no topic"}
    with pytest.raises(ConfigurationError, match="'reportTopic' must be a topic name") as error_info:
        parse_options(base_options)
    assert "receipt" not in str(error_info.value)
