"""The documentation's examples run as printed there, except for addresses and folders."""

from __future__ import annotations

import inspect
import json
import re
import socket
import sys
from collections.abc import Callable
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from spark_kafka_sink import __version__
from spark_kafka_sink.testing import EmbeddedBroker, assert_topic_equals, embedded_broker, read_topic
from tests.documents import blocks

pytestmark = pytest.mark.needs("java")


def documented_tests() -> dict[str, str]:
    """Return the code block that contains each test, by the name of the test."""
    pages = ("docs/testing.md", "docs/testing-faults.md", "docs/agents.md")
    examples = [block for page in pages for block in blocks(page)]
    tests = [(name, block) for block in examples for name in re.findall(r"^def (test_\w+)", block, re.M)]
    assert len(dict(tests)) == len(tests), "two examples have the same name"
    return dict(tests)


@pytest.mark.parametrize("name", documented_tests())
def test_documented_test_example_passes(request: pytest.FixtureRequest, spark: SparkSession, name: str) -> None:
    """Run the test with the fixtures of its block, of this folder and of the package."""
    names: dict[str, Any] = {"__name__": "example"}
    exec(compile(documented_tests()[name], name, "exec"), names)
    with ExitStack() as stack:

        def fixture(wanted: str) -> object:
            if wanted == "spark" or wanted not in names:
                return request.getfixturevalue(wanted)
            return stack.enter_context(contextmanager(inspect.unwrap(names[wanted]))())

        names[name](**{wanted: fixture(wanted) for wanted in inspect.signature(names[name]).parameters})


@pytest.mark.parametrize(
    ("document", "number", "topic", "rows"),
    [
        ("README.md", 0, "orders", 1000),
        ("docs/index.md", 0, "orders", 5),
        ("docs/quickstart.md", 0, "orders", 5),
        ("docs/quickstart.md", 1, "events", 5),
        ("docs/batch.md", 0, "orders", 5),
        ("docs/streams.md", 0, "events", 5),
        ("docs/agents.md", 0, "orders", 10),
        ("docs/formats.md", 0, "orders", 5),
    ],
)
def test_documented_job_example_writes_its_rows(
    spark: SparkSession, tmp_path: Path, document: str, number: int, topic: str, rows: int
) -> None:
    orders = spark.range(5).selectExpr("id", "id AS order_id", "id * 2.5 AS amount")
    orders.createOrReplaceTempView("orders")
    spark.range(5).selectExpr("'d' AS device", "CAST(id AS STRING) AS payload").write.parquet(str(tmp_path / "source"))
    events = spark.readStream.schema("device STRING, payload STRING").parquet(str(tmp_path / "source"))
    names: dict[str, Any] = {"spark": spark, "df": orders, "orders": orders, "events": events}
    with embedded_broker(topics={"orders": 2, "events": 1}) as broker:
        code = with_address(blocks(document)[number], broker)
        exec(compile(code.replace("/checkpoints", str(tmp_path / "checkpoints")), document, "exec"), names)
        if "query" in names:
            names["query"].processAllAvailable()
            names["query"].stop()
        assert read_topic(broker.bootstrap_servers, topic).num_rows == rows


def with_address(code: str, broker: EmbeddedBroker) -> str:
    return re.sub(r"(broker|localhost|kafka):9092", broker.bootstrap_servers, code)


@pytest.mark.parametrize(("number", "topic"), [(0, "orders"), (1, "orders"), (2, "orders-by-customer")])
def test_documented_exactly_once_example_writes_nothing_when_rerun(
    spark: SparkSession, tmp_path: Path, number: int, topic: str
) -> None:
    rows = spark.range(5).selectExpr("CAST(id AS STRING) AS key", "CAST(id AS STRING) AS value")
    rows.write.parquet(str(tmp_path / "source"))
    code = blocks("docs/exactly-once.md")[number].replace("s3://bucket", str(tmp_path))
    df = spark.readStream.schema(rows.schema).parquet(str(tmp_path / "source")) if "writeStream" in code else rows
    with embedded_broker(topics={"orders": 2, "orders-by-customer": 2}, auto_create_topics=True) as broker:
        for _ in range(2):
            names: dict[str, Any] = {"df": df}
            exec(compile(with_address(code, broker), "docs/exactly-once.md", "exec"), names)
            end_streams(spark)
        if "write" in names:
            run_again(spark, names["write"], rows, tmp_path / "checkpoints" / "by-customer")
        assert_topic_equals(rows, broker.topic(topic))


def run_again(spark: SparkSession, write: Callable[[DataFrame, int], None], rows: DataFrame, checkpoint: Path) -> None:
    """Call the foreachBatch function for batch 0, as Spark does if the function has failed after its write."""
    query_id = json.loads((checkpoint / "metadata").read_text())["id"]
    spark.sparkContext.setLocalProperty("sql.streaming.queryId", query_id)
    try:
        write(rows, 0)
    finally:
        spark.sparkContext.setLocalProperty("sql.streaming.queryId", None)  # type: ignore[arg-type]


def end_streams(spark: SparkSession) -> None:
    for query in spark.streams.active:
        query.processAllAvailable()
        query.stop()


def test_documented_migrated_job_writes_its_rows(spark: SparkSession) -> None:
    (diff,) = blocks("docs/migrating.md", "diff")
    after = "".join(f"{line[2:]}\n" for line in diff.splitlines() if not line.startswith("-"))
    df: DataFrame = spark.range(5).selectExpr("CAST(id AS STRING) AS value")
    with embedded_broker(topics={"orders": 1}) as broker:
        exec(compile(with_address(after, broker), "docs/migrating.md", "exec"), {"spark": spark, "df": df})
        assert_topic_equals(df, broker.topic("orders"))


def test_documented_cluster_check_lists_pythons_and_version(
    spark: SparkSession, capsys: pytest.CaptureFixture[str]
) -> None:
    (code,) = (block for block in blocks("docs/deploying.md") if "def describe_python" in block)
    exec(compile(code, "docs/deploying.md", "exec"), {"spark": spark, "__name__": "example"})
    assert capsys.readouterr().out == f"{socket.gethostname()} {sys.executable} {__version__}\n"
