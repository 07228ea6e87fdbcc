"""Write orders from a table to a topic.

pykafka broker --topic orders:3        # in another terminal, or use your own cluster
python batch.py localhost:9092
pykafka cat orders --bootstrap-server localhost:9092
"""

import sys

from pyspark.sql import SparkSession

from spark_kafka_sink import register

bootstrap = sys.argv[1]
spark = SparkSession.builder.getOrCreate()
register(spark)

orders = spark.createDataFrame(
    [(1, "ada", 12.5), (2, "bob", 8.0), (3, "ada", 99.9)],
    "order_id INT, customer STRING, amount DOUBLE",
)

(
    # All orders of a customer go to one partition, so a reader sees them in order.
    orders.selectExpr("customer AS key", "to_json(struct(*)) AS value")
    .write.format("pykafka")
    .option("kafka.bootstrap.servers", bootstrap)
    .option("topic", "orders")
    .save()
)
print("every order is acknowledged by Kafka")
