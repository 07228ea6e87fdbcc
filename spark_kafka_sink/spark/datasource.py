"""KafkaDataSource, named `pykafka`: what Spark finds, by itself through `pyspark_pykafka`, or by register()."""

from __future__ import annotations

import dataclasses
from collections.abc import MutableMapping
from typing import Any, NoReturn

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from spark_kafka_sink.errors import ConfigurationError, SchemaError
from spark_kafka_sink.formats.encoder import ColumnsEncoder
from spark_kafka_sink.spark.bootstrap import check_connection
from spark_kafka_sink.spark.columns import ColumnPlan, plan_columns
from spark_kafka_sink.spark.format_options import encoded_sides
from spark_kafka_sink.spark.options import parse_options
from spark_kafka_sink.spark.sink_options import SinkOptions
from spark_kafka_sink.spark.value_formats import plan_encoders, with_schema_ids
from spark_kafka_sink.spark.worker_log import show_log
from spark_kafka_sink.spark.writer import KafkaBatchWriter, KafkaStreamWriter

NAME = "pykafka"

MODE_NOT_ALLOWED = "Save mode {} not allowed for Kafka. Allowed save modes are Append and ErrorIfExists (default)."


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
            raise ConfigurationError(MODE_NOT_ALLOWED.format("Overwrite"))
        return KafkaBatchWriter(*self._plan(schema))

    def streamWriter(self, schema: StructType, overwrite: bool) -> KafkaStreamWriter:  # noqa: N802
        # `overwrite` is output mode complete: every micro-batch writes the whole result, as with Spark's own sink.
        return KafkaStreamWriter(*self._plan(schema))

    def _plan(self, schema: StructType) -> tuple[SinkOptions, ColumnPlan]:
        show_log()
        options, plan = self._checked(schema)
        if self._is_planning and options.check_connection:
            check_connection(options.producer_config().bootstrap_servers)
        if self._is_planning and options.registry is not None:
            plan = with_schema_ids(plan, options)
        return dataclasses.replace(options, registry=None), plan

    def _checked(self, schema: StructType) -> tuple[SinkOptions, ColumnPlan]:
        """The faults of the options and those of the schema in one error; none of them needs a broker."""
        faults: list[str] = []
        # Where the options are faulty, the schema is looked at with those of them that concern it.
        fixed_topic = next((value for name, value in self.options.items() if name.lower() == "topic"), None)
        encoders: dict[str, ColumnsEncoder | None] = {**encoded_sides(self.options)}
        try:
            options = parse_options(self.options)
            fixed_topic = options.topic
            encoders = plan_encoders(options.formats, schema, faults)
        except ConfigurationError as error:
            faults += error.faults
        try:
            plan = plan_columns(schema, fixed_topic, encoders)
        except SchemaError as error:
            if not faults:
                raise
            faults += str(error).splitlines()
        if faults:
            raise ConfigurationError(faults)
        return options, plan
