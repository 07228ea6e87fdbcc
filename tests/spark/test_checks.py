"""The checks before a write, without Spark running: when Kafka is asked, and how a driver of Spark Connect answers."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql.types import LongType, StringType, StructField, StructType

from spark_kafka_sink.client.preflight import Check, Outcome, Target
from spark_kafka_sink.errors import ConfigurationError, KafkaSinkError, PreflightError, SchemaError
from spark_kafka_sink.spark import checks
from spark_kafka_sink.spark.checks import ask_driver, check_connection
from spark_kafka_sink.spark.datasource import KafkaDataSource
from spark_kafka_sink.spark.options import parse_options

SERVERS = {"kafka.bootstrap.servers": "a:1"}
VALUE = StructType([StructField("value", StringType())])


class Preflights:
    """In place of those that connect."""

    def __init__(self) -> None:
        self.targets: list[Target] = []
        self.outcome = Outcome.PASSED

    def __call__(self, config: object, target: Target) -> list[Check]:
        self.targets.append(target)
        return [Check("bootstrap servers", self.outcome, "connection refused")]


@pytest.fixture
def preflights(monkeypatch: pytest.MonkeyPatch) -> Preflights:
    preflights = Preflights()
    monkeypatch.setattr(checks, "preflight", preflights)
    monkeypatch.setattr(checks, "_reachable", set())
    return preflights


def test_what_has_passed_is_not_looked_at_again_and_what_has_failed_is(preflights: Preflights) -> None:
    options = parse_options(SERVERS | {"topic": "t"})
    preflights.outcome = Outcome.FAILED
    for _ in range(2):
        with pytest.raises(PreflightError, match=r'connection refused[\s\S]*"checkConnection", "false"'):
            check_connection(options)
    preflights.outcome = Outcome.PASSED
    for _ in range(2):
        check_connection(options)
    assert len(preflights.targets) == 3
    check_connection(parse_options(SERVERS | {"topic": "other"}))
    assert len(preflights.targets) == 4


def test_the_topics_of_the_options_are_looked_at_and_every_broker_where_the_rows_name_theirs(
    preflights: Preflights,
) -> None:
    letters = {"onRecordError": "deadLetter", "deadLetterTopic": "dead"}
    check_connection(parse_options(SERVERS | {"topic": "t"} | letters))
    check_connection(parse_options(SERVERS | letters))
    check_connection(parse_options(SERVERS))
    assert preflights.targets == [
        Target(("t", "dead"), idempotent=True),
        Target(("dead",), every_broker=True, idempotent=True),
        Target((), every_broker=True, idempotent=True),
    ]


def test_the_check_can_be_left_out(preflights: Preflights) -> None:
    check_connection(parse_options(SERVERS | {"topic": "t", "checkConnection": "false"}))
    assert preflights.targets == []


class Driver:
    """A session of Spark Connect, as far as it reads a schema: the data source that the driver would make."""

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
        # It travels as JSON.
        return StructType.fromJson(KafkaDataSource(dict(self.given)).schema().jsonValue())


@pytest.mark.parametrize(
    ("options", "schema", "kind", "words"),
    [
        ({"topic": "t", "kafka.acks": "7"}, VALUE, ConfigurationError, "kafka.acks must be one of"),
        ({"topic": "t"}, StructType([StructField("value", LongType())]), SchemaError, "unsupported type bigint"),
        ({"topic": "t"}, VALUE, PreflightError, "connection refused"),
    ],
)
def test_what_the_driver_of_connect_finds_wrong_is_raised_by_its_client(
    preflights: Preflights, options: dict[str, str], schema: StructType, kind: type[KafkaSinkError], words: str
) -> None:
    preflights.outcome = Outcome.FAILED
    session: Any = Driver()
    with pytest.raises(kind, match=words) as error:
        ask_driver(session, SERVERS | options, schema)
    assert type(error.value) is kind


def test_a_write_in_which_the_driver_of_connect_finds_nothing_wrong_goes_on(preflights: Preflights) -> None:
    """Its client learns which columns are to be sent: the options may name files that only the driver can read."""
    session: Any = Driver()
    schema = StructType([StructField(name, StringType()) for name in ("a", "value", "topic", "key")])
    assert ask_driver(session, SERVERS | {"topic": "t"}, schema) == [1, 3]
    assert ask_driver(session, SERVERS, schema) == [1, 2, 3]
    formats = {"topic": "t", "valueFormat": "json", "valueColumns": "a"}
    assert ask_driver(session, SERVERS | formats, schema) == [0, 3]
    assert len(preflights.targets) == 2
