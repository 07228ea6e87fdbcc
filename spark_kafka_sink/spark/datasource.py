"""The data source `pykafka`.

Spark discovers it through the module `pyspark_pykafka`, or once `register` has been called.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, MutableMapping
from typing import Any

import pyarrow as pa
from pyspark.sql.types import StructType

from spark_kafka_sink.errors import ConfigurationError
from spark_kafka_sink.producer.column_plan import ColumnPlan
from spark_kafka_sink.spark.arrow_types import to_struct_type
from spark_kafka_sink.spark.checks import check_and_plan_write
from spark_kafka_sink.spark.connect_checks import CHECK_OPTION, run_checks_and_encode_result
from spark_kafka_sink.spark.constants import (
    BATCH_ID_OPTION,
    DISTRIBUTION_NOT_SUPPORTED_MESSAGE,
    FORMAT_NAME,
    MAP_IN_ARROW_REQUIRES_REGISTER_MESSAGE,
    MICRO_BATCH_OPTION,
    QUERY_ID_OPTION,
    SAVE_MODE_NOT_ALLOWED_MESSAGE,
    STREAM_START_OPTION,
    TABLE_OPTIONS_MESSAGE,
)
from spark_kafka_sink.spark.options.sink_options import SinkOptions
from spark_kafka_sink.spark.options.write_method import MAP_IN_ARROW
from spark_kafka_sink.spark.pyspark_versions import DataSource
from spark_kafka_sink.spark.task_report import MicroBatchId
from spark_kafka_sink.spark.worker_log import install_stderr_handler
from spark_kafka_sink.spark.worker_process import update_gc_freeze
from spark_kafka_sink.spark.writer import KafkaBatchWriter, KafkaStreamWriter

_BOOTSTRAP_SERVERS_OPTION = "kafka.bootstrap.servers"


class KafkaDataSource(DataSource):
    """A write-only data source for Apache Kafka. To read from Kafka, use Spark's own `format("kafka")`."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self._is_planning = True
        """Whether this process plans the write. False in the process that commits the micro-batches of a stream."""
        # pyspark's daemon has collected the garbage right before the planning worker creates the data source, so the
        # remaining objects can be frozen now.
        update_gc_freeze()

    def __setstate__(self, state: dict[str, Any]) -> None:
        # After planning, Spark pickles the data source for the process that commits a stream's micro-batches.
        self.__dict__.update(state)
        self._is_planning = False
        update_gc_freeze()

    @classmethod
    def name(cls) -> str:
        return FORMAT_NAME

    def schema(self) -> StructType:
        """Run the checks that a Spark Connect client requests, and return their result (connect_checks.py).

        Any other call of this method means that a program tries to read, so raise ConfigurationError.
        """
        if CHECK_OPTION in self.options:
            return run_checks_and_encode_result(self.options)
        raise ConfigurationError(
            f"'{FORMAT_NAME}' writes to Kafka and cannot read from it. Read with Spark's own format('kafka')."
        )

    def writer(self, schema: StructType | pa.Schema, overwrite: bool) -> KafkaBatchWriter:
        """Check a batch write and return its writer. Raise a KafkaSinkError if a check fails.

        `overwrite`: whether the save mode is overwrite, which the sink does not support.
        """
        if overwrite:
            raise ConfigurationError(SAVE_MODE_NOT_ALLOWED_MESSAGE.format("Overwrite"))
        stream_start_id = self.options.get(STREAM_START_OPTION)
        # Check the servers even if this data source has been unpickled, because Sail calls this method on an unpickled
        # data source. Spark calls the method once per job.
        options, plan = self._check_and_plan(schema, stream_start_id, check_servers=True)
        return begin_batch_write(options, plan, self.options)

    def streamWriter(self, schema: StructType | pa.Schema, overwrite: bool) -> KafkaStreamWriter:  # noqa: N802
        """Return the writer for the tasks of a micro-batch or, in a committing worker, the writer that commits it."""
        # `overwrite` means output mode complete. As in Spark's own sink, each micro-batch writes the whole result.
        stream_start_id = self.options.get(STREAM_START_OPTION)
        # To the checks, None means a batch write. An empty string means a stream that was started without `register`.
        options, plan = self._check_and_plan(schema, stream_start_id or "", check_servers=self._is_planning)
        if options.exactly_once_options is None or not self._is_planning:
            return KafkaStreamWriter(options, plan, stream_start_id)
        # This module is needed only for exactly-once delivery.
        from spark_kafka_sink.spark.exactly_once import begin_micro_batch

        return KafkaStreamWriter(options, plan, stream_start_id, begin_micro_batch(options, stream_start_id))

    def _check_and_plan(
        self, schema: StructType | pa.Schema, stream_start_id: str | None, *, check_servers: bool
    ) -> tuple[SinkOptions, ColumnPlan]:
        """Check the write, and return its parsed options and its column plan. Raise a KafkaSinkError if a check fails.

        The schema registry's options are removed from the result, so that its credentials are not pickled and sent to
        the tasks.

        `stream_start_id`, `check_servers`: as in `check_and_plan_write`.
        """
        install_stderr_handler()
        try:
            options, plan = check_and_plan_write(
                self.options, to_struct_type(schema), stream_start_id, check_servers=check_servers
            )
        except ConfigurationError as error:
            if _BOOTSTRAP_SERVERS_OPTION in self.options:
                raise
            # Without servers, this may be a write to a table: Spark does not pass on the options of CREATE TABLE.
            # `from None`, because the new error repeats all problems.
            raise ConfigurationError([*error.problems, TABLE_OPTIONS_MESSAGE]) from None
        if options.distribution is not None:
            raise ConfigurationError(DISTRIBUTION_NOT_SUPPORTED_MESSAGE)
        if options.write_method == MAP_IN_ARROW:
            raise ConfigurationError(MAP_IN_ARROW_REQUIRES_REGISTER_MESSAGE)
        return dataclasses.replace(options, registry=None), plan


