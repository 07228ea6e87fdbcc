"""The `distribution` option: before the write, moves each row to the task that writes its partition or key.

Without this option, each of a thousand tasks may have rows for all partitions. Each task then connects to all brokers,
and its batches are small. The option shuffles the rows, so that each task has all rows of a few partitions.

    partition  Rows of the same partition go to the same task. A row gets the same partition as without the option: the
               one in its `partition` column or, if there is none, the one that the Java client would compute from the
               murmur2 hash of the key. A row without a key is partitioned by a hash of its content, so that it goes to
               the same task again if Spark reruns a lost task. The partitions are stored in an extra last column,
               because the column `partition` may be part of the value and must not change.
    key        Rows with the same key go to the same task. Spark hashes the keys in the JVM, so no Python UDF is needed.
               Rows without a key are spread by a hash of their content.

With `orderBy`, the rows of a task are sorted by partition or key, and then by the `orderBy` columns. Without it, a
partition's rows are written in the order in which the shuffle delivers them from several tasks.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from pyspark.sql import functions as F  # noqa: N812 - Spark's users know it as F
from pyspark.sql.types import ArrayType, DataType, IntegerType, MapType, StructType, UserDefinedType

from spark_kafka_sink.diagnostics.column_names import MAX_NAME_CHARACTERS, describe_missing_column
from spark_kafka_sink.diagnostics.text import sanitize
from spark_kafka_sink.errors import KafkaSinkError, PreflightError
from spark_kafka_sink.formats.encoder import ColumnsEncoder
from spark_kafka_sink.preflight.checks import end_sentence
from spark_kafka_sink.producer.column_plan import ColumnPlan
from spark_kafka_sink.producer.options import ROUND_ROBIN_PARTITIONER
from spark_kafka_sink.producer.partitioner import compute_partitions_by_key
from spark_kafka_sink.requests.blocking import BlockingClient
from spark_kafka_sink.requests.idle_clients import CLIENT_IDLE_SECONDS, IdleClients
from spark_kafka_sink.spark.concurrent_tasks import find_max_concurrent_tasks
from spark_kafka_sink.spark.options.distribution import BY_KEY, BY_PARTITION
from spark_kafka_sink.spark.options.names import add_kafka_prefix
from spark_kafka_sink.spark.options.sink_options import SinkOptions
from spark_kafka_sink.spark.positional_columns import build_positional_name, rename_by_position
from spark_kafka_sink.spark.pyspark_versions import build_arrow_udf, repartition_by_id

_SHUFFLE_PARTITIONS_CONF = "spark.sql.shuffle.partitions"
_DEFAULT_SHUFFLE_PARTITIONS = 200
_ADAPTIVE_EXECUTION_CONF = "spark.sql.adaptive.enabled"
_CONNECT_MODE_VARIABLE = "SPARK_CONNECT_MODE_ENABLED"
_TARGET_PARTITION_COLUMN = "_pykafka_partition"
"""Name of the extra column with the partition to which each row is written."""
_UNSORTABLE_TYPES = ("map", "variant", "interval", "geometry", "geography")
"""Names of the types that Spark cannot hash or sort."""
_UNKNOWN_PARTITION_COUNT_MESSAGE = (
    "Option 'distribution' is 'partition', so the driver must look up the number of partitions of topic '{}', which "
    "failed: {}\nIf only the executors can reach Kafka, set distribution to 'key', which requires no lookup."
)

_MAX_IDLE_CLIENTS = 4
_idle_clients: IdleClients[BlockingClient] = IdleClients(close=BlockingClient.close, max_idle=_MAX_IDLE_CLIENTS)
"""Clients that look up partition counts, cached across micro-batches."""


class SortPosition(NamedTuple):
    """A column to sort by, identified by its position in the DataFrame."""

    position: int
    is_descending: bool


@dataclass(frozen=True)
class Distribution:
    """The distribution of a DataFrame's rows over the tasks that write them.

    Columns are identified by their positions in the DataFrame. The driver builds the distribution. With Spark Connect,
    the driver sends it to the client as JSON, and the client applies it.
    """

    strategy: str
    """BY_PARTITION or BY_KEY."""
    partition_position: int | None
    """The position of the column `partition`; None if there is no such column, or for BY_KEY."""
    key_positions: tuple[int, ...]
    """The positions of the key columns; empty if keys do not determine the partition."""
    content_positions: tuple[int, ...]
    """The positions of the columns to hash for a row without a key; empty for BY_KEY if every row has a key."""
    sort_order: tuple[SortPosition, ...]
    """The columns to sort by, the most significant first."""
    task_count: int | None
    """The number of tasks after the shuffle; None for Spark's default."""
    partition_count: int | None
    """The topic's partition count; None for BY_KEY, which does not need it."""

    def to_json(self) -> str:
        # Do not rename these keys. A Spark Connect client and its driver need the same version of this package, but
        # they should understand each other even if only one of them has been upgraded.
        fields = {
            "by": self.strategy,
            "partition": self.partition_position,
            "key": self.key_positions,
            "content": self.content_positions,
            "order": self.sort_order,
            "task_count": self.task_count,
            "partition_count": self.partition_count,
        }
        return json.dumps(fields)

    @classmethod
    def from_json(cls, distribution_json: str) -> Distribution:
        fields = json.loads(distribution_json)
        return cls(
            strategy=fields["by"],
            partition_position=fields["partition"],
            key_positions=tuple(fields["key"]),
            content_positions=tuple(fields["content"]),
            sort_order=tuple(
                SortPosition(position, bool(is_descending)) for position, is_descending in fields["order"]
            ),
            task_count=fields["task_count"],
            partition_count=fields["partition_count"],
        )

    def find_used_positions(self) -> set[int]:
        """Return the positions of all columns that the distribution uses."""
        sort_positions = [sort_position.position for sort_position in self.sort_order]
        positions = {*self.key_positions, *self.content_positions, *sort_positions}
        return positions if self.partition_position is None else positions | {self.partition_position}


