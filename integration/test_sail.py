"""Batch jobs on Sail, which runs Spark's programs without a JVM."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from integration.support.artifacts import SAIL_PYTHON
from spark_kafka_sink.testing import EmbeddedBroker, embedded_broker, read_topic

pytestmark = pytest.mark.needs("sail")

ROWS = 1_000
OPTIONS: tuple[dict[str, str], ...] = (
    {},
    {"maxTasks": "2"},
    {"distribution": "key"},
    {"valueFormat": "json", "valueColumns": "key"},
)


@pytest.fixture
def broker() -> Iterator[EmbeddedBroker]:
    with embedded_broker(topics={"orders": 3}) as broker:
        yield broker


def run_jobs(broker: EmbeddedBroker, *jobs: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """Run jobs with these options, one after the other, in one process, because Sail takes seconds to start."""
    command = [str(SAIL_PYTHON), "-m", "integration.support.sail_job", broker.bootstrap_servers, str(ROWS)]
    return subprocess.run([*command, *map(json.dumps, jobs)], capture_output=True, text=True, check=False)


def test_writes_each_row_once(broker: EmbeddedBroker, tmp_path: Path) -> None:
    folders = [tmp_path / str(number) for number in range(len(OPTIONS))]
    for folder in folders:
        folder.mkdir()
        broker.create_topic(folder.name, 3)
    done = run_jobs(
        broker,
        *(
            {"topic": folder.name, "reportPath": str(folder), **options}
            for folder, options in zip(folders, OPTIONS, strict=True)
        ),
    )
    assert done.returncode == 0, done.stderr
    for folder, options in zip(folders, OPTIONS, strict=True):
        assert len(read_topic(broker.bootstrap_servers, folder.name)) == ROWS, options
        (report,) = [json.loads(line) for file in folder.iterdir() for line in file.read_text().splitlines()]
        assert report["rows"] == ROWS, options


def test_exactly_once_job_writes_once_although_it_runs_twice(broker: EmbeddedBroker) -> None:
    job = {"topic": "orders", "deliveryGuarantee": "exactly-once", "idempotencyKey": "day-1"}
    for _ in range(2):  # each time in a new process
        done = run_jobs(broker, job)
        assert done.returncode == 0, done.stderr
    values = read_topic(broker.bootstrap_servers, "orders")["value"].to_pylist()
    assert sorted(map(int, values)) == list(range(ROWS))


def test_fails_with_error_about_unknown_option(broker: EmbeddedBroker) -> None:
    done = run_jobs(broker, {"topic": "orders", "kafka.linger": "5"})
    assert done.returncode == 1
    assert "ConfigurationError: kafka.linger is not an option of the Kafka producer" in done.stderr
