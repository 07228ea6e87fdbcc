"""A standalone cluster on one machine: a master, two workers, executors whose Python has only the wheel.

One driver does all the writes. Spark's speculation is on in all of them.
"""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from integration.support import cluster_jobs as jobs
from integration.support.cluster_jobs import BATCHES, ROWS_PER_ARROW_BATCH, STUCK_AFTER_BATCHES, STUCK_TASK, TASKS
from integration.support.kafka_cluster import KafkaCluster
from integration.support.librdkafka import create_topic, read_topic
from integration.support.open_transactions import ongoing, wait_until_ended
from integration.support.processes import connections_to
from integration.support.spark_cluster import ClusterDriver, StandaloneCluster
from spark_kafka_sink.reports.store import read_reports

pytestmark = pytest.mark.needs("kafka")
# Transactions may last 15 minutes, and tests wait for ten at the most: one that is not aborted fails a test.

SOAK = bool(os.environ.get("SOAK"))
ROWS = 120_000
MIDDLE = 1_000
EXECUTORS_KILLED = 10 if SOAK else 1


@pytest.fixture(scope="module")
def driver(standalone: StandaloneCluster, kafka: KafkaCluster, wheel_python: Path) -> Iterator[ClusterDriver]:
    with ClusterDriver(standalone, kafka.bootstrap(), wheel_python) as driver:
        yield driver
    assert ongoing(kafka, "") == [], "a transaction is still open"


@pytest.fixture
def topic(kafka: KafkaCluster) -> str:
    return create_topic(kafka.bootstrap(), partitions=3)


def count_rows(kafka: KafkaCluster, topic: str, isolation: str = "read_committed") -> Counter[int]:
    return Counter(int(record.value or b"") for record in read_topic(kafka.bootstrap(), topic, isolation=isolation))


def writers(standalone: StandaloneCluster, kafka: KafkaCluster) -> list[int]:
    """The Python workers that are connected to Kafka."""
    port = int(kafka.bootstrap().rpartition(":")[2])
    return [pid for pid in standalone.python_workers() if connections_to(pid, port)]


