"""The checks that a driver of Spark Connect makes for its client, without Spark running."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql.types import LongType, StringType, StructField, StructType

from spark_kafka_sink.errors import ConfigurationError, KafkaSinkError, PreflightError, SchemaError
from spark_kafka_sink.preflight import Outcome
from spark_kafka_sink.spark.connect_checks import run_checks_on_driver
from spark_kafka_sink.spark.datasource import KafkaDataSource
from tests.spark.fake_preflight import Preflights

SERVERS = {"kafka.bootstrap.servers": "a:1"}
VALUE = StructType([StructField("value", StringType())])


class Driver:
    """A fake Spark Connect session, which returns the schema of the data source that the driver would create."""

    def __init__(self) -> None:
        self.given: dict[str, str] = {}

    @property
    def read(self) -> Driver:
        return self

    def format(self, name: str) -> Driver:
        assert name == "pykafka"
        self.given = {}
        return self

    def options(self, **options: str) -> Driver:
        self.given |= options
        return self

    def option(self, name: str, value: str) -> Driver:
        return self.options(**{name: value})

    def load(self) -> Driver:
        return self

    @property
    def schema(self) -> StructType:
        # The schema is sent as JSON. Sail drops the metadata of its fields.
        sent = StructType.fromJson(KafkaDataSource(dict(self.given)).schema().jsonValue())
        return StructType([StructField(field.name, field.dataType) for field in sent.fields])


@pytest.mark.parametrize(
    ("options", "schema", "kind", "message"),
    [
        ({"topic": "t", "kafka.acks": "7"}, VALUE, ConfigurationError, "kafka.acks must be one of"),
        ({"topic": "t"}, StructType([StructField("value", LongType())]), SchemaError, "unsupported type bigint"),
        ({"topic": "t"}, VALUE, PreflightError, "connection refused"),
    ],
)
def test_connect_client_raises_error_of_driver_checks(
    preflights: Preflights, options: dict[str, str], schema: StructType, kind: type[KafkaSinkError], message: str
) -> None:
    preflights.outcome = Outcome.FAILED
    session: Any = Driver()
    with pytest.raises(kind, match=message) as error:
        run_checks_on_driver(session, SERVERS | options, schema)
    assert type(error.value) is kind


def test_connect_write_continues_when_driver_checks_pass(preflights: Preflights) -> None:
    """The checks return the columns to send, because options may name files that only the driver can read."""
    session: Any = Driver()
    schema = StructType([StructField(name, StringType()) for name in ("a", "value", "topic", "key")])
    assert run_checks_on_driver(session, SERVERS | {"topic": "t"}, schema) == ([1, 3], None)
    assert run_checks_on_driver(session, SERVERS, schema) == ([1, 2, 3], None)
    formats = {"topic": "t", "valueFormat": "json", "valueColumns": "a"}
    assert run_checks_on_driver(session, SERVERS | formats, schema) == ([0, 3], None)
    assert len(preflights.targets) == 2
