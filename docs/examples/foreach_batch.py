"""Each micro-batch to two places: totals to Kafka, and the rows themselves to files.

pykafka broker --topic totals:1
python foreach_batch.py localhost:9092 /tmp/sales /tmp/sales-archive /tmp/sales-checkpoint
"""

import sys

from pyspark.sql import DataFrame, SparkSession

from spark_kafka_sink import register

bootstrap, folder, archive, checkpoint = sys.argv[1:]
spark = SparkSession.builder.getOrCreate()
register(spark)


def write(sales: DataFrame, batch_id: int) -> None:
    sales.persist()  # it is read twice
    totals = sales.groupBy("shop").sum("amount").toDF("shop", "amount")
    (
        totals.selectExpr("shop AS key", f"to_json(struct(amount, {batch_id} AS batch)) AS value")
        .write.format("pykafka")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("topic", "totals")
        .mode("append")  # Spark Connect runs this function where `register` was not called
        .save()
    )
    # A folder for each micro-batch: one that is run again replaces what its first run has left.
    sales.write.mode("overwrite").parquet(f"{archive}/batch={batch_id}")
    sales.unpersist()


query = (
    spark.readStream.schema("shop STRING, amount DOUBLE")
    .json(folder)
    .writeStream.foreachBatch(write)
    .option("checkpointLocation", checkpoint)
    .trigger(availableNow=True)
    .start()
)
query.awaitTermination()
