"""Run by test_connect.py: `python -m tests.spark.connect_job ADDRESS BOOTSTRAP TOPIC` writes through Spark Connect."""

from __future__ import annotations

import sys
import tempfile

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame

from spark_kafka_sink.errors import ConfigurationError
from tests.spark_session import connect_session


def refusal(frame: DataFrame, options: dict[str, str], mode: str) -> str:
    try:
        frame.write.format("pykafka").options(**options).mode(mode).save()
    except (PySparkException, ConfigurationError) as error:
        return str(error)
    return "it was not refused"


def main(address: str, bootstrap: str, topic: str) -> None:
    spark = connect_session(address)
    print(f"session: {type(spark).__module__}")
    options = {"kafka.bootstrap.servers": bootstrap, "topic": topic}
    frame = spark.range(100).selectExpr("CAST(id AS STRING) AS key", "CAST(id * 2 AS STRING) AS value")
    frame.write.format("pykafka").options(**options).save()
    with tempfile.TemporaryDirectory() as folder:
        frame.write.parquet(f"{folder}/source")
        files = spark.readStream.schema(frame.schema).parquet(f"{folder}/source")
        stream = files.writeStream.format("pykafka").options(**options | {"topic": f"{topic}-stream"})
        stream.option("checkpointLocation", f"{folder}/checkpoint").trigger(
            availableNow=True
        ).start().awaitTermination()
    for mode in ("overwrite", "ignore"):
        print(f"{mode}: {refusal(frame, options, mode)}")
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
