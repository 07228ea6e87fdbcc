"""Producer configurations that tests parse, and their problems."""

from __future__ import annotations

import pytest

from spark_kafka_sink.errors import ConfigurationError
from spark_kafka_sink.producer.config import ProducerConfig

SERVERS = {"bootstrap.servers": "a:9092, b:9093"}


def parse_config(**options: object) -> ProducerConfig:
    return ProducerConfig.parse({**SERVERS, **{name.replace("_", "."): value for name, value in options.items()}})


def parse_problems(**options: object) -> tuple[str, ...]:
    with pytest.raises(ConfigurationError) as caught:
        parse_config(**options)
    return caught.value.problems
