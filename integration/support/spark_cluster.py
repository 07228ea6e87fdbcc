"""A standalone Spark cluster on this machine, a Python environment with only the wheel, and a driver that uses both."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pyspark

from integration.support.artifacts import ROOT
from integration.support.processes import command_line, descendants, python_workers
from tests.documents import FENCE
from tests.spark_session import JVM
from tests.waiting import wait_until

RACK_VARIABLE = "TEST_RACK"
WORKER_RACKS = {"127.0.0.1": "rack-1", "localhost": "rack-2"}
"""The value of RACK_VARIABLE in the environment of each worker and of its executors, by host of the worker."""

PIP = (sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check")


def build_wheel(folder: Path) -> Path:
    """Build the wheel of the package in a folder, and return its path."""
    subprocess.run([*PIP, "wheel", "--no-deps", "--wheel-dir", str(folder), str(ROOT)], check=True)
    (wheel,) = folder.glob("*.whl")
    return wheel


def deploying_commands(heading: str) -> list[str]:
    """Return the shell blocks of a section of docs/deploying.md."""
    section = (ROOT / "docs" / "deploying.md").read_text().split(f"\n## {heading}\n")[1].split("\n## ")[0]
    return [text for language, text in FENCE.findall(section) if language == "sh"]


def build_environment(folder: Path, wheel: Path) -> Path:
    """Create an environment with the wheel and its dependencies by the commands of docs/deploying.md.

    The environment has no pyspark. The commands also write its archive for `--archives` to the folder. Return the path
    of the interpreter.
    """
    build, _ = deploying_commands("Ship a whole environment")
    # The archive is only used on this machine, and compressing it would take longer than all other steps.
    build = build.replace("WHEEL", str(wheel)).replace("--output", "--compress-level 0 --output")
    path = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "PIP_NO_COMPILE": "1"}
    subprocess.run(["bash", "-ec", build], cwd=folder, env=os.environ | path, check=True)
    return folder / "environment" / "bin" / "python"


class StandaloneCluster:
    """A master and two workers with one core each, as separate processes, on free loopback ports.

    Each driver sets the Python interpreter of its executors. Each worker has a rack in its environment, as spark-env.sh
    sets it on each machine; drivers have none.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.master = ""
        home = Path(pyspark.__file__).parent
        self._spark_class = str(home / "bin" / "spark-class")
        self.environment = {name: value for name, value in os.environ.items() if not name.startswith("PYSPARK_")} | {
            "SPARK_HOME": str(home),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_DAEMON_MEMORY": "192m",
            "SPARK_DAEMON_JAVA_OPTS": JVM,
            "SPARK_NO_DAEMONIZE": "1",
        }
        self._processes: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> StandaloneCluster:
        log = self._start("Master", "--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
        wait_until(lambda: "Starting Spark master at " in log.read_text(), log.read_text)
        (self.master,) = re.findall(r"Starting Spark master at (\S+)", log.read_text())
        # The workers have different host names, because Spark starts no speculative attempt on the host of the first.
        for host, rack in WORKER_RACKS.items():
            size = ["-c", "1", "-m", "1g", "-d", str(self.folder / f"work-{host}")]
            self._start("Worker", "--host", host, *size, "--webui-port", "0", self.master, **{RACK_VARIABLE: rack})
        return self

    def __exit__(self, *_: object) -> None:
        for process in reversed(self._processes):
            process.terminate()
        for process in self._processes:
            process.wait()

    def _start(self, role: str, *arguments: str, **environment: str) -> Path:
        """Start the process of a role with additional environment variables, and return the path of its log."""
        path = self.folder / f"{role}-{len(self._processes)}.log"
        with path.open("wb") as log:
            command = [self._spark_class, f"org.apache.spark.deploy.{role.lower()}.{role}", *arguments]
            self._processes.append(
                subprocess.Popen(command, stdout=log, stderr=log, env=self.environment | environment)
            )
        return path

    def executors(self) -> list[int]:
        pids = [pid for process in self._processes for pid in descendants(process.pid)]
        return [pid for pid in pids if any("CoarseGrainedExecutorBackend" in part for part in command_line(pid))]

    def python_workers(self) -> list[int]:
        return [pid for executor in self.executors() for pid in python_workers(executor)]


class ClusterDriver:
    """A driver on the cluster that runs the jobs of integration/support/cluster_jobs.py, one at a time."""

    def __init__(self, cluster: StandaloneCluster, bootstrap: str, python: Path) -> None:
        """Start the driver. `python`: the interpreter of the executors."""
        self._log = cluster.folder / "driver.log"
        self._job_number = 0
        command = [sys.executable, "-m", "integration.support.cluster_jobs", bootstrap, cluster.master]
        environment = cluster.environment | {"PYSPARK_PYTHON": str(python), "PYSPARK_DRIVER_PYTHON": sys.executable}
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                command, cwd=ROOT, stdin=subprocess.PIPE, stdout=log, stderr=log, env=environment
            )

    def __enter__(self) -> ClusterDriver:
        return self

    def __exit__(self, *_: object) -> None:
        with self._process:
            self._process.kill()

    def log(self) -> str:
        return self._log.read_text()

    def begin(self, job: Callable[..., None], **arguments: object) -> None:
        """Request a job without waiting for it. The driver looks up the function by its name."""
        assert self._process.stdin is not None
        self._job_number += 1
        self._process.stdin.write(json.dumps([self._job_number, job.__name__, arguments]).encode() + b"\n")
        self._process.stdin.flush()

    def wait_until(self, condition: Callable[[], bool]) -> None:
        """Wait until the condition is true. Fail with the driver's log if the job fails or the driver ends."""

        def is_true_or_raise() -> bool:
            assert self._process.poll() is None, self.log()
            assert f"failed {self._job_number}\n" not in self.log(), self.log()
            return condition()

        wait_until(is_true_or_raise, self.log)

    def wait(self) -> None:
        """Wait until the job is done."""
        self.wait_until(lambda: f"done {self._job_number}\n" in self.log())
