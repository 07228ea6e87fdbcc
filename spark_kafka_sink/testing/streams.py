"""Streaming sources for tests, and runs of queries until all available input is written, without sleeping."""

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
_CHECKPOINT_LOCATION_CONF = "spark.sql.streaming.checkpointLocation"


def run_stream(writer: DataStreamWriter, *, timeout_seconds: float = TIMEOUT_SECONDS) -> StreamingQuery:
    """Start a streaming query and return it once it has written all input that was available at the start.

    The writer's trigger is replaced with `availableNow`. If the writer has no `checkpointLocation`, the query uses the
    session's location or a temporary directory. Raise the query's exception if it fails, or TimeoutError if it takes
    too long.
    """
    with _default_checkpoint_location():
        query = writer.trigger(availableNow=True).start()
        if not query.awaitTermination(timeout_seconds):  # type: ignore[arg-type]
            query.stop()
            raise TimeoutError(_describe_timeout(query, timeout_seconds))
    return query


def drain(query: StreamingQuery, *, timeout_seconds: float = TIMEOUT_SECONDS) -> None:
    """Wait until a running query has written all available input, then stop the query.

    Use this function for jobs that start their own queries. Raise the query's exception if it fails, or TimeoutError if
    it takes too long.
    """
    failures: list[BaseException] = []

    def process_available_input() -> None:
        try:
            query.processAllAvailable()
        except BaseException as error:
            failures.append(error)

    # processAllAvailable() has no timeout, so it runs on a thread of its own.
    thread = threading.Thread(target=process_available_input, name="drain", daemon=True)
    thread.start()
    thread.join(timeout_seconds)
    has_timed_out = thread.is_alive()
    # Stopping the query also ends processAllAvailable().
    query.stop()
    if has_timed_out:
        raise TimeoutError(_describe_timeout(query, timeout_seconds))
    if failures:
        raise failures[0]


def stream_of(frames: Sequence[DataFrame], folder: Path | str) -> DataFrame:
    """Return a streaming DataFrame that reads one of the `frames` per micro-batch, in order.

    The rows are stored as files in `folder`.
    """
    if not frames:
        raise ValueError("stream_of requires at least one DataFrame, which defines the columns.")
    for number, frame in enumerate(frames):
        frame_folder = Path(folder) / f"{number:06}"
        frame.coalesce(1).write.parquet(str(frame_folder))
        # Spark reads the oldest files first, so the files of each frame get a later modification time.
        modified_s = number + 1
        for file in frame_folder.glob("part-*"):
            os.utime(file, (modified_s, modified_s))
    reader = frames[0].sparkSession.readStream.schema(frames[0].schema).option("maxFilesPerTrigger", 1)
    return reader.parquet(str(Path(folder) / "*"))


@contextmanager
def _default_checkpoint_location() -> Iterator[None]:
    """Set a temporary checkpoint location in the session, if it has none. A writer's own location overrides it."""
    from pyspark.sql import SparkSession

    session = SparkSession.getActiveSession()
    if session is None or session.conf.get(_CHECKPOINT_LOCATION_CONF, None) is not None:
        yield
        return
    with TemporaryDirectory(prefix="checkpoint-", ignore_cleanup_errors=True) as folder:
        session.conf.set(_CHECKPOINT_LOCATION_CONF, folder)
        try:
            yield
        finally:
            session.conf.unset(_CHECKPOINT_LOCATION_CONF)


def _describe_timeout(query: StreamingQuery, timeout_seconds: float) -> str:
    progress = query.lastProgress
    batch_id = "none" if progress is None else str(progress["batchId"])
    return f"The query did not write all input within {timeout_seconds:g} s. Last completed micro-batch: {batch_id}."
