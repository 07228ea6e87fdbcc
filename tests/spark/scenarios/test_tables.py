"""Catalog tables with the format `pykafka`. Spark does not pass their options to the sink, only their name."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame, SparkSession

from spark_kafka_sink.errors import ConfigurationError, PreflightError
from spark_kafka_sink.testing import EmbeddedBroker, embedded_broker
from tests.documents import blocks
from tests.spark.patches.test_write_methods import Upstream, get_write_error

pytestmark = [pytest.mark.needs("java"), pytest.mark.data_source]

WITH_EACH_WRITE = "Spark does not pass the options of CREATE TABLE to a Python data source. Set them on each write"


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    with embedded_broker(topics={"t": 1}) as broker:
        yield broker


@pytest.fixture(scope="module")
def rows(spark: SparkSession) -> DataFrame:
    return spark.range(3).selectExpr("CAST(id AS STRING) AS value")


@pytest.fixture
def stream(rows: DataFrame, tmp_path: Path) -> DataFrame:
    rows.write.parquet(str(tmp_path / "source"))
    return rows.sparkSession.readStream.schema(rows.schema).parquet(str(tmp_path / "source"))


@pytest.fixture
def table(spark: SparkSession, broker: EmbeddedBroker) -> Iterator[str]:
    """Create a table with all options that a write needs, and yield its name."""
    spark.sql(
        "CREATE TABLE sink (value STRING) USING pykafka "
        f"OPTIONS ('kafka.bootstrap.servers' = '{broker.bootstrap_servers}', topic = 't')"
    )
    yield "sink"
    spark.sql("DROP TABLE sink")


@pytest.fixture
def dropped(spark: SparkSession) -> Iterator[str]:
    """Yield the name of a table that the test may create, and drop the table afterwards."""
    yield "made"
    spark.sql("DROP TABLE IF EXISTS made")


def options(broker: EmbeddedBroker, topic: str) -> dict[str, str]:
    return {"kafka.bootstrap.servers": broker.bootstrap_servers, "topic": topic}


def test_threads_that_did_not_create_the_session_can_write_tables(
    rows: DataFrame, stream: DataFrame, broker: EmbeddedBroker, table: str, dropped: str, tmp_path: Path
) -> None:
    topic = broker.create_topic("threads")
    table_options = options(broker, topic.name)

    def write() -> None:
        rows.write.format("pykafka").options(**table_options).saveAsTable(dropped)
        rows.write.format("pykafka").options(**table_options).mode("append").saveAsTable(table)
        writer = stream.writeStream.format("pykafka").options(**table_options).trigger(availableNow=True)
        writer.option("checkpointLocation", str(tmp_path / "checkpoint")).toTable(table).awaitTermination()

    with ThreadPoolExecutor(1) as threads:
        threads.submit(write).result()
    assert topic.read().num_rows == 3 * rows.count()


@pytest.mark.parametrize(
    ("change", "kind", "message"),
    [
        ({"tpoic": "x"}, ConfigurationError, "'topic' is also set: remove 'tpoic'."),
        ({"topic": "not-there"}, PreflightError, "Topic 'not-there' does not exist"),
    ],
)
def test_raises_error_before_table_creation_and_any_task(  # noqa: PLR0913 - a table of cases
    spark: SparkSession,
    stream: DataFrame,
    broker: EmbeddedBroker,
    tmp_path: Path,
    change: dict[str, str],
    kind: type[Exception],
    message: str,
) -> None:
    upstream = Upstream(spark)
    writer = upstream.frame.write.format("pykafka").options(**options(broker, "t") | change)
    assert message in str(get_write_error(lambda: writer.saveAsTable("made"), spark))
    assert upstream.tasks_run == 0
    stream_writer = stream.writeStream.format("pykafka").options(**options(broker, "t") | change)
    with pytest.raises(kind, match=message):
        stream_writer.option("checkpointLocation", str(tmp_path / "checkpoint")).toTable("made")
    assert spark.streams.active == []
    assert not spark.catalog.tableExists("made")


@pytest.mark.parametrize(("mode", "word"), [("overwrite", "Overwrite"), ("ignore", "Ignore")])
def test_save_as_table_rejects_other_save_modes(
    rows: DataFrame, spark: SparkSession, broker: EmbeddedBroker, mode: str, word: str
) -> None:
    writer = rows.write.format("pykafka").options(**options(broker, "t"))
    assert f"Save mode {word} not allowed" in str(get_write_error(lambda: writer.saveAsTable("made", mode=mode), spark))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda writer: writer.outputMode("update"), r"toTable\(\) does not support outputMode\('update'\)"),
        (lambda writer: writer.trigger(continuous="1 second"), "Use micro-batches"),
    ],
    ids=["update", "continuous"],
)
def test_to_table_rejects_update_mode_and_continuous_trigger(
    stream: DataFrame, broker: EmbeddedBroker, change: Callable[[Any], Any], message: str
) -> None:
    writer = stream.writeStream.format("pykafka").options(**options(broker, "t"))
    with pytest.raises(ConfigurationError, match=message):
        change(writer).toTable("made")


DOORS: dict[str, Callable[[DataFrame, str], Any]] = {
    "insertInto": lambda rows, table: rows.write.insertInto(table),
    "writeTo": lambda rows, table: rows.writeTo(table).append(),
    "SQL": lambda rows, table: rows.sparkSession.sql(f"INSERT INTO {table} SELECT 'a'"),
}


@pytest.mark.parametrize("door", DOORS)
def test_error_about_missing_table_options_suggests_statements(rows: DataFrame, table: str, door: str) -> None:
    with pytest.raises((ConfigurationError, PySparkException)) as error:
        DOORS[door](rows, table)
    assert "bootstrap.servers is not set" in str(error.value)
    assert WITH_EACH_WRITE in str(error.value)
    if door != "SQL":
        assert isinstance(error.value, ConfigurationError)
        assert "Traceback" not in str(error.value)


def test_stream_does_not_get_table_options(stream: DataFrame, table: str, tmp_path: Path) -> None:
    query = stream.writeStream.option("checkpointLocation", str(tmp_path / "checkpoint")).toTable(table)
    with pytest.raises(PySparkException, match=WITH_EACH_WRITE.replace(".", r"\.")):
        query.awaitTermination()


def test_statements_suggested_by_the_error_write(rows: DataFrame, broker: EmbeddedBroker, table: str) -> None:
    topic = broker.create_topic("with-each-write")
    table_options = options(broker, topic.name)
    rows.writeTo(table).options(**table_options).append()
    properties = ", ".join(f"'{name}' = '{value}'" for name, value in table_options.items())
    rows.sparkSession.sql(f"INSERT INTO {table} WITH ({properties}) SELECT 'a'")
    assert topic.read().num_rows == rows.count() + 1


def test_table_examples_write_their_rows(rows: DataFrame, broker: EmbeddedBroker, table: str) -> None:
    topic = broker.create_topic("orders")
    (sql,) = blocks("docs/batch.md", "sql")
    (python,) = (block for block in blocks("docs/batch.md") if "writeTo" in block)
    rows.selectExpr("value AS id").createOrReplaceTempView("orders")
    rows.sparkSession.sql(sql.replace("broker:9092", broker.bootstrap_servers))
    exec(python.replace("broker:9092", broker.bootstrap_servers), {"df": rows})
    assert table in sql
    assert table in python
    assert topic.read().num_rows == 2 * rows.count()


def test_error_of_write_without_table_does_not_mention_tables(rows: DataFrame, spark: SparkSession) -> None:
    assert WITH_EACH_WRITE not in str(get_write_error(rows.write.format("pykafka").save, spark))


def test_does_not_change_tables_of_other_formats(
    rows: DataFrame, stream: DataFrame, dropped: str, tmp_path: Path
) -> None:
    rows.write.format("parquet").saveAsTable(dropped)
    with pytest.raises(AnalysisException, match="TABLE_OR_VIEW_ALREADY_EXISTS"):
        rows.write.format("parquet").saveAsTable(dropped)
    rows.write.mode("overwrite").saveAsTable(dropped)
    writer = stream.writeStream.option("checkpointLocation", str(tmp_path / "checkpoint"))
    writer.trigger(availableNow=True).toTable(dropped).awaitTermination()
    assert rows.sparkSession.table(dropped).count() == rows.count(), "Spark reads what the stream has written"
