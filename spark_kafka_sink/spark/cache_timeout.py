"""How long a producer without work is kept: Spark's own setting for its cache of Kafka producers."""

from __future__ import annotations

import re

from pyspark import TaskContext

from spark_kafka_sink.errors import ConfigurationError

IDLE_TIMEOUT = "spark.kafka.producer.cache.timeout"
_DEFAULT = "10m"
_DURATION = re.compile(r"(\d+)\s*(us|ms|s|m|min|h|d)?")
_SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}


def idle_seconds(context: TaskContext | None) -> float:
    """The setting reaches a task among its local properties."""
    return seconds_of((context and context.getLocalProperty(IDLE_TIMEOUT)) or _DEFAULT)


def seconds_of(text: str) -> float:
    match = _DURATION.fullmatch(text.strip().lower())
    if match is None:
        raise ConfigurationError(f"{IDLE_TIMEOUT} is {text!r}; it must be a time such as 30s, 10m or 1h")
    return int(match[1]) * _SECONDS[match[2] or "ms"]
