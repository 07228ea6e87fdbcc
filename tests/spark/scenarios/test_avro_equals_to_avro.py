"""Without a schema option, `valueFormat` = `avro` writes the same bytes as Spark's `to_avro(struct(...))`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from chispa import assert_df_equality
from pyspark.sql import SparkSession
from pyspark.sql.avro.functions import to_avro
from pyspark.sql.functions import struct

from spark_kafka_sink.testing import EmbeddedBroker, embedded_broker, read_topic

pytestmark = pytest.mark.needs("connector")

COLUMNS = """
    id,
    CAST(id AS TINYINT) AS a_byte, CAST(-id AS SMALLINT) AS a_short, CAST(id * 7919 AS INT) AS an_int,
    if(id % 2 = 0, NULL, id % 3 = 0) AS a_bool,
    CAST(id / 7 AS FLOAT) AS a_float, id / 7 AS a_double,
    CAST((id - 50) * 123456.789 AS DECIMAL(20, 3)) AS a_decimal, CAST(-id AS DECIMAL(38, 0)) AS wide_decimal,
    if(id % 3 = 0, NULL, CAST(id AS STRING)) AS a_string, CAST(repeat('x', CAST(id % 5 AS INT)) AS BINARY) AS bytes,
    date_add(DATE'1970-01-01', CAST((id - 50) * 300 AS INT)) AS a_date,
    timestamp_micros((id - 50) * 51840000123456) AS a_time,
    CAST(timestamp_micros(id * 9184000012345) AS TIMESTAMP_NTZ) AS local_time,
    array(id, NULL, -id) AS numbers, if(id % 4 = 0, NULL, array(named_struct('x', id))) AS structs,
    map('k', if(id % 2 = 0, NULL, id)) AS a_map,
    NULL AS nothing, array() AS no_elements, array(NULL) AS null_element,
    if(id % 3 = 0, NULL, named_struct('a', id, 'b', named_struct('c', 'd'))) AS nested
"""


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    with embedded_broker(topics={"avro": 1, "payloads": 1}) as broker:
        yield broker


@pytest.mark.data_source
def test_rows_equal_bytes_of_to_avro(spark: SparkSession, broker: EmbeddedBroker) -> None:
    frame = spark.range(100).selectExpr(f"struct({COLUMNS}) AS s").select("s.*")
    writer = frame.write.format("pykafka").option("kafka.bootstrap.servers", broker.bootstrap_servers)
    writer.option("topic", "avro").option("valueFormat", "avro").option("keyColumns", "id").save()
    actual = spark.createDataFrame(read_topic(broker.bootstrap_servers, "avro")).select("key", "value")
    expected = frame.select(to_avro(struct("id")).alias("key"), to_avro(struct(*frame.columns)).alias("value"))
    assert_df_equality(actual, expected, ignore_row_order=True, ignore_nullable=True)


def test_null_structs_with_non_nullable_fields_are_tombstones(spark: SparkSession, broker: EmbeddedBroker) -> None:
    payload = "if(id % 2 = 0, NULL, named_struct('id', id, 'name', 'n')) AS payload"
    frame = spark.range(4).selectExpr("CAST(id AS STRING) AS key", payload)
    writer = frame.write.format("pykafka").option("kafka.bootstrap.servers", broker.bootstrap_servers)
    writer.option("topic", "payloads").option("valueFormat", "avro").option("valueColumns", "payload.*").save()
    rows = read_topic(broker.bootstrap_servers, "payloads").to_pylist()
    written = {row["key"]: row["value"] for row in rows}
    assert written == {b"0": None, b"1": b"\x02\x02n", b"2": None, b"3": b"\x06\x02n"}, "no field is a union with null"
