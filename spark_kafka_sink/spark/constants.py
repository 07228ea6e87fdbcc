"""Constants shared by several modules: the format name, option names, Spark's local properties and error messages."""

from __future__ import annotations

FORMAT_NAME = "pykafka"
SAVE_MODE_NOT_ALLOWED_MESSAGE = (
    "Save mode {} not allowed for Kafka. Allowed save modes are Append and ErrorIfExists (default)."
)
DISTRIBUTION_NOT_SUPPORTED_MESSAGE = (
    "Option 'distribution' requires spark_kafka_sink.register(spark) in the program that writes, and save() or "
    "start(). Without them, Spark calls a Python data source too late to move rows to other tasks."
)
MAP_IN_ARROW_REQUIRES_REGISTER_MESSAGE = (
    "Option 'writeMethod' is 'mapInArrow', which requires spark_kafka_sink.register(spark) in the program that writes, "
    "and save() or start(). Call register(spark), or remove the option."
)
IDEMPOTENCY_KEY_IN_STREAM_MESSAGE = (
    "Option 'idempotencyKey' is for batch jobs only. Remove it: the query id and the batch id already identify each "
    "micro-batch of a stream."
)
MISSING_QUERY_NAME_MESSAGE = (
    "Option 'deliveryGuarantee' is 'exactly-once', which requires a name for this query that stays the same after a "
    "restart. Set the option checkpointLocation, from which the name is derived, or transactionalIdPrefix."
)
REAL_TIME_TRIGGER_MESSAGE = (
    "trigger(realTime=...) is not supported for 'pykafka': Spark's real-time mode allows only the sinks on its own "
    "list, which contains no Python sink (PythonTable, or ForeachBatchSink in output mode update). Setting "
    "spark.sql.streaming.realTimeMode.allowlistCheck to false does not help, because the mode also requires "
    "asynchronous progress tracking, which Spark rejects for Python sinks. Use micro-batches without a pause instead: "
    '.trigger(processingTime="0 seconds"). A micro-batch takes a few tenths of a second.'
)
TABLE_OPTIONS_MESSAGE = (
    "If this is a write to a table: Spark does not pass the options of CREATE TABLE to a Python data source. Set them "
    "on each write: INSERT INTO the_table WITH ('kafka.bootstrap.servers' = 'host:9092', 'topic' = 'orders') "
    "SELECT ..., or df.writeTo('the_table').options(**options).append()."
)

# Producer options, without the prefix `kafka.`.
RACK_AWARE_OPTION = "partitioner.rack.aware"
CLIENT_RACK_OPTION = "client.rack"

QUERY_ID_PROPERTY = "sql.streaming.queryId"
BATCH_ID_PROPERTY = "streaming.sql.batchId"
"""The local properties that Spark sets for a micro-batch's jobs."""

# Internal options, set by the methods that `register` installs. Users do not set them.
MICRO_BATCH_OPTION = "pykafka.microbatch"
"""Marks a batch write that writes one micro-batch of a stream, which `register` runs through foreachBatch."""
QUERY_ID_OPTION = "pykafka.queryid"
"""The id of the query whose foreachBatch function calls save()."""
BATCH_ID_OPTION = "pykafka.batchid"
"""The id of the micro-batch for which a foreachBatch function calls save()."""
ALREADY_CHECKED_OPTION = "pykafka.checked"
"""Marks a write that `register` has already checked. Such a write also has checkConnection=false."""
DISTRIBUTED_BY_OPTION = "pykafka.distributed"
"""Marks a write whose rows are already distributed. It has the value of the option `distribution`."""
STREAM_START_OPTION = "pykafka.start"
"""An id for one run of a stream. Each call to `start()` or `toTable()` sets a new one."""
CONCURRENT_TASKS_OPTION = "pykafka.tasksatonce"
"""The maximum number of tasks that write concurrently and share maxBytesPerSecond."""
LINEAGE_DIRECTORY_OPTION = "pykafka.lineagedirectory"
"""A directory for reports. The program that called save() or start() reads them to build its OpenLineage events."""
INTERNAL_OPTIONS = (
    MICRO_BATCH_OPTION,
    QUERY_ID_OPTION,
    BATCH_ID_OPTION,
    ALREADY_CHECKED_OPTION,
    DISTRIBUTED_BY_OPTION,
    STREAM_START_OPTION,
    CONCURRENT_TASKS_OPTION,
    LINEAGE_DIRECTORY_OPTION,
)
