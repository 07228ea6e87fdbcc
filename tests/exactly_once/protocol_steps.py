"""Breakpoints, where a process stops before or after a step of docs/exactly-once-design.md if a test requests it.

`install_stops` wraps the methods of these steps. If the folder has a file `stop before decide`, the first process that
reaches this step renames the file to `stopped before decide`, writes its process id into it, and waits until the file
is removed. Meanwhile the test kills the driver, or removes the file to let the process continue.
docs/testing-exactly-once.md has an example.

In drivers that tests start, the Python workers wrap the methods (integration/support/warm_workers).
"""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from spark_kafka_sink.exactly_once.driver import Driver
from spark_kafka_sink.exactly_once.query_transactions import QueryTransactions
from spark_kafka_sink.spark.exactly_once import ExactlyOnceWrite

FOLDER = "PYKAFKA_TEST_STEPS"
"""The environment variable with the folder, for the Python workers of a driver that a test has started."""

START, TASK, WRITE = "start", "task", "write"
DECIDE, COMMIT, ABORT, SUPERSEDED = "decide", "commit", "abort", "superseded"
FENCE, LIST = "fence", "list"
"""A request for an epoch, and a listing of open task transactions: in a start, in an abort or after a commit."""
METHODS: tuple[tuple[type, str, str], ...] = (
    (Driver, "begin", START),
    (ExactlyOnceWrite, "is_decided", TASK),
    (Driver, "_decide", DECIDE),
    (Driver, "_execute_decision", COMMIT),
    (Driver, "_abort_superseded_attempts", SUPERSEDED),
    (Driver, "abort", ABORT),
    (Driver, "abort_unreported", ABORT),
    (QueryTransactions, "fence", FENCE),
    (QueryTransactions, "list_task_transactions", LIST),
)
"""The methods of the steps, except for WRITE: ExactlyOnceWrite.transaction, a context manager."""
STEPS = (START, TASK, WRITE, DECIDE, COMMIT, ABORT, SUPERSEDED, FENCE, LIST)

_POLL_SECONDS = 0.02

Patch = Callable[[Any, str, Any], None]


class Stops:
    """The stop requests of the folder, in this process."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def before(self, step: str) -> None:
        self._reached(f"before {step}")

    def after(self, step: str) -> None:
        self._reached(f"after {step}")

    def _reached(self, place: str) -> None:
        stopped = self._folder / f"stopped {place}"
        try:
            (self._folder / f"stop {place}").rename(stopped)  # succeeds in only one of several processes
        except FileNotFoundError:
            return
        stopped.write_text(str(os.getpid()))
        pause = threading.Event()
        while stopped.exists():
            pause.wait(_POLL_SECONDS)


def install_stops(folder: Path, patch: Patch = setattr) -> None:
    """Let this process, and processes that are forked from it, stop at the steps that files of the folder name."""
    stops = Stops(folder)
    for owner, name, step in METHODS:
        patch(owner, name, _stopping(getattr(owner, name), stops, step))
    transaction = ExactlyOnceWrite.transaction

    @contextmanager
    def stopping_transaction(*arguments: Any) -> Iterator[None]:
        stops.before(WRITE)
        with transaction(*arguments):
            yield
        stops.after(WRITE)

    patch(ExactlyOnceWrite, "transaction", stopping_transaction)


def _stopping(method: Callable[..., Any], stops: Stops, step: str) -> Callable[..., Any]:
    @functools.wraps(method)
    def stopping(*arguments: Any) -> Any:
        stops.before(step)
        result = method(*arguments)
        stops.after(step)
        return result

    return stopping
