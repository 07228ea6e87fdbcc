"""Writes on a standalone Spark cluster, whose executors have only the wheel installed.

All tests use one driver, with speculative execution.
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
from integration.support.librdkafka import create_topic, open_record_counter, read_topic
from integration.support.open_transactions import list_ongoing_lines, wait_until_ended
from integration.support.processes import count_connections
from integration.support.spark_cluster import RACK_VARIABLE, WORKER_RACKS, ClusterDriver, StandaloneCluster
from spark_kafka_sink.reports.store import read_reports
from spark_kafka_sink.testing import embedded_broker

pytestmark = pytest.mark.needs("kafka")
# The transaction timeout is 15 minutes and tests wait at most ten, so a transaction that is never aborted fails a test.

SOAK = bool(os.environ.get("SOAK"))
ROWS = 120_000
MIDDLE = 1_000
EXECUTORS_KILLED = 10 if SOAK else 1


@pytest.fixture(scope="module")
def driver(standalone: StandaloneCluster, kafka: KafkaCluster, wheel_python: Path) -> Iterator[ClusterDriver]:
    with ClusterDriver(standalone, kafka.bootstrap(), wheel_python) as driver:
        yield driver
    assert list_ongoing_lines(kafka, "") == [], "a transaction is still open"


@pytest.fixture
def topic(kafka: KafkaCluster) -> str:
    return create_topic(kafka.bootstrap(), partitions=3)


def count_rows(kafka: KafkaCluster, topic: str, isolation: str = "read_committed") -> Counter[int]:
    return Counter(int(record.value or b"") for record in read_topic(kafka.bootstrap(), topic, isolation=isolation))


def find_writing_workers(standalone: StandaloneCluster, kafka: KafkaCluster) -> list[int]:
    """Return the process ids of the Python workers that are connected to Kafka."""
    port = int(kafka.bootstrap().rpartition(":")[2])
    return [pid for pid in standalone.python_workers() if count_connections(pid, port)]


def test_killed_executor_loses_no_rows(
    kafka: KafkaCluster, standalone: StandaloneCluster, driver: ClusterDriver, topic: str, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    driver.begin(jobs.write_half_behind_gate, topic=topic, rows=ROWS, gate=str(gate), options={})
    driver.wait_until(lambda: len(standalone.executors()) == 2)
    with open_record_counter(kafka.bootstrap(), topic) as count:
        driver.wait_until(lambda: count() >= MIDDLE)
    os.kill(standalone.executors()[0], signal.SIGKILL)
    gate.touch()
    driver.wait()
    assert "Lost" in driver.log()
    assert set(count_rows(kafka, topic)) == set(range(ROWS))


def test_exactly_once_stream_survives_killed_executors_and_worker(
    kafka: KafkaCluster, standalone: StandaloneCluster, driver: ClusterDriver, topic: str, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    options = {"deliveryGuarantee": "exactly-once", "checkpointLocation": str(tmp_path / "checkpoint")}
    options["transactionalIdPrefix"] = topic
    driver.begin(jobs.write_half_behind_gate, topic=topic, rows=ROWS, gate=str(gate), options=options)
    # The source gives each task every fourth number.
    driver.wait_until(lambda: len({number % TASKS for number in count_rows(kafka, topic, "read_uncommitted")}) == 2)
    for _ in range(EXECUTORS_KILLED):
        driver.wait_until(lambda: len(find_writing_workers(standalone, kafka)) == 2)
        executor = standalone.executors()[0]
        os.kill(executor, signal.SIGKILL)
        driver.wait_until(lambda executor=executor: executor not in standalone.executors())  # type: ignore[misc]
    driver.wait_until(lambda: len(find_writing_workers(standalone, kafka)) == 2)
    # Spark notices the death of a worker only when it sends the worker more rows.
    os.kill(find_writing_workers(standalone, kafka)[0], signal.SIGKILL)
    gate.touch()
    driver.wait()
    rows = BATCHES * ROWS
    count = count_rows(kafka, topic)
    assert (sorted(count), set(count.values())) == (list(range(rows)), {1})
    assert sum(count_rows(kafka, topic, "read_uncommitted").values()) > rows, "no killed attempt had written rows"
    wait_until_ended(kafka, topic)


def test_speculative_attempt_loses_no_rows_and_leaks_no_connections(
    kafka: KafkaCluster, standalone: StandaloneCluster, driver: ClusterDriver, topic: str, tmp_path: Path
) -> None:
    port = int(kafka.bootstrap().rpartition(":")[2])
    report_path = tmp_path / "report.jsonl"
    rows = 2 * ROWS
    driver.begin(jobs.write_with_hanging_attempt, topic=topic, rows=rows, options={"reportPath": str(report_path)})
    driver.wait()
    # Idle producers are closed after a second, so a connection that remains is leaked.
    driver.wait_until(lambda: all(count_connections(pid, port) == 0 for pid in standalone.python_workers()))
    assert standalone.python_workers(), "Python workers are reused, so some must still run"
    driver.begin(jobs.print_threads)
    driver.wait()
    assert "threads: MainThread\n" in driver.log()

    # The report counts only the committed attempts.
    (report,) = read_reports(str(report_path))
    assert (report.tasks, report.rows) == (TASKS, rows)
    count = count_rows(kafka, topic)
    assert set(count) == set(range(rows))
    # The hanging attempt had also written the rows that it received before it hung.
    duplicates = {number for number, times in count.items() if times > 1}
    first_row = STUCK_TASK * rows // TASKS
    assert duplicates
    assert duplicates <= set(range(first_row, first_row + STUCK_AFTER_BATCHES * ROWS_PER_ARROW_BATCH))
    assert max(count.values()) == 2


@pytest.mark.parametrize("batches", [1, BATCHES] if SOAK else [1])
def test_exactly_once_write_commits_one_of_two_concurrent_attempts(
    kafka: KafkaCluster, driver: ClusterDriver, topic: str, tmp_path: Path, batches: int
) -> None:
    # Without linger.ms an attempt sends its rows at once. Spark kills the second attempt soon after the first succeeds.
    options = {"deliveryGuarantee": "exactly-once", "transactionalIdPrefix": topic, "kafka.linger.ms": "0"}
    if batches > 1:
        options["checkpointLocation"] = str(tmp_path / "checkpoint")
    driver.begin(jobs.write_with_concurrent_attempts, topic=topic, rows=ROWS, folder=str(tmp_path), options=options)
    driver.wait()
    wait_until_ended(kafka, topic)
    count = count_rows(kafka, topic)
    assert (sorted(count), set(count.values())) == (list(range(batches * ROWS)), {1})
    written = count_rows(kafka, topic, "read_uncommitted")
    # Both attempts have written. The number of rows of the killed attempt depends on timing.
    assert any(times > 1 for times in written.values())


def test_exactly_once_write_writes_each_row_once_despite_failed_attempts(
    kafka: KafkaCluster, driver: ClusterDriver, topic: str, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    options = {"deliveryGuarantee": "exactly-once"}
    driver.begin(jobs.write_with_failures, topic=topic, rows=ROWS, gate=str(gate), options=options)
    failing_task_rows = set(range(ROWS // TASKS, 2 * ROWS // TASKS))
    driver.wait_until(lambda: not failing_task_rows.isdisjoint(count_rows(kafka, topic, "read_uncommitted")))
    gate.touch()
    driver.wait()
    count = count_rows(kafka, topic)
    assert (sorted(count), set(count.values())) == (list(range(ROWS)), {1})
    assert sum(count_rows(kafka, topic, "read_uncommitted").values()) > ROWS, "no failed attempt had written rows"
    wait_until_ended(kafka, "pykafka-job")


def test_rows_without_key_go_to_leaders_in_the_rack_of_their_executor(driver: ClusterDriver, tmp_path: Path) -> None:
    racks = list(WORKER_RACKS.values())
    options = {
        "clientRackEnv": RACK_VARIABLE,
        "kafka.partitioner.rack.aware": "true",
        # A small batch size makes the producer change the partition often.
        "kafka.batch.size": "16384",
    }
    with embedded_broker({"orders": 9}, nodes=3, racks=[*racks, "rack-3"]) as broker:
        options["kafka.bootstrap.servers"] = broker.bootstrap_servers
        topic, gate = broker.topic("orders"), tmp_path / "gate"
        driver.begin(
            jobs.write_racks, topic="orders", rows=ROWS, options=options, variable=RACK_VARIABLE, gate=str(gate)
        )
        driver.wait_until(lambda: len(topic.read()["value"].unique()) == len(racks))
        gate.touch()
        driver.wait()
        leaders = [broker.cluster.partition("orders", index).leader for index in range(9)]
        leader_racks = [broker.cluster.nodes[leader].rack for leader in leaders if leader is not None]
        records = topic.read()
    assert records.num_rows >= ROWS
    executor_racks = [value.decode() for value in records["value"].to_pylist()]
    leader_racks_by_row = [leader_racks[index] for index in records["partition"].to_pylist()]
    assert set(zip(executor_racks, leader_racks_by_row, strict=True)) == {(rack, rack) for rack in racks}
