"""Stop requests of a test for the processes of a driver (tests/exactly_once/protocol_steps.py)."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from integration.support.driver_process import DriverProcess
from tests.exactly_once.protocol_steps import FOLDER
from tests.waiting import wait_until


class DriverEndedError(AssertionError):
    """The driver ended before one of its processes came to the place where it was to stop."""


class Stops:
    """Of drivers that were started with `environment`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True)
        self.environment = {FOLDER: str(folder)}

    def stop(self, driver: DriverProcess, *places: str) -> None:
        """Wait until a process of the driver has stopped at each of these places."""
        for place in places:
            self._ask(place)
        for place in places:
            self._wait(driver, place)

    def abort(self, driver: DriverProcess, place: str) -> None:
        """Let a task fail, by kill -9 of its Python worker, and wait until its driver stops in the abort that follows.

        Tasks must not be tried again; else Spark aborts nothing.
        """
        self.stop(driver, "after write")
        self._ask(place)
        os.kill(int(self._stopped("after write").read_text()), signal.SIGKILL)
        self.release("after write")
        self._wait(driver, place)

    def release(self, place: str) -> None:
        self._stopped(place).unlink()

    def forget(self) -> None:
        """When what has stopped was killed: what follows would stop there, or wait."""
        for file in self._folder.iterdir():
            file.unlink()

    def _ask(self, place: str) -> None:
        (self._folder / f"stop {place}").touch()

    def _stopped(self, place: str) -> Path:
        return self._folder / f"stopped {place}"

    def _wait(self, driver: DriverProcess, place: str) -> None:
        stopped = self._stopped(place)
        wait_until(
            lambda: (stopped.exists() and stopped.read_text() != "") or driver.has_ended,
            lambda: f"no process came to the place {place!r}; see {driver.log}",
        )
        if driver.has_ended:
            raise DriverEndedError(f"the driver ended; see {driver.log}")
