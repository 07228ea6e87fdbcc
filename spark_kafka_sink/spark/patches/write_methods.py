"""The methods that `register` installs in place of `save`, `saveAsTable`, `start` and `toTable`.

They change only writes to the format `pykafka`. All other writes go to the original methods.

Spark requests the writer from a Python data source only after every stage before the write has run. It also rejects the
default save mode and output mode `update` for Python data sources, and passes every column to the writer. These methods
therefore process a write before Spark plans it:

1. They check the mode and the trigger, then the options, the schema and the connection (checks.py). Errors reach the
   caller directly instead of wrapped in a Spark exception.
2. They select only the columns that the sink uses, so that no other column is sent to Python, whatever its name and
   type. They limit the number of tasks to the option maxTasks and move each row to the task that the option
   distribution requires.
3. They create a writer for these columns with the same options, in mode append, and call the original method on it.
   Table layout methods such as partitionBy have no effect on Kafka. They are ignored with a warning, as in Spark's own
   Kafka sink.

Three kinds of streams run through foreachBatch, with an ordinary batch write for each micro-batch: streams in output
mode `update`; streams with the option distribution, because Spark cannot sort a streaming DataFrame; and streams that
run through mapInArrow (map_in_arrow.py), because Spark does not allow it as the sink of a streaming DataFrame.

`saveAsTable` and `toTable` run the same checks but keep all columns, because they become the table's columns.

All settings of a write are in the writer's recorded calls (recorded_writer.py). A wrapper changes a setting by calling
a method such as `option` on the writer, which records this call, too. The original writer only collects settings: the
write itself goes through mapInArrow or through a rebuilt writer, which repeats the recorded calls.
"""

from __future__ import annotations

import functools
import logging
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from spark_kafka_sink.errors import ConfigurationError
from spark_kafka_sink.spark.checks import check_and_plan_write
from spark_kafka_sink.spark.connect_checks import run_checks_on_driver
from spark_kafka_sink.spark.constants import (
    ALREADY_CHECKED_OPTION,
    BATCH_ID_OPTION,
    BATCH_ID_PROPERTY,
    DISTRIBUTED_BY_OPTION,
    DISTRIBUTION_NOT_SUPPORTED_MESSAGE,
    FORMAT_NAME,
    IDEMPOTENCY_KEY_IN_STREAM_MESSAGE,
    MICRO_BATCH_OPTION,
    MISSING_QUERY_NAME_MESSAGE,
    QUERY_ID_OPTION,
    QUERY_ID_PROPERTY,
    REAL_TIME_TRIGGER_MESSAGE,
    SAVE_MODE_NOT_ALLOWED_MESSAGE,
    STREAM_START_OPTION,
)
from spark_kafka_sink.spark.distribution import (
    WritePlan,
    build_distribution,
    distribute_rows,
    limit_micro_batch_tasks,
)
from spark_kafka_sink.spark.map_in_arrow import should_use_map_in_arrow, write_with_map_in_arrow
from spark_kafka_sink.spark.options.delivery import EXACTLY_ONCE
from spark_kafka_sink.spark.patches.lineage_hooks import trace_query, trace_save
from spark_kafka_sink.spark.patches.recorded_writer import (
    RecordedCalls,
    copy_writer,
    get_recorded_calls,
    get_writer_dataframe,
    rebuild_writer,
)
from spark_kafka_sink.spark.patches.task_limits import (
    coalesce_to_max_tasks,
    parse_max_tasks,
    set_concurrent_tasks_option,
)
from spark_kafka_sink.spark.pool import IDLE_TIMEOUT_CONF, parse_idle_timeout
from spark_kafka_sink.spark.positional_columns import select_by_position
from spark_kafka_sink.spark.writer import CONTINUOUS_TRIGGER_MESSAGE