def test_an_executor_that_is_killed_while_it_writes_loses_nothing(
    kafka: KafkaCluster, standalone: StandaloneCluster, driver: ClusterDriver, topic: str, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    driver.begin(jobs.write_behind_gate, topic=topic, rows=ROWS, gate=str(gate), options={})
    driver.wait_until(lambda: len(standalone.executors()) == 2)
    driver.wait_until(lambda: len(read_topic(kafka.bootstrap(), topic)) >= MIDDLE)
    os.kill(standalone.executors()[0], signal.SIGKILL)
    gate.touch()
    driver.wait()
    assert "Lost" in driver.log()
    assert set(count_rows(kafka, topic)) == set(range(ROWS))


def test_executors_and_a_python_worker_that_are_killed_while_they_write_exactly_once_leave_each_row_once(
    kafka: KafkaCluster, standalone: StandaloneCluster, driver: ClusterDriver, topic: str, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    options = {"deliveryGuarantee": "exactly-once", "checkpointLocation": str(tmp_path / "checkpoint")}
    options["transactionalIdPrefix"] = topic
    driver.begin(jobs.write_behind_gate, topic=topic, rows=ROWS, gate=str(gate), options=options)
    # The source gives each task every fourth number.
    driver.wait_until(lambda: len({number % TASKS for number in count_rows(kafka, topic, "read_uncommitted")}) == 2)
    for _ in range(EXECUTORS_KILLED):
        driver.wait_until(lambda: len(writers(standalone, kafka)) == 2)
        executor = standalone.executors()[0]
        os.kill(executor, signal.SIGKILL)
        driver.wait_until(lambda executor=executor: executor not in standalone.executors())  # type: ignore[misc]
    driver.wait_until(lambda: len(writers(standalone, kafka)) == 2)
    # Of a worker that dies alone Spark hears when it has rows for it.
    os.kill(writers(standalone, kafka)[0], signal.SIGKILL)
    gate.touch()
    driver.wait()
    rows = BATCHES * ROWS
    count = count_rows(kafka, topic)
    assert (sorted(count), set(count.values())) == (list(range(rows)), {1})
    assert sum(count_rows(kafka, topic, "read_uncommitted").values()) > rows, "no attempt that was killed had written"
    wait_until_ended(kafka, topic)


def test_a_speculative_attempt_loses_nothing_and_leaves_nothing_behind(
    kafka: KafkaCluster, standalone: StandaloneCluster, driver: ClusterDriver, topic: str, tmp_path: Path
) -> None:
    port = int(kafka.bootstrap().rpartition(":")[2])
    report_path = tmp_path / "report.jsonl"
    rows = 2 * ROWS
    driver.begin(jobs.write_stuck, topic=topic, rows=rows, options={"reportPath": str(report_path)})
    driver.wait()
    # Idle producers are closed after a second, so that any connection from then on is one left behind.
    driver.wait_until(lambda: all(connections_to(pid, port) == 0 for pid in standalone.python_workers()))
    assert standalone.python_workers(), "workers live on"
    driver.begin(jobs.print_threads)
    driver.wait()
    assert "threads: MainThread\n" in driver.log()

    # Only the attempts that won have been committed.
    (report,) = read_reports(str(report_path))
    assert (report.tasks, report.rows) == (TASKS, rows)
    count = count_rows(kafka, topic)
    assert set(count) == set(range(rows))
    # The attempt that lost has written as well: what it had got before it was stuck.
    twice = {number for number, times in count.items() if times > 1}
    of_the_stuck_task = STUCK_TASK * rows // TASKS
    assert twice
    assert twice <= set(range(of_the_stuck_task, of_the_stuck_task + STUCK_AFTER_BATCHES * ROWS_PER_ARROW_BATCH))
    assert max(count.values()) == 2


@pytest.mark.parametrize("batches", [1, BATCHES], ids=["job", "stream"])
def test_of_two_attempts_of_a_task_that_both_write_exactly_once_commits_one_and_aborts_the_other(
    kafka: KafkaCluster, driver: ClusterDriver, topic: str, tmp_path: Path, batches: int
) -> None:
    # Without linger.ms an attempt sends what it gets: the loser ends a moment after the winner.
    options = {"deliveryGuarantee": "exactly-once", "transactionalIdPrefix": topic, "kafka.linger.ms": "0"}
    if batches > 1:
        options["checkpointLocation"] = str(tmp_path / "checkpoint")
    driver.begin(jobs.write_side_by_side, topic=topic, rows=ROWS, folder=str(tmp_path), options=options)
    driver.wait()
    wait_until_ended(kafka, topic)
    count = count_rows(kafka, topic)
    assert (sorted(count), set(count.values())) == (list(range(batches * ROWS)), {1})
    written = count_rows(kafka, topic, "read_uncommitted")
    # Both have written. How much the loser had sent when Spark ended it is a matter of time.
    assert any(times > 1 for times in written.values())


def test_tasks_that_fail_and_are_run_again_write_each_row_once(
    kafka: KafkaCluster, driver: ClusterDriver, topic: str, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    options = {"deliveryGuarantee": "exactly-once"}
    driver.begin(jobs.write_with_failures, topic=topic, rows=ROWS, gate=str(gate), options=options)
    of_the_first_to_fail = set(range(ROWS // TASKS, 2 * ROWS // TASKS))
    driver.wait_until(lambda: not of_the_first_to_fail.isdisjoint(count_rows(kafka, topic, "read_uncommitted")))
    gate.touch()
    driver.wait()
    count = count_rows(kafka, topic)
    assert (sorted(count), set(count.values())) == (list(range(ROWS)), {1})
    assert sum(count_rows(kafka, topic, "read_uncommitted").values()) > ROWS, "no attempt was lost"
    wait_until_ended(kafka, "pykafka-job")
