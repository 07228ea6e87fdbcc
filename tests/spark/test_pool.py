"""The time for which a producer without work is kept."""

from __future__ import annotations

import pytest

from spark_kafka_sink.errors import ConfigurationError
from spark_kafka_sink.spark.pool import parse_duration


@pytest.mark.parametrize(("text", "seconds"), [("10m", 600), ("30s", 30), ("1h", 3600), ("2 min", 120), ("500", 0.5)])
def test_the_time_of_sparks_producer_cache_is_read_as_spark_reads_it(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


def test_a_time_that_is_none_is_refused() -> None:
    with pytest.raises(
        ConfigurationError, match=r"spark\.kafka\.producer\.cache\.timeout must be a duration .* It is 'soon'"
    ):
        parse_duration("soon")
