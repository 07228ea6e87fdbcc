"""Write the orders of new files to the topic `orders`."""

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession

spark = SparkSession.active()

dp.create_sink(
    "orders_topic",
    "pykafka",
    {
        "kafka.bootstrap.servers": spark.conf.get("orders.bootstrap.servers"),
        "topic": "orders",
    },
)


@dp.append_flow(target="orders_topic")
def orders_to_kafka() -> DataFrame:
    orders = spark.readStream.schema("id STRING, amount DOUBLE").json(spark.conf.get("orders.folder"))
    return orders.selectExpr("id AS key", "to_json(struct(*)) AS value")
