"""Exactly-once Spark writes on a real Kafka cluster: suspended drivers, rerun stages and expired commits."""

from __future__ import annotations

import os
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from integration.support.driver_process import DriverProcess, find_newest_batch_id
from integration.support.exactly_once_jobs import ROWS_PER_BATCH, start_stream
from integration.support.kafka_cluster import KafkaCluster
from integration.support.librdkafka import create_topic, read_topic
from integration.support.lost_shuffle import (
    FIRST_RUN,
    JOB_ENDED_FILE,
    ROWS,
    SECOND_RUN,
    TASKS,
    had_concurrent_runs,
    rerun_stage,
)
from integration.support.open_transactions import wait_until_ended
from integration.support.stops import DriverEndedError, Stops
from integration.support.stream_history import find_row_anomalies
from spark_kafka_sink.exactly_once.transaction_names import derive_prefix, normalize_checkpoint
from tests.waiting import wait_until

pytestmark = pytest.mark.needs("kafka")

SOAK = bool(os.environ.get("SOAK"))
EXACTLY_ONCE = {"deliveryGuarantee": "exactly-once"}
MANY_BATCHES = 1_000_000
TIMEOUTS_MS = (80_000, 320_000)
"""Transaction timeouts to try in turn. The second is for machines on which a micro-batch exceeds the first."""


def count_numbers(kafka: KafkaCluster, topic: str, isolation: str = "read_committed") -> Counter[int]:
    return Counter(int(record.value or b"") for record in read_topic(kafka.bootstrap(), topic, isolation=isolation))


class StoppableDriver(DriverProcess):
    """A driver that tests stop, with its processes, at steps of the protocol."""

    def __init__(self, kafka: KafkaCluster, folder: Path, stops: Stops | None = None) -> None:
        """`stops`: the stop requests of another driver, which then apply to both."""
        self.stops = stops or Stops(folder / "steps")
        super().__init__(["exactly_once_jobs", kafka.bootstrap()], folder, self.stops.environment)


class Stream:
    """An exactly-once query and the drivers that run it, consecutively or concurrently."""

    def __init__(self, kafka: KafkaCluster, folder: Path, **options: str) -> None:
        self.kafka = kafka
        self.folder = folder
        self.topic = create_topic(kafka.bootstrap(), partitions=3)
        self.checkpoint = folder / self.topic
        self._options = EXACTLY_ONCE | {name.replace("_", "."): value for name, value in options.items()}

    def begin(self, driver: DriverProcess, *, may_fail: bool = False) -> None:
        """Start the query in a driver process. `may_fail`: the process continues after the query has failed."""
        driver.begin(
            folder=str(self.folder), queries={self.topic: self._options}, batches=MANY_BATCHES, may_fail=may_fail
        )

    def start(self, spark: SparkSession) -> StreamingQuery:
        """Start the query in the driver of the test process."""
        return start_stream(spark, self.kafka.bootstrap(), self.topic, str(self.folder), self._options)

    def wait_for_first_commit(self, driver: DriverProcess) -> None:
        wait_until(lambda: find_newest_batch_id(self.checkpoint / "commits") >= 0 or driver.has_ended)

    def assert_each_row_once(self) -> None:
        batches = find_newest_batch_id(self.checkpoint / "commits") + 1
        assert find_row_anomalies(read_topic(self.kafka.bootstrap(), self.topic), batches, ROWS_PER_BATCH) == []


def kill_driver_after_decision(kafka: KafkaCluster, folder: Path) -> Stream:
    """Return a stream whose last batch is decided and not committed.

    A driver that has too little time left before the transaction timeout ends without a decision. Then start another
    driver with a longer timeout.
    """
    for timeout_ms in TIMEOUTS_MS:
        stream = Stream(kafka, folder / str(timeout_ms), kafka_transaction_timeout_ms=str(timeout_ms))
        stream.folder.mkdir()
        driver = StoppableDriver(kafka, stream.folder)
        try:
            stream.begin(driver)
            stream.wait_for_first_commit(driver)
            driver.stops.stop(driver, "after decide")
            return stream
        except DriverEndedError:
            if timeout_ms == TIMEOUTS_MS[-1]:
                raise
        finally:
            driver.kill()
    raise AssertionError("TIMEOUTS_MS is empty")


@pytest.fixture(scope="module")
def uncommitted_stream(kafka: KafkaCluster, tmp_path_factory: pytest.TempPathFactory) -> Stream:
    """A stream whose driver was killed between the decision and the commit of its last batch."""
    return kill_driver_after_decision(kafka, tmp_path_factory.mktemp("decided"))


@pytest.fixture(scope="module")
def shared_drivers() -> Iterator[list[StoppableDriver]]:
    """A list with the running driver of the fixture `older`, or an empty list."""
    drivers: list[StoppableDriver] = []
    yield drivers
    for driver in drivers:
        driver.kill()


