"""Write each micro-batch twice: totals to Kafka, and the rows themselves to files.

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
    sales.persist()  # both writes read it
    totals = sales.groupBy("shop").sum("amount").toDF("shop", "amount")
    (
        totals.selectExpr("shop AS key", f"to_json(struct(amount, {batch_id} AS batch)) AS value")
        .write.format("pykafka")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("topic", "totals")
        .mode("append")  # with Spark Connect, this function runs in a process that has not called `register`
        .save()
    )
    # Each micro-batch has its own folder, so a rerun replaces the files of the first run.
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
