"""Class data archives (CDS) for the JVMs of Spark and Kafka, which start with half the CPU time.

`python -m tests.runner.class_archive spark` writes the archive of the pyspark in the interpreter's virtual environment
to that environment, and `python -m tests.runner.class_archive kafka` writes the archive of Kafka to .jars. A JVM
ignores an archive of another Java version or of other jars.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import Any
from unittest.mock import patch

JARS = Path(__file__).resolve().parents[2] / ".jars"
ARCHIVE = Path(sys.prefix) / "spark.jsa"
KAFKA_ARCHIVE = JARS / "kafka.jsa"
_QUIET_OPTIONS = "-Xlog:cds=off -Xlog:class+path=off"


def archive_options(archive: Path = ARCHIVE) -> str:
    """Return the options of a JVM that uses the archive, or an empty string if it does not exist."""
    return f" -XX:SharedArchiveFile={archive} {_QUIET_OPTIONS}" if archive.exists() else ""


def write_archive(archive: Path = ARCHIVE) -> None:
    """Write the archive of a Spark session that has run a batch job and a stream."""
    archive.unlink(missing_ok=True)
    from spark_kafka_sink.testing import embedded_broker  # not needed for archive_options
    from tests import spark_session  # imports this module

    options = f"{spark_session.JVM_OPTIONS} {_creation_options(archive)}"
    spark = spark_session.start_spark({"spark.driver.extraJavaOptions": options, "spark.log.level": "OFF"})
    with embedded_broker(topics={"t": 2}) as broker, tempfile.TemporaryDirectory() as folder:
        sink_options = {"kafka.bootstrap.servers": broker.bootstrap_servers, "topic": "t"}
        rows = spark.range(0, 100, 1, 2).mapInArrow(lambda batches: batches, "id LONG")
        rows.selectExpr("CAST(id AS STRING) AS value").write.format("pykafka").options(**sink_options).save()
        source = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 10).load()
        numbers = (
            source.selectExpr("CAST(value AS STRING) AS value").writeStream.format("pykafka").options(**sink_options)
        )
        query = numbers.option("checkpointLocation", folder).trigger(processingTime="100 milliseconds").start()
        while len(query.recentProgress) < 2:
            query.awaitTermination(1)
        query.stop()
    gateway: Any = spark.sparkContext._gateway
    spark.stop()
    gateway.proc.stdin.close()  # ends the JVM, which then writes the archive
    gateway.proc.wait()
    _publish(archive)


def write_kafka_archive(archive: Path = KAFKA_ARCHIVE) -> None:
    """Write the archive of a Kafka node on which a topic was written and read."""
    archive.unlink(missing_ok=True)
    from confluent_kafka import Producer

    from integration.support.kafka_cluster import KafkaCluster  # looks for the archive
    from integration.support.librdkafka import create_topic, read_topic

    with (
        patch.dict(os.environ, {"JAVA_TOOL_OPTIONS": _creation_options(archive)}),
        tempfile.TemporaryDirectory() as folder,
        KafkaCluster(Path(folder) / "cluster") as cluster,
    ):
        topic = create_topic(cluster.bootstrap())
        producer = Producer({"bootstrap.servers": cluster.bootstrap(), "enable.idempotence": True})
        producer.produce(topic, b"value")
        producer.flush()
        read_topic(cluster.bootstrap(), topic)
        del producer  # before the broker ends, which the producer would log
        cluster.stop_node(1)  # the JVM then writes the archive
    _publish(archive)


def _creation_options(archive: Path) -> str:
    """Return the options of a JVM that writes an archive when it ends."""
    return f"-XX:ArchiveClassesAtExit={_temporary_path(archive)} {_QUIET_OPTIONS}"


def _temporary_path(archive: Path) -> Path:
    return archive.with_suffix(".unfinished")


def _publish(archive: Path) -> None:
    """Rename the written file, so that the archive is complete or does not exist."""
    if not _temporary_path(archive).exists():
        print(f"Could not write {archive}: JVMs will start slowly")
        return
    _temporary_path(archive).replace(archive)
    print(f"Wrote {archive}")


if __name__ == "__main__":
    {"spark": write_archive, "kafka": write_kafka_archive}[sys.argv[1]]()
