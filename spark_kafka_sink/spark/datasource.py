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
from spark_kafka_sink.spark.connect_checks import CHECK_OPTION, check_result_schema
from spark_kafka_sink.spark.constants import (
    DISTRIBUTION_NOT_SUPPORTED_MESSAGE,
    FORMAT_NAME,
    MICRO_BATCH_OPTION,
    SAVE_MODE_NOT_ALLOWED_MESSAGE,
    STREAM_START_OPTION,
    TABLE_OPTIONS_MESSAGE,
)
from spark_kafka_sink.spark.options.sink_options import SinkOptions
from spark_kafka_sink.spark.worker_log import install_stderr_handler
from spark_kafka_sink.spark.worker_process import freeze_gc
from spark_kafka_sink.spark.writer import KafkaBatchWriter, KafkaStreamWriter

_BOOTSTRAP_SERVERS_OPTION = "kafka.bootstrap.servers"


class KafkaDataSource(DataSource):
    """Writes to Apache Kafka. Reading is left to Spark's own source, `format("kafka")`."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self._is_planning = True
        freeze_gc()

    def __setstate__(self, state: dict[str, Any]) -> None:
        # Pickled after planning, to the process that commits a stream's micro-batches.
        self.__dict__.update(state)
        self._is_planning = False
        freeze_gc()

    @classmethod
    def name(cls) -> str:
        return FORMAT_NAME

    def schema(self) -> StructType:
        if CHECK_OPTION in self.options:
            return check_result_schema(self.options)
        raise ConfigurationError(
            f"'{FORMAT_NAME}' writes to Kafka and cannot read. Read with Spark's own format('kafka')."
        )

    def writer(self, schema: StructType, overwrite: bool) -> KafkaBatchWriter:
        if overwrite:
            raise ConfigurationError(SAVE_MODE_NOT_ALLOWED_MESSAGE.format("Overwrite"))
        options, plan = self._plan(schema, self.options.get(STREAM_START_OPTION))
        if options.exactly_once is None or not self._is_planning:
            return KafkaBatchWriter(options, plan)
        from spark_kafka_sink.spark.exactly_once import begin_job, begin_micro_batch

        # A micro-batch in output mode update is a job with a data source of its own; `register` has named the start.
        once = (
            begin_micro_batch(options, self.options.get(STREAM_START_OPTION))
            if MICRO_BATCH_OPTION in self.options
            else begin_job(options)
        )
        return KafkaBatchWriter(options, plan, once)

    def streamWriter(self, schema: StructType, overwrite: bool) -> KafkaStreamWriter:  # noqa: N802
        # `overwrite` is output mode complete: every micro-batch writes the whole result, as with Spark's own sink.
        options, plan = self._plan(schema, self.options.get(STREAM_START_OPTION, ""))
        if options.exactly_once is None or not self._is_planning:
            return KafkaStreamWriter(options, plan, self.options.get(STREAM_START_OPTION))
        from spark_kafka_sink.spark.exactly_once import begin_micro_batch

        return KafkaStreamWriter(
            options,
            plan,
            self.options.get(STREAM_START_OPTION),
            begin_micro_batch(options, self.options.get(STREAM_START_OPTION)),
        )

    def _plan(self, schema: StructType, start: str | None) -> tuple[SinkOptions, ColumnPlan]:
        install_stderr_handler()
        try:
            options, plan = check_all(self.options, schema, start, ask=self._is_planning)
        except ConfigurationError as error:
            if _BOOTSTRAP_SERVERS_OPTION in self.options:
                raise
            raise ConfigurationError([*error.faults, TABLE_OPTIONS_MESSAGE]) from None
        if options.distribution is not None:
            raise ConfigurationError(DISTRIBUTION_NOT_SUPPORTED_MESSAGE)
        return dataclasses.replace(options, registry=None), plan
