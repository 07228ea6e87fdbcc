"""The classes of Spark as a JVM has them in memory, in a file. A JVM that is given it is up in half of the CPU time.

`python -m tests.class_archive` writes it, where the jars of the peers are. A JVM of another version, or one with other
jars, passes it over.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

ARCHIVE = Path(__file__).resolve().parents[1] / ".jars" / "spark.jsa"
_QUIET = "-Xlog:cds=off -Xlog:class+path=off"


def archive_options(archive: Path = ARCHIVE) -> str:
    """Of a JVM that is to use it; none if it has not been written."""
    return f" -XX:SharedArchiveFile={archive} {_QUIET}" if archive.exists() else ""


def write_archive(archive: Path = ARCHIVE) -> None:
    """Of a session that has written a job and a stream."""
    from spark_kafka_sink.testing import embedded_broker  # not needed where an archive is only used
    from tests import spark_session  # imports this module

    archive.unlink(missing_ok=True)
    options = f"{spark_session.JVM_OPTIONS} -XX:ArchiveClassesAtExit={archive} {_QUIET}"
    spark = spark_session.start_spark({"spark.driver.extraJavaOptions": options, "spark.log.level": "OFF"})
    with embedded_broker(topics={"t": 2}) as broker, tempfile.TemporaryDirectory() as folder:
        own = {"kafka.bootstrap.servers": broker.bootstrap_servers, "topic": "t"}
        rows = spark.range(0, 100, 1, 2).mapInArrow(lambda batches: batches, "id LONG")
        rows.selectExpr("CAST(id AS STRING) AS value").write.format("pykafka").options(**own).save()
        source = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 10).load()
        numbers = source.selectExpr("CAST(value AS STRING) AS value").writeStream.format("pykafka").options(**own)
        query = numbers.option("checkpointLocation", folder).trigger(processingTime="100 milliseconds").start()
        while len(query.recentProgress) < 2:
            query.awaitTermination(1)
        query.stop()
    gateway: Any = spark.sparkContext._gateway
    spark.stop()
    gateway.proc.stdin.close()  # ends the JVM, which writes the archive then
    gateway.proc.wait()
    print(f"{archive} is written" if archive.exists() else f"{archive} could not be written: JVMs will start slowly")


if __name__ == "__main__":
    write_archive()
