"""A Spark driver in a separate process, which tests kill together with all its descendants."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from integration.support.artifacts import ROOT
from integration.support.kafka_cluster import read_log_tail
from integration.support.processes import kill_all
from tests.waiting import WAIT_TIMEOUT_SECONDS, wait_until

WARM_WORKERS = Path(__file__).parent / "warm_workers"
"""A folder on the Python path of drivers and their workers."""


MAX_OUTPUT_BYTES = 100_000


class DriverProcess:
    """A driver process and its descendants: the JVM and the Python workers.

    The process starts Spark immediately, and a job after a line on stdin. So a test can prepare the next driver before
    it kills the current one.
    """

    def __init__(self, arguments: Sequence[str], folder: Path, environment: Mapping[str, str] | None = None) -> None:
        """Start the process. `arguments`: a module of integration.support and its arguments. It logs to driver.log."""
        self.log = folder / "driver.log"
        self._log = self.log.open("ab")
        self._output = tempfile.TemporaryFile()  # noqa: SIM115 - closed by kill()
        self._job_count = 0
        self._job_log_start = 0
        self._process = subprocess.Popen(
            [sys.executable, "-m", f"integration.support.{arguments[0]}", *arguments[1:]],
            cwd=ROOT,
            env=os.environ | {"PYTHONPATH": f"{WARM_WORKERS}{os.pathsep}{ROOT}"} | dict(environment or {}),
            stdin=subprocess.PIPE,
            stdout=self._output,
            stderr=self._log,
            start_new_session=True,
        )

    def wait_until_ready(self) -> None:
        """Wait until the driver can start a job: Spark has started, and the previous job has ended."""
        wait_until(lambda: self.is_ready or self.has_ended, self.describe_log_end)
        assert not self.has_ended, f"the driver ended. {self.describe_log_end()}"

    def begin(self, **job: object) -> None:
        """Start a job. `job`: its arguments, as the module describes them (exactly_once_jobs.py)."""
        self.wait_until_ready()
        self._job_count += 1
        self._job_log_start = self.log.stat().st_size
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(job).encode() + b"\n")
        self._process.stdin.flush()

    def _count_ready_lines(self) -> int:
        return os.pread(self._output.fileno(), MAX_OUTPUT_BYTES, 0).splitlines().count(b"ready")

    def describe_log_end(self) -> str:
        """Return the end of the log for the message of a failed test, because the log itself is soon deleted."""
        return f"Its log ends with:\n{read_log_tail(self.log)}"

    def read_job_log(self) -> str:
        """Return what the driver has logged since the start of its newest job."""
        return self.log.read_bytes()[self._job_log_start :].decode(errors="replace")

    @property
    def is_ready(self) -> bool:
        """Whether the driver can start a job."""
        return self._count_ready_lines() > self._job_count and not self.has_ended

    @property
    def has_ended(self) -> bool:
        return self._process.poll() is not None

    def kill(self) -> None:
        if self._process.poll() is None:
            kill_all(self._process.pid)
            self._process.wait()
        for file in (self._log, self._output, self._process.stdin):
            if file is not None:
                file.close()

    def wait(self) -> int:
        """Wait for the process to end after its newest job. Return its exit status."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        return self._process.wait(WAIT_TIMEOUT_SECONDS)


def find_newest_batch_id(folder: Path) -> int:
    """Return the id of the newest micro-batch in a folder of a checkpoint, or -1.

    The folder `offsets` contains the planned micro-batches, and `commits` the committed ones.
    """
    return max((int(path.name) for path in folder.glob("[0-9]*")), default=-1)
