"""Shuffle files that are lost in the middle of a job, so that Spark runs a stage again while tasks of its first run are
still at work.

Of three tasks behind a shuffle two run at once. The first has written half of its rows when the second deletes the
files of the shuffle, and ends. So the third finds none, and Spark runs the stage again; the first task has two attempts
then that have the same number, and both write. One of them is the loser: it goes on when the job is over.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
from pyspark import TaskContext

TASKS = 3
ROWS = 120_000
HALF = ROWS // TASKS // 2
"""Of a task's rows. Spark holds back less than 20,000."""
FIRST_RUN, SECOND_RUN = 0, 1
WAITS_SECONDS = 120.0

Batches = Iterator[pa.RecordBatch]


def run_again(folder: Path, loser: int) -> Callable[[Batches], Batches]:
    """For mapInArrow, with two cores. `loser`: the run whose attempt goes on when `over` is in the folder."""

    def passed(batches: Batches) -> Batches:
        context = TaskContext.get()
        assert context is not None
        task, attempt = context.partitionId(), context.attemptNumber()
        began = folder / f"task {task} began"
        run = int(began.exists())
        began.touch()
        rows = 0
        for each in batches:
            yield each
            rows += each.num_rows
            if task == 0 and rows - each.num_rows < HALF <= rows:
                _wait_at_half(folder, run, attempt, loser)
        if (task, run) == (1, FIRST_RUN):
            _wait_for(_half(folder, FIRST_RUN, 0))
            _delete_shuffle_files()

    return passed


def was_run_again(folder: Path) -> bool:
    """Were two attempts of one number at work at the same time, one of each run?"""
    return _half(folder, FIRST_RUN, 0).exists() and _half(folder, SECOND_RUN, 0).exists()


def _half(folder: Path, run: int, attempt: int) -> Path:
    return folder / f"half of run {run}, attempt {attempt}"


def _wait_at_half(folder: Path, run: int, attempt: int, loser: int) -> None:
    _half(folder, run, attempt).touch()
    if run == FIRST_RUN:
        _wait_for(_half(folder, SECOND_RUN, 0))
    if run == loser:
        _wait_for(folder / "over")


def _wait_for(path: Path) -> None:
    until = time.monotonic() + WAITS_SECONDS
    while not path.exists() and time.monotonic() < until:
        time.sleep(0.02)


def _delete_shuffle_files() -> None:
    for place in os.environ["SPARK_LOCAL_DIRS"].split(","):
        for file in Path(place).glob("*/shuffle_*.data"):
            file.unlink()
