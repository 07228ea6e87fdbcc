"""Checks before a write, which the driver runs on behalf of a Spark Connect client.

The driver may be in a different network and have different packages than the client, so it must run the checks itself.
Spark Connect has no request for this. Instead, the client *reads* a DataFrame from `pykafka` with the option
CHECK_OPTION. When the driver analyzes this DataFrame, it runs the checks and returns their result as JSON in the name
of the only column. (Column metadata would be the natural place, but not every engine keeps it.) The DataFrame has no
rows, and no task is run.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from pyspark.sql.types import StringType, StructField, StructType

from spark_kafka_sink import errors
from spark_kafka_sink.errors import KafkaSinkError
from spark_kafka_sink.spark.checks import check_and_plan_write
from spark_kafka_sink.spark.constants import FORMAT_NAME, STREAM_START_OPTION
from spark_kafka_sink.spark.distribution import Distribution, WritePlan, build_distribution

CHECK_OPTION = "pykafka.check"
"""An internal read option. Its value is the schema of the rows to write, as JSON."""

# Fields of the JSON result. A successful check sets the first two, and a failed check sets the last two.
_COLUMNS_FIELD = "columns"
_DISTRIBUTION_FIELD = "distribution"
_ERROR_CLASS_FIELD = "error"
_ERROR_MESSAGE_FIELD = "message"


def run_checks_on_driver(session: Any, options: Mapping[str, str], schema: StructType) -> WritePlan:
    """Have the driver run all checks of a write, and return the plan of the write.

    If a check fails on the driver, raise its error in this process, the client.

    `schema`: the schema of the DataFrame to write.
    """
    reader = session.read.format(FORMAT_NAME).options(**options).option(CHECK_OPTION, schema.json())
    # `run_checks_and_encode_result` on the driver returns its result as the name of the schema's only field.
    (result_json,) = reader.load().schema.fieldNames()
    result = json.loads(result_json)
    if _ERROR_CLASS_FIELD in result:
        error_class = getattr(errors, result[_ERROR_CLASS_FIELD])
        raise error_class(result[_ERROR_MESSAGE_FIELD])
    distribution_json = result[_DISTRIBUTION_FIELD]
    distribution = Distribution.from_json(distribution_json) if distribution_json else None
    return WritePlan(result[_COLUMNS_FIELD], distribution)


def run_checks_and_encode_result(options: Mapping[str, str]) -> StructType:
    """Run all checks on the driver for a Spark Connect client, and encode their result as a schema.

    Before a job runs, the driver can return only a schema to the client. The result is therefore a JSON object in the
    name of the schema's only field. It contains the column positions and the distribution or, if a check fails, the
    error's class and message. The client decodes it in `run_checks_on_driver`.

    `options`: the options of the read, which include the options of the write and CHECK_OPTION.
    """
    write_options = dict(options)
    schema_json = write_options.pop(CHECK_OPTION)  # Spark passes all option names in lowercase
    try:
        schema = StructType.fromJson(json.loads(schema_json))
        sink_options, plan = check_and_plan_write(write_options, schema, write_options.get(STREAM_START_OPTION))
        distribution = build_distribution(sink_options, plan, schema)
        result: dict[str, Any] = {
            _COLUMNS_FIELD: plan.column_positions(),
            _DISTRIBUTION_FIELD: None if distribution is None else distribution.to_json(),
        }
    except KafkaSinkError as error:
        result = {_ERROR_CLASS_FIELD: type(error).__name__, _ERROR_MESSAGE_FIELD: str(error)}
    return StructType([StructField(json.dumps(result), StringType())])