class WritePlan(NamedTuple):
    """The result of the checks before a write: which columns are written, and how rows are distributed over tasks."""

    column_positions: list[int]
    """Positions of the columns that the sink uses."""
    distribution: Distribution | None
    """The distribution of the rows, or None if the rows are not redistributed between tasks."""


def find_distribution_problems(options: SinkOptions, plan: ColumnPlan, schema: StructType) -> Iterator[str]:
    """Yield an error message for each reason why the rows cannot be distributed with these options and columns."""
    distribution = options.distribution
    if distribution is None:
        return
    for sort_column in distribution.order_by:
        yield from _find_sort_problems(sort_column.name, schema)
    if distribution.strategy == BY_PARTITION and options.topic is None:
        yield (
            "Option 'distribution' is 'partition', which requires the option topic: topics named in a column, and "
            "their partition counts, are not known until the rows are read. Write one topic at a time, or set "
            "distribution to 'key'."
        )
    if distribution.strategy == BY_PARTITION and isinstance(plan.key, ColumnsEncoder):
        yield (
            "Option 'distribution' is 'partition', but keyFormat encodes the keys in the tasks that write, after the "
            "rows were distributed. Set distribution to 'key', or create a column 'key' instead of using keyFormat."
        )
    if distribution.strategy == BY_KEY and plan.key is None:
        yield "Option 'distribution' is 'key', but there is neither a column 'key' nor the option keyFormat."
    names = schema.fieldNames()
    unhashable_columns = [
        names[position] for position in _find_key_positions(plan) if not _can_hash_and_sort(schema[position].dataType)
    ]
    if distribution.strategy == BY_KEY and unhashable_columns:
        yield f"Option 'distribution' is 'key', but Spark cannot hash the key column '{unhashable_columns[0]}'."


