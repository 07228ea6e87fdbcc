"""The setting `spark.kafka.producer.cache.timeout`, the time for which an idle producer is kept."""

from __future__ import annotations

import pytest

from spark_kafka_sink.errors import ConfigurationError
from spark_kafka_sink.spark.pool import parse_duration


@pytest.mark.parametrize(("text", "seconds"), [("10m", 600), ("30s", 30), ("1h", 3600), ("2 min", 120), ("500", 0.5)])
def test_parses_producer_cache_timeout_as_spark_does(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


def test_rejects_invalid_duration() -> None:
    with pytest.raises(
        ConfigurationError, match=r"spark\.kafka\.producer\.cache\.timeout must be a duration .*, not 'soon'"
    ):
        parse_duration("soon")
