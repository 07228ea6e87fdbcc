"""What `register` puts in the place of `save`, `start` and their like for tables, for writes to `pykafka` alone.

Spark asks a data source in Python for its writer when every stage before the write has run, refuses its default save
mode and output mode update, and hands over every column. So a write is looked at here, before Spark plans it:

1. mode and trigger, then options, schema and connection (checks.py), with errors that are raised as they are;
2. the columns of the sink are selected, so that no other travels to Python, whatever its name and type; the tasks
   are as few as the option maxTasks allows; and rows are brought to the task that the option distribution wants;
3. a writer of these columns gets the same options, in mode append, and does what the original one would have done;
   how a table is to be laid out means nothing to Kafka, and is passed over as in Spark's own sink, with a warning.

Output mode update goes through foreachBatch, where each micro-batch is an ordinary write of the rows that have changed,
and so does every stream with the option distribution: Spark sorts no stream.

`saveAsTable` and `toTable` are looked at likewise, but keep their columns, which are those of the table.
"""

from __future__ import annotations

import functools
import logging
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql import SparkSession

from spark_kafka_sink.errors import ConfigurationError
from spark_kafka_sink.spark.checks import check_all
from spark_kafka_sink.spark.concurrent_tasks import max_concurrent_tasks
from spark_kafka_sink.spark.connect_checks import check_on_driver
from spark_kafka_sink.spark.constants import (
    ALREADY_CHECKED_OPTION,
    CONCURRENT_TASKS_OPTION,
    DISTRIBUTED_BY_OPTION,
    DISTRIBUTION_NOT_SUPPORTED_MESSAGE,
    FORMAT_NAME,
    IDEMPOTENCY_KEY_IN_STREAM_MESSAGE,
    MICRO_BATCH_OPTION,
    MISSING_QUERY_NAME_MESSAGE,
    REAL_TIME_TRIGGER_MESSAGE,
    SAVE_MODE_NOT_ALLOWED_MESSAGE,
    STREAM_START_OPTION,
)
from spark_kafka_sink.spark.distribution import (
    Distribution,
    build_distribution,
    distribute_rows,
    limit_micro_batch_tasks,
)
from spark_kafka_sink.spark.options.delivery import EXACTLY_ONCE
from spark_kafka_sink.spark.patches.recorded_writer import (
    RecordedCalls,
    rebuild_writer,
    recorded_calls,
    writer_dataframe,
)
from spark_kafka_sink.spark.writer import CONTINUOUS_TRIGGER_MESSAGE

_MODES = {"append", "error", "errorifexists", "default"}
_REFUSED_MODES = {"overwrite": "Overwrite", "ignore": "Ignore"}
_CHECKED = {"checkConnection": "false", ALREADY_CHECKED_OPTION: "true"}
_OF_THE_STREAM = ("checkpointlocation", "queryname")
_OF_TABLES = ("partitionBy", "clusterBy")
_CHECKPOINTS = "spark.sql.streaming.checkpointLocation"
_MAX_TASKS, _MAX_BYTES, _DISTRIBUTION = "maxtasks", "maxbytespersecond", "distribution"
_DISTRIBUTION_TASKS = "distributiontasks"
_HOW_MANY = (
    "Option 'maxBytesPerSecond' needs 'maxTasks' here, since it is not known how many tasks will share it: with Spark "
    "Connect, where Spark adds executors as it goes (spark.dynamicAllocation.enabled), and before there is an executor."
)
_UPDATE_OF_A_TABLE = (
    "outputMode('update') cannot be written by toTable(), since Spark refuses it for sinks in Python. Write "
    ".outputMode('update').start() in its place: the table would hold nothing but its name."
)

_log = logging.getLogger(__name__)


