"""The data source `pykafka`, for `format("pykafka")` without a call to register().

When Spark looks for data sources, it imports all modules whose names begin with `pyspark_` and uses their
`DefaultSource`.
"""

from spark_kafka_sink.spark.datasource import KafkaDataSource as DefaultSource

__all__ = ["DefaultSource"]
