"""The option `distribution` and the options that depend on it."""

from __future__ import annotations

import pytest

from spark_kafka_sink.errors import ConfigurationError
from spark_kafka_sink.spark.options.distribution import DistributionOptions, SortColumn
from spark_kafka_sink.spark.options.parse import parse_options

GIVEN = {"kafka.bootstrap.servers": "b:1", "topic": "t"}


def parse(**more: str) -> DistributionOptions | None:
    return parse_options(GIVEN | more).distribution


def test_returns_no_distribution_by_default() -> None:
    assert parse() is None
    assert parse(distribution="none") is None


def test_parses_ascending_and_descending_sort_columns() -> None:
    order = (SortColumn("time"), SortColumn("a, b", is_descending=True), SortColumn("id"))
    assert parse(distribution="Partition", orderBy="time, `a, b` DESC, id asc", distributionTasks="7") == (
        DistributionOptions("partition", order, 7)
    )


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"distribution": "range"}, "Option 'distribution' must be one of none, partition, key. It is 'range'."),
        ({"distribution": "key", "distributionTasks": "0"}, "Option 'distributionTasks' must be an integer from 1"),
        ({"distribution": "key", "orderBy": "a,,b"}, "Option 'orderBy' must be a list of columns"),
        ({"distribution": "key", "orderBy": ""}, "Option 'orderBy' must be a list of columns"),
        ({"orderBy": "a"}, "Option 'orderBy' has no effect unless 'distribution' is 'partition' or 'key'."),
        ({"distribution": "none", "distributionTasks": "3"}, "Option 'distributionTasks' has no effect unless"),
    ],
)
def test_rejects_invalid_values_and_options_without_effect(options: dict[str, str], words: str) -> None:
    with pytest.raises(ConfigurationError) as raised:
        parse(**options)
    (problem,) = raised.value.problems
    assert words in problem
