"""Pool of producers that are reused by one task after another.

A Spark Python worker runs many tasks. For a small task, connecting, authenticating and fetching metadata would take
longer than writing the rows. A task therefore leases a producer, and the next task with the same options reuses it
(requests/idle_clients.py).

When a worker exits, it does not wait for its producers: a task that succeeded has no unsent records left, and the
records of a task that failed or was killed are not needed.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping
from functools import partial
from typing import TypeAlias

import pyarrow as pa
from pyspark import TaskContext

from spark_kafka_sink.errors import ConfigurationError, OptionProblem
from spark_kafka_sink.producer.producer import KafkaProducer
from spark_kafka_sink.requests.idle_clients import IdleClients
from spark_kafka_sink.spark.options.names import kafka_prefix_in_errors

MAX_IDLE_PRODUCERS = 8
"""Maximum number of idle producers. Beyond that, the pool closes the least recently used one."""
_CLOSE_TIMEOUT_SECONDS = 5.0

IDLE_TIMEOUT_CONF = "spark.kafka.producer.cache.timeout"
"""The setting that Spark uses for its own cache of Kafka producers."""
_DEFAULT_IDLE_TIMEOUT = "10m"
_FILE_REMEDY = "The file must be readable at that path on every machine that connects to Kafka."
_DURATION_PATTERN = re.compile(r"(\d+)\s*(us|ms|s|m|min|h|d)?")
_SECONDS_BY_UNIT = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}

ProducerPool: TypeAlias = IdleClients[KafkaProducer]
"""Pool of producers, keyed by their options (see requests/idle_clients.py)."""


def create_pool() -> ProducerPool:
    """Create a pool. If a task raises, its producer is closed immediately, without waiting for pending records."""
    return IdleClients(
        close=lambda producer: producer.close(timeout=_CLOSE_TIMEOUT_SECONDS),
        discard=lambda producer: producer.close(timeout=0),
        max_idle=MAX_IDLE_PRODUCERS,
    )


PRODUCER_POOL = create_pool()
"""The pool of this process."""


@contextlib.contextmanager
def lease_producer(pool: ProducerPool, options: Mapping[str, str], idle_seconds: float) -> Iterator[KafkaProducer]:
    """Lease a producer with these options for the block. No other task uses the producer at the same time.

    Raise ConfigurationError if this machine cannot create a producer with the options, which the driver has checked.

    `idle_seconds`: how long the producer stays open after the block, unless it is leased again.
    """
    with pool.lease(tuple(sorted(options.items())), partial(_create_producer, options), idle_seconds) as producer:
        yield producer
        # Arrow keeps freed memory for reuse by the same thread, but an idle worker does not need it.
        pa.default_memory_pool().release_unused()


def _create_producer(options: Mapping[str, str]) -> KafkaProducer:
    """Create a producer. If that fails, raise its ConfigurationError with the option names of a Spark job.

    The driver has created clients with the same options, so the usual causes are a file or a package that is missing
    on this machine, and host names that only this machine cannot resolve.
    """
    with kafka_prefix_in_errors():
        try:
            return KafkaProducer(options, flush_at_exit=0)
        except ConfigurationError as error:
            # A problem has a path as a value only if it is about an unreadable file (build_unreadable_file_problem).
            if any(
                isinstance(problem, OptionProblem) and "path" in problem.values for problem in error.unrendered_problems
            ):
                error.remedy = _FILE_REMEDY
            raise


def find_idle_timeout_seconds(context: TaskContext | None) -> float:
    """Return how long to keep an idle producer open, in seconds.

    Spark passes the setting to tasks as a local property. Raise ConfigurationError if it is not a duration.

    `context`: the context of the task; None outside of Spark's tasks.
    """
    return parse_idle_timeout(None if context is None else context.getLocalProperty(IDLE_TIMEOUT_CONF))


def parse_idle_timeout(text: str | None) -> float:
    """Parse the setting IDLE_TIMEOUT_CONF, and return the timeout in seconds. A number without a unit is milliseconds.

    Raise ConfigurationError if `text` is not a duration.

    `text`: the setting's value; None or empty for the default.
    """
    match = _DURATION_PATTERN.fullmatch((text or _DEFAULT_IDLE_TIMEOUT).strip().lower())
    if match is None:
        raise ConfigurationError(f"{IDLE_TIMEOUT_CONF} must be a duration such as 30s, 10m or 1h, not {text!r}.")
    return int(match[1]) * _SECONDS_BY_UNIT[match[2] or "ms"]