_ALLOWED_SAVE_MODES = {"append", "error", "errorifexists", "default"}
"""Save modes in lowercase. The sink appends the rows in each of them, as Spark's own Kafka sink does."""
_REJECTED_SAVE_MODES = {"overwrite": "Overwrite", "ignore": "Ignore"}
_ALREADY_CHECKED_OPTIONS = {"checkconnection": "false", ALREADY_CHECKED_OPTION: "true"}
"""Options set on a write after its checks have passed, so that planning the write does not repeat the checks."""
_STREAMING_QUERY_OPTIONS = ("checkpointlocation", "queryname")
"""Spark's own options for a query. A query that runs through foreachBatch needs them, but no options of the sink."""
_TABLE_LAYOUT_METHODS = ("partitionBy", "clusterBy")
"""Methods that have no effect on Kafka, so the rebuilt writer does not repeat their calls."""
_CHECKPOINT_LOCATION_CONF = "spark.sql.streaming.checkpointLocation"
_DISTRIBUTION_OPTION = "distribution"
_UPDATE_MODE_TO_TABLE_MESSAGE = (
    "toTable() does not support outputMode('update'), because Spark rejects this mode for Python data sources. Use "
    ".outputMode('update').start() instead. The table is not needed: it would store nothing except its name."
)
_MAP_IN_ARROW_TO_TABLE_MESSAGE = (
    "saveAsTable() and toTable() write through a Python data source, which requires Spark 4.0 or newer, and not "
    "through mapInArrow. Use save() or start(). The table is not needed: it would store nothing except its name."
)

_log = logging.getLogger(__name__)


