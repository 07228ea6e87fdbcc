"""The name of the data source, its internal options, and error messages that several modules raise."""

from __future__ import annotations

FORMAT_NAME = "pykafka"
SAVE_MODE_NOT_ALLOWED_MESSAGE = (
    "Save mode {} not allowed for Kafka. Allowed save modes are Append and ErrorIfExists (default)."
)
DISTRIBUTION_NOT_SUPPORTED_MESSAGE = (
    "Option 'distribution' needs spark_kafka_sink.register(spark) in the program that writes, and save() or start(): "
    "elsewhere Spark asks a data source in Python too late to bring rows to other tasks."
)
IDEMPOTENCY_KEY_IN_STREAM_MESSAGE = (
    "Option 'idempotencyKey' is for batch jobs. A stream needs none: its query id and the number of each micro-batch "
    "are what a batch is known by."
)
MISSING_QUERY_NAME_MESSAGE = (
    "Option 'deliveryGuarantee' is 'exactly-once', which needs a name for this query that stays the same after a "
    "restart. Set the option checkpointLocation, from which it is made, or transactionalIdPrefix."
)
REAL_TIME_TRIGGER_MESSAGE = (
    "trigger(realTime=...) is not available for 'pykafka': Spark's real-time mode takes the sinks on its own list, "
    "which has none in Python (PythonTable, or ForeachBatchSink in output mode update). The setting "
    "spark.sql.streaming.realTimeMode.allowlistCheck = false does not help: the mode also needs asynchronous progress "
    "tracking, which Spark refuses for sinks in Python. Use micro-batches, one after the other: "
    '.trigger(processingTime="0 seconds"). They take some tenths of a second.'
)
TABLE_OPTIONS_MESSAGE = (
    "If this writes to a table: Spark does not hand the options of CREATE TABLE to a data source in Python. Give them "
    "with each write: INSERT INTO the_table WITH ('kafka.bootstrap.servers' = 'host:9092', 'topic' = 'orders') "
    "SELECT ..., or df.writeTo('the_table').options(**options).append()."
)
MICRO_BATCH_OPTION = "pykafka.microbatch"
"""An internal option: it marks the jobs that write the micro-batches of a stream in output mode update."""
ALREADY_CHECKED_OPTION = "pykafka.checked"
"""An option of writes that `register` has checked already, with checkConnection false; no user's."""
DISTRIBUTED_BY_OPTION = "pykafka.distributed"
"""An option of writes whose rows are where the option distribution wants them: its value; no user's."""
STREAM_START_OPTION = "pykafka.start"
"""An option that each `start()` of a stream sets to another value; no user's."""
CONCURRENT_TASKS_OPTION = "pykafka.tasksatonce"
"""An option by which `register` says how many tasks may write at once; no user's."""
INTERNAL_OPTIONS = (
    MICRO_BATCH_OPTION,
    ALREADY_CHECKED_OPTION,
    DISTRIBUTED_BY_OPTION,
    STREAM_START_OPTION,
    CONCURRENT_TASKS_OPTION,
)
