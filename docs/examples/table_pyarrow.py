"""Write a Parquet file of any size to a topic, batch by batch and without Spark.

pykafka broker --topic orders:3
python table_pyarrow.py localhost:9092 orders.parquet
"""

import sys

import pyarrow as pa
import pyarrow.parquet as pq

from spark_kafka_sink import KafkaProducer

address, path = sys.argv[1:]
pq.write_table(
    pa.table({"id": ["o-1", "o-2", "o-3"], "customer": ["ada", "bob", "ada"], "amount": [12.5, 8.0, 99.9]}), path
)

file = pq.ParquetFile(path)
batches = pa.RecordBatchReader.from_batches(file.schema_arrow, file.iter_batches())
with KafkaProducer(bootstrap_servers=address, compression_type="zstd") as producer:
    result = producer.send_table("orders", batches, key="id", value_format="json")
    result.raise_for_failures()
    for partition, written in sorted(result.partitions["orders"].items()):
        print(f"partition {partition}: {written.rows} rows, offsets {written.first_offset} to {written.last_offset}")
