"""Access to the options and the column plan that a writer passes to its tasks."""

from __future__ import annotations

from typing import cast
from unittest.mock import patch

from spark_kafka_sink.producer.column_plan import ColumnPlan
from spark_kafka_sink.spark import writer
from spark_kafka_sink.spark.options.sink_options import SinkOptions


def planned(by: writer.KafkaBatchWriter | writer.KafkaStreamWriter) -> tuple[SinkOptions, ColumnPlan]:
    with patch.object(writer, "write_rows", lambda options, plan, rows, **_: (options, plan)):
        return cast("tuple[SinkOptions, ColumnPlan]", by.write(iter(())))
