"""A program that ends while its query is running, or that is interrupted during a batch write.

It uses the JVM of the test that runs it, so its settings of OpenLineage are those of the test's Spark application.
Arguments: the bootstrap servers of the topic `orders`, a folder, and `end` or `interrupt`.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path

from pyspark.sql import DataFrame

from spark_kafka_sink.testing import stream_of
from tests.spark_session import attach_spark


def write_slowly(frame: DataFrame, options: dict[str, str], folder: Path) -> None:
    """Write rows until SIGINT arrives, which a thread sends as soon as a task runs."""

    def wait_for_ever(batches):  # type: ignore[no-untyped-def]
        (folder / "running").touch()
        threading.Event().wait()
        yield from batches

    def interrupt() -> None:
        while not (folder / "running").exists():
            threading.Event().wait(0.05)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt, daemon=True).start()
    frame.mapInArrow(wait_for_ever, "value STRING").write.format("pykafka").options(**options).save()


def main(servers: str, folder: Path, last: str) -> None:
    spark = attach_spark()
    options = {"kafka.bootstrap.servers": servers, "topic": "orders"}
    frame = spark.range(10).selectExpr("CAST(id AS STRING) AS value")
    if last == "interrupt":
        write_slowly(frame, options, folder)
    rows = stream_of([frame], folder / "rows")
    query = rows.writeStream.format("pykafka").options(**options, checkpointLocation=str(folder / "checkpoint")).start()
    query.processAllAvailable()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3])
