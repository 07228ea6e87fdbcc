"""A standalone cluster on one machine: a master, two workers, executors whose Python has only the wheel."""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from integration.support.kafka_cluster import KafkaCluster
from integration.support.librdkafka import create_topic, read_topic
from integration.support.processes import connections_to
from integration.support.spark_cluster import Job, StandaloneCluster, wheel_environment
from integration.support.spark_jobs import STUCK_AFTER_BATCHES, STUCK_TASK, TASKS
from spark_kafka_sink.reports.store import read_reports

pytestmark = pytest.mark.needs("kafka")

ROWS = 120_000
MIDDLE = 1_000


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandaloneCluster]:
    python = wheel_environment(tmp_path_factory.mktemp("wheel"))
    with StandaloneCluster(tmp_path_factory.mktemp("spark-cluster"), python) as cluster:
        yield cluster


def test_an_executor_that_is_killed_while_it_writes_loses_nothing(
    kafka: KafkaCluster, cluster: StandaloneCluster, tmp_path: Path
) -> None:
    topic = create_topic(kafka.bootstrap(), partitions=3)
    gate = tmp_path / "gate"
    arguments = ["batch", kafka.bootstrap(), topic, cluster.master, str(ROWS), str(gate)]
    with Job(cluster, *arguments) as job:
        job.wait_until(lambda: len(cluster.executors()) == 2)
        job.wait_until(lambda: len(read_topic(kafka.bootstrap(), topic)) >= MIDDLE)
        os.kill(cluster.executors()[0], signal.SIGKILL)
        gate.touch()
        job.wait()
        assert "Lost" in job.log()
    values = {int(record.value or b"") for record in read_topic(kafka.bootstrap(), topic)}
    assert values == set(range(ROWS))


def test_a_speculative_attempt_loses_nothing_and_leaves_nothing_behind(
    kafka: KafkaCluster, cluster: StandaloneCluster, tmp_path: Path
) -> None:
    topic = create_topic(kafka.bootstrap(), partitions=3)
    port = int(kafka.bootstrap().rpartition(":")[2])
    report_path = tmp_path / "report.jsonl"
    rows = 2 * ROWS
    arguments = ["speculation", kafka.bootstrap(), topic, cluster.master, str(rows), str(report_path)]
    with Job(cluster, *arguments) as job:
        job.wait_until(lambda: "written" in job.log())
        # Idle producers are closed after a second, so that any connection from then on is one left behind.
        job.wait_until(lambda: all(connections_to(pid, port) == 0 for pid in cluster.python_workers()))
        assert cluster.python_workers(), "workers live on"
        job.go_on()
        job.wait()
        assert "threads: MainThread\n" in job.log()

    # Only the attempts that won have been committed.
    (report,) = read_reports(str(report_path))
    assert (report.tasks, report.rows) == (TASKS, rows)
    count = Counter(int(record.value or b"") for record in read_topic(kafka.bootstrap(), topic))
    assert set(count) == set(range(rows))
    # The attempt that lost has written as well: what it had got before it was stuck.
    twice = {number for number, times in count.items() if times > 1}
    of_the_stuck_task = STUCK_TASK * rows // TASKS
    assert twice
    assert twice <= set(range(of_the_stuck_task, of_the_stuck_task + STUCK_AFTER_BATCHES * 1_000))
    assert max(count.values()) == 2
