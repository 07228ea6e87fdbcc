"""New files in a folder become messages, as they arrive.

pykafka broker --topic readings:2
python stream.py localhost:9092 /tmp/readings /tmp/readings-checkpoint

Here the stream ends when it has read what is there (availableNow). Without that line it runs until it is stopped.
Started again, it goes on where its checkpoint ends.
"""

import sys

from pyspark.sql import SparkSession

from spark_kafka_sink import register

bootstrap, folder, checkpoint = sys.argv[1:]
spark = SparkSession.builder.getOrCreate()
register(spark)

readings = spark.readStream.schema("sensor STRING, celsius DOUBLE, time TIMESTAMP").json(folder)

query = (
    # The column timestamp is the message's own time.
    readings.selectExpr("sensor AS key", "to_json(struct(celsius)) AS value", "time AS timestamp")
    .writeStream.format("pykafka")
    .option("kafka.bootstrap.servers", bootstrap)
    .option("topic", "readings")
    .option("checkpointLocation", checkpoint)
    .trigger(availableNow=True)
    .start()
)
query.awaitTermination()
