"""Deletion of shuffle files during a job, so that Spark reruns a stage while tasks of its first run are still running.

A stage after a shuffle has three tasks, of which two run concurrently:

1. Task 0 writes half of its rows and waits.
2. Task 1 deletes the shuffle files and ends.
3. Task 2 finds no shuffle files and fails, so Spark reruns the stage.
4. Task 0 now has two attempts with the same attempt number, one of each run, and both write.
5. One of the two attempts, the loser, continues only after the job has ended.
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
"""Half of the rows of a task. It must be at least 20,000 rows, because Spark passes on no smaller number at once."""
FIRST_RUN, SECOND_RUN = 0, 1
JOB_ENDED_FILE = "job ended"
WAIT_SECONDS = 120.0

Batches = Iterator[pa.RecordBatch]


def rerun_stage(folder: Path, loser: int) -> Callable[[Batches], Batches]:
    """Build a function for mapInArrow on two cores. `loser`: the run whose attempt waits until the job has ended.

    The caller must create JOB_ENDED_FILE in the folder after the job.
    """

    def yield_and_wait(batches: Batches) -> Batches:
        context = TaskContext.get()
        assert context is not None
        task, attempt = context.partitionId(), context.attemptNumber()
        start_file = folder / f"task {task} started"
        run = int(start_file.exists())
        start_file.touch()
        rows = 0
        for batch in batches:
            yield batch
            rows += batch.num_rows
            if task == 0 and rows - batch.num_rows < HALF <= rows:
                _wait_at_half(folder, run, attempt, loser)
        if (task, run) == (1, FIRST_RUN):
            _wait_for_file(_build_half_path(folder, FIRST_RUN, 0))
            _delete_shuffle_files()

    return yield_and_wait


def had_concurrent_runs(folder: Path) -> bool:
    """Return whether two attempts of task 0 with the same number, one of each run, were running at the same time."""
    return _build_half_path(folder, FIRST_RUN, 0).exists() and _build_half_path(folder, SECOND_RUN, 0).exists()


def _build_half_path(folder: Path, run: int, attempt: int) -> Path:
    """Return the file that an attempt of task 0 creates when it has written half of its rows."""
    return folder / f"half of run {run}, attempt {attempt}"


def _wait_at_half(folder: Path, run: int, attempt: int, loser: int) -> None:
    _build_half_path(folder, run, attempt).touch()
    if run == FIRST_RUN:
        _wait_for_file(_build_half_path(folder, SECOND_RUN, 0))
    if run == loser:
        _wait_for_file(folder / JOB_ENDED_FILE)


def _wait_for_file(path: Path) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while not path.exists() and time.monotonic() < deadline:
        time.sleep(0.02)


def _delete_shuffle_files() -> None:
    for folder in os.environ["SPARK_LOCAL_DIRS"].split(","):
        for file in Path(folder).glob("*/shuffle_*.data"):
            file.unlink()