def wrap_save(original_save: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap `DataFrameWriter.save`.

    The wrapper validates the mode, the options, the schema and the connection, selects the columns that the sink needs
    and appends the rows. It raises a KafkaSinkError if a check or the write fails. Writes in any other format are
    passed to the original method.
    """

    @functools.wraps(original_save)
    def save(
        self: Any,
        path: str | None = None,
        format: str | None = None,
        mode: str | None = None,
        partitionBy: str | list[str] | None = None,  # noqa: N803
        **options: Any,
    ) -> None:
        recorded_calls = _find_pykafka_calls(self, format)
        if recorded_calls is None:
            original_save(self, path, format, mode, partitionBy, **options)
            return
        if path is not None:
            # The option checks reject the path. It is set on a copy, because the writer can be used again without it.
            copy = copy_writer(self).option("path", path)
            copy.save(None, FORMAT_NAME, mode, partitionBy, **options)
            return
        # First turn the arguments of save() into recorded calls, because all further steps read the recorded calls.
        self.options(**options)
        _apply_settings(self, mode=mode, partitionBy=partitionBy)
        _save_to_kafka(self, recorded_calls, original_save)

    return save


def _save_to_kafka(writer: Any, recorded_calls: RecordedCalls, original_save: Callable[..., Any]) -> None:
    """Validate the write that the recorded calls describe, and append its rows.

    The rows are written through mapInArrow if `writeMethod` requests it or Spark has no Python data sources, and
    otherwise through the data source. Raise a KafkaSinkError if a check or the write fails.
    """
    _check_save_mode(recorded_calls)
    uses_map_in_arrow = should_use_map_in_arrow(recorded_calls.options(), is_connect=_is_spark_connect(writer))
    set_concurrent_tasks_option(writer, recorded_calls)
    plan = _check_and_build_write_plan(writer, recorded_calls)
    source_frame = get_writer_dataframe(writer)
    sink_frame, distribution_options = _select_and_distribute(source_frame, recorded_calls, plan)
    micro_batch_options = _build_micro_batch_options(writer)
    _warn_about_table_layout(recorded_calls)
    lineage = trace_save(
        source_frame, recorded_calls.options(), plan.column_positions, uses_map_in_arrow=uses_map_in_arrow
    )
    with lineage as lineage_options:
        # No option occurs in two of these dicts, so their order does not matter. All of them override user options.
        internal_options = _ALREADY_CHECKED_OPTIONS | distribution_options | micro_batch_options | lineage_options
        if uses_map_in_arrow:
            write_with_map_in_arrow(sink_frame, recorded_calls.options() | internal_options)
            return
        # The mode has been checked. Spark rejects the default mode for a Python data source, so always append.
        new_writer = rebuild_writer(writer, sink_frame, excluding=["mode", *_TABLE_LAYOUT_METHODS])
        original_save(new_writer.format(FORMAT_NAME).mode("append").options(**internal_options))


def wrap_save_as_table(original_save_as_table: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap `DataFrameWriter.saveAsTable`.

    The wrapper validates the mode, the options, the schema and the connection before Spark plans the write. Unlike the
    wrapper of `save`, it keeps all columns, because they become the table's columns. It raises a KafkaSinkError if a
    check fails. Writes in any other format are passed to the original method.
    """

    @functools.wraps(original_save_as_table)
    def save_as_table(
        self: Any,
        name: str,
        format: str | None = None,
        mode: str | None = None,
        partitionBy: str | list[str] | None = None,  # noqa: N803
        **options: Any,
    ) -> None:
        recorded_calls = _find_pykafka_calls(self, format)
        if recorded_calls is None:
            original_save_as_table(self, name, format, mode, partitionBy, **options)
            return
        # First turn the arguments of saveAsTable() into recorded calls, which the checks and the new writer read.
        self.options(**options)
        _apply_settings(self, mode=mode, partitionBy=partitionBy)
        _check_save_mode(recorded_calls)
        _prepare_table_write(self, recorded_calls)
        _warn_about_table_layout(recorded_calls)
        # maxTasks has been checked. The table layout has no effect on Kafka, so the new writer does not get it.
        frame = coalesce_to_max_tasks(get_writer_dataframe(self), recorded_calls)
        writer = rebuild_writer(self, frame, excluding=_TABLE_LAYOUT_METHODS).format(FORMAT_NAME)
        original_save_as_table(writer.options(**_ALREADY_CHECKED_OPTIONS), name)

    return save_as_table


def wrap_start(original_start: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap `DataStreamWriter.start`.

    The wrapper validates the trigger, the options, the schema and the connection, selects the columns that the sink
    needs and starts the query. It raises a KafkaSinkError if a check fails. Writes in any other format are passed to
    the original method.
    """

    @functools.wraps(original_start)
    def start(
        self: Any,
        path: str | None = None,
        format: str | None = None,
        outputMode: str | None = None,  # noqa: N803
        partitionBy: str | list[str] | None = None,  # noqa: N803
        queryName: str | None = None,  # noqa: N803
        **options: Any,
    ) -> Any:
        recorded_calls = _find_pykafka_calls(self, format)
        if recorded_calls is None:
            return original_start(self, path, format, outputMode, partitionBy, queryName, **options)
        if path is not None:
            copy = copy_writer(self).option("path", path)  # as in `wrap_save`
            return copy.start(None, FORMAT_NAME, outputMode, partitionBy, queryName, **options)
        # Turn the other arguments into recorded calls as well, because all further steps read the recorded calls.
        _record_and_check_arguments(
            self, recorded_calls, options, outputMode=outputMode, partitionBy=partitionBy, queryName=queryName
        )
        return _start_kafka_query(self, recorded_calls, original_start)

    return start


def _start_kafka_query(writer: Any, recorded_calls: RecordedCalls, original_start: Callable[..., Any]) -> Any:
    """Validate the write that the recorded calls describe, and start the query. Return the query.

    Each micro-batch is written as a batch job if the output mode is `update`, the option `distribution` is set, or the
    write goes through mapInArrow. Raise a KafkaSinkError if a check fails.
    """
    uses_map_in_arrow = should_use_map_in_arrow(recorded_calls.options(), is_connect=_is_spark_connect(writer))
    set_concurrent_tasks_option(writer, recorded_calls)
    plan = _check_and_build_write_plan(writer, recorded_calls)
    source_frame = get_writer_dataframe(writer)
    if plan.distribution is None:
        sink_frame = coalesce_to_max_tasks(_select_columns(source_frame, plan.column_positions), recorded_calls)
    else:
        # MicroBatchWriter distributes the rows, so it also needs the columns that rows are hashed and sorted by.
        required_positions = sorted({*plan.column_positions, *plan.distribution.find_used_positions()})
        sink_frame = _select_columns(source_frame, required_positions)
    _warn_about_table_layout(recorded_calls)
    is_update_mode = _get_output_mode(recorded_calls) == "update"
    uses_foreach_batch = is_update_mode or plan.distribution is not None or uses_map_in_arrow

    def start_query(lineage_options: dict[str, str]) -> Any:
        internal_options = _build_stream_options() | lineage_options
        if uses_foreach_batch:
            return original_start(_build_foreach_batch_writer(writer, sink_frame, recorded_calls, internal_options))
        new_writer = rebuild_writer(writer, sink_frame, excluding=_TABLE_LAYOUT_METHODS).format(FORMAT_NAME)
        return original_start(new_writer.options(**internal_options))

    return trace_query(source_frame, recorded_calls.options(), plan.column_positions, start_query)


def wrap_to_table(original_to_table: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap `DataStreamWriter.toTable`.

    The wrapper validates the trigger, the options, the schema and the connection, and starts the query. Unlike the
    wrapper of `start`, it keeps all columns, because they become the table's columns. It raises a KafkaSinkError if a
    check fails. Writes in any other format are passed to the original method.
    """

    @functools.wraps(original_to_table)
    def to_table(
        self: Any,
        tableName: str,  # noqa: N803
        format: str | None = None,
        outputMode: str | None = None,  # noqa: N803
        partitionBy: str | list[str] | None = None,  # noqa: N803
        queryName: str | None = None,  # noqa: N803
        **options: Any,
    ) -> Any:
        recorded_calls = _find_pykafka_calls(self, format)
        if recorded_calls is None:
            return original_to_table(self, tableName, format, outputMode, partitionBy, queryName, **options)
        # First turn the settings and options into recorded calls, because all further steps read the recorded calls.
        _record_and_check_arguments(
            self, recorded_calls, options, outputMode=outputMode, partitionBy=partitionBy, queryName=queryName
        )
        if _get_output_mode(recorded_calls) == "update":
            raise ConfigurationError(_UPDATE_MODE_TO_TABLE_MESSAGE)
        _prepare_table_write(self, recorded_calls)
        _warn_about_table_layout(recorded_calls)
        frame = coalesce_to_max_tasks(get_writer_dataframe(self), recorded_calls)
        writer = rebuild_writer(self, frame, excluding=_TABLE_LAYOUT_METHODS).format(FORMAT_NAME)
        # The new writer has the format. rebuild_writer has repeated the recorded calls for the other arguments, except
        # for partitionBy, which has no effect.
        return original_to_table(writer.options(**_build_stream_options()), tableName)

    return to_table


@dataclass(frozen=True)
class MicroBatchWriter:
    """A foreachBatch function that writes a micro-batch as a batch job. Picklable, as Spark Connect requires."""

    options: Mapping[str, str] = field(repr=False)
    """The options of each batch job, including the internal options of the stream."""

    def __call__(self, frame: Any, batch_id: int) -> None:
        """Distribute the micro-batch's rows if the options require it, and append them to Kafka."""
        options = self.options
        if _DISTRIBUTION_OPTION in options:
            sink_options, plan = check_and_plan_write(
                options, frame.schema, options.get(STREAM_START_OPTION), check_servers=False
            )
            distribution = build_distribution(sink_options, plan, frame.schema)
            if distribution is not None:
                distribution = limit_micro_batch_tasks(distribution, frame.sparkSession)
                frame = distribute_rows(frame, distribution, plan.column_positions(), parse_max_tasks(options))
                options = {**options, DISTRIBUTED_BY_OPTION: distribution.strategy}
        frame.write.format(FORMAT_NAME).options(**options).mode("append").save()


def _record_and_check_arguments(
    writer: Any, recorded_calls: RecordedCalls, options: Mapping[str, Any], **settings: Any
) -> None:
    """Record the arguments of `start` or `toTable` by setting them on the writer. Check the stream's settings.

    Raise ConfigurationError if the trigger or the exactly-once options are invalid.

    `settings`: the arguments that are not options, by the name of the writer method that sets them.
    """
    writer.options(**options)
    _apply_settings(writer, **settings)
    _check_trigger(recorded_calls)
    _prepare_exactly_once(writer, recorded_calls)


def _build_stream_options() -> dict[str, str]:
    """Return the internal options of a stream that is about to start. Each call returns a new id for the start."""
    return {**_ALREADY_CHECKED_OPTIONS, STREAM_START_OPTION: uuid.uuid4().hex}


def _build_foreach_batch_writer(
    writer: Any, frame: Any, recorded_calls: RecordedCalls, internal_options: Mapping[str, str]
) -> Any:
    """Build a stream writer that writes each micro-batch of `frame` as a batch job with the writer's options."""
    options = recorded_calls.options()
    query_options = {name: value for name, value in options.items() if name in _STREAMING_QUERY_OPTIONS}
    write_micro_batch = MicroBatchWriter({**options, **internal_options, MICRO_BATCH_OPTION: "true"})
    new_writer = rebuild_writer(writer, frame, excluding=["format", "option", "options", *_TABLE_LAYOUT_METHODS])
    return new_writer.options(**query_options).foreachBatch(write_micro_batch)


def _apply_settings(writer: Any, **settings: Any) -> None:
    """Call the writer method named by each keyword with the keyword's value, unless the value is None."""
    for method, value in settings.items():
        if value is not None:
            getattr(writer, method)(value)


def _find_pykafka_calls(writer: Any, format: str | None) -> RecordedCalls | None:
    """Return the writer's recorded calls, or None if the write has a different format than `pykafka`.

    Also return None if the writer was created before its class was patched, because its format is then unknown.

    `format`: the argument of `save` or `start`. It takes precedence over the writer's format.
    """
    recorded_calls = get_recorded_calls(writer)
    if recorded_calls is None:
        return None
    format_name = format if format is not None else recorded_calls.format()
    if format_name is None:
        format_name = get_writer_dataframe(writer).sparkSession.conf.get("spark.sql.sources.default")
    return recorded_calls if format_name.lower() == FORMAT_NAME else None


def _check_save_mode(recorded_calls: RecordedCalls) -> None:
    """Raise ConfigurationError unless the save mode is append or errorifexists, which is also the default."""
    call = recorded_calls.last_call("mode")
    save_mode = None if call is None else call.bound_arguments["saveMode"]
    mode = "default" if save_mode is None else str(save_mode)
    if mode.lower() not in _ALLOWED_SAVE_MODES:
        raise ConfigurationError(SAVE_MODE_NOT_ALLOWED_MESSAGE.format(_REJECTED_SAVE_MODES.get(mode.lower(), mode)))


def _check_trigger(recorded_calls: RecordedCalls) -> None:
    """Raise ConfigurationError for the triggers that Spark does not support for Python sinks."""
    trigger = recorded_calls.last_call("trigger")
    if trigger is None:
        return
    unsupported_triggers = (("continuous", CONTINUOUS_TRIGGER_MESSAGE), ("realTime", REAL_TIME_TRIGGER_MESSAGE))
    for parameter, message in unsupported_triggers:
        if trigger.bound_arguments.get(parameter) is not None:
            raise ConfigurationError(message)


def _warn_about_table_layout(recorded_calls: RecordedCalls) -> None:
    """Log a warning if the user has called a method such as partitionBy, which has no effect on Kafka."""
    call = recorded_calls.last_call(*_TABLE_LAYOUT_METHODS)
    if call is not None:
        columns = ", ".join(repr(name) for name in (*call.args, *call.kwargs.values()))
        _log.warning(
            "Ignored %s(%s), which has no effect on Kafka. A row is written to the partition in its column "
            "'partition' or, if there is none, to the partition of its key.",
            call.method,
            columns,
        )


def _prepare_exactly_once(writer: Any, recorded_calls: RecordedCalls) -> None:
    """Check that an exactly-once stream has a name, and no idempotency key, which is for batch jobs only.

    The name is the stream's transactional id prefix, or is derived from its checkpoint location. If only a Spark
    setting provides the location, add it to the writer as an option, so that the later steps find it. Raise
    ConfigurationError if a check fails.
    """
    options = recorded_calls.options()
    if options.get("deliveryguarantee", "").strip().lower() != EXACTLY_ONCE:
        return
    if "idempotencykey" in options:
        raise ConfigurationError(IDEMPOTENCY_KEY_IN_STREAM_MESSAGE)
    if "checkpointlocation" in options or "transactionalidprefix" in options:
        return
    base_directory = get_writer_dataframe(writer).sparkSession.conf.get(_CHECKPOINT_LOCATION_CONF, None)
    call = recorded_calls.last_call("queryName")
    query_name = options.get("queryname") if call is None else call.bound_arguments["queryName"]
    # Without a query name, Spark would create a different directory below this one for each start of the query.
    if not base_directory or not query_name:
        raise ConfigurationError(MISSING_QUERY_NAME_MESSAGE)
    writer.option("checkpointLocation", f"{base_directory.rstrip('/')}/{query_name}")


def _get_output_mode(recorded_calls: RecordedCalls) -> str:
    call = recorded_calls.last_call("outputMode")
    return "append" if call is None else str(call.bound_arguments["outputMode"]).lower()


def _select_and_distribute(frame: Any, recorded_calls: RecordedCalls, plan: WritePlan) -> tuple[Any, dict[str, str]]:
    """Select the sink's columns and move the rows to the tasks that write them.

    Return the new DataFrame, and the additional options that its writer needs. The options of the write must have been
    checked.
    """
    if plan.distribution is None:
        return coalesce_to_max_tasks(_select_columns(frame, plan.column_positions), recorded_calls), {}
    max_tasks = parse_max_tasks(recorded_calls.options())
    distributed_frame = distribute_rows(frame, plan.distribution, plan.column_positions, max_tasks)
    return distributed_frame, {DISTRIBUTED_BY_OPTION: plan.distribution.strategy}


def _build_micro_batch_options(writer: Any) -> dict[str, str]:
    """Return the options that identify the micro-batch if a foreachBatch function calls save() (classic Spark only)."""
    if _is_spark_connect(writer):
        return {}
    context = get_writer_dataframe(writer).sparkSession.sparkContext
    properties_by_option = {QUERY_ID_OPTION: QUERY_ID_PROPERTY, BATCH_ID_OPTION: BATCH_ID_PROPERTY}
    ids_by_option = {option: context.getLocalProperty(name) for option, name in properties_by_option.items()}
    return {option: id_text for option, id_text in ids_by_option.items() if id_text is not None}


def _prepare_table_write(writer: Any, recorded_calls: RecordedCalls) -> None:
    """Prepare a write to a table with `_check_and_build_write_plan`, and reject options that do not work for tables.

    Raise ConfigurationError if the options require mapInArrow or a distribution.
    """
    if should_use_map_in_arrow(recorded_calls.options(), is_connect=_is_spark_connect(writer)):
        raise ConfigurationError(_MAP_IN_ARROW_TO_TABLE_MESSAGE)
    set_concurrent_tasks_option(writer, recorded_calls)
    plan = _check_and_build_write_plan(writer, recorded_calls)
    if plan.distribution is not None:
        raise ConfigurationError(DISTRIBUTION_NOT_SUPPORTED_MESSAGE)


def _check_and_build_write_plan(writer: Any, recorded_calls: RecordedCalls) -> WritePlan:
    """Check Spark's settings, the options, the schema and the connection. Raise a KafkaSinkError if a check fails.

    Return which columns to write, and how to distribute the rows. Call `set_concurrent_tasks_option` first, because the
    checks use the number of concurrent tasks.
    """
    frame = get_writer_dataframe(writer)
    options = recorded_calls.options()
    parse_idle_timeout(frame.sparkSession.conf.get(IDLE_TIMEOUT_CONF, None))  # the tasks use it
    if _is_spark_connect(writer):
        # The options may refer to packages and files that exist on the driver but not on this client.
        return run_checks_on_driver(frame.sparkSession, options, frame.schema)
    sink_options, plan = check_and_plan_write(
        recorded_calls.options_as_written(), frame.schema, options.get(STREAM_START_OPTION)
    )
    return WritePlan(plan.column_positions(), build_distribution(sink_options, plan, frame.schema))


def _is_spark_connect(writer: Any) -> bool:
    return type(writer).__module__.startswith("pyspark.sql.connect")


def _select_columns(frame: Any, positions: list[int]) -> Any:
    """Select the columns at these positions. If these are all columns, return the DataFrame unchanged."""
    return frame if len(positions) == len(frame.schema.fieldNames()) else select_by_position(frame, positions)
