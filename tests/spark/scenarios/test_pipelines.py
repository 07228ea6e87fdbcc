"""Declarative pipelines: the project of docs/pipelines.md, run as the command `spark-pipelines` runs it.

The tests run the same Python program as the command. SPARK_REMOTE connects it to a Spark that is already running.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from spark_kafka_sink.testing import EmbeddedBroker, embedded_broker
from tests.documents import ROOT, blocks
from tests.spark_session import connect_address

pytest.importorskip("pyspark.pipelines", reason="this pyspark has no pipelines")
pytest.importorskip("yaml", reason="pipelines need pyyaml")
pytestmark = [pytest.mark.needs("java"), pytest.mark.data_source]

PROJECT = ROOT / "docs" / "examples" / "pipeline"
TOPIC = '"topic": "orders",'
Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    with embedded_broker() as broker:
        yield broker


@pytest.fixture
def run(spark: SparkSession, broker: EmbeddedBroker, tmp_path: Path) -> Run:
    """Return a function that runs the project with sink options in addition to those of the page."""
    shutil.copytree(PROJECT, tmp_path / "project")
    spec = tmp_path / "project" / "spark-pipeline.yml"
    addresses = {
        "file:///tmp/orders-pipeline": f"file://{tmp_path}/storage",
        "/data/orders": str(tmp_path / "orders"),
        "localhost:9092": broker.bootstrap_servers,
    }
    for documented, here in addresses.items():
        assert documented in spec.read_text()
        spec.write_text(spec.read_text().replace(documented, here))
    (tmp_path / "orders").mkdir()
    sink = tmp_path / "project" / "transformations" / "orders.py"
    documented_sink = sink.read_text()
    assert TOPIC in documented_sink

    def run(*arguments: str, topic: str, **overrides: str) -> subprocess.CompletedProcess[str]:
        options = "".join(f'"{name}": "{value}", ' for name, value in ({"topic": topic} | overrides).items())
        sink.write_text(documented_sink.replace(TOPIC, options))
        command = [sys.executable, "-m", "pyspark.pipelines.cli", *arguments, "--spec", str(spec)]
        environment = os.environ | {"SPARK_REMOTE": connect_address(spark)}
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)

    return run


def test_page_shows_files_of_pipeline_project() -> None:
    assert blocks("docs/pipelines.md", "yaml") == [(PROJECT / "spark-pipeline.yml").read_text()]
    assert blocks("docs/pipelines.md") == [(PROJECT / "transformations" / "orders.py").read_text()]


def order(tmp_path: Path, *ids: int) -> None:
    lines = [f'{{"id": "{number}", "amount": {number}.5}}' for number in ids]
    (tmp_path / "orders" / f"{ids[0]}.json").write_text("\n".join(lines))


def keys(broker: EmbeddedBroker, topic: str) -> list[int]:
    return sorted(int(key) for key in broker.topic(topic).read().column("key").to_pylist())


def test_run_writes_new_rows_and_full_refresh_rewrites_all(broker: EmbeddedBroker, run: Run, tmp_path: Path) -> None:
    overrides = {"deliveryGuarantee": "exactly-once"}
    topic = broker.create_topic("orders").name
    for ids in ([1, 2, 3], [4]):
        order(tmp_path, *ids)
        done = run("run", topic=topic, **overrides)
        assert done.returncode == 0, done.stdout + done.stderr
        assert "Run is COMPLETED." in done.stdout
    assert keys(broker, topic) == [1, 2, 3, 4]
    checkpoints = tmp_path / "storage" / "_checkpoints" / "orders_topic" / "orders_to_kafka"
    assert [folder.name for folder in checkpoints.iterdir()] == ["0"]
    done = run("run", "--full-refresh-all", topic=topic, **overrides)
    assert done.returncode == 0, done.stdout + done.stderr
    assert keys(broker, topic) == [1, 1, 2, 2, 3, 3, 4, 4]
    assert sorted(folder.name for folder in checkpoints.iterdir()) == ["0", "1"], "each refresh has a checkpoint anew"


def test_rejects_full_refresh_with_prefix_of_user(broker: EmbeddedBroker, run: Run, tmp_path: Path) -> None:
    topic = broker.create_topic("prefixed").name
    overrides = {"deliveryGuarantee": "exactly-once", "transactionalIdPrefix": "orders-pipeline"}
    order(tmp_path, 1, 2)
    assert run("run", topic=topic, **overrides).returncode == 0
    done = run("run", "--full-refresh-all", topic=topic, **overrides)
    assert done.returncode != 0
    assert "transactionalIdPrefix" in done.stdout + done.stderr
    assert keys(broker, topic) == [1, 2]


def test_run_rejects_invalid_options_but_dry_run_does_not(broker: EmbeddedBroker, run: Run, tmp_path: Path) -> None:
    """After the option is corrected, the run writes with the default guarantee, at least once."""
    topic = broker.create_topic("mistaken").name
    order(tmp_path, 1)
    dry = run("dry-run", topic=topic, tpoic="x")
    assert dry.returncode == 0, dry.stdout + dry.stderr
    done = run("run", topic=topic, tpoic="x")
    assert done.returncode != 0
    assert "ConfigurationError: Unknown option 'tpoic'. 'topic' is also set: remove 'tpoic'." in done.stdout
    assert keys(broker, topic) == []
    assert run("run", topic=topic).returncode == 0
    assert keys(broker, topic) == [1]
