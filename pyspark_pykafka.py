"""Spark looks for `pyspark_*` modules with a `DefaultSource` on its own: this one makes `format("pykafka")` known without any call."""

from spark_kafka_sink.spark.datasource import KafkaDataSource as DefaultSource

__all__ = ["DefaultSource"]
