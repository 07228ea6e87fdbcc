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
from pyspark.sql.streaming.query import StreamingQuery

from integration.support.driver_process import DriverProcess, newest
from integration.support.exactly_once_jobs import ROWS_PER_BATCH, start_stream, write_job
from integration.support.kafka_cluster import KafkaCluster
from integration.support.librdkafka import create_topic, read_topic
from integration.support.lost_shuffle import FIRST_RUN, ROWS, SECOND_RUN, TASKS, run_again, was_run_again
from integration.support.open_transactions import ongoing, open_ids, wait_until_ended
from integration.support.stops import DriverEndedError, Stops
from integration.support.stream_history import anomalies_of_rows
from spark_kafka_sink.exactly_once.operations import abort
from spark_kafka_sink.exactly_once.transaction_names import derive_prefix, normalize_checkpoint, split_task_id
from tests.waiting import wait_until

pytestmark = pytest.mark.needs("kafka")

EXACTLY_ONCE = {"deliveryGuarantee": "exactly-once"}
TIMEOUTS_MS = (80_000, 320_000)
"""Transaction timeouts: the second is for a machine on which a micro-batch takes longer than the first."""


def numbers(kafka: KafkaCluster, topic: str, isolation: str = "read_committed") -> Counter[int]:
    return Counter(int(record.value or b"") for record in read_topic(kafka.bootstrap(), topic, isolation=isolation))


class Stream:
    """One query that writes exactly once, and the drivers that run it, one after the other or at once."""

    def __init__(self, kafka: KafkaCluster, folder: Path, **options: str) -> None:
        self.kafka = kafka
        self.folder = folder
        self.topic = create_topic(kafka.bootstrap(), partitions=3)
        self.checkpoint = folder / self.topic
        self.stops = Stops(folder / "steps")
        self._options = EXACTLY_ONCE | {name.replace("_", "."): value for name, value in options.items()}

    def driver(self) -> DriverProcess:
        """Start it in a driver of its own, which can be stopped and killed."""
        wanted = json.dumps({self.topic: self._options})
        arguments = ["exactly_once_jobs", "streams", self.kafka.bootstrap(), str(self.folder), wanted]
        return DriverProcess(arguments, self.folder, self.stops.environment)

    def start(self, spark: SparkSession) -> StreamingQuery:
        """Start it in the driver of the tests."""
        return start_stream(spark, self.kafka.bootstrap(), self.topic, str(self.folder), self._options)

    def wait_for_first_commit(self, driver: DriverProcess) -> None:
        wait_until(lambda: newest(self.checkpoint / "commits") >= 0 or driver.has_ended)

    def assert_each_row_once(self) -> None:
        batches = newest(self.checkpoint / "commits") + 1
        assert anomalies_of_rows(read_topic(self.kafka.bootstrap(), self.topic), batches, ROWS_PER_BATCH) == []


def kill_driver_after_decision(kafka: KafkaCluster, folder: Path) -> Stream:
    """Return a stream whose last batch is decided and not committed.

    A driver does not decide when too little is left of the transaction timeout: it ends, and the next one has more.
    """
    for timeout_ms in TIMEOUTS_MS:
        stream = Stream(kafka, folder / str(timeout_ms), kafka_transaction_timeout_ms=str(timeout_ms))
        driver = stream.driver()
        try:
            driver.begin()
            stream.wait_for_first_commit(driver)
            stream.stops.stop(driver, "after decide")
            return stream
        except DriverEndedError:
            if timeout_ms == TIMEOUTS_MS[-1]:
                raise
        finally:
            driver.kill()
    raise AssertionError("there is no timeout")


@pytest.fixture(scope="module")
def decided(kafka: KafkaCluster, tmp_path_factory: pytest.TempPathFactory) -> Stream:
    """A stream whose driver was killed when it had decided, and not committed, its last batch."""
    return kill_driver_after_decision(kafka, tmp_path_factory.mktemp("decided"))


@pytest.mark.usefixtures("decided")  # its transactions time out while the next tests run
def test_older_of_two_drivers_on_one_checkpoint_is_fenced_without_duplicates(
    spark: SparkSession, kafka: KafkaCluster, tmp_path: Path
) -> None:
    stream = Stream(kafka, tmp_path)
    older, newer = stream.driver(), None
    try:
        older.begin()
        stream.wait_for_first_commit(older)
        stream.stops.stop(older, "before decide")
        last_batch = newest(stream.checkpoint / "commits") + 3
        newer = stream.start(spark)
        wait_until_committed(stream, newer, last_batch - 1)
        stream.stops.release("before decide")
        assert older.wait() != 0
        wait_until_committed(stream, newer, last_batch)
    finally:
        older.kill()
        if newer is not None:
            newer.stop()
    assert "a newer driver has taken over the query" in older.log.read_text(errors="replace")
    stream.assert_each_row_once()


