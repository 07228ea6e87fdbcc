"""Write the result of a DuckDB query to a topic while the query runs, with asyncio.

pykafka broker --topic totals:3
python table_duckdb.py localhost:9092
"""

import asyncio
import sys

import duckdb

from spark_kafka_sink import KafkaProducer

QUERY = """
SELECT 'customer-' || range % 1000 AS key, count(*) AS orders, sum(range) AS amount
FROM range(1_000_000) GROUP BY ALL
"""


async def main(address: str) -> None:
    totals = duckdb.sql(QUERY)
    with KafkaProducer(bootstrap_servers=address) as producer:
        result = await producer.send_table_async("totals", totals, value=["orders", "amount"], value_format="json")
        result.raise_for_failures()
        print(f"{result.rows_written} rows written")


asyncio.run(main(sys.argv[1]))
