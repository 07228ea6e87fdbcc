"""A program that runs batch jobs on Sail, one after the other.

    python -m integration.support.sail_job BOOTSTRAP_SERVERS ROWS {"OPTION": "VALUE"}...

Each JSON object has the options of a job. Sail runs the tasks in this process.
"""

from __future__ import annotations

import json
import sys

from pysail.spark import SparkConnectServer  # type: ignore[import-not-found]
from pyspark.sql import SparkSession

from spark_kafka_sink import register


def main(bootstrap_servers: str, rows: str, *jobs: str) -> None:
    server = SparkConnectServer("127.0.0.1", 0)
    server.start()
    host, port = server.listening_address
    spark = SparkSession.builder.remote(f"sc://{host}:{port}").getOrCreate()
    try:
        register(spark)
        frame = spark.range(0, int(rows), 1, 4).selectExpr("CAST(id AS STRING) AS key", "CAST(id AS STRING) AS value")
        for job in jobs:
            writer = frame.write.format("pykafka").option("kafka.bootstrap.servers", bootstrap_servers)
            writer.options(**json.loads(job)).save()
    finally:
        spark.stop()
        server.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
