"""What is refused on the driver, before any task starts and without a broker; and the save modes."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from pyspark.errors import AnalysisException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.readwriter import DataFrameWriter

from spark_kafka_sink import register
from spark_kafka_sink.errors import ConfigurationError

pytestmark = pytest.mark.needs("java")

NOWHERE = {"kafka.bootstrap.servers": "localhost:1", "topic": "t", "checkConnection": "false"}


@pytest.fixture(scope="module")
def rows(spark: SparkSession) -> DataFrame:
    return spark.range(3).selectExpr("CAST(id AS STRING) AS value")


@pytest.fixture
def unused_port() -> Iterator[int]:
    """A port at which nobody listens: it is bound, but never listened on."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]


def refused(writer: DataFrameWriter, spark: SparkSession) -> str:
    """The words with which the write was refused. That no task was started is checked as well."""
    group = f"refused-{time.monotonic_ns()}"
    spark.sparkContext.setJobGroup(group, "a write that must not start")
    with pytest.raises((AnalysisException, ConfigurationError)) as error:
        writer.save()
    assert list(spark.sparkContext.statusTracker().getJobIdsForGroup(group)) == []
    return str(error.value)


def test_all_faults_of_options_and_schema_are_told_together(spark: SparkSession) -> None:
    writer = spark.range(1).write.format("pykafka").option("kafka.acks", "7").option("kafka.lingr.ms", "1")
    words = refused(writer, spark)
    for part in (
        "bootstrap.servers is not set",
        "acks must be one of",
        "linger.ms",
        "topic option required when no 'topic' attribute is present",
        "Required attribute 'value' not found",
    ):
        assert part in words


def test_the_schema_is_checked_before_any_broker_is_asked(spark: SparkSession, unused_port: int) -> None:
    frame = spark.range(1).selectExpr("id AS value")
    writer = frame.write.format("pykafka").option("kafka.bootstrap.servers", f"127.0.0.1:{unused_port}")
    assert "value attribute unsupported type bigint" in refused(writer.option("topic", "t"), spark)


@pytest.mark.parametrize(("mode", "word"), [("overwrite", "Overwrite"), ("ignore", "Ignore")])
def test_other_save_modes_are_refused_in_sparks_words(
    rows: DataFrame, spark: SparkSession, mode: str, word: str
) -> None:
    words = refused(rows.write.format("pykafka").options(**NOWHERE).mode(mode), spark)
    assert (
        f"Save mode {word} not allowed for Kafka. Allowed save modes are Append and ErrorIfExists (default)." in words
    )


def test_the_default_save_mode_of_other_formats_is_left_alone(rows: DataFrame, tmp_path: Path) -> None:
    path = str(tmp_path / "there")
    rows.write.format("json").save(path)
    with pytest.raises(AnalysisException, match="PATH_ALREADY_EXISTS"):
        rows.write.format("json").save(path)


def test_register_may_be_called_again_and_again(spark: SparkSession) -> None:
    save = DataFrameWriter.save
    register(spark)
    register(spark)
    assert DataFrameWriter.save is save
    assert str(spark.conf.get("spark.sql.redaction.options.regex")).count("sasl") == 1


def test_a_wrong_port_fails_within_seconds_and_with_the_address(
    rows: DataFrame, spark: SparkSession, unused_port: int
) -> None:
    writer = rows.write.format("pykafka").option("topic", "t")
    started = time.monotonic()
    words = refused(writer.option("kafka.bootstrap.servers", f"127.0.0.1:{unused_port}"), spark)
    assert f"127.0.0.1:{unused_port}: Connection refused" in words
    assert time.monotonic() - started < 60


def test_a_wrong_host_fails_within_seconds_and_with_the_address(rows: DataFrame, spark: SparkSession) -> None:
    writer = rows.write.format("pykafka").option("topic", "t")
    started = time.monotonic()
    words = refused(writer.option("kafka.bootstrap.servers", "no-such-host.invalid:9092"), spark)
    assert "no-such-host.invalid:9092" in words
    assert time.monotonic() - started < 60


def test_reading_says_how_to_read(spark: SparkSession) -> None:
    with pytest.raises(Exception, match="writes to Kafka and cannot read"):
        spark.read.format("pykafka").option("subscribe", "t").load()


def test_the_data_source_is_found_without_register(rows: DataFrame) -> None:
    """By another session, which shares the JVM but not what was registered."""
    other = rows.sparkSession.newSession()
    with pytest.raises(AnalysisException, match=r"bootstrap\.servers is not set"):
        other.range(1).selectExpr("CAST(id AS STRING) AS value").write.format("pykafka").mode("append").save()


def test_threads_that_did_not_make_the_session_can_write(rows: DataFrame, tmp_path: Path) -> None:
    """Spark looks data sources in Python up in the active session, which such a thread does not have."""

    def write() -> None:
        with pytest.raises(AnalysisException, match=r"bootstrap\.servers is not set"):
            rows.write.format("pykafka").save()
        source = rows.sparkSession.readStream.format("rate").load().selectExpr("CAST(value AS STRING) AS value")
        query = source.writeStream.format("pykafka").option("checkpointLocation", str(tmp_path)).start()
        with pytest.raises(StreamingQueryException, match=r"bootstrap\.servers is not set"):
            query.awaitTermination()

    with ThreadPoolExecutor(1) as threads:
        threads.submit(write).result()