def wrap_save(original: Callable[..., Any]) -> Callable[..., Any]:
    """`save` of a batch writer."""

    @functools.wraps(original)
    def save(
        self: Any,
        path: str | None = None,
        format: str | None = None,
        mode: str | None = None,
        partitionBy: str | list[str] | None = None,  # noqa: N803
        **options: Any,
    ) -> None:
        said = recorded_calls(self)
        if said is None or not _is_ours(self, said, format):
            original(self, path, format, mode, partitionBy, **options)
            return
        self.options(**options)
        _say(self, mode=mode, partitionBy=partitionBy)
        if path is not None:
            self.option("path", path)
        _check_mode(said)
        columns, how = _checked_columns(self, said)
        frame, more = _to_their_tasks(writer_dataframe(self), said, columns, how)
        _warn_of_tables(said)
        writer = rebuild_writer(self, frame, without=["mode", *_OF_TABLES]).format(FORMAT_NAME).mode("append")
        original(writer.options(**_CHECKED, **more))

    return save


def wrap_save_as_table(original: Callable[..., Any]) -> Callable[..., Any]:
    """`saveAsTable` of a batch writer."""

    @functools.wraps(original)
    def save_as_table(
        self: Any,
        name: str,
        format: str | None = None,
        mode: str | None = None,
        partitionBy: str | list[str] | None = None,  # noqa: N803
        **options: Any,
    ) -> None:
        said = recorded_calls(self)
        if said is None or not _is_ours(self, said, format):
            original(self, name, format, mode, partitionBy, **options)
            return
        self.options(**options)
        _say(self, mode=mode, partitionBy=partitionBy)
        _check_mode(said)
        _check_table(self, said)
        _warn_of_tables(said)
        frame = _in_few_tasks(writer_dataframe(self), said)
        original(rebuild_writer(self, frame, without=_OF_TABLES).format(FORMAT_NAME).options(**_CHECKED), name)

    return save_as_table


def wrap_start(original: Callable[..., Any]) -> Callable[..., Any]:
    """`start` of a stream's writer."""

    @functools.wraps(original)
    def start(
        self: Any,
        path: str | None = None,
        format: str | None = None,
        outputMode: str | None = None,  # noqa: N803
        partitionBy: str | list[str] | None = None,  # noqa: N803
        queryName: str | None = None,  # noqa: N803
        **options: Any,
    ) -> Any:
        said = recorded_calls(self)
        if said is None or not _is_ours(self, said, format):
            return original(self, path, format, outputMode, partitionBy, queryName, **options)
        if path is not None:
            self.option("path", path)
        _prepare_stream(self, said, options, outputMode=outputMode, partitionBy=partitionBy, queryName=queryName)
        columns, how = _checked_columns(self, said)
        if how is None:
            frame = _in_few_tasks(_only(writer_dataframe(self), columns), said)
        else:
            frame = _only(writer_dataframe(self), sorted({*columns, *how.positions()}))
        _warn_of_tables(said)
        more = _CHECKED | {STREAM_START_OPTION: uuid.uuid4().hex}
        if _output_mode(said) != "update" and how is None:
            return original(rebuild_writer(self, frame, without=_OF_TABLES).format(FORMAT_NAME).options(**more))
        streamed = rebuild_writer(self, frame, without=["format", "option", "options", *_OF_TABLES])
        kept = {name: value for name, value in said.options().items() if name in _OF_THE_STREAM}
        batches = MicroBatchWriter(said.options() | more | {MICRO_BATCH_OPTION: "true"})
        return original(streamed.options(**kept).foreachBatch(batches))

    return start


def wrap_to_table(original: Callable[..., Any]) -> Callable[..., Any]:
    """`toTable` of a stream's writer."""

    @functools.wraps(original)
    def to_table(
        self: Any,
        tableName: str,  # noqa: N803
        format: str | None = None,
        outputMode: str | None = None,  # noqa: N803
        partitionBy: str | list[str] | None = None,  # noqa: N803
        queryName: str | None = None,  # noqa: N803
        **options: Any,
    ) -> Any:
        said = recorded_calls(self)
        if said is None or not _is_ours(self, said, format):
            return original(self, tableName, format, outputMode, partitionBy, queryName, **options)
        _prepare_stream(self, said, options, outputMode=outputMode, partitionBy=partitionBy, queryName=queryName)
        if _output_mode(said) == "update":
            raise ConfigurationError(_UPDATE_OF_A_TABLE)
        _check_table(self, said)
        _warn_of_tables(said)
        writer = rebuild_writer(self, _in_few_tasks(writer_dataframe(self), said), without=_OF_TABLES).format(
            FORMAT_NAME
        )
        return original(writer.options(**_CHECKED | {STREAM_START_OPTION: uuid.uuid4().hex}), tableName)

    return to_table


