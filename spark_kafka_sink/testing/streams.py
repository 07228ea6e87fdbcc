"""Streams in tests: a query that runs until its input is used up, without a sleep."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

TIMEOUT_SECONDS = 300.0
_CHECKPOINT = "spark.sql.streaming.checkpointLocation"


def run_stream(writer: DataStreamWriter, *, timeout_seconds: float = TIMEOUT_SECONDS) -> StreamingQuery:
    """Start the query, and return it when it has written all input that was there.

    The writer's trigger is `availableNow`, whatever it was. A writer without a `checkpointLocation` gets one that is
    gone afterwards. Raises what the query fails with; TimeoutError when it takes too long.
    """
    with _checkpoint_for_those_without():
        query = writer.trigger(availableNow=True).start()
        if not query.awaitTermination(timeout_seconds):  # type: ignore[arg-type]
            query.stop()
            raise TimeoutError(_late(query, timeout_seconds))
    return query


def drain(query: StreamingQuery, *, timeout_seconds: float = TIMEOUT_SECONDS) -> None:
    """Let a query that runs write all input that is there, then stop it. For jobs that start their query themselves.

    Raises what the query fails with; TimeoutError when it takes too long.
    """
    failures: list[BaseException] = []

    def process() -> None:
        try:
            query.processAllAvailable()
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=process, name="drain", daemon=True)
    thread.start()
    thread.join(timeout_seconds)
    late = thread.is_alive()
    query.stop()
    if late:
        raise TimeoutError(_late(query, timeout_seconds))
    if failures:
        raise failures[0]


def stream_of(frames: Sequence[DataFrame], folder: Path | str) -> DataFrame:
    """A streaming DataFrame whose micro-batches are these DataFrames, in this order. They are kept in `folder`."""
    if not frames:
        raise ValueError("a stream is made of one DataFrame at least: they say which columns it has")
    for number, frame in enumerate(frames):
        batch = Path(folder) / f"{number:06}"
        frame.coalesce(1).write.parquet(str(batch))
        for file in batch.glob("part-*"):  # Spark takes files by their age, and these may be of one moment
            os.utime(file, (number + 1, number + 1))
    reader = frames[0].sparkSession.readStream.schema(frames[0].schema).option("maxFilesPerTrigger", 1)
    return reader.parquet(str(Path(folder) / "*"))


@contextmanager
def _checkpoint_for_those_without() -> Iterator[None]:
    """Spark takes the session's setting for writers that name no location."""
    from pyspark.sql import SparkSession

    session = SparkSession.getActiveSession()
    if session is None or session.conf.get(_CHECKPOINT, None) is not None:
        yield
        return
    with TemporaryDirectory(prefix="checkpoint-", ignore_cleanup_errors=True) as folder:
        session.conf.set(_CHECKPOINT, folder)
        try:
            yield
        finally:
            session.conf.unset(_CHECKPOINT)


def _late(query: StreamingQuery, timeout_seconds: float) -> str:
    progress = query.lastProgress
    done = "no micro-batch is done" if progress is None else f"the last micro-batch done is {progress['batchId']}"
    return f"the query has not used up its input within {timeout_seconds:g} s: {done}"
