"""Exactly once in Spark, on a real Kafka, where tasks, drivers and jobs fail in ways that a kill does not show."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from integration.support.driver_process import DriverProcess, newest
from integration.support.exactly_once_jobs import ROWS_PER_BATCH
from integration.support.kafka_cluster import KafkaCluster
from integration.support.librdkafka import create_topic, read_topic
from integration.support.open_transactions import ongoing, wait_until_ended
from integration.support.stops import Stops
from spark_kafka_sink.exactly_once.names import checkpoint_name, prefix_of
from tests.waiting import wait_until

pytestmark = pytest.mark.needs("kafka")

EXACTLY_ONCE = {"deliveryGuarantee": "exactly-once"}
TIMEOUT_MS = 20_000
"""Of a transaction: a micro-batch takes less, on a busy machine too."""


def numbers(kafka: KafkaCluster, topic: str, isolation: str = "read_committed") -> Counter[int]:
    return Counter(int(record.value or b"") for record in read_topic(kafka.bootstrap(), topic, isolation=isolation))


class Stream:
    """One query that writes exactly once, and the drivers that run it, one after the other or at once."""

    def __init__(self, kafka: KafkaCluster, folder: Path, **options: str) -> None:
        self.kafka = kafka
        self.folder = folder
        self.topic = create_topic(kafka.bootstrap(), partitions=3)
        self.checkpoint = folder / self.topic
        self.stops: dict[str, Stops] = {}
        """By the name of the driver."""
        self._options = EXACTLY_ONCE | {name.replace("_", "."): value for name, value in options.items()}

    def driver(self, name: str) -> DriverProcess:
        """Start a driver with a folder of its own for its log and for the steps at which it must stop."""
        folder = self.folder / name
        self.stops[name] = Stops(folder / "steps")
        wanted = json.dumps({self.topic: self._options})
        arguments = ["exactly_once_jobs", "streams", self.kafka.bootstrap(), str(self.folder), wanted]
        return DriverProcess(arguments, folder, self.stops[name].environment)

    def log(self, name: str) -> str:
        return (self.folder / name / "driver.log").read_text(errors="replace")

    def assert_each_row_once(self) -> None:
        count = numbers(self.kafka, self.topic)
        rows = (newest(self.checkpoint / "commits") + 1) * ROWS_PER_BATCH
        assert [number for number, times in count.items() if times > 1] == []
        assert [number for number in range(rows) if not count[number]] == []


def test_two_drivers_on_one_checkpoint_the_older_is_fenced_and_nothing_is_doubled(
    kafka: KafkaCluster, tmp_path: Path
) -> None:
    stream = Stream(kafka, tmp_path)
    older, newer = stream.driver("older"), stream.driver("newer")
    try:
        older.begin()
        wait_until(lambda: newest(stream.checkpoint / "commits") >= 0 or older.has_ended)
        stream.stops["older"].stop(older, "before decide")
        last_batch = newest(stream.checkpoint / "commits") + 3
        newer.begin(batches=3)
        wait_until(lambda: newest(stream.checkpoint / "commits") >= last_batch - 1 or newer.has_ended)
        stream.stops["older"].release("before decide")
        assert older.wait() != 0
        assert newer.wait() == 0, stream.log("newer")[-3000:]
    finally:
        older.kill()
        newer.kill()
    assert "a newer driver has taken over the query" in stream.log("older")
    stream.assert_each_row_once()


def test_a_commit_that_comes_after_the_transactions_timeout_fails_loudly_and_doubles_nothing(
    kafka: KafkaCluster, tmp_path: Path
) -> None:
    stream = Stream(kafka, tmp_path, kafka_transaction_timeout_ms=str(TIMEOUT_MS))
    first, second, third = (stream.driver(name) for name in ("first", "second", "third"))
    try:
        first.begin()
        wait_until(lambda: newest(stream.checkpoint / "commits") >= 0 or first.has_ended)
        stream.stops["first"].stop(first, "after decide")
        first.kill()
        lost = newest(stream.checkpoint / "offsets")
        prefix = prefix_of("stream", checkpoint_name(str(stream.checkpoint)))
        wait_until_ended(kafka, prefix)
        for name, driver in (("second", second), ("third", third)):
            driver.begin()
            assert driver.wait() != 0
            log = stream.log(name)
            assert f"batch {lost} of query" in log
            assert "cannot be committed any more" in log
            assert "rows of Spark's partition 0, producer id" in log
    finally:
        for driver in (first, second, third):
            driver.kill()
    count = numbers(kafka, stream.topic)
    assert sorted(count) == list(range(lost * ROWS_PER_BATCH))
    assert set(count.values()) == {1}


def test_a_deleted_checkpoint_with_a_fixed_prefix_is_refused_with_the_reason(
    spark: SparkSession, kafka: KafkaCluster, tmp_path: Path
) -> None:
    topic = create_topic(kafka.bootstrap(), partitions=3)
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "1.txt").write_text("1\n2\n")

    def run() -> None:
        words = spark.readStream.text(str(tmp_path / "source"))
        writer = words.writeStream.format("pykafka").options(**EXACTLY_ONCE, transactionalIdPrefix=topic)
        writer = writer.option("kafka.bootstrap.servers", kafka.bootstrap()).option("topic", topic)
        writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True)
        writer.start().awaitTermination()

    run()
    shutil.rmtree(tmp_path / "checkpoint")
    with pytest.raises(Exception, match="belongs to another query") as failure:
        run()
    assert "checkpoint was deleted" in " ".join(str(failure.value).split())
    assert numbers(kafka, topic) == {1: 1, 2: 1}


def test_of_a_job_that_fails_in_the_middle_nothing_is_seen_and_no_reader_waits(
    spark: SparkSession, kafka: KafkaCluster
) -> None:
    topic = create_topic(kafka.bootstrap(), partitions=3)

    def fails_at_last(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for each in batches:
            if 99_999 in each.column(0).to_pylist():
                raise ValueError("the last row is bad")
            yield each

    frame = spark.range(0, 100_000, 1, 4).mapInArrow(fails_at_last, "id LONG").selectExpr("CAST(id AS STRING) AS value")
    writer = frame.write.format("pykafka").option("kafka.bootstrap.servers", kafka.bootstrap()).option("topic", topic)
    with pytest.raises(Exception, match="the last row is bad"):
        writer.options(**EXACTLY_ONCE).save()
    after = spark.range(3).selectExpr("CAST(id AS STRING) AS value").write.format("pykafka").options(**EXACTLY_ONCE)
    after.option("kafka.bootstrap.servers", kafka.bootstrap()).option("topic", topic).save()
    assert numbers(kafka, topic) == {0: 1, 1: 1, 2: 1}
    assert sum(numbers(kafka, topic, "read_uncommitted").values()) > 10_000


def test_tasks_that_are_run_again_write_each_row_once(kafka: KafkaCluster, tmp_path: Path) -> None:
    rows = 40_000
    topic = create_topic(kafka.bootstrap(), partitions=3)
    driver = DriverProcess(["exactly_once_jobs", "retries", kafka.bootstrap(), topic, str(rows)], tmp_path)
    try:
        assert driver.wait() == 0, driver.log.read_text(errors="replace")[-3000:]
    finally:
        driver.kill()
    count = numbers(kafka, topic)
    assert sorted(count) == list(range(rows))
    assert set(count.values()) == {1}
    assert sum(numbers(kafka, topic, "read_uncommitted").values()) > rows, "no attempt was lost"
    assert ongoing(kafka, "pykafka-job") == []