@pytest.fixture
def older(
    kafka: KafkaCluster, shared_drivers: list[StoppableDriver], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[StoppableDriver]:
    """The older driver of a test, which runs a query in it until the query fails.

    Consecutive tests use the same process. If a test fails while the driver's processes are suspended, the driver is
    killed, and the next test starts another one.
    """
    if not shared_drivers:
        shared_drivers.append(StoppableDriver(kafka, tmp_path_factory.mktemp("older")))
    (driver,) = shared_drivers
    yield driver
    if driver.is_ready:
        driver.stops.clear()
    else:
        shared_drivers.remove(driver)
        driver.kill()


@pytest.mark.usefixtures("uncommitted_stream")  # its transactions time out while the next tests run
def test_older_of_two_drivers_on_one_checkpoint_is_fenced_without_duplicates(
    spark: SparkSession, kafka: KafkaCluster, older: StoppableDriver, tmp_path: Path
) -> None:
    stream = Stream(kafka, tmp_path)
    stream.begin(older, may_fail=True)
    stream.wait_for_first_commit(older)
    older.stops.stop(older, "before decide")
    last_batch = find_newest_batch_id(stream.checkpoint / "commits") + 3
    newer = stream.start(spark)
    try:
        wait_until_committed(stream, newer, last_batch - 1)
        older.stops.release("before decide")
        older.wait_until_ready()
        wait_until_committed(stream, newer, last_batch)
    finally:
        newer.stop()
    assert "a newer driver has taken over the" in older.read_job_log()
    stream.assert_each_row_once()


def test_driver_suspended_during_start_duplicates_no_rows(
    spark: SparkSession, kafka: KafkaCluster, older: StoppableDriver, tmp_path: Path
) -> None:
    """The older driver is suspended after it was granted its epoch and before it reads the log."""
    stream = Stream(kafka, tmp_path)
    older.stops.request_stop("after fence")  # requested first, because the query soon passes this point
    stream.begin(older, may_fail=True)
    older.stops.wait_until_stopped(older, "after fence")
    newer = stream.start(spark)
    try:
        wait_until_committed(stream, newer, 2)
        older.stops.release("after fence")
        older.wait_until_ready()
        wait_until_committed(stream, newer, find_newest_batch_id(stream.checkpoint / "commits") + 2)
    finally:
        newer.stop()
    assert "A newer driver has taken over the" in older.read_job_log()
    stream.assert_each_row_once()


def test_suspended_abort_keeps_decision_of_newer_driver(
    spark: SparkSession, kafka: KafkaCluster, older: StoppableDriver, tmp_path: Path
) -> None:
    """The older driver is suspended after it has listed the transactions to abort.

    The newer driver commits a batch and dies before Spark has recorded the commit.
    """
    stream, stops = Stream(kafka, tmp_path), older.stops
    newer, last = StoppableDriver(kafka, tmp_path, stops), None
    try:
        stream.begin(older, may_fail=True)
        stream.wait_for_first_commit(older)
        stops.abort(older, "after list")
        stream.begin(newer)
        stops.stop(newer, "after commit")
        stops.release("after list")
        older.wait_until_ready()
        newer.kill()
        stops.clear()
        last = stream.start(spark)
        wait_until_committed(stream, last, find_newest_batch_id(stream.checkpoint / "commits") + 3)
    finally:
        newer.kill()
        if last is not None:
            last.stop()
    stream.assert_each_row_once()


def wait_until_committed(stream: Stream, query: StreamingQuery, batch: int) -> None:
    wait_until(lambda: find_newest_batch_id(stream.checkpoint / "commits") >= batch or not query.isActive)
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
    assert count_numbers(kafka, topic) == {1: 1, 2: 1}


# --- stages that Spark reruns after the loss of shuffle files


@pytest.mark.parametrize(
    ("cluster", "loser"), [("kafka", FIRST_RUN), *([("kafka_version_1", SECOND_RUN)] if SOAK else [])]
)
def test_stage_rerun_after_lost_shuffle_files_is_written_once(
    spark: SparkSession, request: pytest.FixtureRequest, tmp_path: Path, cluster: str, loser: int
) -> None:
    kafka: KafkaCluster = request.getfixturevalue(cluster)
    topic = create_topic(kafka.bootstrap(), partitions=3)
    rows = spark.range(0, ROWS, 1, 1).repartition(TASKS, "id").mapInArrow(rerun_stage(tmp_path, loser), "id LONG")
    writer = rows.selectExpr("CAST(id AS STRING) AS value").write.format("pykafka").options(**EXACTLY_ONCE)
    try:
        writer.options(**{"kafka.bootstrap.servers": kafka.bootstrap(), "topic": topic}).save()
    finally:
        (tmp_path / JOB_ENDED_FILE).touch()
    assert had_concurrent_runs(tmp_path)
    wait_until_ended(kafka, "pykafka-job")
    count = count_numbers(kafka, topic)
    assert (len(count), set(count.values())) == (ROWS, {1})


# --- commits after the transaction timeout


def test_commit_after_transaction_timeout_fails_without_duplicates(
    spark: SparkSession, kafka: KafkaCluster, uncommitted_stream: Stream
) -> None:
    stream = uncommitted_stream
    lost_batch = find_newest_batch_id(stream.checkpoint / "offsets")
    prefix = derive_prefix("stream", normalize_checkpoint(str(stream.checkpoint)))
    wait_until_ended(kafka, prefix)
    for _ in range(2):
        with pytest.raises(Exception, match="can no longer be committed") as failure:
            stream.start(spark).awaitTermination()
        message = " ".join(str(failure.value).split())
        assert f"batch {lost_batch} of query" in message
        assert "rows of Spark's partition 0, producer id" in message
    stored = read_topic(kafka.bootstrap(), stream.topic)
    assert len(stored) == lost_batch * ROWS_PER_BATCH
    assert find_row_anomalies(stored, lost_batch, ROWS_PER_BATCH) == []
