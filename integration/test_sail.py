"""Batch jobs on Sail, which runs Spark's programs without a JVM."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from integration.support.artifacts import SAIL_PYTHON
from spark_kafka_sink.testing import EmbeddedBroker, embedded_broker, read_topic

pytestmark = pytest.mark.needs("sail")

ROWS = 1_000


@pytest.fixture
def broker() -> Iterator[EmbeddedBroker]:
    with embedded_broker(topics={"orders": 3}) as broker:
        yield broker


def run_job(broker: EmbeddedBroker, *options: str) -> subprocess.CompletedProcess[str]:
    command = [str(SAIL_PYTHON), "-m", "integration.support.sail_job", broker.bootstrap_servers, str(ROWS), *options]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def written_values(broker: EmbeddedBroker) -> list[int]:
    return sorted(int(value) for value in read_topic(broker.bootstrap_servers, "orders")["value"].to_pylist())


@pytest.mark.parametrize(
    "options", [[], ["maxTasks=2"], ["distribution=key"], ["valueFormat=json", "valueColumns=key"]]
)
def test_writes_each_row_once(broker: EmbeddedBroker, options: list[str], tmp_path: Path) -> None:
    done = run_job(broker, *options, f"reportPath={tmp_path}")
    assert done.returncode == 0, done.stderr
    assert len(read_topic(broker.bootstrap_servers, "orders")) == ROWS
    (report,) = [json.loads(line) for file in tmp_path.iterdir() for line in file.read_text().splitlines()]
    assert report["rows"] == ROWS


def test_exactly_once_job_writes_once_although_it_runs_twice(broker: EmbeddedBroker) -> None:
    for _ in range(2):
        done = run_job(broker, "deliveryGuarantee=exactly-once", "idempotencyKey=day-1")
        assert done.returncode == 0, done.stderr
    assert written_values(broker) == list(range(ROWS))


def test_rejects_mistake_with_its_error(broker: EmbeddedBroker) -> None:
    done = run_job(broker, "kafka.linger=5")
    assert done.returncode == 1
    assert "ConfigurationError: kafka.linger is not an option of the Kafka producer" in done.stderr
