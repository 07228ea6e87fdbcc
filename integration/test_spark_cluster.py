"""A standalone cluster on one machine: a master, two workers, executors whose Python has only the wheel."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import venv
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pyspark
import pytest

from integration.support.artifacts import ROOT
from integration.support.kafka_cluster import KafkaCluster
from integration.support.librdkafka import create_topic, read_topic
from integration.support.processes import command_line, connections_to, descendants, python_workers
from integration.support.spark_jobs import STUCK_AFTER_BATCHES, STUCK_TASK, TASKS
from spark_kafka_sink.spark.report import read_reports

pytestmark = pytest.mark.needs("kafka")

ROWS = 60_000
MIDDLE = 5_000
PATIENCE_SECONDS = 180.0


@pytest.fixture(scope="module")
def wheel_only(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of an environment with the wheel and what the wheel depends on; not even pyspark."""
    folder = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "wheel", "--no-deps", "--wheel-dir", str(folder), str(ROOT)], check=True)
    venv.create(folder / "environment", with_pip=False)
    python = folder / "environment" / "bin" / "python"
    (wheel,) = folder.glob("*.whl")
    subprocess.run([*pip, "--python", str(python), "install", str(wheel)], check=True)
    return python


class StandaloneCluster:
    """A master and two workers with one core each, as processes of their own."""

    def __init__(self, folder: Path, python: Path) -> None:
        self.folder = folder
        home = Path(pyspark.__file__).parent
        self._spark_class = str(home / "bin" / "spark-class")
        self.environment = os.environ | {
            "SPARK_HOME": str(home),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_DAEMON_MEMORY": "192m",
            "SPARK_DAEMON_JAVA_OPTS": "-XX:TieredStopAtLevel=1",
            "SPARK_NO_DAEMONIZE": "1",
            "PYSPARK_PYTHON": str(python),
        }
        self._port = _free_port()
        self.master = f"spark://127.0.0.1:{self._port}"
        self._processes: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> StandaloneCluster:
        self._start("Master", "--host", "127.0.0.1", "--port", str(self._port), "--webui-port", "0")
        # Two names for one machine: Spark starts no speculative attempt on the host of the first.
        for host in ("127.0.0.1", "localhost"):
            size = ["-c", "1", "-m", "1g", "-d", str(self.folder / f"work-{host}")]
            self._start("Worker", "--host", host, *size, "--webui-port", "0", self.master)
        return self

    def __exit__(self, *_: object) -> None:
        for process in reversed(self._processes):
            process.terminate()
        for process in self._processes:
            process.wait()

    def _start(self, role: str, *arguments: str) -> None:
        with (self.folder / f"{role}-{len(self._processes)}.log").open("wb") as log:
            command = [self._spark_class, f"org.apache.spark.deploy.{role.lower()}.{role}", *arguments]
            self._processes.append(subprocess.Popen(command, stdout=log, stderr=log, env=self.environment))

    def executors(self) -> list[int]:
        below = [pid for process in self._processes for pid in descendants(process.pid)]
        return [pid for pid in below if any("CoarseGrainedExecutorBackend" in word for word in command_line(pid))]

    def python_workers(self) -> list[int]:
        return [pid for executor in self.executors() for pid in python_workers(executor)]

    def submit(self, *arguments: str) -> subprocess.Popen[bytes]:
        with (self.folder / "driver.log").open("wb") as log:
            command = [sys.executable, "-m", "integration.support.spark_jobs", *arguments]
            return subprocess.Popen(
                command, cwd=ROOT, stdin=subprocess.PIPE, stdout=log, stderr=log, env=self.environment
            )


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port


class Job:
    """A job on the cluster. What it prints is in driver.log; it is killed when the `with` ends."""

    def __init__(self, cluster: StandaloneCluster, *arguments: str) -> None:
        self._process = cluster.submit(*arguments)
        self._log = cluster.folder / "driver.log"

    def __enter__(self) -> Job:
        return self

    def __exit__(self, *_: object) -> None:
        with self._process:
            self._process.kill()

    def log(self) -> str:
        return self._log.read_text()

    def wait_until(self, holds: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not holds():
            assert self._process.poll() is None, self.log()
            assert time.monotonic() < deadline, self.log()
            time.sleep(0.1)

    def go_on(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(b"\n")
        self._process.stdin.flush()

    def wait(self) -> None:
        assert self._process.wait(PATIENCE_SECONDS) == 0, self.log()


def test_an_executor_that_is_killed_while_it_writes_loses_nothing(
    kafka: KafkaCluster, wheel_only: Path, tmp_path: Path
) -> None:
    topic = create_topic(kafka.bootstrap(), partitions=3)
    with (
        StandaloneCluster(tmp_path, wheel_only) as cluster,
        Job(cluster, "batch", kafka.bootstrap(), topic, cluster.master, str(ROWS)) as job,
    ):
        job.wait_until(lambda: len(read_topic(kafka.bootstrap(), topic)) >= MIDDLE)
        before = cluster.executors()
        assert len(before) == 2
        os.kill(before[0], signal.SIGKILL)
        job.wait()
        assert "Lost" in job.log()
    values = {int(record.value or b"") for record in read_topic(kafka.bootstrap(), topic)}
    assert values == set(range(ROWS))


def test_a_speculative_attempt_loses_nothing_and_leaves_nothing_behind(
    kafka: KafkaCluster, wheel_only: Path, tmp_path: Path
) -> None:
    topic = create_topic(kafka.bootstrap(), partitions=3)
    port = int(kafka.bootstrap().rpartition(":")[2])
    report_path = tmp_path / "report.jsonl"
    rows = 4 * ROWS
    with (
        StandaloneCluster(tmp_path, wheel_only) as cluster,
        Job(cluster, "speculation", kafka.bootstrap(), topic, cluster.master, str(rows), str(report_path)) as job,
    ):
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
