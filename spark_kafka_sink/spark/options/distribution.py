"""The option `distribution`, which determines the task that writes a row, and the options that depend on it."""

from __future__ import annotations

from dataclasses import dataclass

from spark_kafka_sink.client.option_parsing import ParsedOptions, build_choice_parser, build_integer_parser, parse_text
from spark_kafka_sink.options import Option
from spark_kafka_sink.options.column_lists import parse_column_list

NONE, BY_PARTITION, BY_KEY = "none", "partition", "key"
"""Values of the option distribution."""
MAX_TASK_COUNT = 1_000_000


@dataclass(frozen=True)
class SortColumn:
    """A column of the option orderBy."""

    name: str
    is_descending: bool = False


def parse_sort_columns(value: object) -> tuple[SortColumn, ...]:
    """Parse a comma-separated list of column names, each optionally followed by ASC or DESC.

    Raise ValueError if the list is invalid.
    """
    columns = parse_column_list(parse_text(value), "'time, id DESC'", "asc", "desc")
    return tuple(SortColumn(name, direction == "desc") for name, direction in columns)


DISTRIBUTION_OPTIONS = (
    Option(
        "distribution",
        NONE,
        build_choice_parser(NONE, BY_PARTITION, BY_KEY),
        "`partition`: one task writes all rows of a Kafka partition; the driver looks up the number of "
        "partitions. `key`: one task writes all rows of a key. "
        "See [Large jobs](large-jobs.md#distribute-rows-by-partition)",
    ),
    Option(
        "orderBy",
        (),
        parse_sort_columns,
        "with `distribution`: columns by which the rows of a partition or key are sorted, for example `time, id DESC`",
    ),
    Option(
        "distributionTasks",
        None,
        build_integer_parser(1, MAX_TASK_COUNT),
        "with `distribution`: number of tasks that write; by default the number of Spark's shuffle partitions, and "
        "with `partition` at most one for each partition",
    ),
)
_DEPENDENT_OPTIONS = DISTRIBUTION_OPTIONS[1:]
"""The options that have no effect without a distribution."""


@dataclass(frozen=True)
class DistributionOptions:
    """The parsed options of a distribution."""

    strategy: str
    """BY_PARTITION or BY_KEY."""
    order_by: tuple[SortColumn, ...] = ()
    """The columns by which each task sorts its rows; empty if the rows are not sorted."""
    task_count: int | None = None
    """The number of tasks that write, or None for the default."""


def parse_distribution(parsed_options: ParsedOptions) -> DistributionOptions | None:
    """Return the distribution's options, or None if the rows are not redistributed between tasks.

    Without a distribution, add a problem to `parsed_options` for each option that has no effect.
    """
    option_values = parsed_options.values
    if option_values["distribution"] != NONE:
        return DistributionOptions(
            strategy=option_values["distribution"],
            order_by=option_values["orderBy"],
            task_count=option_values["distributionTasks"],
        )
    # After an invalid value, it is unknown whether the other options have an effect.
    if "distribution" not in parsed_options.invalid_fields:
        parsed_options.reject_unused(_DEPENDENT_OPTIONS, f"{{distribution}} is '{BY_PARTITION}' or '{BY_KEY}'")
    return None
