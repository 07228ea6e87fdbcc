"""Exactly once through Spark, on the embedded broker: streams, restarts, batch jobs, tasks that fail."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from spark_kafka_sink.testing import EmbeddedBroker, embedded_broker, read_topic

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


def seen(broker: EmbeddedBroker, isolation: str = "read_committed") -> list[str]:
    table = read_topic(broker.bootstrap_servers, "t", isolation=isolation)
    return sorted(value.decode() for value in table.column("value").to_pylist())


def run(words: DataFrame, broker: EmbeddedBroker, tmp_path: Path, **more: str) -> None:
    writer = words.writeStream.format("pykafka").options(**options(broker), **more)
    writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()


def test_a_stream_goes_on_from_its_checkpoint(words: DataFrame, broker: EmbeddedBroker, tmp_path: Path) -> None:
    (tmp_path / "words" / "1.txt").write_text("a\nb\n")
    (tmp_path / "words" / "2.txt").write_text("c\n")
    run(words, broker, tmp_path)
    assert seen(broker) == ["a", "b", "c"]
    (tmp_path / "words" / "3.txt").write_text("d\n")
    run(words, broker, tmp_path)
    assert seen(broker) == ["a", "b", "c", "d"]
    assert seen(broker, "read_uncommitted") == seen(broker)


def test_a_batch_that_spark_runs_again_is_not_written_again(
    words: DataFrame, broker: EmbeddedBroker, tmp_path: Path
) -> None:
    """The driver died after the batch was committed and before Spark had written that down."""
    (tmp_path / "words" / "1.txt").write_text("a\nb\n")
    run(words, broker, tmp_path)
    for name in ("0", ".0.crc"):
        (tmp_path / "checkpoint" / "commits" / name).unlink(missing_ok=True)
    run(words, broker, tmp_path)
    assert seen(broker, "read_uncommitted") == ["a", "b"]


def test_a_job_is_seen_as_a_whole(spark: SparkSession, broker: EmbeddedBroker) -> None:
    frame = spark.range(100).selectExpr("CAST(id AS STRING) AS value").repartition(3)
    frame.write.format("pykafka").options(**options(broker)).save()
    assert seen(broker) == sorted(str(number) for number in range(100))