def wrap_with_active_session(original: Callable[..., Any]) -> Callable[..., Any]:
    """`save` or `start` of classic Spark, with the writer's session as the active one of a thread that has none."""

    @functools.wraps(original)
    def write(self: Any, *arguments: Any, **options: Any) -> Any:
        session: Any = self._spark
        sessions = SparkSession._get_j_spark_session_class(session._jvm)
        if sessions.getActiveSession().isDefined():
            return original(self, *arguments, **options)
        sessions.setActiveSession(session._jsparkSession)
        try:
            return original(self, *arguments, **options)
        finally:
            sessions.clearActiveSession()

    return write


@dataclass(frozen=True)
class MicroBatchWriter:
    """The function of foreachBatch: writes the rows of a micro-batch. Spark Connect pickles it."""

    options: Mapping[str, str] = field(repr=False)

    def __call__(self, frame: Any, batch_id: int) -> None:
        options = self.options
        if _DISTRIBUTION in options:
            parsed, plan = check_all(options, frame.schema, options.get(STREAM_START_OPTION), ask=False)
            how = build_distribution(parsed, plan, frame.schema)
            if how is not None:
                how = limit_micro_batch_tasks(how, frame.sparkSession)
                frame = distribute_rows(frame, how, plan.positions(), _tasks_max(options))
                options = {**options, DISTRIBUTED_BY_OPTION: how.by}
        frame.write.format(FORMAT_NAME).options(**options).mode("append").save()


def _prepare_stream(writer: Any, said: RecordedCalls, options: Mapping[str, Any], **settings: Any) -> None:
    writer.options(**options)
    _say(writer, **settings)
    _check_trigger(said)
    _prepare_exactly_once(writer, said)


def _say(writer: Any, **settings: Any) -> None:
    """Call the methods of these names whose value is not None."""
    for method, value in settings.items():
        if value is not None:
            getattr(writer, method)(value)


def _is_ours(writer: Any, said: RecordedCalls, format: str | None) -> bool:
    name = format if format is not None else said.format()
    if name is None:
        name = writer_dataframe(writer).sparkSession.conf.get("spark.sql.sources.default")
    return name.lower() == FORMAT_NAME


def _check_mode(said: RecordedCalls) -> None:
    call = said.last("mode")
    mode = "default" if call is None or call.named["saveMode"] is None else str(call.named["saveMode"])
    if mode.lower() not in _MODES:
        raise ConfigurationError(SAVE_MODE_NOT_ALLOWED_MESSAGE.format(_REFUSED_MODES.get(mode.lower(), mode)))


def _check_trigger(said: RecordedCalls) -> None:
    trigger = said.last("trigger")
    if trigger is None:
        return
    for kind, words in (("continuous", CONTINUOUS_TRIGGER_MESSAGE), ("realTime", REAL_TIME_TRIGGER_MESSAGE)):
        if trigger.named.get(kind) is not None:
            raise ConfigurationError(words)


def _warn_of_tables(said: RecordedCalls) -> None:
    call = said.last(*_OF_TABLES)
    if call is not None:
        columns = ", ".join(repr(name) for name in (*call.arguments, *call.keywords.values()))
        _log.warning(
            "%s(%s) means nothing to Kafka and is passed over. A row goes to the partition in the column 'partition', "
            "else to that of its key.",
            call.method,
            columns,
        )


