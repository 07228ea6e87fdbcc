"""KafkaDataSource, named `pykafka`: what Spark finds; and register(), which makes it a drop-in for Spark's own sink.

Spark finds the data source by itself through the module `pyspark_pykafka`, and `mode("append")` then works. Two things
it cannot learn that way, so `register(spark)` teaches them:

- `save()` without a mode. Spark refuses its default mode, "fail if it exists", for every data source in Python; for a
  Kafka topic it means append, as in Spark's own sink.
- Some secrets do not look like secrets to Spark: a private key in `kafka.ssl.keystore.key`, for example. Spark 4.1
  prints a stream's options in `query.explain(extended=True)`, less those that its redaction recognises.
"""

from __future__ import annotations

import functools
from collections.abc import MutableMapping
from typing import Any, NoReturn

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from spark_kafka_sink.errors import ConfigurationError, SchemaError
from spark_kafka_sink.spark.bootstrap import check_connection
from spark_kafka_sink.spark.columns import ColumnPlan, plan_columns
from spark_kafka_sink.spark.options import SinkOptions, parse_options
from spark_kafka_sink.spark.writer import KafkaBatchWriter, KafkaStreamWriter

NAME = "pykafka"

_REDACTION = "spark.sql.redaction.options.regex"
_SECRET_NAMES = r"(?i)kafka\.(sasl|ssl)\."
_DEFAULT_MODE_REFUSED = "UNSUPPORTED_DATA_SOURCE_SAVE_MODE"
_MODE_NOT_ALLOWED = "Save mode {} not allowed for Kafka. Allowed save modes are Append and ErrorIfExists (default)."


class KafkaDataSource(DataSource):
    """Writes to Apache Kafka. Reading is left to Spark's own source, `format("kafka")`."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self._is_planning = True

    def __setstate__(self, state: dict[str, Any]) -> None:
        # Pickled after planning, to the process that commits a stream's micro-batches.
        self.__dict__.update(state)
        self._is_planning = False

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> NoReturn:
        raise ConfigurationError(f"'{NAME}' writes to Kafka and cannot read. Read with Spark's own format('kafka').")

    def writer(self, schema: StructType, overwrite: bool) -> KafkaBatchWriter:
        if overwrite:
            raise ConfigurationError(_MODE_NOT_ALLOWED.format("Overwrite"))
        return KafkaBatchWriter(*self._plan(schema))

    def streamWriter(self, schema: StructType, overwrite: bool) -> KafkaStreamWriter:  # noqa: N802
        # `overwrite` is output mode complete: every micro-batch writes the whole result, as with Spark's own sink.
        return KafkaStreamWriter(*self._plan(schema))

    def _plan(self, schema: StructType) -> tuple[SinkOptions, ColumnPlan]:
        options, plan = self._checked(schema)
        if self._is_planning and options.check_connection:
            check_connection(options.producer_config().bootstrap_servers)
        return options, plan

    def _checked(self, schema: StructType) -> tuple[SinkOptions, ColumnPlan]:
        """The faults of the options and those of the schema in one error; none of them needs a broker."""
        faults: list[str] = []
        # Where the options are faulty, the schema is looked at with the one of them that concerns it.
        fixed_topic = next((value for name, value in self.options.items() if name.lower() == "topic"), None)
        try:
            options = parse_options(self.options)
            fixed_topic = options.topic
        except ConfigurationError as error:
            faults += error.faults
        try:
            plan = plan_columns(schema, fixed_topic)
        except SchemaError as error:
            if not faults:
                raise
            faults += str(error).splitlines()
        if faults:
            raise ConfigurationError(faults)
        return options, plan


def register(spark: SparkSession) -> None:
    """Make `format("pykafka")` in this session a drop-in for Spark's own Kafka sink. May be called again."""
    spark.dataSource.register(KafkaDataSource)
    if type(spark).__module__.startswith("pyspark.sql.connect"):
        from pyspark.sql.connect.readwriter import DataFrameWriter as ConnectWriter

        _let_default_mode_append(ConnectWriter)
    else:
        from pyspark.sql.readwriter import DataFrameWriter

        _let_default_mode_append(DataFrameWriter)
    _redact_secrets(spark)


def _let_default_mode_append(writer_class: Any) -> None:
    original = writer_class.save
    if hasattr(original, "_pykafka_default_mode"):
        return

    @functools.wraps(original)
    def save(
        self: Any,
        path: str | None = None,
        format: str | None = None,
        mode: str | None = None,
        partitionBy: str | list[str] | None = None,  # noqa: N803
        **options: Any,
    ) -> None:
        try:
            original(self, path, format, mode, partitionBy, **options)
        except PySparkException as refusal:
            refused = _refused_mode(refusal)
            if refused is None:
                raise
            if refused != "ErrorIfExists":
                raise ConfigurationError(_MODE_NOT_ALLOWED.format(refused)) from None
            try:
                original(self, path, format, "append", partitionBy, **options)
            finally:
                self.mode("errorifexists")

    save._pykafka_default_mode = True  # type: ignore[attr-defined]
    writer_class.save = save


def _refused_mode(error: PySparkException) -> str | None:
    """The mode that Spark refused, if that is what happened, and to this data source; else None."""
    if error.getCondition() != _DEFAULT_MODE_REFUSED:
        return None
    parameters = error.getMessageParameters() or {}
    if parameters.get("source", "").strip('"').lower() != NAME:
        return None
    return str(parameters.get("createMode", "")).strip('"')


def _redact_secrets(spark: SparkSession) -> None:
    known = spark.conf.get(_REDACTION) or ""
    if _SECRET_NAMES not in known:
        spark.conf.set(_REDACTION, f"{known}|{_SECRET_NAMES}" if known else _SECRET_NAMES)
