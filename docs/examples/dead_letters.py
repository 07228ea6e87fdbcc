"""Write a record that is too large to a dead-letter topic, and the others to their topic.

pykafka broker --topic documents:1 --topic documents-rejected:1
python dead_letters.py localhost:9092
pykafka cat documents-rejected --bootstrap-server localhost:9092 --format json
"""

import sys

from pyspark.sql import SparkSession

from spark_kafka_sink import register

bootstrap = sys.argv[1]
spark = SparkSession.builder.getOrCreate()
register(spark)

documents = spark.createDataFrame([("small", 10), ("huge", 3_000_000), ("middle", 1_000)], "name STRING, size INT")

(
    documents.selectExpr("name AS key", "repeat('x', size) AS value")
    .write.format("pykafka")
    .option("kafka.bootstrap.servers", bootstrap)
    .option("topic", "documents")
    .option("onRecordError", "deadLetter")
    .option("deadLetterTopic", "documents-rejected")
    .save()
)

# The headers of a dead letter name its destination and the reason for the rejection.