def _prepare_exactly_once(writer: Any, said: RecordedCalls) -> None:
    """Reject a stream that exactly once has no name for, or a key that only batch jobs have.

    The name comes from the checkpoint's location, which Spark may have from a setting: it becomes an option here.
    """
    options = said.options()
    if options.get("deliveryguarantee", "").strip().lower() != EXACTLY_ONCE:
        return
    if "idempotencykey" in options:
        raise ConfigurationError(IDEMPOTENCY_KEY_IN_STREAM_MESSAGE)
    if "checkpointlocation" in options or "transactionalidprefix" in options:
        return
    folder = writer_dataframe(writer).sparkSession.conf.get(_CHECKPOINTS, None)
    call = said.last("queryName")
    name = options.get("queryname") if call is None else call.named["queryName"]
    if not folder or not name:
        raise ConfigurationError(MISSING_QUERY_NAME_MESSAGE)
    writer.option("checkpointLocation", f"{folder.rstrip('/')}/{name}")


def _output_mode(said: RecordedCalls) -> str:
    call = said.last("outputMode")
    return "append" if call is None else str(call.named["outputMode"]).lower()


def _to_their_tasks(
    frame: Any, said: RecordedCalls, columns: list[int], how: Distribution | None
) -> tuple[Any, dict[str, str]]:
    """The rows to be written, without the columns that are none of the sink's, in the tasks that write them."""
    if how is None:
        return _in_few_tasks(_only(frame, columns), said), {}
    return distribute_rows(frame, how, columns, _tasks_max(said.options())), {DISTRIBUTED_BY_OPTION: how.by}


def _check_table(writer: Any, said: RecordedCalls) -> None:
    _, how = _checked_columns(writer, said)
    if how is not None:
        raise ConfigurationError(DISTRIBUTION_NOT_SUPPORTED_MESSAGE)


def _checked_columns(writer: Any, said: RecordedCalls) -> tuple[list[int], Distribution | None]:
    """The positions of the sink's columns, and what the option distribution asks for. Raises what is wrong."""
    frame = writer_dataframe(writer)
    _say_tasks_at_once(writer, said)
    if _is_connect(writer):
        # Packages and files that options name are on the driver, and perhaps not on this client.
        return check_on_driver(frame.sparkSession, said.options(), frame.schema)
    parsed, plan = check_all(said.options(), frame.schema, said.options().get(STREAM_START_OPTION))
    return plan.positions(), build_distribution(parsed, plan, frame.schema)


def _say_tasks_at_once(writer: Any, said: RecordedCalls) -> None:
    """Set the option by which each task knows its share of maxBytesPerSecond."""
    given = said.options()
    at_most = [_number(given[name]) for name in (_MAX_TASKS, _DISTRIBUTION_TASKS) if name in given]
    if _MAX_BYTES in given:
        slots = max_concurrent_tasks(writer_dataframe(writer).sparkSession)
        if slots is None and not at_most:
            raise ConfigurationError(_HOW_MANY)
        at_most += [] if slots is None else [slots]
    if at_most:
        writer.option(CONCURRENT_TASKS_OPTION, str(min(at_most)))


def _number(text: str) -> int:
    """A value that is no number is refused later, with the other options."""
    try:
        return max(int(text), 1)
    except ValueError:
        return 1


def _in_few_tasks(frame: Any, said: RecordedCalls) -> Any:
    tasks_max = _tasks_max(said.options())
    return frame if tasks_max is None else frame.coalesce(tasks_max)


def _tasks_max(options: Mapping[str, str]) -> int | None:
    return int(options[_MAX_TASKS]) if _MAX_TASKS in options else None


def _is_connect(writer: Any) -> bool:
    return type(writer).__module__.startswith("pyspark.sql.connect")


def _only(frame: Any, positions: list[int]) -> Any:
    """The columns at these positions."""
    names = frame.schema.fieldNames()
    if len(positions) == len(names):
        return frame
    used = [names[position] for position in positions]
    lower = [name.lower() for name in names]
    if any(lower.count(name.lower()) > 1 for name in used):
        # Spark finds columns without regard to case, so those that differ by nothing else get other names first.
        frame = frame.toDF(*(name if at in positions else f"_pykafka_{at}" for at, name in enumerate(names)))
    return frame.select(*("`" + name.replace("`", "``") + "`" for name in used))