def _find_sort_problems(column: str, schema: StructType) -> Iterator[str]:
    """Yield an error message if the rows cannot be sorted by this column."""
    names = schema.fieldNames()
    if column not in names:
        alternatives = describe_missing_column(column, names)
        yield f"Option 'orderBy' names the column '{column}', which does not exist. {alternatives}"
    elif names.count(column) > 1:
        yield (
            f"Option 'orderBy' names the column '{column}', which occurs more than once. Rename or drop all but one of "
            "them."
        )
    elif not _can_hash_and_sort(schema[column].dataType):
        data_type = sanitize(schema[column].dataType.simpleString(), MAX_NAME_CHARACTERS)
        yield f"Option 'orderBy' names the column '{column}', but Spark cannot sort by its type, {data_type}."


def build_distribution(options: SinkOptions, plan: ColumnPlan, schema: StructType) -> Distribution | None:
    """Build the distribution, or return None if the rows are not redistributed between tasks.

    For BY_PARTITION, fetch the topic's number of partitions from a broker. Raise PreflightError if this fails.

    The task of a row is determined by the first of these that the row has:

    BY_PARTITION  the column `partition`, the key (unless the partitioner ignores keys), the content of the row
    BY_KEY        the key, the content of the row

    `schema`: the schema of the DataFrame, for which `find_distribution_problems` has found no problem.
    """
    distribution_options = options.distribution
    if distribution_options is None:
        return None
    config = options.producer_config()
    ignores_keys = config.partitioner_ignore_keys or config.partitioner_class == ROUND_ROBIN_PARTITIONER
    is_by_partition = distribution_options.strategy == BY_PARTITION
    uses_keys = not is_by_partition or not ignores_keys
    hashes_content = is_by_partition or _can_lack_key(plan)
    content_candidates = plan.column_positions() if hashes_content else []
    content_positions = [position for position in content_candidates if _can_hash_and_sort(schema[position].dataType)]
    names = schema.fieldNames()
    return Distribution(
        strategy=distribution_options.strategy,
        partition_position=plan.partition if is_by_partition else None,
        key_positions=_find_key_positions(plan) if uses_keys else (),
        content_positions=tuple(content_positions),
        sort_order=tuple(
            SortPosition(names.index(column.name), column.is_descending) for column in distribution_options.order_by
        ),
        task_count=distribution_options.task_count,
        partition_count=_fetch_partition_count(options) if is_by_partition else None,
    )


def limit_micro_batch_tasks(distribution: Distribution, session: Any) -> Distribution:
    """Limit the number of tasks that write a micro-batch, if it is distributed by key. Return the new distribution.

    After a shuffle, Spark starts 200 tasks by default, even for a few rows. Usually, adaptive execution coalesces small
    shuffle partitions, but a stateful query runs without it. Such a micro-batch gets at most as many tasks as can run
    concurrently, if that number is known and the user has not set a number.
    """
    if distribution.strategy != BY_KEY or distribution.task_count is not None:
        return distribution
    if session.conf.get(_ADAPTIVE_EXECUTION_CONF, "true").lower() == "true":
        return distribution
    task_slots = find_max_concurrent_tasks(session)
    if task_slots is None:
        return distribution
    return dataclasses.replace(distribution, task_count=min(task_slots, _read_shuffle_partition_count(session)))


def distribute_rows(
    frame: Any, distribution: Distribution, positions: Sequence[int], max_tasks: int | None = None
) -> Any:
    """Move each row to the task that writes it, and select columns. Return the new DataFrame.

    With BY_PARTITION, the result has an extra last column with the row's partition. `split_off_target_partition`
    removes this column from the schema.

    `positions`: positions of the selected columns.
    `max_tasks`: the option maxTasks, or None for no limit.
    """
    _ensure_connect_mode(frame)
    names = frame.schema.fieldNames()
    # Refer to columns by position, because names may be ambiguous. The selection at the end restores the names.
    renamed_frame = rename_by_position(frame)
    sort_expressions = [_build_sort_expression(sort_position) for sort_position in distribution.sort_order]
    if distribution.strategy == BY_PARTITION:
        shuffled_frame = _distribute_by_partition(renamed_frame, distribution, sort_expressions, max_tasks)
        extra_columns = [F.col(_TARGET_PARTITION_COLUMN)]
    else:
        shuffled_frame = _distribute_by_key(renamed_frame, distribution, sort_expressions, max_tasks)
        extra_columns = []
    selected_columns = [F.col(build_positional_name(position)).alias(names[position]) for position in positions]
    return shuffled_frame.select(*selected_columns, *extra_columns)


