"""Receipts of Spark writes to a real Kafka cluster, verified with `pykafka verify` before and after topic damage."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from integration.support.kafka_cluster import KafkaCluster
from integration.support.librdkafka import TIMEOUT_SECONDS, create_topic, delete_topic
from integration.test_receipt_verifier import verifier as verifier
from spark_kafka_sink.cli import main

pytestmark = pytest.mark.needs("kafka")

ROWS = 2_000
EXACTLY_ONCE = {"deliveryGuarantee": "exactly-once"}
Output = pytest.CaptureFixture[str]


class Receipts:
    """A topic with one partition, the reports of all writes to it, and `pykafka verify`."""

    def __init__(self, kafka: KafkaCluster, folder: Path, output: Output, **topic_config: str) -> None:
        self.bootstrap = kafka.bootstrap()
        self.topic = create_topic(self.bootstrap, partitions=1, replicas=1, for_java_producer=False, **topic_config)
        self.options = {"kafka.bootstrap.servers": self.bootstrap, "topic": self.topic, "receipt": "true"}
        self.options["reportPath"] = str(folder / "reports.jsonl")
        self._output = output

    def write(self, frame: DataFrame, **options: str) -> None:
        frame.write.format("pykafka").options(**self.options, **options).mode("append").save()

    def verify(self, *arguments: str) -> tuple[int, str]:
        """Return the exit status and the output."""
        self._output.readouterr()
        status = main(["verify", self.options["reportPath"], "--bootstrap-server", self.bootstrap, *arguments])
        return status, self._output.readouterr().out

    def produce(self, value: bytes) -> None:
        """Write one record with librdkafka."""
        producer = Producer({"bootstrap.servers": self.bootstrap})
        producer.produce(self.topic, value, partition=0)
        assert producer.flush(TIMEOUT_SECONDS) == 0

    def delete_records(self, before_offset: int) -> None:
        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        for deleted in admin.delete_records([TopicPartition(self.topic, 0, before_offset)]).values():
            deleted.result(TIMEOUT_SECONDS)

    def produce_and_abort(self, value: bytes) -> None:
        producer = Producer({"bootstrap.servers": self.bootstrap, "transactional.id": self.topic})
        producer.init_transactions(TIMEOUT_SECONDS)
        producer.begin_transaction()
        producer.produce(self.topic, value, partition=0)
        assert producer.flush(TIMEOUT_SECONDS) == 0
        producer.abort_transaction(TIMEOUT_SECONDS)


CreateReceipts = Callable[..., Receipts]


@pytest.fixture
def create_receipts(kafka: KafkaCluster, tmp_path: Path, capsys: Output) -> CreateReceipts:
    return lambda **topic_config: Receipts(kafka, tmp_path, capsys, **topic_config)


def numbered(spark: SparkSession, start: int, stop: int, value: str = "concat('value ', id)") -> DataFrame:
    header = "array(named_struct('key', 'h', 'value', CAST('x' AS BINARY)))"
    headers = f"CASE WHEN id % 2 = 0 THEN {header} END AS headers"
    return spark.range(start, stop, numPartitions=3).selectExpr(
        "CAST(id AS STRING) AS key", f"{value} AS value", headers
    )


def assert_intact(receipts: Receipts) -> None:
    status, output = receipts.verify()
    assert status == 0, output
    assert output.splitlines()[2].split()[-1] == "intact", output


def test_batch_is_intact_with_compression_and_broker_timestamps(
    spark: SparkSession, create_receipts: CreateReceipts
) -> None:
    receipts = create_receipts(message_timestamp_type="LogAppendTime", compression_type="lz4")
    receipts.write(numbered(spark, 0, ROWS), **{"kafka.compression.type": "zstd"})
    assert_intact(receipts)


def test_map_in_arrow_is_intact(spark: SparkSession, create_receipts: CreateReceipts) -> None:
    receipts = create_receipts()
    receipts.write(numbered(spark, 0, ROWS), writeMethod="mapInArrow", **EXACTLY_ONCE)
    assert_intact(receipts)


def test_aborted_records_between_committed_writes_do_not_count(
    spark: SparkSession, create_receipts: CreateReceipts
) -> None:
    receipts = create_receipts()
    receipts.write(numbered(spark, 0, ROWS), **EXACTLY_ONCE)
    failing = numbered(spark, ROWS, 2 * ROWS, f"IF(id < {2 * ROWS - 1}, 'aborted', raise_error('broken row'))")
    with pytest.raises(PySparkException, match="broken row"):
        receipts.write(failing, **EXACTLY_ONCE)
    receipts.produce_and_abort(b"aborted by another producer")
    receipts.write(numbered(spark, 2 * ROWS, 3 * ROWS), **EXACTLY_ONCE)
    assert_intact(receipts)
    status, output = receipts.verify("--isolation", "read_uncommitted")
    assert (status, "from other writers" in output) == (0, True), output


@pytest.mark.needs("go")
def test_verifier_in_go_agrees(spark: SparkSession, create_receipts: CreateReceipts, verifier: Path) -> None:
    receipts = create_receipts()
    command = [str(verifier), receipts.options["reportPath"], receipts.bootstrap]
    receipts.write(numbered(spark, 0, ROWS), **EXACTLY_ONCE)
    receipts.produce_and_abort(b"aborted by another producer")
    receipts.write(numbered(spark, ROWS, 2 * ROWS), **EXACTLY_ONCE)
    assert_intact(receipts)
    # The verifier in Go does not merge reports: it verifies the range of each write.
    assert subprocess.run(command, check=False).returncode == 0
    receipts.delete_records(before_offset=7)
    assert subprocess.run(command, check=False).returncode == 1
    assert receipts.verify()[0] == 1


def test_stream_is_intact_exactly_once(spark: SparkSession, create_receipts: CreateReceipts, tmp_path: Path) -> None:
    receipts = create_receipts()
    source = tmp_path / "source"
    numbered(spark, 0, ROWS).drop("headers").write.parquet(str(source))
    stream = spark.readStream.schema("key STRING, value STRING").option("maxFilesPerTrigger", 1).parquet(str(source))
    writer = stream.writeStream.format("pykafka").options(**receipts.options, **EXACTLY_ONCE)
    query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True).start()
    query.processAllAvailable()
    query.awaitTermination()
    assert_intact(receipts)
    assert f" {ROWS}   {ROWS}  intact" in receipts.verify()[1]


def test_records_of_shortened_and_recreated_topic_are_missing(
    spark: SparkSession, create_receipts: CreateReceipts
) -> None:
    receipts = create_receipts()
    receipts.write(numbered(spark, 0, ROWS))
    receipts.delete_records(before_offset=7)
    status, output = receipts.verify()
    assert status == 1
    assert "at least 7 records missing: the partition now begins at offset 7" in output
    delete_topic(receipts.bootstrap, receipts.topic)
    create_topic(receipts.bootstrap, receipts.topic)
    receipts.produce(b"new")
    status, output = receipts.verify()
    assert status == 1
    assert "at least 1,999 records missing: the partition now ends at offset 1" in output
