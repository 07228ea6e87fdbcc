"""`distribution`: before the write, rows are brought to the task that writes their partition, or their key.

Each of a thousand tasks has rows of all partitions: it connects to all brokers, and its batches are small. After a
shuffle each task has all rows of a few partitions.

    partition  a row's partition is what it would be without the option: the one that it names, else by murmur2 of its
               key as in the Java client. One without a key goes to a partition by the hash of its content, as Spark
               runs a task again that is lost, and the row must go where it went. What was found travels with the row,
               in a last column of its own: the column `partition` may be part of the value, as it is.
    key        the JVM hashes the key, and no Python is run. Rows without a key are spread by their content.

With `orderBy` the rows of a task are sorted by partition or key, and then by these columns. Without it the rows of a
partition come from several tasks in the order in which the shuffle has brought them.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import functions as F  # noqa: N812 - as all of Spark's users call it
from pyspark.sql.types import ArrayType, DataType, IntegerType, MapType, StructType, UserDefinedType

from spark_kafka_sink.diagnostics.column_names import MAX_NAME_CHARACTERS, describe_missing_column
from spark_kafka_sink.diagnostics.text import sanitize
from spark_kafka_sink.errors import KafkaSinkError, PreflightError
from spark_kafka_sink.formats.encoder import ColumnsEncoder
from spark_kafka_sink.producer.column_plan import ColumnPlan
from spark_kafka_sink.producer.partitioner import partitions_by_key
from spark_kafka_sink.requests.blocking import BlockingClient
from spark_kafka_sink.requests.leases import CLIENT_IDLE_SECONDS, Leases
from spark_kafka_sink.spark.concurrent_tasks import max_concurrent_tasks
from spark_kafka_sink.spark.options.distribution import BY_KEY, BY_PARTITION
from spark_kafka_sink.spark.options.names import add_kafka_prefix
from spark_kafka_sink.spark.options.sink_options import SinkOptions
from spark_kafka_sink.spark.pyspark_versions import build_arrow_udf, repartition_by_id

_ROUND_ROBIN = "RoundRobinPartitioner"
_SHUFFLE_PARTITIONS = "spark.sql.shuffle.partitions"
_SHUFFLE_PARTITIONS_DEFAULT = 200
_ADAPTIVE = "spark.sql.adaptive.enabled"
_CONNECT = "SPARK_CONNECT_MODE_ENABLED"
_TARGET = "_pykafka_partition"
_WITHOUT_ORDER = ("map", "variant", "interval", "geometry", "geography")
_NOT_ASKED = (
    "Option 'distribution' is 'partition', for which the driver asks Kafka how many partitions the topic '{}' has. It "
    "could not: {}\nIf only the executors can reach Kafka, distribute by 'key', for which the driver asks nothing."
)

_clients: Leases[BlockingClient] = Leases(BlockingClient.close, max_idle=4)


@dataclass(frozen=True)
class Distribution:
    """What is to be done to a frame; columns by their positions. The driver finds it; a client of Connect does it."""

    by: str
    partition: int | None
    key: tuple[int, ...]
    """The columns that decide; none where keys decide about nothing."""
    content: tuple[int, ...]
    """What is hashed of a row without a key; nothing for BY_KEY where each row has one."""
    order: tuple[tuple[int, bool], ...]
    """Positions, and whether the order descends."""
    tasks: int | None
    partitions: int
    """Of the topic; 0 for BY_KEY."""

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Distribution:
        fields = json.loads(text)
        order = tuple((position, bool(descends)) for position, descends in fields["order"])
        return cls(**{**fields, "key": tuple(fields["key"]), "content": tuple(fields["content"]), "order": order})

    def positions(self) -> set[int]:
        own = {*self.key, *self.content, *(position for position, _ in self.order)}
        return own if self.partition is None else own | {self.partition}


def find_distribution_faults(options: SinkOptions, plan: ColumnPlan, schema: StructType) -> Iterator[str]:
    """What cannot be done with these options and columns."""
    asked = options.distribution
    if asked is None:
        return
    for each in asked.order:
        yield from _faults_of_order(each.column, schema)
    if asked.by == BY_PARTITION and options.topic is None:
        yield (
            "Option 'distribution' is 'partition', which needs the option topic: how many partitions the topics of a "
            "column have is not known before the rows are read. Write topic by topic, or distribute by 'key'."
        )
    if asked.by == BY_PARTITION and isinstance(plan.key, ColumnsEncoder):
        yield (
            "Option 'distribution' is 'partition', and keyFormat makes the keys in the tasks that write, when the rows "
            "are there already. Distribute by 'key', or make a column 'key'."
        )
    if asked.by == BY_KEY and plan.key is None:
        yield "Option 'distribution' is 'key', and there is no column 'key' and no option keyFormat."
    names = schema.fieldNames()
    unhashable = [names[each] for each in _key_columns(plan) if not _has_values_to_compare(schema[each].dataType)]
    if asked.by == BY_KEY and unhashable:
        yield f"Option 'distribution' is 'key', and Spark cannot hash the column '{unhashable[0]}' of the key."


def _faults_of_order(column: str, schema: StructType) -> Iterator[str]:
    names = schema.fieldNames()
    if column not in names:
        yield f"orderBy: there is no column '{column}'. {describe_missing_column(column, names)}"
    elif names.count(column) > 1:
        yield (
            f"orderBy: the column '{column}' is there {names.count(column)} times; one of them must be renamed or "
            "dropped."
        )
    elif not _has_values_to_compare(schema[column].dataType):
        kind = sanitize(schema[column].dataType.simpleString(), MAX_NAME_CHARACTERS)
        yield f"orderBy: Spark cannot sort by the column '{column}', which is a {kind}."


def build_distribution(options: SinkOptions, plan: ColumnPlan, schema: StructType) -> Distribution | None:
    """Asks how many partitions the topic has. None if nothing is to be done."""
    asked = options.distribution
    if asked is None:
        return None
    config = options.producer_config()
    keys_decide = asked.by == BY_KEY or not (config.partitioner_ignore_keys or config.partitioner_class == _ROUND_ROBIN)
    names = schema.fieldNames()
    content = [each for each in plan.positions() if _has_values_to_compare(schema[each].dataType)]
    return Distribution(
        by=asked.by,
        partition=plan.partition if asked.by == BY_PARTITION else None,
        key=_key_columns(plan) if keys_decide else (),
        content=() if asked.by == BY_KEY and not _may_be_without_key(plan) else tuple(content),
        order=tuple((names.index(each.column), each.is_descending) for each in asked.order),
        tasks=asked.tasks,
        partitions=_partitions(options) if asked.by == BY_PARTITION else 0,
    )


def limit_micro_batch_tasks(how: Distribution, session: Any) -> Distribution:
    """With the number of tasks of a micro-batch.

    A query with state has no adaptive execution, which would join the small parts of the shuffle. So there are as many
    tasks as run at once, where that is known, and not 200 for a few rows.
    """
    if how.by != BY_KEY or how.tasks is not None or session.conf.get(_ADAPTIVE, "true").lower() == "true":
        return how
    at_once = max_concurrent_tasks(session)
    return how if at_once is None else dataclasses.replace(how, tasks=min(at_once, _shuffle_partitions(session)))


def distribute_rows(frame: Any, how: Distribution, positions: Sequence[int], tasks_max: int | None = None) -> Any:
    """The columns at these positions, each row in the task that writes it. `tasks_max`: no more tasks than that.

    BY_PARTITION: and the partition of the row as the last column (`without_target`).
    """
    if type(frame).__module__.startswith("pyspark.sql.connect"):
        # Functions of columns ask for this. A client has it; the process in which Connect runs foreachBatch has not.
        os.environ.setdefault(_CONNECT, "1")
    names = frame.schema.fieldNames()
    # Spark finds columns without regard to case; by other names each is found.
    renamed = frame.toDF(*(_column(position) for position in range(len(names))))
    order = [_sorted(position, descends) for position, descends in how.order]
    if how.by == BY_PARTITION:
        return _by_partition(renamed, how, order, names, positions, tasks_max)
    keys = [F.col(_column(position)) for position in how.key]
    placed = [*keys, F.when(_all_null(keys), F.xxhash64(*_content(how)))] if how.content else keys
    tasks = _fewer(how.tasks, tasks_max)
    moved = renamed.repartition(*([] if tasks is None else [tasks]), *placed)
    if order:
        moved = moved.sortWithinPartitions(*keys, *order)
    return moved.select(*(F.col(_column(each)).alias(names[each]) for each in positions))


def _by_partition(
    frame: Any, how: Distribution, order: list[Any], names: list[str], positions: Sequence[int], tasks_max: int | None
) -> Any:
    choices = [] if how.partition is None else [F.col(_column(how.partition))]
    if how.key:
        (key,) = how.key
        choices.append(_partition_of_key(how.partitions)(F.col(_column(key)).cast("binary")))
    choices.append(F.pmod(F.xxhash64(*_content(how)), F.lit(how.partitions)).cast("int"))
    # More tasks than partitions would have no rows.
    tasks = min(how.tasks or _shuffle_partitions(frame.sparkSession), how.partitions)
    moved = frame.withColumn(_TARGET, F.coalesce(*choices))
    moved = repartition_by_id(moved, min(tasks, tasks_max or tasks), _TARGET)
    if order:
        moved = moved.sortWithinPartitions(_TARGET, *order)
    return moved.select(*(F.col(_column(each)).alias(names[each]) for each in positions), F.col(_TARGET))


def _partition_of_key(partitions: int) -> Callable[[Any], Any]:
    """A function of columns: the partition of each key, as the Java client finds it; null for no key."""

    def partition_of_key(keys: pa.Array) -> pa.Array:
        found, keyless = partitions_by_key(keys, partitions)
        mask = np.zeros(len(found), bool)
        mask[keyless] = True
        return pa.array(found, pa.int32(), mask=mask)

    return build_arrow_udf(partition_of_key, IntegerType())


def _shuffle_partitions(session: Any) -> int:
    """Spark's default where it is no number: Databricks has `auto`.

    `get` has no default here: Spark knows its own, and refuses one that is no number where nothing is set.
    """
    number = session.conf.get(_SHUFFLE_PARTITIONS).strip()
    return int(number) if number.isdecimal() else _SHUFFLE_PARTITIONS_DEFAULT


def _partitions(options: SinkOptions) -> int:
    """Asked anew each time, as a topic may get more of them while a query runs."""
    assert options.topic is not None  # faults_of_distribution
    config = options.producer_config()
    client_config = config.client_config()
    try:
        # One client for all micro-batches: to connect and to log in would take longer than the question.
        make = partial(BlockingClient, client_config, timeout_ms=config.max_block_ms)
        with _clients.lease(client_config, make, CLIENT_IDLE_SECONDS) as client:
            return len(client.topic(options.topic, fresh=True).partitions)
    except KafkaSinkError as error:
        raise PreflightError(
            add_kafka_prefix(_NOT_ASKED.format(sanitize(options.topic, MAX_NAME_CHARACTERS), error))
        ) from error


def split_off_target_partition(schema: StructType, distributed_by: str | None) -> tuple[StructType, int | None]:
    """The columns as the user has them, and the position of the one that says where a row goes, if there is one."""
    if distributed_by != BY_PARTITION:
        return schema, None
    return StructType(schema.fields[:-1]), len(schema.fields) - 1


def _may_be_without_key(plan: ColumnPlan) -> bool:
    """Columns that are all null are a key too, such as {}; a column or a struct that is null is none."""
    return isinstance(plan.key, int) or (plan.key is not None and plan.key.parent is not None)


def _key_columns(plan: ColumnPlan) -> tuple[int, ...]:
    if plan.key is None or isinstance(plan.key, int):
        return () if plan.key is None else (plan.key,)
    return plan.key.positions if plan.key.parent is None else (plan.key.parent,)


def _has_values_to_compare(kind: DataType) -> bool:
    """Can Spark hash them, and sort by them?"""
    if isinstance(kind, ArrayType):
        return _has_values_to_compare(kind.elementType)
    if isinstance(kind, StructType):
        return all(_has_values_to_compare(field.dataType) for field in kind.fields)
    if isinstance(kind, UserDefinedType):
        return _has_values_to_compare(kind.sqlType())
    return not isinstance(kind, MapType) and kind.typeName() not in _WITHOUT_ORDER


def _content(how: Distribution) -> list[Any]:
    return [F.col(_column(position)) for position in how.content] or [F.lit(0)]


def _all_null(columns: Sequence[Any]) -> Any:
    nulls = [column.isNull() for column in columns]
    found = nulls[0]
    for each in nulls[1:]:
        found = found & each
    return found


def _sorted(position: int, descends: bool) -> Any:
    column = F.col(_column(position))
    return column.desc() if descends else column.asc()


def _fewer(tasks: int | None, tasks_max: int | None) -> int | None:
    return min((each for each in (tasks, tasks_max) if each is not None), default=None)


def _column(position: int) -> str:
    return f"_pykafka_{position}"
