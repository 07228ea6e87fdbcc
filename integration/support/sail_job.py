"""A program that writes rows to the topic `orders` on Sail, and prints the number of rows in the report.

    python -m integration.support.sail_job BOOTSTRAP_SERVERS ROWS OPTION=VALUE...

Sail runs the tasks in this process.
"""

from __future__ import annotations

import sys

from pysail.spark import SparkConnectServer  # type: ignore[import-not-found]
from pyspark.sql import SparkSession

from spark_kafka_sink import register


def main(bootstrap_servers: str, rows: str, *options: str) -> None:
    server = SparkConnectServer("127.0.0.1", 0)
    server.start()
    host, port = server.listening_address
    spark = SparkSession.builder.remote(f"sc://{host}:{port}").getOrCreate()
    try:
        register(spark)
        frame = spark.range(0, int(rows), 1, 4).selectExpr("CAST(id AS STRING) AS key", "CAST(id AS STRING) AS value")
        writer = frame.write.format("pykafka").option("kafka.bootstrap.servers", bootstrap_servers)
        writer.option("topic", "orders").options(**dict(option.split("=", 1) for option in options)).save()
    finally:
        spark.stop()
        server.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
