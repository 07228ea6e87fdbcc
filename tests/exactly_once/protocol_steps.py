"""Stops a process before or after a step of docs/exactly-once.md when a test requests it.

`stop_where_asked` wraps the methods that are these steps. A process that comes to a place (`before decide`,
`after commit`) for which the folder has a file `stop before decide` renames the file to `stopped before decide`, puts
its process id there, and waits until the file is gone. The test kills the driver meanwhile, or removes the file to let
the process go on. docs/test-infrastructure.md has an example.

The drivers that tests start wrap them in their Python workers (integration/support/warm_workers).
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
"""The variable by which the Python workers of a driver that a test has started learn of the folder."""

START, TASK, WRITE, DECIDE, COMMIT, ABORT, LOSERS = "start", "task", "write", "decide", "commit", "abort", "losers"
FENCE, LIST = "fence", "list"
"""Where a driver gets its epoch, and where it lists what tasks have open: in a start, an abort, or after a commit."""
METHODS: tuple[tuple[type, str, str], ...] = (
    (Driver, "begin", START),
    (ExactlyOnceWrite, "is_committed", TASK),
    (Driver, "_decide", DECIDE),
    (Driver, "_execute_decision", COMMIT),
    (Driver, "_abort_superseded_attempts", LOSERS),
    (Driver, "abort", ABORT),
    (Driver, "abort_unreported", ABORT),
    (QueryTransactions, "fence", FENCE),
    (QueryTransactions, "list_task_transactions", LIST),
)
"""And ExactlyOnceWrite.transaction, a context manager: WRITE."""
STEPS = (START, TASK, WRITE, DECIDE, COMMIT, ABORT, LOSERS, FENCE, LIST)

_LOOK_AGAIN_SECONDS = 0.02

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
            (self._folder / f"stop {place}").rename(stopped)  # of several processes one stops
        except FileNotFoundError:
            return
        stopped.write_text(str(os.getpid()))
        pause = threading.Event()
        while stopped.exists():
            pause.wait(_LOOK_AGAIN_SECONDS)


def stop_where_asked(folder: Path, patch: Patch = setattr) -> None:
    """From now on this process, and those that are forked from it, stop where files of the folder say."""
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
