"""A standalone cluster on one machine: a master, two workers, executors whose Python has only the wheel."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import venv
from pathlib import Path

import pyspark
import pytest

from integration.artifacts import ROOT
from integration.kafka_cluster import KafkaCluster
from integration.librdkafka import create_topic, read_topic
from integration.processes import command_line, descendants

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
        self._folder = folder
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
        for number in range(2):
            work = self._folder / f"work-{number}"
            self._start("Worker", "-c", "1", "-m", "1g", "-d", str(work), "--webui-port", "0", self.master)
        return self

    def __exit__(self, *_: object) -> None:
        for process in reversed(self._processes):
            process.terminate()
        for process in self._processes:
            process.wait()

    def _start(self, role: str, *arguments: str) -> None:
        with (self._folder / f"{role}-{len(self._processes)}.log").open("wb") as log:
            command = [self._spark_class, f"org.apache.spark.deploy.{role.lower()}.{role}", *arguments]
            self._processes.append(subprocess.Popen(command, stdout=log, stderr=log, env=self.environment))

    def executors(self) -> list[int]:
        below = [pid for process in self._processes for pid in descendants(process.pid)]
        return [pid for pid in below if any("CoarseGrainedExecutorBackend" in word for word in command_line(pid))]

    def submit(self, *arguments: str) -> subprocess.Popen[bytes]:
        with (self._folder / "driver.log").open("wb") as log:
            command = [sys.executable, "-m", "integration.spark_jobs", *arguments]
            return subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log, env=self.environment)


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port


def test_an_executor_that_is_killed_while_it_writes_loses_nothing(
    kafka: KafkaCluster, wheel_only: Path, tmp_path: Path
) -> None:
    topic = create_topic(kafka.bootstrap(), partitions=3)
    with StandaloneCluster(tmp_path, wheel_only) as cluster:
        job = cluster.submit("batch", kafka.bootstrap(), topic, cluster.master, str(ROWS))
        try:
            deadline = time.monotonic() + PATIENCE_SECONDS
            while len(read_topic(kafka.bootstrap(), topic)) < MIDDLE:
                assert job.poll() is None, (tmp_path / "driver.log").read_text()
                assert time.monotonic() < deadline, (tmp_path / "driver.log").read_text()
            before = cluster.executors()
            assert len(before) == 2
            os.kill(before[0], signal.SIGKILL)
            assert job.wait(PATIENCE_SECONDS) == 0, (tmp_path / "driver.log").read_text()
        finally:
            job.kill()
            job.wait()
    values = {int(record.value or b"") for record in read_topic(kafka.bootstrap(), topic)}
    assert values == set(range(ROWS))
    assert "Lost" in (tmp_path / "driver.log").read_text()
