"""The name of the data source, what more than one file has to say, and help with columns."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches

from spark_kafka_sink.column_names import NAME_CHARACTERS_MAX, listed
from spark_kafka_sink.words import cleaned

NAME = "pykafka"
MODE_NOT_ALLOWED = "Save mode {} not allowed for Kafka. Allowed save modes are Append and ErrorIfExists (default)."
NOT_DISTRIBUTED = (
    "Option 'distribution' needs spark_kafka_sink.register(spark) in the program that writes, and save() or start(): "
    "elsewhere Spark asks a data source in Python too late to bring rows to other tasks."
)
NO_NAME = (
    "Option 'deliveryGuarantee' is 'exactly-once', which needs a name for this query that stays the same after a "
    "restart. Set the option checkpointLocation, from which it is made, or transactionalIdPrefix."
)
REAL_TIME = (
    "trigger(realTime=...) is not available for 'pykafka': Spark's real-time mode takes the sinks on its own list, "
    "which has none in Python (PythonTable, or ForeachBatchSink in output mode update). The setting "
    "spark.sql.streaming.realTimeMode.allowlistCheck = false does not help: the mode also needs asynchronous progress "
    "tracking, which Spark refuses for sinks in Python. Use micro-batches, one after the other: "
    '.trigger(processingTime="0 seconds"). They take some tenths of a second; docs/latency.md has figures.'
)
OPTIONS_OF_A_TABLE = (
    "If this writes to a table: Spark does not hand the options of CREATE TABLE to a data source in Python. Give them "
    "with each write: INSERT INTO the_table WITH ('kafka.bootstrap.servers' = 'host:9092', 'topic' = 'orders') "
    "SELECT ..., or df.writeTo('the_table').options(**options).append()."
)
MICRO_BATCH = "pykafka.microbatch"
"""An internal option: it marks the jobs that write the micro-batches of a stream in output mode update."""
CHECKED = "pykafka.checked"
"""An option of writes that `register` has checked already, with checkConnection false; no user's."""
DISTRIBUTED = "pykafka.distributed"
"""An option of writes whose rows are where the option distribution wants them; no user's."""
START = "pykafka.start"
"""An option that each `start()` of a stream sets to another value; no user's."""
TASKS_AT_ONCE = "pykafka.tasksatonce"
"""An option by which `register` says how many tasks may write at once; no user's."""
OWN_OPTIONS = (MICRO_BATCH, CHECKED, DISTRIBUTED, START, TASKS_AT_ONCE)

_CASTS = {"key": "STRING", "value": "STRING", "topic": "STRING", "partition": "INT"}
_CASTABLE = ("TINYINT", "SMALLINT", "INT", "BIGINT", "FLOAT", "DOUBLE", "BOOLEAN", "DATE", "STRING")


def no_value_column(names: Sequence[str]) -> str:
    """Which columns there are, which one may be meant, and what to write where there is none."""
    shown = [cleaned(name, NAME_CHARACTERS_MAX) for name in names]
    there = listed(names)
    meant = next(iter(get_close_matches("value", [name.lower() for name in names], 1)), None)
    for name in (name for name in shown if name.lower() == meant):
        return f'. {there} Is \'{name}\' meant? Then: .withColumnRenamed("{name}", "value")'
    return f'. {there} Make one, for instance of all of them: .selectExpr("to_json(struct(*)) AS value")'


def cast_of(name: str, kind: str) -> str:
    """The expression that mends a column of a simple type, where there is one."""
    if name not in _CASTS or kind.upper() not in _CASTABLE:
        return ""
    return f"; CAST({name} AS {_CASTS[name]}) makes it one"
