"""One message is too large for the topic; the others arrive, and it goes to a topic for those.

pykafka broker --topic documents:1 --topic documents-refused:1
python dead_letters.py localhost:9092
pykafka cat documents-refused --bootstrap-server localhost:9092 --format json
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
    .option("deadLetterTopic", "documents-refused")
    .save()
)

# The headers of a dead letter say where it was going and why it did not arrive.
