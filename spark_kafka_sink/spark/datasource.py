"""KafkaDataSource, named `pykafka`: what Spark finds, by itself through `pyspark_pykafka`, or by register()."""

from __future__ import annotations

import dataclasses
from collections.abc import MutableMapping
from typing import Any

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from spark_kafka_sink.errors import ConfigurationError
from spark_kafka_sink.producer.column_plan import ColumnPlan
from spark_kafka_sink.spark.checks import check_all
from spark_kafka_sink.spark.connect_checks import CHECK, check_result_schema
from spark_kafka_sink.spark.constants import (
    MICRO_BATCH,
    MODE_NOT_ALLOWED,
    NAME,
    NOT_DISTRIBUTED,
    OPTIONS_OF_A_TABLE,
    START,
)
from spark_kafka_sink.spark.options.sink_options import SinkOptions
from spark_kafka_sink.spark.worker_log import show_log
from spark_kafka_sink.spark.worker_process import look_at_less
from spark_kafka_sink.spark.writer import KafkaBatchWriter, KafkaStreamWriter

BOOTSTRAP = "kafka.bootstrap.servers"


class KafkaDataSource(DataSource):
    """Writes to Apache Kafka. Reading is left to Spark's own source, `format("kafka")`."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self._is_planning = True
        look_at_less()

    def __setstate__(self, state: dict[str, Any]) -> None:
        # Pickled after planning, to the process that commits a stream's micro-batches.
        self.__dict__.update(state)
        self._is_planning = False
        look_at_less()

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> StructType:
        if CHECK in self.options:
            return check_result_schema(self.options)
        raise ConfigurationError(f"'{NAME}' writes to Kafka and cannot read. Read with Spark's own format('kafka').")

    def writer(self, schema: StructType, overwrite: bool) -> KafkaBatchWriter:
        if overwrite:
            raise ConfigurationError(MODE_NOT_ALLOWED.format("Overwrite"))
        options, plan = self._plan(schema, self.options.get(START))
        if options.exactly_once is None or not self._is_planning:
            return KafkaBatchWriter(options, plan)
        from spark_kafka_sink.spark.exactly_once import begin_job, begin_stream

        # A micro-batch in output mode update is a job with a data source of its own; `register` has named the start.
        once = begin_stream(options, self.options.get(START)) if MICRO_BATCH in self.options else begin_job(options)
        return KafkaBatchWriter(options, plan, once)

    def streamWriter(self, schema: StructType, overwrite: bool) -> KafkaStreamWriter:  # noqa: N802
        # `overwrite` is output mode complete: every micro-batch writes the whole result, as with Spark's own sink.
        options, plan = self._plan(schema, self.options.get(START, ""))
        if options.exactly_once is None or not self._is_planning:
            return KafkaStreamWriter(options, plan, self.options.get(START))
        from spark_kafka_sink.spark.exactly_once import begin_stream

        return KafkaStreamWriter(options, plan, self.options.get(START), begin_stream(options, self.options.get(START)))

    def _plan(self, schema: StructType, start: str | None) -> tuple[SinkOptions, ColumnPlan]:
        show_log()
        try:
            options, plan = check_all(self.options, schema, start, ask=self._is_planning)
        except ConfigurationError as error:
            if BOOTSTRAP in self.options:
                raise
            raise ConfigurationError([*error.faults, OPTIONS_OF_A_TABLE]) from None
        if options.distribution is not None:
            raise ConfigurationError(NOT_DISTRIBUTED)
        return dataclasses.replace(options, registry=None), plan
