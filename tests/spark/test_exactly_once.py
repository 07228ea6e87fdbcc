"""Exactly-once delivery through Spark to the embedded broker: streams, restarts, batch jobs and failed tasks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from spark_kafka_sink.errors import ConfigurationError
from spark_kafka_sink.exactly_once import operations
from spark_kafka_sink.testing import EmbeddedBroker, assert_topic_equals, embedded_broker
from tests.spark_session import shared_spark

pytestmark = pytest.mark.needs("java")


@pytest.fixture(params=[1, 2])
def broker(request: pytest.FixtureRequest) -> Iterator[EmbeddedBroker]:
    with embedded_broker(topics={"t": 2}, nodes=2, transaction_version=request.param) as broker:
        yield broker


@pytest.fixture
def words(spark: SparkSession, tmp_path: Path) -> DataFrame:
    """A stream of the files in `tmp_path / "words"`."""
    (tmp_path / "words").mkdir()
    return spark.readStream.option("maxFilesPerTrigger", "1").text(str(tmp_path / "words"))


def options(broker: EmbeddedBroker) -> dict[str, str]:
    return {
        "kafka.bootstrap.servers": broker.bootstrap_servers,
        "topic": "t",
        "deliveryGuarantee": "exactly-once",
    }


def assert_seen(broker: EmbeddedBroker, *values: str) -> None:
    """Check the rows that read_committed consumers see."""
    expected = shared_spark().createDataFrame([(value,) for value in values], "value STRING")
    assert_topic_equals(expected, broker.topic("t"))


def assert_written(broker: EmbeddedBroker, *values: str) -> None:
    """Check the rows, and that the topic contains nothing else, not even hidden records."""
    assert_seen(broker, *values)
    assert broker.topic("t").read(isolation="read_uncommitted").num_rows == len(values)


def run(words: DataFrame, broker: EmbeddedBroker, tmp_path: Path, mode: str = "append") -> None:
    writer = words.writeStream.format("pykafka").options(**options(broker)).outputMode(mode)
    writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
    writer.trigger(availableNow=True).start().awaitTermination()


def test_stream_continues_from_its_checkpoint(words: DataFrame, broker: EmbeddedBroker, tmp_path: Path) -> None:
    (tmp_path / "words" / "1.txt").write_text("a\nb\n")
    (tmp_path / "words" / "2.txt").write_text("c\n")
    run(words, broker, tmp_path)
    assert_seen(broker, "a", "b", "c")
    (tmp_path / "words" / "3.txt").write_text("d\n")
    run(words, broker, tmp_path)
    assert_written(broker, "a", "b", "c", "d")


def test_rerun_batch_is_not_written_again(words: DataFrame, broker: EmbeddedBroker, tmp_path: Path) -> None:
    """The driver died after the batch was committed and before Spark recorded this in the checkpoint."""
    (tmp_path / "words" / "1.txt").write_text("a\nb\n")
    run(words, broker, tmp_path)
    for name in ("0", ".0.crc"):
        (tmp_path / "checkpoint" / "commits" / name).unlink(missing_ok=True)
    run(words, broker, tmp_path)
    assert_written(broker, "a", "b")


def test_update_mode_writes_changed_rows_once(words: DataFrame, broker: EmbeddedBroker, tmp_path: Path) -> None:
    counts = words.groupBy("value").count().selectExpr("concat(value, count) AS value")
    (tmp_path / "words" / "1.txt").write_text("a\nb\n")
    run(counts, broker, tmp_path, "update")
    for name in ("0", ".0.crc"):
        (tmp_path / "checkpoint" / "commits" / name).unlink(missing_ok=True)
    (tmp_path / "words" / "2.txt").write_text("a\n")
    run(counts, broker, tmp_path, "update")
    assert_written(broker, "a1", "a2", "b1")


def test_start_rejects_stream_without_stable_name(words: DataFrame, broker: EmbeddedBroker) -> None:
    writer = words.writeStream.format("pykafka").options(**options(broker))
    with pytest.raises(ConfigurationError, match="requires a name for this query that stays the same"):
        writer.start()
    assert words.sparkSession.streams.active == []


@pytest.mark.parametrize("mode", ["append", "update"])
def test_start_rejects_idempotency_key_of_a_stream(
    words: DataFrame, broker: EmbeddedBroker, tmp_path: Path, mode: str
) -> None:
    sink_options = {"idempotencyKey": "k", "checkpointLocation": str(tmp_path / "checkpoint")}
    writer = words.writeStream.format("pykafka").options(**options(broker), **sink_options).outputMode(mode)
    with pytest.raises(ConfigurationError, match=r"^Option 'idempotencyKey' is for batch jobs only. Remove it"):
        writer.start()
    assert words.sparkSession.streams.active == []
    assert not (tmp_path / "checkpoint").exists()


def test_checkpoint_location_of_spark_setting_names_the_query(
    words: DataFrame, broker: EmbeddedBroker, tmp_path: Path
) -> None:
    (tmp_path / "words" / "1.txt").write_text("a\n")
    setting = "spark.sql.streaming.checkpointLocation"
    words.sparkSession.conf.set(setting, str(tmp_path / "checkpoints"))
    try:
        writer = words.writeStream.format("pykafka").options(**options(broker)).queryName("named")
        writer.trigger(availableNow=True).start().awaitTermination()
    finally:
        words.sparkSession.conf.unset(setting)
    assert (tmp_path / "checkpoints" / "named" / "commits" / "0").exists()
    assert_seen(broker, "a")


def test_job_becomes_visible_as_a_whole(spark: SparkSession, broker: EmbeddedBroker) -> None:
    frame = spark.range(100).selectExpr("CAST(id AS STRING) AS value").repartition(3)
    frame.write.format("pykafka").options(**options(broker)).save()
    assert_topic_equals(frame, broker.topic("t"))


def test_failed_job_is_invisible_and_does_not_block_readers(spark: SparkSession, broker: EmbeddedBroker) -> None:
    rows = spark.range(0, 300, 1, 3).selectExpr("CAST(assert_true(id < 299) IS NULL AS STRING) AS value")
    with pytest.raises(Exception, match=r"id.* < .*299"):  # pyspark's error or, in Spark 3.5, py4j's
        rows.write.format("pykafka").options(**options(broker)).save()
    assert_seen(broker)
    assert broker.topic("t").read(isolation="read_uncommitted").num_rows > 0  # tasks had written rows
    spark.range(3).selectExpr("'x' AS value").write.format("pykafka").options(**options(broker)).save()
    assert_seen(broker, *["x"] * 3)  # no open transaction hides these rows


def test_job_with_committed_key_writes_nothing(spark: SparkSession, broker: EmbeddedBroker) -> None:
    writer = spark.range(3).selectExpr("'x' AS value").write.format("pykafka").options(**options(broker))
    for _ in range(2):
        writer.option("idempotencyKey", "today").save()
    assert_written(broker, *["x"] * 3)
    writer.option("idempotencyKey", "tomorrow").save()
    assert_seen(broker, *["x"] * 6)


def test_remembers_each_key_of_a_prefix(spark: SparkSession, broker: EmbeddedBroker) -> None:
    writer = spark.range(3).selectExpr("'x' AS value").write.format("pykafka").options(**options(broker))
    for key in ("1", "2", "1", "2"):
        writer.option("transactionalIdPrefix", "mine").option("idempotencyKey", key).save()
    assert_written(broker, *["x"] * 6)


def test_micro_batches_of_a_start_share_one_driver(words: DataFrame, broker: EmbeddedBroker, tmp_path: Path) -> None:
    for start in (1, 2):
        for number in range(3):
            (tmp_path / "words" / f"{start}{number}.txt").write_text("a\n")
        run(words, broker, tmp_path)
        (survey,) = operations.list_prefixes({"bootstrap.servers": broker.bootstrap_servers})
        assert survey.entry is not None
        assert (survey.entry.generation, survey.entry.batch.batch_id) == (start, 3 * start - 1)
