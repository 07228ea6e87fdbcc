"""A program whose Spark has settings of OpenLineage, as a user sets them. It ends while its second query is running.

Arguments: the bootstrap servers of the topic `orders`, the URL of the lineage server, a folder, and what to do last:
`end` to end the program, `interrupt` to send it SIGINT during a batch write.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path

from pyspark.sql import DataFrame

from spark_kafka_sink.testing import run_stream, stream_of
from tests.spark_session import start_spark


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


def main(servers: str, url: str, folder: Path, last: str) -> None:
    spark = start_spark({"spark.openlineage.transport.type": "http", "spark.openlineage.transport.url": url})
    spark.sparkContext.setLogLevel("OFF")
    options = {"kafka.bootstrap.servers": servers, "topic": "orders"}
    frame = spark.range(10).selectExpr("CAST(id AS STRING) AS value")
    if last == "interrupt":
        write_slowly(frame, options, folder)
    frame.write.format("pykafka").options(**options).save()
    rows = stream_of([frame], folder / "rows")
    run_stream(rows.writeStream.format("pykafka").options(**options, checkpointLocation=str(folder / "first")))
    query = rows.writeStream.format("pykafka").options(**options, checkpointLocation=str(folder / "second")).start()
    query.processAllAvailable()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]), sys.argv[4])
