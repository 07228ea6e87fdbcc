"""A job that writes once and ends: `python -m integration.benchmarks.cold_job_program WRITER BOOTSTRAP TOPIC ROWS`.

WRITER is `kafka` for Spark's own sink, or the value of pykafka's option writeMethod. Each run imports and configures
only what such a job needs.
"""

from __future__ import annotations

import sys

from pyspark.sql import SparkSession

TASKS = 2


def main(writer: str, bootstrap: str, topic: str, rows: int) -> None:
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    is_own = writer == "kafka"
    if is_own:
        from integration.support.artifacts import connector_jars

        builder = builder.config("spark.jars", ",".join(str(jar) for jar in connector_jars()))
    spark = builder.getOrCreate()
    columns = ["CAST(id AS STRING) AS key", "concat('a value of a record, the number ', id) AS value"]
    frame = spark.range(0, rows, 1, TASKS).selectExpr(*columns)
    options = {"kafka.bootstrap.servers": bootstrap, "topic": topic}
    if is_own:
        frame.write.format("kafka").options(**options).save()
    else:
        from spark_kafka_sink import register

        register(spark)
        frame.write.format("pykafka").options(**options).option("writeMethod", writer).save()
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]))
