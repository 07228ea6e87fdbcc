"""A Spark driver in a process of its own, which a test kills with all that is below it."""

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
"""On the path of a driver, and so of its workers."""


class DriverProcess:
    """A driver and everything below it, which is killed at once: Python, the JVM, the Python workers.

    It starts Spark at once and begins its work after a line on stdin, so that the next driver is ready when this one is
    killed.
    """

    def __init__(self, arguments: Sequence[str], folder: Path, environment: Mapping[str, str] | None = None) -> None:
        """`arguments`: a module below integration.support and its arguments. What it says is in driver.log."""
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
        """What its job makes of the number is said there."""
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


def newest(log: Path) -> int:
    """The newest micro-batch in a folder of a checkpoint: `offsets` of those planned, `commits` of those committed."""
    return max((int(path.name) for path in log.glob("[0-9]*")), default=-1)