def test_driver_suspended_during_start_duplicates_no_rows(
    spark: SparkSession, kafka: KafkaCluster, tmp_path: Path
) -> None:
    """It has its epoch, and has not read the log under it."""
    stream = Stream(kafka, tmp_path)
    older, newer = stream.driver(), None
    try:
        older.begin()
        stream.stops.stop(older, "after fence")
        newer = stream.start(spark)
        wait_until_committed(stream, newer, 2)
        stream.stops.release("after fence")
        assert older.wait() != 0
        wait_until_committed(stream, newer, newest(stream.checkpoint / "commits") + 2)
    finally:
        older.kill()
        if newer is not None:
            newer.stop()
    assert "A newer driver has taken over the query" in older.log.read_text(errors="replace")
    stream.assert_each_row_once()


def test_suspended_abort_keeps_decision_of_newer_driver(
    spark: SparkSession, kafka: KafkaCluster, tmp_path: Path
) -> None:
    """It has listed what it will end. The newer one has committed a batch, and dies before Spark has noted that."""
    stream = Stream(kafka, tmp_path)
    older, newer, last = stream.driver(), stream.driver(), None
    try:
        older.begin()
        stream.wait_for_first_commit(older)
        stream.stops.abort(older, "after list")
        newer.begin()
        stream.stops.stop(newer, "after commit")
        stream.stops.release("after list")
        assert older.wait() != 0
        newer.kill()
        stream.stops.forget()
        last = stream.start(spark)
        wait_until_committed(stream, last, newest(stream.checkpoint / "commits") + 3)
    finally:
        for each in (older, newer):
            each.kill()
        if last is not None:
            last.stop()
    stream.assert_each_row_once()


def test_aborts_transactions_of_killed_unnamed_job_by_prefix(
    spark: SparkSession, kafka: KafkaCluster, tmp_path: Path
) -> None:
    topic = create_topic(kafka.bootstrap(), partitions=3)
    stops = Stops(tmp_path / "steps")
    before = open_ids(kafka, "pykafka-job")
    driver = DriverProcess(["exactly_once_jobs", "job", kafka.bootstrap(), topic], tmp_path, stops.environment)
    try:
        driver.begin()
        stops.stop(driver, "before decide")
    finally:
        driver.kill()
    write_job(spark, kafka.bootstrap(), topic)
    left = open_ids(kafka, "pykafka-job") - before
    (prefix,) = {split[0] for split in map(split_task_id, left) if split is not None}
    assert abort({"bootstrap.servers": kafka.bootstrap()}, prefix)
    assert ongoing(kafka, prefix) == []
    assert numbers(kafka, topic) == dict.fromkeys(range(ROWS_PER_BATCH), 1)


def wait_until_committed(stream: Stream, query: StreamingQuery, batch: int) -> None:
    wait_until(lambda: newest(stream.checkpoint / "commits") >= batch or not query.isActive)
    assert query.isActive, query.exception()


def test_rejects_fixed_prefix_after_checkpoint_was_deleted(
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


def test_failed_job_leaves_no_visible_rows_and_blocks_no_reader(spark: SparkSession, kafka: KafkaCluster) -> None:
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


# --- shuffle files are lost, and Spark runs a stage again


@pytest.mark.parametrize(("cluster", "loser"), [("kafka_of_version_1", SECOND_RUN), ("kafka", FIRST_RUN)])
def test_stage_rerun_after_lost_shuffle_files_is_written_once(
    spark: SparkSession, request: pytest.FixtureRequest, tmp_path: Path, cluster: str, loser: int
) -> None:
    kafka: KafkaCluster = request.getfixturevalue(cluster)
    topic = create_topic(kafka.bootstrap(), partitions=3)
    rows = spark.range(0, ROWS, 1, 1).repartition(TASKS, "id").mapInArrow(run_again(tmp_path, loser), "id LONG")
    writer = rows.selectExpr("CAST(id AS STRING) AS value").write.format("pykafka").options(**EXACTLY_ONCE)
    try:
        writer.options(**{"kafka.bootstrap.servers": kafka.bootstrap(), "topic": topic}).save()
    finally:
        (tmp_path / "over").touch()
    assert was_run_again(tmp_path)
    wait_until_ended(kafka, "pykafka-job")
    count = numbers(kafka, topic)
    assert (len(count), set(count.values())) == (ROWS, {1})


# --- what was decided is committed too late


def test_commit_after_transaction_timeout_fails_without_duplicates(
    spark: SparkSession, kafka: KafkaCluster, decided: Stream
) -> None:
    stream = decided
    lost = newest(stream.checkpoint / "offsets")
    prefix = derive_prefix("stream", normalize_checkpoint(str(stream.checkpoint)))
    wait_until_ended(kafka, prefix)
    for _ in range(2):
        with pytest.raises(Exception, match="cannot be committed any more") as failure:
            stream.start(spark).awaitTermination()
        said = " ".join(str(failure.value).split())
        assert f"batch {lost} of query" in said
        assert "rows of Spark's partition 0, producer id" in said
    stored = read_topic(kafka.bootstrap(), stream.topic)
    assert len(stored) == lost * ROWS_PER_BATCH
    assert anomalies_of_rows(stored, lost, ROWS_PER_BATCH) == []
