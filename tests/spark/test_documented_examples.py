"""The examples of the documentation do what they say, as they stand there; only addresses and folders are put in."""

from __future__ import annotations

import inspect
import re
import socket
import sys
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from spark_kafka_sink import __version__
from spark_kafka_sink.testing import embedded_broker, read_topic

pytestmark = pytest.mark.needs("java")

ROOT = Path(__file__).resolve().parents[2]


def blocks(document: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (ROOT / document).read_text(), re.DOTALL)


def documented_tests() -> dict[str, str]:
    """Name of a test -> the block that it stands in."""
    return {name: block for block in blocks("docs/testing.md") for name in re.findall(r"^def (test_\w+)", block, re.M)}


@pytest.mark.parametrize("name", documented_tests())
def test_the_example_of_a_test_passes(request: pytest.FixtureRequest, spark: SparkSession, name: str) -> None:
    """With the fixtures of its block, of this folder and of the package."""
    names: dict[str, Any] = {"__name__": "example"}
    exec(compile(documented_tests()[name], "docs/testing.md", "exec"), names)
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
        ("docs/formats.md", 0, "orders", 5),
    ],
)
def test_the_example_of_a_job_writes_its_rows(
    spark: SparkSession, tmp_path: Path, document: str, number: int, topic: str, rows: int
) -> None:
    orders = spark.range(5).selectExpr("id", "id AS order_id", "id * 2.5 AS amount")
    orders.createOrReplaceTempView("orders")
    spark.range(5).selectExpr("'d' AS device", "CAST(id AS STRING) AS payload").write.parquet(str(tmp_path / "source"))
    events = spark.readStream.schema("device STRING, payload STRING").parquet(str(tmp_path / "source"))
    names: dict[str, Any] = {"spark": spark, "df": orders, "orders": orders, "events": events}
    with embedded_broker(topics={"orders": 2, "events": 1}) as broker:
        code = re.sub(r"(broker|localhost):9092", broker.bootstrap_servers, blocks(document)[number])
        exec(compile(code.replace("/checkpoints", str(tmp_path / "checkpoints")), document, "exec"), names)
        if "query" in names:
            names["query"].processAllAvailable()
            names["query"].stop()
        assert read_topic(broker.bootstrap_servers, topic).num_rows == rows


def test_the_look_at_a_cluster_names_each_python_and_the_version(
    spark: SparkSession, capsys: pytest.CaptureFixture[str]
) -> None:
    (code,) = (block for block in blocks("docs/deploying.md") if "def places" in block)
    exec(compile(code, "docs/deploying.md", "exec"), {"spark": spark, "__name__": "example"})
    assert capsys.readouterr().out == f"{socket.gethostname()} {sys.executable} {__version__}\n"
