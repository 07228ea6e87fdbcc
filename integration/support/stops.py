"""Stop requests of a test for the processes of a driver (tests/exactly_once/protocol_steps.py)."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from integration.support.driver_process import DriverProcess
from tests.exactly_once.protocol_steps import FOLDER
from tests.waiting import wait_until


class DriverEndedError(AssertionError):
    """The driver ended before one of its processes reached the point where a test wanted to suspend it."""


class Stops:
    """Suspends processes of drivers at steps of the protocol. The drivers must be started with `environment`.

    A point is "before" or "after" and the name of a step in protocol_steps.py, such as "before decide".
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True)
        self.environment = {FOLDER: str(folder)}

    def stop(self, driver: DriverProcess, *points: str) -> None:
        """Request a stop at each of the points, and wait until a process of the driver is suspended at each."""
        for point in points:
            self.request_stop(point)
        for point in points:
            self.wait_until_stopped(driver, point)

    def request_stop(self, point: str) -> None:
        """Let the first process that reaches the point suspend itself there."""
        (self._folder / f"stop {point}").touch()

    def wait_until_stopped(self, driver: DriverProcess, point: str) -> None:
        """Wait until a process of the driver is suspended at the point, for which a stop was requested."""
        file = self._stopped_file(point)
        wait_until(
            lambda: (file.exists() and file.read_text() != "") or driver.has_ended,
            lambda: f"no process of the driver reached {point!r}. {driver.describe_log_end()}",
        )
        if driver.has_ended:
            raise DriverEndedError(f"the driver ended. {driver.describe_log_end()}")

    def abort(self, driver: DriverProcess, point: str) -> None:
        """Kill a Python worker, so that its task fails, and suspend the driver at a point of the abort that follows.

        The driver must not retry tasks, because Spark aborts a write only after the last attempt of a task has failed.
        """
        self.stop(driver, "after write")
        self.request_stop(point)
        os.kill(int(self._stopped_file("after write").read_text()), signal.SIGKILL)
        self.release("after write")
        self.wait_until_stopped(driver, point)

    def release(self, point: str) -> None:
        """Let the process that is suspended at the point continue."""
        self._stopped_file(point).unlink()

    def clear(self) -> None:
        """Remove all requests, so that later processes do not stop. A process that is still suspended continues."""
        for file in self._folder.iterdir():
            file.unlink()

    def _stopped_file(self, point: str) -> Path:
        return self._folder / f"stopped {point}"
