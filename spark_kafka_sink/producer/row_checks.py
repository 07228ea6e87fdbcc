"""Rows that cannot be sent, found before anything of their call is staged, and what is wrong with each of them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from spark_kafka_sink.errors import InvalidRecordError, KafkaSinkError, RecordTooLargeError
from spark_kafka_sink.producer.config import ProducerConfig
from spark_kafka_sink.records.arrays import numbers_of
from spark_kafka_sink.records.columns import ArrowColumn, RecordColumns, one_array
from spark_kafka_sink.records.header import HEADER_BYTES
from spark_kafka_sink.records.sizes import invalid_rows

_NAMED_MAX = 5
"""So many of the partitions that do not exist are named in one error."""


class BadRows(NamedTuple):
    """Rows of one call, by their positions, that fail for the same reason."""

    rows: NDArray[np.int64]
    error: KafkaSinkError


class Destination(NamedTuple):
    """Where rows are going. `asked` is what the caller gave as partition, `assigned` is -1 where there is none such."""

    topic: str
    asked: int | ArrowColumn | None
    assigned: NDArray[np.int32]
    partition_count: int | None


def bad_rows(
    columns: RecordColumns, sizes: NDArray[np.int64], destination: Destination, config: ProducerConfig
) -> list[BadRows]:
    """Every bad row once, with the first of its faults; empty if all rows can be sent."""
    limit = min(config.max_request_size - HEADER_BYTES, config.buffer_memory)
    invalid = invalid_rows(columns)
    if not invalid and np.maximum.reduce(sizes) <= limit and np.minimum.reduce(destination.assigned) >= 0:
        return []
    found: list[BadRows] = []
    good = np.ones(len(sizes), np.bool_)
    for bad in invalid:
        rows = bad.rows[good[bad.rows]]
        good[rows] = False
        found.append(BadRows(rows, InvalidRecordError(f"Topic {destination.topic}: {bad.reason}.")))
    large = np.flatnonzero(good & (sizes > limit))
    if len(large):
        good[large] = False
        found.append(BadRows(large, too_large(destination.topic, int(sizes[large].max()), config)))
    nowhere = np.flatnonzero(good & (destination.assigned < 0))
    if len(nowhere):
        found.append(BadRows(nowhere, _no_such_partition(destination, nowhere)))
    return found


def too_large(topic: str, size: int, config: ProducerConfig) -> RecordTooLargeError:
    """`size` is what the record takes at most. The words name the limit that it exceeds, or both of them."""
    limits = [("max.request.size", config.max_request_size, size + HEADER_BYTES)]
    limits.append(("buffer.memory", config.buffer_memory, size))
    exceeded = [(name, limit) for name, limit, needed in limits if needed > limit]
    if len(exceeded) == 1:
        words = f"{exceeded[0][0]} allows ({exceeded[0][1]}). Raise it"
    else:
        words = " and ".join(f"{name} ({limit})" for name, limit in exceeded) + " allow. Raise both"
    return RecordTooLargeError(
        f"Topic {topic}: a record of up to {size} bytes is more than {words} to at least {size + HEADER_BYTES}."
    )


def no_such_partition(topic: str, asked: str, partition_count: int | None) -> InvalidRecordError:
    return InvalidRecordError(f"Topic {topic} has no partition {asked}: it has {partition_count}, numbered from 0.")


def _no_such_partition(destination: Destination, rows: NDArray[np.int64]) -> InvalidRecordError:
    asked = destination.asked
    assert asked is not None  # a partition that was assigned here exists
    missing = [asked] if isinstance(asked, int) else np.unique(numbers_of(one_array(asked))[rows]).tolist()
    words = _either([str(number) for number in missing])
    return no_such_partition(destination.topic, words, destination.partition_count)


def _either(names: list[str]) -> str:
    """`2`; `2 or 3`; of many the first ones: `2, 3, 4, 5, 6 or 13 others`."""
    if len(names) > _NAMED_MAX + 1:
        names = [*names[:_NAMED_MAX], f"{len(names) - _NAMED_MAX} others"]
    return " or ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)
