"""The examples of the documentation do what they say, as they stand there; only addresses and folders are put in."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from spark_kafka_sink.testing import embedded_broker, read_topic

pytestmark = pytest.mark.needs("java")

ROOT = Path(__file__).resolve().parents[2]


def blocks(document: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (ROOT / document).read_text(), re.DOTALL)


def documented_tests() -> dict[str, Callable[[SparkSession], None]]:
    found: dict[str, Callable[[SparkSession], None]] = {}
    for block in blocks("docs/testing.md"):
        names: dict[str, object] = {"__name__": "example"}
        exec(compile(block, "docs/testing.md", "exec"), names)
        found |= {name: made for name, made in names.items() if name.startswith("test_") and callable(made)}
    return found


@pytest.mark.parametrize("name", ["test_the_orders_are_written", "test_an_answer_that_gets_lost_doubles_nothing"])
def test_the_example_of_a_test_passes(spark: SparkSession, name: str) -> None:
    documented_tests()[name](spark)


@pytest.mark.parametrize(
    ("document", "number", "topic"),
    [
        ("README.md", 0, "orders"),
        ("docs/quickstart.md", 0, "orders"),
        ("docs/quickstart.md", 1, "events"),
        ("docs/formats.md", 0, "orders"),
    ],
)
def test_the_example_of_a_job_writes_its_rows(
    spark: SparkSession, tmp_path: Path, document: str, number: int, topic: str
) -> None:
    orders = spark.range(5).selectExpr("id", "id AS order_id", "id * 2.5 AS amount")
    orders.createOrReplaceTempView("orders")
    spark.range(5).selectExpr("'d' AS device", "CAST(id AS STRING) AS payload").write.parquet(str(tmp_path / "source"))
    events = spark.readStream.schema("device STRING, payload STRING").parquet(str(tmp_path / "source"))
    names: dict[str, Any] = {"spark": spark, "df": orders, "orders": orders, "events": events}
    with embedded_broker(topics={"orders": 2, "events": 1}) as broker:
        code = blocks(document)[number].replace("broker:9092", broker.bootstrap_servers)
        exec(compile(code.replace("/checkpoints", str(tmp_path / "checkpoints")), document, "exec"), names)
        if "query" in names:
            names["query"].processAllAvailable()
            names["query"].stop()
        assert read_topic(broker.bootstrap_servers, topic).num_rows == 5