def plan_batch_write(options: Mapping[str, str], schema: StructType) -> KafkaBatchWriter:
    """Plan a batch write in the user's program. Return the writer that `KafkaDataSource.writer` returns in a worker.

    Also begin exactly-once delivery if the options require it.

    `options`: as checked by `register`, with lowercase names.
    """
    sink_options, plan = check_and_plan_write(options, schema, options.get(STREAM_START_OPTION))
    sink_options = dataclasses.replace(sink_options, registry=None)  # the tasks must not get the registry's credentials
    return begin_batch_write(sink_options, plan, options, driver_process_id=os.getpid())


def begin_batch_write(
    options: SinkOptions, plan: ColumnPlan, internal_options: Mapping[str, str], driver_process_id: int | None = None
) -> KafkaBatchWriter:
    """Create the writer of a batch write, and begin exactly-once delivery if the options require it.

    `internal_options`: a mapping that includes the options set by `register` (constants.py).
    `driver_process_id`: the process id of the driver; None in a planning worker, which looks it up.
    """
    micro_batch = _find_micro_batch(internal_options)
    if options.exactly_once_options is None:
        return KafkaBatchWriter(options, plan, micro_batch=micro_batch)
    # This module is needed only for exactly-once delivery.
    from spark_kafka_sink.spark.exactly_once import begin_job, begin_micro_batch

    if MICRO_BATCH_OPTION in internal_options:
        exactly_once_write = begin_micro_batch(options, internal_options.get(STREAM_START_OPTION), micro_batch)
    else:
        exactly_once_write = begin_job(options, driver_process_id)
    return KafkaBatchWriter(options, plan, exactly_once_write, micro_batch)


def _find_micro_batch(internal_options: Mapping[str, str]) -> MicroBatchId | None:
    """Return the micro-batch whose foreachBatch function calls save(), or None for any other write."""
    query_id = internal_options.get(QUERY_ID_OPTION)
    batch_id = internal_options.get(BATCH_ID_OPTION)
    return None if query_id is None or batch_id is None else MicroBatchId(query_id, batch_id)
