"""Write a polars DataFrame to a topic. One row is too large: the result names it, and the others are written.

pykafka broker --topic documents:3
python table_polars.py localhost:9092
"""

import sys

import polars as pl

from spark_kafka_sink import KafkaProducer

documents = pl.DataFrame({"name": ["small", "huge", "middle"], "text": ["a", "b" * 2_000_000, "c" * 1_000]})

with KafkaProducer(bootstrap_servers=sys.argv[1]) as producer:
    result = producer.send_table("documents", documents, key="name", value="text")

print(f"{result.rows_written} written, {result.rows_failed} failed")
for failure in result.failures:
    print(documents[failure.row_indices]["name"].to_list(), failure.error)
