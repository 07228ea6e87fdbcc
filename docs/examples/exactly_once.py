"""Write each row once for read_committed readers, even if the job is killed and started again.

pykafka broker --topic readings:2 --topic daily:1
python exactly_once.py localhost:9092 /tmp/readings /tmp/readings-checkpoint
python exactly_once.py localhost:9092 /tmp/readings /tmp/readings-checkpoint    # writes nothing new
"""

import sys

from pyspark.sql import SparkSession

from spark_kafka_sink import register

bootstrap, folder, checkpoint = sys.argv[1:]
spark = SparkSession.builder.getOrCreate()
register(spark)

# The checkpoint identifies a stream and its committed micro-batches.
query = (
    spark.readStream.schema("sensor STRING, celsius DOUBLE")
    .json(folder)
    .selectExpr("sensor AS key", "to_json(struct(celsius)) AS value")
    .writeStream.format("pykafka")
    .option("kafka.bootstrap.servers", bootstrap)
    .option("topic", "readings")
    .option("deliveryGuarantee", "exactly-once")
    .option("checkpointLocation", checkpoint)
    .trigger(availableNow=True)
    .start()
)
query.awaitTermination()

# An idempotency key identifies a batch job: a second job with the same key writes nothing.
(
    spark.read.schema("sensor STRING, celsius DOUBLE")
    .json(folder)
    .groupBy("sensor")
    .max("celsius")
    .selectExpr("sensor AS key", "CAST(`max(celsius)` AS STRING) AS value")
    .write.format("pykafka")
    .option("kafka.bootstrap.servers", bootstrap)
    .option("topic", "daily")
    .option("deliveryGuarantee", "exactly-once")
    .option("idempotencyKey", "daily-maximum-2026-01-01")
    .save()
)
