"""The classes of Spark, and those of Kafka, as a JVM has them in memory: in a file for each.

A JVM that is given it is up in half of the CPU time. `python -m tests.runner.class_archive` writes both, where the
jars of the peers are. A JVM of another version, or one with other jars, passes it over.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any
from unittest.mock import patch

JARS = Path(__file__).resolve().parents[2] / ".jars"
ARCHIVE = JARS / "spark.jsa"
KAFKA_ARCHIVE = JARS / "kafka.jsa"
_QUIET = "-Xlog:cds=off -Xlog:class+path=off"


def archive_options(archive: Path = ARCHIVE) -> str:
    """Of a JVM that is to use it; none if it has not been written."""
    return f" -XX:SharedArchiveFile={archive} {_QUIET}" if archive.exists() else ""


def write_archive(archive: Path = ARCHIVE) -> None:
    """Of a session that has written a job and a stream."""
    archive.unlink(missing_ok=True)
    from spark_kafka_sink.testing import embedded_broker  # not needed where an archive is only used
    from tests import spark_session  # imports this module

    options = f"{spark_session.JVM_OPTIONS} {_written_to(archive)}"
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
    _take(archive)


def write_kafka_archive(archive: Path = KAFKA_ARCHIVE) -> None:
    """Of a node on which a topic was written and read."""
    archive.unlink(missing_ok=True)
    from confluent_kafka import Producer

    from integration.support.kafka_cluster import KafkaCluster  # looks for the archive
    from integration.support.librdkafka import create_topic, read_topic

    with (
        patch.dict(os.environ, {"JAVA_TOOL_OPTIONS": _written_to(archive)}),
        tempfile.TemporaryDirectory() as folder,
        KafkaCluster(Path(folder) / "cluster") as cluster,
    ):
        topic = create_topic(cluster.bootstrap())
        producer = Producer({"bootstrap.servers": cluster.bootstrap(), "enable.idempotence": True})
        producer.produce(topic, b"value")
        producer.flush()
        read_topic(cluster.bootstrap(), topic)
        del producer  # it would complain that the broker is gone
        cluster.stop_node(1)  # writes the archive then
    _take(archive)


def _written_to(archive: Path) -> str:
    """The options of a JVM that writes one when it ends."""
    return f"-XX:ArchiveClassesAtExit={_unfinished(archive)} {_QUIET}"


def _unfinished(archive: Path) -> Path:
    return archive.with_suffix(".unfinished")


def _take(archive: Path) -> None:
    """So that it is there as a whole, or not at all."""
    if not _unfinished(archive).exists():
        print(f"{archive} could not be written: JVMs will start slowly")
        return
    _unfinished(archive).replace(archive)
    print(f"{archive} is written")


if __name__ == "__main__":
    write_archive()
    write_kafka_archive()