def _ensure_connect_mode(frame: Any) -> None:
    """Make the functions of pyspark.sql.functions create Connect columns if `frame` is a Connect DataFrame.

    The functions read an environment variable to choose between classic columns and Connect columns. A Connect client
    sets it, but the server's Python process that runs foreachBatch does not.
    """
    if type(frame).__module__.startswith("pyspark.sql.connect"):
        os.environ.setdefault(_CONNECT_MODE_VARIABLE, "1")


def _distribute_by_key(
    frame: Any, distribution: Distribution, sort_expressions: list[Any], max_tasks: int | None
) -> Any:
    """Move rows with the same key to the same task, and spread rows without a key by a hash of their content.

    `frame`: the DataFrame with the names of `rename_by_position`.
    """
    key_columns = [F.col(build_positional_name(position)) for position in distribution.key_positions]
    hash_columns = key_columns
    if distribution.content_positions:
        # With the key alone, all rows without a key would go to the same task.
        content_hash = F.xxhash64(*_select_content_columns(distribution))
        hash_columns = [*key_columns, F.when(_build_all_null_condition(key_columns), content_hash)]
    task_count = _limit_task_count(distribution.task_count, max_tasks)
    # Without a number, Spark chooses the number of tasks.
    task_count_arguments = [] if task_count is None else [task_count]
    shuffled_frame = frame.repartition(*task_count_arguments, *hash_columns)
    if not sort_expressions:
        return shuffled_frame
    return shuffled_frame.sortWithinPartitions(*key_columns, *sort_expressions)


def _distribute_by_partition(
    frame: Any, distribution: Distribution, sort_expressions: list[Any], max_tasks: int | None
) -> Any:
    """Add a column with each row's target partition, and move rows with the same target to the same task.

    The target is the first of these that is not null: the column `partition`, the partition of the key, and the
    partition of the content.

    `frame`: the DataFrame with the names of `rename_by_position`.
    """
    partition_count = distribution.partition_count
    assert partition_count is not None  # set for BY_PARTITION
    partition_candidates: list[Any] = []
    if distribution.partition_position is not None:
        partition_candidates.append(F.col(build_positional_name(distribution.partition_position)))
    if distribution.key_positions:
        # The key is a single column, because BY_PARTITION is rejected together with keyFormat.
        (key_position,) = distribution.key_positions
        key_column = F.col(build_positional_name(key_position)).cast("binary")
        partition_candidates.append(_build_key_partition_udf(partition_count)(key_column))
    partition_candidates.append(
        F.pmod(F.xxhash64(*_select_content_columns(distribution)), F.lit(partition_count)).cast("int")
    )
    # If there were more tasks than partitions, the additional tasks would get no rows.
    task_count = min(distribution.task_count or _read_shuffle_partition_count(frame.sparkSession), partition_count)
    if max_tasks is not None:
        task_count = min(task_count, max_tasks)
    frame_with_target = frame.withColumn(_TARGET_PARTITION_COLUMN, F.coalesce(*partition_candidates))
    shuffled_frame = repartition_by_id(frame_with_target, task_count, _TARGET_PARTITION_COLUMN)
    if not sort_expressions:
        return shuffled_frame
    return shuffled_frame.sortWithinPartitions(_TARGET_PARTITION_COLUMN, *sort_expressions)


def _build_key_partition_udf(partition_count: int) -> Callable[[Any], Any]:
    """Build a UDF that maps each key to the partition that the Java client would choose, and null to null."""

    def map_keys_to_partitions(keys: pa.Array) -> pa.Array:
        partitions, keyless_row_indices = compute_partitions_by_key(keys, partition_count)
        null_mask = np.zeros(len(partitions), bool)
        null_mask[keyless_row_indices] = True
        return pa.array(partitions, pa.int32(), mask=null_mask)

    return build_arrow_udf(map_keys_to_partitions, IntegerType())


