"""Use the producer without Spark: send a single record and print its offset, then send Arrow arrays.

pykafka broker --topic greetings:3
python without_spark.py localhost:9092
"""

import sys

import pyarrow as pa

from spark_kafka_sink import KafkaProducer, ProducerRecord, RecordColumns

with KafkaProducer({"bootstrap.servers": sys.argv[1], "compression.type": "zstd"}) as producer:
    future = producer.send(ProducerRecord("greetings", b"hello", key=b"ada", headers=[("language", b"en")]))
    stored = future.result()  # waits for the acknowledgement, or raises the error
    print(f"partition {stored.partition}, offset {stored.offset}")

    users = pa.array([f"user-{number}" for number in range(1_000)])
    columns = RecordColumns(key=users, value=pa.array(["hello"] * 1_000))
    result = producer.send_columns("greetings", columns).result()
    result.raise_for_failures()
    for partition, written in sorted(result.partitions.items()):
        print(f"partition {partition}: offsets {written.first_offset} to {written.last_offset}")
