"""docs/errors.md quotes what Spark itself says where `register` was forgotten: taken from Spark, not from the page."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.readwriter import DataFrameWriter

from tests.error_document import rows_that_explain

pytestmark = pytest.mark.needs("java")

NOWHERE = {"kafka.bootstrap.servers": "localhost:1", "topic": "t", "checkConnection": "false"}


@pytest.fixture(scope="module")
def rows(spark: SparkSession) -> DataFrame:
    """Of another session, which shares the JVM but not what was registered."""
    return spark.newSession().range(1).selectExpr("CAST(id AS STRING) AS value")


def words_of(write: Callable[[], object]) -> str:
    with pytest.raises((PySparkException, Py4JJavaError)) as error:
        write()
    return str(error.value)


def test_sparks_advice_to_overwrite_is_answered_by_the_first_row_of_the_page(rows: DataFrame) -> None:
    save = inspect.unwrap(DataFrameWriter.save)
    said = words_of(lambda: save(rows.write.format("pykafka").options(**NOWHERE)))
    assert "Overwrite" in said
    (row,) = rows_that_explain(said)
    assert row.place == 0
    assert "`register(spark)` was not called" in row.advice


def test_a_thread_without_a_session_and_without_register_finds_its_sentence(rows: DataFrame) -> None:
    save = inspect.unwrap(DataFrameWriter.save)
    writer = rows.write.format("pykafka").mode("append").options(**NOWHERE)
    with ThreadPoolExecutor(1) as threads:
        said = threads.submit(words_of, lambda: save(writer)).result()
    (row,) = rows_that_explain(said)
    assert "call `register(spark)`" in row.advice
