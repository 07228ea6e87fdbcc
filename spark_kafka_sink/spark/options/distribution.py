"""The options of `distribution`: which task writes which rows, and in which order."""

from __future__ import annotations

from dataclasses import dataclass

from spark_kafka_sink.client.option_parsing import ParsedOptions, choice_parser, integer_parser, parse_text
from spark_kafka_sink.options import Option
from spark_kafka_sink.options.column_lists import parse_column_list

NONE, BY_PARTITION, BY_KEY = "none", "partition", "key"
MAX_TASK_COUNT = 1_000_000


@dataclass(frozen=True)
class SortColumn:
    column: str
    is_descending: bool = False


def _order(value: object) -> tuple[SortColumn, ...]:
    """Names between commas, each with ASC or DESC behind it where that is wanted."""
    listed = parse_column_list(parse_text(value), "'time, id DESC'", "asc", "desc")
    return tuple(SortColumn(name, direction == "desc") for name, direction in listed)


DISTRIBUTION_OPTIONS = (
    Option(
        "distribution",
        NONE,
        choice_parser(NONE, BY_PARTITION, BY_KEY),
        "`partition`: one task writes all rows of a Kafka partition; the driver asks Kafka for the number of "
        "partitions. `key`: one task writes all rows of a key. "
        "See [Large jobs](large-jobs.md#distribute-rows-by-partition)",
    ),
    Option(
        "orderBy",
        (),
        _order,
        "with `distribution`: columns by which the rows of a partition or key are written in order, as `time, id DESC`",
    ),
    Option(
        "distributionTasks",
        None,
        integer_parser(1, MAX_TASK_COUNT),
        "with `distribution`: how many tasks write; by default as many as Spark's shuffles have, and with `partition` "
        "at most one for each partition",
    ),
)


@dataclass(frozen=True)
class DistributionOptions:
    by: str
    order: tuple[SortColumn, ...] = ()
    tasks: int | None = None


def parse_distribution(parsed_options: ParsedOptions) -> DistributionOptions | None:
    """None where rows stay in the tasks that they are in."""
    values = parsed_options.values
    if values["distribution"] != NONE:
        return DistributionOptions(values["distribution"], values["orderBy"], values["distributionTasks"])
    if "distribution" not in parsed_options.invalid_fields:
        parsed_options.reject_unused(DISTRIBUTION_OPTIONS[1:], f"{{distribution}} is '{BY_PARTITION}' or '{BY_KEY}'")
    return None
