"""Streams: errors raised by `start()`, and output mode update, which Spark itself rejects for Python sinks."""

from __future__ import annotations

import inspect
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.errors import AnalysisException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from spark_kafka_sink.errors import ConfigurationError, KafkaSinkError, PreflightError, SchemaError
from spark_kafka_sink.reports.store import read_reports
from spark_kafka_sink.testing import EmbeddedBroker, assert_topic_equals, embedded_broker, run_stream

pytestmark = pytest.mark.needs("java")


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    with embedded_broker(topics={"t": 1, "counts": 1}) as broker:
        yield broker


@pytest.fixture
def words(spark: SparkSession, tmp_path: Path) -> DataFrame:
    """A stream of the files in `tmp_path / "words"`."""
    (tmp_path / "words").mkdir()
    return spark.readStream.text(str(tmp_path / "words"))


def options(broker: EmbeddedBroker, tmp_path: Path, topic: str = "t") -> dict[str, str]:
    return {
        "kafka.bootstrap.servers": broker.bootstrap_servers,
        "topic": topic,
        "checkpointLocation": str(tmp_path / "checkpoint"),
    }


@pytest.mark.parametrize(
    ("change", "kind", "message"),
    [
        ({"tPoic": "t"}, ConfigurationError, r"Unknown option 'tPoic'\. 'topic' is also set: remove 'tPoic'"),
        ({"topic": "not-there"}, PreflightError, "Topic 'not-there' does not exist"),
        ({"topic": "conuts"}, PreflightError, "does not exist[^?]* Did you mean 'counts'"),
    ],
)
def test_start_raises_errors_of_the_stream(
    words: DataFrame,
    broker: EmbeddedBroker,
    tmp_path: Path,
    change: dict[str, str],
    kind: type[KafkaSinkError],
    message: str,
) -> None:
    writer = words.writeStream.format("pykafka").options(**options(broker, tmp_path))
    with pytest.raises(kind, match=message):
        writer.start(**change)
    assert words.sparkSession.streams.active == []


def test_start_raises_schema_error(words: DataFrame, broker: EmbeddedBroker, tmp_path: Path) -> None:
    writer = words.selectExpr("value AS word").writeStream.options(**options(broker, tmp_path))
    with pytest.raises(SchemaError, match="Required attribute 'value' not found"):
        writer.start(format="pykafka")


def test_rejects_continuous_trigger_with_alternative(words: DataFrame, broker: EmbeddedBroker, tmp_path: Path) -> None:
    writer = words.writeStream.format("pykafka").options(**options(broker, tmp_path)).trigger(continuous="1 second")
    with pytest.raises(ConfigurationError, match=r'Use micro-batches: \.trigger\(processingTime="0 seconds"\)'):
        writer.start()
    assert words.sparkSession.streams.active == []


@pytest.mark.parametrize("output_mode", ["append", "update"])
def test_rejects_real_time_trigger_with_reason_and_alternative(
    words: DataFrame, broker: EmbeddedBroker, tmp_path: Path, output_mode: str
) -> None:
    writer = words.writeStream.format("pykafka").options(**options(broker, tmp_path)).outputMode(output_mode)
    if "realTime" not in inspect.signature(writer.trigger).parameters:
        pytest.skip("this pyspark has no real-time mode")
    writer = writer.trigger(realTime="5 seconds")  # type: ignore[call-overload]
    with pytest.raises(ConfigurationError) as error:
        writer.start()
    for part in ("PythonTable", "asynchronous progress tracking", '.trigger(processingTime="0 seconds")'):
        assert part in str(error.value)
    assert words.sparkSession.streams.active == []


def test_update_mode_writes_changed_rows(words: DataFrame, broker: EmbeddedBroker, tmp_path: Path) -> None:
    counts = words.groupBy("value").count().selectExpr("value AS key", "CAST(count AS STRING) AS value", "count")
    report = tmp_path / "report.jsonl"
    writer = counts.writeStream.format("pykafka").options(**options(broker, tmp_path, "counts"))
    writer = writer.option("reportPath", str(report)).outputMode("update")

    def run(text: str) -> StreamingQuery:
        (tmp_path / "words" / f"{len(text)}.txt").write_text(text)
        return run_stream(writer.queryName("counting"))

    def assert_written(*rows: tuple[str, str]) -> None:
        assert_topic_equals(
            words.sparkSession.createDataFrame(rows, "key STRING, value STRING"), broker.topic("counts")
        )

    assert run("a\nb\na\n").name == "counting"
    assert_written(("a", "2"), ("b", "1"))
    query = run("a\nc\n")
    assert_written(("a", "2"), ("b", "1"), ("a", "3"), ("c", "1"))  # b has not changed
    reports = read_reports(str(report))
    assert [report.batch for report in reports] == [f"{query.id}/0", f"{query.id}/1"], "the checkpoint holds"


