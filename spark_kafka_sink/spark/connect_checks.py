"""The checks before a write with Spark Connect, whose driver is another program than the one that calls `save`.

The driver is perhaps on another network and has other packages, so it makes the checks. Spark Connect has no call for
that: the client *reads* a data frame from `pykafka` with the option CHECK. The frame has no rows, and its schema holds
the result. The driver finds the schema when it analyses the frame, and runs no task.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from pyspark.sql.types import StringType, StructField, StructType

from spark_kafka_sink import errors
from spark_kafka_sink.errors import KafkaSinkError
from spark_kafka_sink.producer.column_plan import ColumnPlan
from spark_kafka_sink.spark.checks import check_all
from spark_kafka_sink.spark.constants import FORMAT_NAME, STREAM_START_OPTION
from spark_kafka_sink.spark.distribution import Distribution, build_distribution

CHECK_OPTION = "pykafka.check"
"""An option for reading: the schema of the rows that are to be written, as JSON."""

_PASSED = "passed"


def check_on_driver(
    session: Any, options: Mapping[str, str], schema: StructType
) -> tuple[list[int], Distribution | None]:
    """Let the driver make all checks, and raise here what they raise there.

    Returns the columns to be sent, and how rows are to be distributed.
    """
    reader = session.read.format(FORMAT_NAME).options(**options).option(CHECK_OPTION, schema.json())
    (field,) = reader.load().schema.fields
    if field.name != _PASSED:
        raise getattr(errors, field.name)(field.metadata["words"])
    distribution = field.metadata["distribution"]
    return list(field.metadata["columns"]), Distribution.from_json(distribution) if distribution else None


def check_result_schema(options: Mapping[str, str]) -> StructType:
    """Make all checks on the driver. Return their error, or the columns used, as the schema of a data frame."""
    given = {name: value for name, value in options.items() if name.lower() != CHECK_OPTION}
    schema = next(value for name, value in options.items() if name.lower() == CHECK_OPTION)
    try:
        columns = StructType.fromJson(json.loads(schema))
        parsed, plan = check_all(given, columns, given.get(STREAM_START_OPTION))
        distribution = build_distribution(parsed, plan, columns)
    except KafkaSinkError as error:
        return StructType([StructField(type(error).__name__, StringType(), True, {"words": str(error)})])
    return StructType([StructField(_PASSED, StringType(), True, _passed_metadata(plan, distribution))])


def _passed_metadata(plan: ColumnPlan, distribution: Distribution | None) -> dict[str, Any]:
    return {"columns": plan.positions(), "distribution": "" if distribution is None else distribution.to_json()}
