"""`format("pykafka")` without any call: Spark looks for `pyspark_*` modules with a `DefaultSource` on its own."""

from spark_kafka_sink.spark.datasource import KafkaDataSource as DefaultSource

__all__ = ["DefaultSource"]