def _read_shuffle_partition_count(session: Any) -> int:
    """Return the number of shuffle partitions, or Spark's default if it is not a number (Databricks uses `auto`)."""
    # Call `get` without a default, so that Spark returns its own default if nothing is set. Spark would reject a
    # default that is not a number.
    value = session.conf.get(_SHUFFLE_PARTITIONS_CONF).strip()
    return int(value) if value.isdecimal() else _DEFAULT_SHUFFLE_PARTITIONS


def _fetch_partition_count(options: SinkOptions) -> int:
    """Fetch the topic's partition count. Raise PreflightError if this fails.

    The count is not cached, because it may grow while a query runs.
    """
    assert options.topic is not None  # checked by find_distribution_problems
    config = options.producer_config()
    client_config = config.client_config()
    try:
        # All micro-batches share one client, because connecting and authenticating would take longer than the lookup.
        create_client = partial(BlockingClient, client_config, timeout_ms=config.max_block_ms)
        with _idle_clients.lease(client_config, create_client, CLIENT_IDLE_SECONDS) as client:
            return len(client.wait_for_topic(options.topic, refresh=True).partitions)
    except KafkaSinkError as error:
        topic = sanitize(options.topic, MAX_NAME_CHARACTERS)
        message = _UNKNOWN_PARTITION_COUNT_MESSAGE.format(topic, end_sentence(str(error)))
        raise PreflightError(add_kafka_prefix(message)) from error


def split_off_target_partition(schema: StructType, distributed_by: str | None) -> tuple[StructType, int | None]:
    """Return the schema without the extra column of `distribute_rows`, and the column's position.

    The position is None if there is no such column.

    `distributed_by`: BY_PARTITION or BY_KEY; None if the rows have not been distributed.
    """
    if distributed_by != BY_PARTITION:
        return schema, None
    return StructType(schema.fields[:-1]), len(schema.fields) - 1


def _can_lack_key(plan: ColumnPlan) -> bool:
    """Return whether a row may have no key.

    A key column or a key struct may be null. A key that is built from several columns always exists. If all of these
    columns are null, the key is still not null, for example {}.
    """
    return isinstance(plan.key, int) or (plan.key is not None and plan.key.struct_position is not None)


def _find_key_positions(plan: ColumnPlan) -> tuple[int, ...]:
    """Return the positions of the columns from which a key is built: the key column, a key struct or several columns.

    The result is empty if rows have no key.
    """
    if plan.key is None:
        return ()
    if isinstance(plan.key, int):
        return (plan.key,)
    return plan.key.positions if plan.key.struct_position is None else (plan.key.struct_position,)


def _can_hash_and_sort(data_type: DataType) -> bool:
    """Return whether Spark can hash and sort values of this type."""
    if isinstance(data_type, ArrayType):
        return _can_hash_and_sort(data_type.elementType)
    if isinstance(data_type, StructType):
        return all(_can_hash_and_sort(field.dataType) for field in data_type.fields)
    if isinstance(data_type, UserDefinedType):
        return _can_hash_and_sort(data_type.sqlType())
    return not isinstance(data_type, MapType) and data_type.typeName() not in _UNSORTABLE_TYPES


def _select_content_columns(distribution: Distribution) -> list[Any]:
    """Return the columns to hash for a row's content, or a constant if Spark can hash none of them."""
    return [F.col(build_positional_name(position)) for position in distribution.content_positions] or [F.lit(0)]


def _build_all_null_condition(columns: Sequence[Any]) -> Any:
    """Build a condition that is true if all columns are null."""
    condition, *other_conditions = [column.isNull() for column in columns]
    for other_condition in other_conditions:
        condition = condition & other_condition
    return condition


def _build_sort_expression(sort_position: SortPosition) -> Any:
    column = F.col(build_positional_name(sort_position.position))
    return column.desc() if sort_position.is_descending else column.asc()


def _limit_task_count(task_count: int | None, max_tasks: int | None) -> int | None:
    """Return the smaller of the two numbers, ignoring None. Return None if both are None."""
    return min((count for count in (task_count, max_tasks) if count is not None), default=None)
