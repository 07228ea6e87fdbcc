"""Write the rows of new JSON files in a folder to a topic.

pykafka broker --topic readings:2
python stream.py localhost:9092 /tmp/readings /tmp/readings-checkpoint

With the trigger availableNow, the stream ends when it has written all existing files. Without that line it runs until
you stop it. A new start continues from the checkpoint.
"""

import sys

from pyspark.sql import SparkSession

from spark_kafka_sink import register

bootstrap, folder, checkpoint = sys.argv[1:]
spark = SparkSession.builder.getOrCreate()
register(spark)

readings = spark.readStream.schema("sensor STRING, celsius DOUBLE, time TIMESTAMP").json(folder)

query = (
    # The column timestamp becomes the timestamp of the record.
    readings.selectExpr("sensor AS key", "to_json(struct(celsius)) AS value", "time AS timestamp")
    .writeStream.format("pykafka")
    .option("kafka.bootstrap.servers", bootstrap)
    .option("topic", "readings")
    .option("checkpointLocation", checkpoint)
    .trigger(availableNow=True)
    .start()
)
query.awaitTermination()