@pytest.mark.parametrize("output_mode", ["append", "update"])
def test_stream_ignores_table_layout_with_warning(
    words: DataFrame, broker: EmbeddedBroker, tmp_path: Path, output_mode: str, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "words" / "1.txt").write_text(f"{output_mode}\n")
    topic = broker.create_topic(f"partitioned-{output_mode}")
    writer = words.selectExpr("value", "1 AS day").writeStream.format("pykafka").partitionBy("day")
    run_stream(writer.options(**options(broker, tmp_path, topic.name)).outputMode(output_mode))
    assert topic.read().column("value").to_pylist() == [output_mode.encode()]
    assert "Ignored partitionBy('day')" in caplog.text


def test_keeps_foreach_batch_of_user(words: DataFrame, tmp_path: Path) -> None:
    """foreachBatch replaces the format."""
    (tmp_path / "words" / "1.txt").write_text("a\n")
    seen: list[int] = []
    writer = words.writeStream.format("pykafka").foreachBatch(lambda frame, number: seen.append(frame.count()))
    writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
    writer.trigger(availableNow=True).start().awaitTermination()
    assert seen == [1]


def numbered(folder: Path, batches: int = 2) -> None:
    """Write a file for each micro-batch, with rows of three keys in order, each numbered from 0."""
    for batch in range(batches):
        lines = [f"{key} {number:03}" for number in range(batch * 100, batch * 100 + 100) for key in "abc"]
        file = folder / f"{batch}.txt"
        file.write_text("\n".join(lines))
        os.utime(file, (1_700_000_000 + batch, 1_700_000_000 + batch))  # Spark reads the oldest first


def numbers_by_key(broker: EmbeddedBroker, topic: str) -> dict[bytes, list[int]]:
    found: dict[bytes, list[int]] = {}
    for row in broker.topic(topic).read().to_pylist():
        found.setdefault(row["key"], []).append(int(row["value"]))
    return found


def test_stream_repartitioned_by_key_keeps_order_of_each_key(
    spark: SparkSession, broker: EmbeddedBroker, tmp_path: Path
) -> None:
    (tmp_path / "in order").mkdir()
    numbered(tmp_path / "in order")
    topic = broker.create_topic("in-order", 2)
    lines = spark.readStream.option("maxFilesPerTrigger", 1).text(str(tmp_path / "in order"))
    rows = lines.selectExpr("split(value, ' ')[0] AS key", "split(value, ' ')[1] AS value").repartition("key")
    run_stream(rows.writeStream.format("pykafka").options(**options(broker, tmp_path, topic.name)))
    assert numbers_by_key(broker, topic.name) == {key: list(range(200)) for key in (b"a", b"b", b"c")}


def test_spark_rejects_sorting_a_stream_but_foreach_batch_can(
    spark: SparkSession, broker: EmbeddedBroker, tmp_path: Path
) -> None:
    (tmp_path / "sorted").mkdir()
    numbered(tmp_path / "sorted", batches=1)
    topic = broker.create_topic("sorted", 2)
    stream_options = options(broker, tmp_path, topic.name)
    lines = spark.readStream.text(str(tmp_path / "sorted"))
    rows = lines.selectExpr("split(value, ' ')[0] AS key", "split(value, ' ')[1] AS value")
    with pytest.raises((AnalysisException, StreamingQueryException), match=r"[Ss]orting is not supported"):
        run_stream(rows.sortWithinPartitions("value").writeStream.format("pykafka").options(**stream_options))

    def write(frame: DataFrame, batch: int) -> None:
        backwards = frame.orderBy("value", ascending=False)
        backwards.repartition("key").sortWithinPartitions("value").write.format("pykafka").options(
            **stream_options
        ).save()

    run_stream(rows.writeStream.foreachBatch(write).option("checkpointLocation", str(tmp_path / "another")))
    assert numbers_by_key(broker, topic.name) == {key: list(range(100)) for key in (b"a", b"b", b"c")}
