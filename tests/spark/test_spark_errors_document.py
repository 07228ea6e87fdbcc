"""docs/errors.md explains the errors that Spark itself raises without `register`. Spark raises them in these tests."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.readwriter import DataFrameWriter
from pyspark.sql.streaming.readwriter import DataStreamWriter

from tools.error_document import find_explaining_rows

pytestmark = pytest.mark.needs("java")

NOWHERE = {"kafka.bootstrap.servers": "localhost:1", "topic": "t", "checkConnection": "false"}


@pytest.fixture(scope="module")
def rows(spark: SparkSession) -> DataFrame:
    """Create rows in another session, which shares the JVM but has not registered the sink."""
    return spark.newSession().range(1).selectExpr("CAST(id AS STRING) AS value")


def read_error_text(write: Callable[[], object]) -> str:
    with pytest.raises((PySparkException, Py4JJavaError)) as error:
        write()
    return str(error.value)


@pytest.mark.data_source
def test_first_row_explains_sparks_advice_to_overwrite(rows: DataFrame) -> None:
    save = inspect.unwrap(DataFrameWriter.save)
    message = read_error_text(lambda: save(rows.write.format("pykafka").options(**NOWHERE)))
    assert "Overwrite" in message
    (row,) = find_explaining_rows(message)
    assert row.position == 0
    assert "`register(spark)` was not called" in row.advice


@pytest.mark.parametrize("is_checked", ["true", "false"])
def test_page_explains_sparks_errors_about_real_time_mode(spark: SparkSession, tmp_path: Path, is_checked: str) -> None:
    other = spark.newSession()
    other.conf.set("spark.sql.streaming.realTimeMode.allowlistCheck", is_checked)
    rates = other.readStream.format("rate").load().selectExpr("CAST(value AS STRING) AS value")
    writer = rates.writeStream.format("pykafka").options(**NOWHERE).outputMode("update")
    if "realTime" not in inspect.signature(writer.trigger).parameters:
        pytest.skip("this pyspark has no real-time mode")
    writer = writer.trigger(realTime="5 seconds")  # type: ignore[call-overload]
    writer = writer.option("checkpointLocation", str(tmp_path))
    start = inspect.unwrap(DataStreamWriter.start)
    message = read_error_text(lambda: start(writer).awaitTermination())
    if "INPUT_STREAM_NOT_SUPPORTED" in message:
        pytest.skip("this Spark rejects the rate source before it checks the sink")
    (row,) = find_explaining_rows(message)
    assert "streams.md" in row.advice


def test_page_explains_error_of_thread_without_session(rows: DataFrame) -> None:
    save = inspect.unwrap(DataFrameWriter.save)
    writer = rows.write.format("pykafka").mode("append").options(**NOWHERE)
    with ThreadPoolExecutor(1) as threads:
        message = threads.submit(read_error_text, lambda: save(writer)).result()
    (row,) = find_explaining_rows(message)
    assert "call `register(spark)`" in row.advice
