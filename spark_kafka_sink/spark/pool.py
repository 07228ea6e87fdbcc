"""Producers that outlive a task.

A Python worker of Spark runs one task after the other, micro-batch after micro-batch. To connect, to authenticate and
to fetch metadata for each of them would cost more than a small task's data. So a producer is leased to a task, and the
next task with the same options uses it again (requests/leases.py).

The end of a worker waits for no producer: a task that has ended well has no record left, and those of others are not
wanted. A task that was killed or has failed leaves records that are not wanted either.
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
_CLOSE_SECONDS = 5.0

IDLE_TIMEOUT = "spark.kafka.producer.cache.timeout"
"""Spark's own setting for its cache of Kafka producers."""
_DEFAULT_IDLE_TIMEOUT = "10m"
_DURATION_PATTERN = re.compile(r"(\d+)\s*(us|ms|s|m|min|h|d)?")
_SECONDS_BY_UNIT = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}

ProducerPool: TypeAlias = Leases[KafkaProducer]


def new_pool() -> ProducerPool:
    return Leases(
        lambda producer: producer.close(timeout=_CLOSE_SECONDS),
        discard=lambda producer: producer.close(timeout=0),
        max_idle=MAX_IDLE_PRODUCERS,
    )


POOL = new_pool()
"""The pool of this process."""


@contextlib.contextmanager
def lease_producer(pool: ProducerPool, options: Mapping[str, str], idle_seconds: float) -> Iterator[KafkaProducer]:
    """Lease a producer with these options for one task."""
    make = partial(KafkaProducer, options, flush_at_exit=0)
    with pool.lease(tuple(sorted(options.items())), make, idle_seconds) as producer:
        yield producer
        # Arrow keeps freed memory for the thread that had it; a worker between two tasks has no use for it.
        pa.default_memory_pool().release_unused()


def idle_seconds(context: TaskContext | None) -> float:
    """Return how long a producer without work is kept. The setting reaches a task among its local properties."""
    return parse_duration((context and context.getLocalProperty(IDLE_TIMEOUT)) or _DEFAULT_IDLE_TIMEOUT)


def parse_duration(text: str) -> float:
    """Return the seconds of the setting's value. Raise ConfigurationError if it is no time."""
    match = _DURATION_PATTERN.fullmatch(text.strip().lower())
    if match is None:
        raise ConfigurationError(f"{IDLE_TIMEOUT} is {text!r}; it must be a time such as 30s, 10m or 1h")
    return int(match[1]) * _SECONDS_BY_UNIT[match[2] or "ms"]
