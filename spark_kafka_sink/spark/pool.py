"""Producers that outlive a task.

A Python worker of Spark runs one task after the other, micro-batch after micro-batch. To connect, to authenticate and
to fetch metadata for each of them would cost more than a small task's data. So a producer is leased to a task, and the
next task with the same options uses it again (requests/leases.py).

The end of a worker waits for no producer: a task that has ended well has no record left, and those of others are not
wanted. A task that was killed or has failed leaves records that are not wanted either.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from functools import partial
from typing import TypeAlias

import pyarrow as pa

from spark_kafka_sink.producer.producer import KafkaProducer
from spark_kafka_sink.requests.leases import Leases

MAX_IDLE_PRODUCERS = 8
_CLOSE_SECONDS = 5.0

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
