"""Producers that outlive a task.

A Python worker of Spark runs one task after the other, micro-batch after micro-batch. Connecting, authenticating and
fetching metadata for each of them would cost more than the data of a small task. A task therefore leases a producer,
and the next task with the same options reuses it (requests/leases.py).

A worker that exits does not wait for its producers. A task that succeeded has no unsent records left, and the records
of a task that failed or was killed are not needed.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping
from functools import partial
from typing import TypeAlias

import pyarrow as pa
from pyspark import TaskContext

from spark_kafka_sink.errors import ConfigurationError
from spark_kafka_sink.producer.producer import KafkaProducer
from spark_kafka_sink.requests.leases import Leases

MAX_IDLE_PRODUCERS = 8
_CLOSE_TIMEOUT_SECONDS = 5.0

IDLE_TIMEOUT_CONF = "spark.kafka.producer.cache.timeout"
"""Spark's own setting for its cache of Kafka producers."""
_DEFAULT_IDLE_TIMEOUT = "10m"
_DURATION_PATTERN = re.compile(r"(\d+)\s*(us|ms|s|m|min|h|d)?")
_SECONDS_BY_UNIT = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}

ProducerPool: TypeAlias = Leases[KafkaProducer]


def create_pool() -> ProducerPool:
    return Leases(
        lambda producer: producer.close(timeout=_CLOSE_TIMEOUT_SECONDS),
        discard=lambda producer: producer.close(timeout=0),
        max_idle=MAX_IDLE_PRODUCERS,
    )


POOL = create_pool()
"""The pool of this process."""


@contextlib.contextmanager
def lease_producer(pool: ProducerPool, options: Mapping[str, str], idle_seconds: float) -> Iterator[KafkaProducer]:
    """Lease a producer with these options for one task. It is closed after `idle_seconds` without a lease."""
    create_producer = partial(KafkaProducer, options, flush_at_exit=0)
    with pool.lease(tuple(sorted(options.items())), create_producer, idle_seconds) as producer:
        yield producer
        # Arrow keeps freed memory for the thread that used it. An idle worker does not need this memory.
        pa.default_memory_pool().release_unused()


def find_idle_timeout_seconds(context: TaskContext | None) -> float:
    """Return how long an idle producer is kept. Spark passes the setting to a task as one of its local properties."""
    return parse_duration((context and context.getLocalProperty(IDLE_TIMEOUT_CONF)) or _DEFAULT_IDLE_TIMEOUT)


def parse_duration(text: str) -> float:
    """Return the duration in seconds. A number without a unit is in milliseconds.

    Raise ConfigurationError if the text is not a duration.
    """
    match = _DURATION_PATTERN.fullmatch(text.strip().lower())
    if match is None:
        raise ConfigurationError(f"{IDLE_TIMEOUT_CONF} must be a duration such as 30s, 10m or 1h. It is {text!r}.")
    return int(match[1]) * _SECONDS_BY_UNIT[match[2] or "ms"]
