"""Invalid writes fail with the same message as in Spark's own sink, before a connection to a broker is opened."""

from __future__ import annotations

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from spark_kafka_sink.errors import KafkaSinkError

pytestmark = pytest.mark.needs("java", "connector")

VALUE = "CAST(id AS STRING) AS value"
TOPIC = {"topic": "t"}

# Test id, columns, options other than the bootstrap servers, and save mode.
MISTAKES: list[tuple[str, list[str], dict[str, str], str | None]] = [
    ("no topic", [VALUE], {}, None),
    ("no value", ["CAST(id AS STRING) AS key"], TOPIC, None),
    ("another case", ["CAST(id AS STRING) AS VALUE"], TOPIC, None),
    ("value", ["id AS value"], TOPIC, None),
    ("value of no type", ["NULL AS value"], TOPIC, None),
    ("key", [VALUE, "id AS key"], TOPIC, None),
    ("topic", [VALUE, "id AS topic"], {}, None),
    ("partition", [VALUE, "id AS partition"], TOPIC, None),
    ("headers", [VALUE, "array('a') AS headers"], TOPIC, None),
    ("overwrite", [VALUE], TOPIC, "overwrite"),
    ("ignore", [VALUE], TOPIC, "ignore"),
    ("key.serializer", [VALUE], TOPIC | {"kafka.key.serializer": "x"}, None),
    ("value.serializer", [VALUE], TOPIC | {"kafka.value.serializer": "x"}, None),
]


def get_error_message(
    spark: SparkSession, sink: str, columns: list[str], options: dict[str, str], mode: str | None
) -> str:
    writer = spark.range(1).selectExpr(*columns).write.format(sink).options(**options)
    writer = writer.option("kafka.bootstrap.servers", "127.0.0.1:1").mode(mode)
    with pytest.raises((PySparkException, KafkaSinkError)) as raised:
        writer.save()
    return str(raised.value)


@pytest.mark.parametrize(("columns", "options", "mode"), [m[1:] for m in MISTAKES], ids=[m[0] for m in MISTAKES])
def test_error_contains_message_of_sparks_sink(
    spark: SparkSession, columns: list[str], options: dict[str, str], mode: str | None
) -> None:
    sparks_message = get_error_message(spark, "kafka", columns, options, mode)
    assert "at org.apache" not in sparks_message, "they refuse it before a task starts, too"
    assert sparks_message.splitlines()[0].strip() in get_error_message(spark, "pykafka", columns, options, mode)
