"""Every program in docs/examples/ runs unchanged and writes the expected rows."""

from __future__ import annotations

import json
import re
import runpy
import sys
from pathlib import Path

import pytest
from IPython.core.interactiveshell import InteractiveShell
from pyspark.sql import SparkSession
from traitlets.config import Config

from spark_kafka_sink.testing import EmbeddedBroker, assert_topic_equals, embedded_broker, read_topic

pytestmark = pytest.mark.needs("java")

EXAMPLES = Path(__file__).resolve().parents[3] / "docs" / "examples"
RECEIPT_VERIFIER_TEST = Path(__file__).resolve().parents[3] / "integration" / "test_receipt_verifier.py"
ROWS = [
    f'{{"sensor": "s{n}", "celsius": {n}.5, "time": "2026-01-01T00:00:00Z", "shop": "north", "amount": {n}.0}}'
    for n in range(4)
]


def run(monkeypatch: pytest.MonkeyPatch, name: str, *arguments: object) -> None:
    monkeypatch.setattr(sys, "argv", [name, *map(str, arguments)])
    runpy.run_path(str(EXAMPLES / name), run_name="__main__")


def assert_values(spark: SparkSession, broker: EmbeddedBroker, topic: str, *values: str) -> None:
    expected = spark.createDataFrame([(value,) for value in values], "value STRING")
    assert_topic_equals(expected, broker.topic(topic))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a source folder with two new files."""
    source = tmp_path / "source"
    source.mkdir()
    for number in range(2):
        (source / f"{number}.json").write_text("\n".join(ROWS[2 * number : 2 * number + 2]))
    return source


def test_batch(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    with embedded_broker(topics={"orders": 3}) as broker:
        run(monkeypatch, "batch.py", broker.bootstrap_servers)
        rows = [(1, "ada", 12.5), (2, "bob", 8.0), (3, "ada", 99.9)]
        orders = spark.createDataFrame(rows, "order_id INT, customer STRING, amount DOUBLE")
        assert_topic_equals(orders.selectExpr("customer AS key", "struct(*) AS value"), broker.topic("orders"))


def test_stream(spark: SparkSession, monkeypatch: pytest.MonkeyPatch, folder: Path, tmp_path: Path) -> None:
    with embedded_broker(topics={"readings": 2}) as broker:
        for _ in range(2):  # the second run finds nothing new
            run(monkeypatch, "stream.py", broker.bootstrap_servers, folder, tmp_path / "checkpoint")
        readings = spark.range(4).selectExpr(
            "concat('s', id) AS key",
            "struct(id + 0.5D AS celsius) AS value",
            "TIMESTAMP '2026-01-01T00:00:00Z' AS timestamp",
        )
        assert_topic_equals(readings, broker.topic("readings"))


def test_exactly_once(spark: SparkSession, monkeypatch: pytest.MonkeyPatch, folder: Path, tmp_path: Path) -> None:
    with embedded_broker(topics={"readings": 2, "daily": 1}, auto_create_topics=True) as broker:
        for _ in range(2):  # the second run writes nothing
            run(monkeypatch, "exactly_once.py", broker.bootstrap_servers, folder, tmp_path / "checkpoint")
        assert_values(spark, broker, "readings", *(f'{{"celsius":{n}.5}}' for n in range(4)))
        assert_values(spark, broker, "daily", *(f"{n}.5" for n in range(4)))


def test_foreach_batch(spark: SparkSession, monkeypatch: pytest.MonkeyPatch, folder: Path, tmp_path: Path) -> None:
    with embedded_broker(topics={"totals": 1}) as broker:
        archive = tmp_path / "archive"
        run(monkeypatch, "foreach_batch.py", broker.bootstrap_servers, folder, archive, tmp_path / "checkpoint")
        assert_values(spark, broker, "totals", '{"amount":6.0,"batch":0}')
        assert spark.read.parquet(str(archive)).count() == 4


def test_dead_letters(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    with embedded_broker(topics={"documents": 1, "documents-rejected": 1}) as broker:
        run(monkeypatch, "dead_letters.py", broker.bootstrap_servers)
        for topic, names in (("documents", ["middle", "small"]), ("documents-rejected", ["huge"])):
            assert_topic_equals(spark.createDataFrame([(name,) for name in names], "key STRING"), broker.topic(topic))


def test_without_spark(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    with embedded_broker(topics={"greetings": 3}) as broker:
        run(monkeypatch, "without_spark.py", broker.bootstrap_servers)
        assert read_topic(broker.bootstrap_servers, "greetings").num_rows == 1001
    assert re.search(r"^partition [012], offset 0$", capsys.readouterr().out, re.MULTILINE)


def test_table_pyarrow(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    with embedded_broker(topics={"orders": 1}) as broker:
        run(monkeypatch, "table_pyarrow.py", broker.bootstrap_servers, tmp_path / "orders.parquet")
        values = read_topic(broker.bootstrap_servers, "orders").select(["key", "value"]).to_pylist()
        assert values[1] == {"key": b"o-2", "value": b'{"customer":"bob","amount":8.0}'}
    assert capsys.readouterr().out == "partition 0: 3 rows, offsets 0 to 2\n"


def test_table_polars(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    with embedded_broker(topics={"documents": 3}) as broker:
        run(monkeypatch, "table_polars.py", broker.bootstrap_servers)
        assert read_topic(broker.bootstrap_servers, "documents").num_rows == 2
    counts, failure = capsys.readouterr().out.splitlines()
    assert counts == "2 written, 1 failed"
    assert failure.startswith("['huge'] topic documents: a record of up to 2000")


def test_table_duckdb(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    with embedded_broker(topics={"totals": 3}) as broker:
        run(monkeypatch, "table_duckdb.py", broker.bootstrap_servers)
        rows = read_topic(broker.bootstrap_servers, "totals").select(["key", "value"]).to_pylist()
        assert {"key": b"customer-0", "value": b'{"orders":1000,"amount":499500000}'} in rows
    assert capsys.readouterr().out == "1000 rows written\n"


def test_notebook_runs_from_top_to_bottom(spark: SparkSession, capsys: pytest.CaptureFixture[str]) -> None:
    cells = json.loads((EXAMPLES / "first_look.ipynb").read_text())["cells"]
    shell = InteractiveShell(config=Config({"HistoryManager": {"enabled": False}}))  # type: ignore[no-untyped-call]
    for cell in cells:
        if cell["cell_type"] == "code":
            assert cell["outputs"] == [], "a notebook is kept without what it printed"
            shell.run_cell("".join(cell["source"])).raise_error()  # type: ignore[no-untyped-call]
    shown = capsys.readouterr().out
    assert shown.count('{"order_id":') == 5
    assert "Did you mean 'vlaue'?" in shown


def test_every_example_is_listed_and_run_here() -> None:
    names = {path.name for path in EXAMPLES.iterdir()} - {"README.md"}
    linked_folders = set(re.findall(r"\]\((\w[\w.]*)[/)]", (EXAMPLES / "README.md").read_text()))
    runners = (Path(__file__), Path(__file__).with_name("test_pipelines.py"), RECEIPT_VERIFIER_TEST)
    sources = "".join(runner.read_text() for runner in runners)
    assert names == linked_folders
    assert [name for name in names if f'"{name}"' not in sources] == []
