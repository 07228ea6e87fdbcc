"""A Spark driver in a separate process, which tests kill together with all its descendants."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from integration.support.artifacts import ROOT
from integration.support.processes import kill_all
from tests.waiting import WAIT_TIMEOUT_SECONDS

WARM_WORKERS = Path(__file__).parent / "warm_workers"
"""A folder on the Python path of drivers and their workers."""


class DriverProcess:
    """A driver process and its descendants: the JVM and the Python workers.

    The process starts Spark immediately, and its job after a line on stdin. So a test can prepare the next driver
    before it kills the current one.
    """

    def __init__(self, arguments: Sequence[str], folder: Path, environment: Mapping[str, str] | None = None) -> None:
        """Start the process. `arguments`: a module of integration.support and its arguments. It logs to driver.log."""
        self.log = folder / "driver.log"
        self._log = self.log.open("ab")
        self._process = subprocess.Popen(
            [sys.executable, "-m", f"integration.support.{arguments[0]}", *arguments[1:]],
            cwd=ROOT,
            env=os.environ | {"PYTHONPATH": f"{WARM_WORKERS}{os.pathsep}{ROOT}"} | dict(environment or {}),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            start_new_session=True,
        )

    def wait_until_ready(self) -> None:
        assert self._process.stdout is not None
        lines = iter(self._process.stdout.readline, b"")
        assert any(line == b"ready\n" for line in lines), f"the driver ended; see {self.log}"

    def begin(self, batches: int = 1_000_000) -> None:
        """Start the job. `batches`: a number for the job, such as the micro-batches to run (exactly_once_jobs.py)."""
        self.wait_until_ready()
        assert self._process.stdin is not None
        self._process.stdin.write(b"%d\n" % batches)
        self._process.stdin.flush()

    @property
    def has_ended(self) -> bool:
        return self._process.poll() is not None

    def kill(self) -> None:
        if self._process.poll() is None:
            kill_all(self._process.pid)
            self._process.wait()
        for file in (self._log, self._process.stdin, self._process.stdout):
            if file is not None:
                file.close()

    def wait(self) -> int:
        """Wait for the process to end. Return its exit status."""
        return self._process.wait(WAIT_TIMEOUT_SECONDS)


def newest_batch_id(folder: Path) -> int:
    """Return the id of the newest micro-batch in a folder of a checkpoint, or -1.

    The folder `offsets` contains the planned micro-batches, and `commits` the committed ones.
    """
    return max((int(path.name) for path in folder.glob("[0-9]*")), default=-1)
