"""Calls and callbacks that tests identify by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

import numpy as np
from numpy.typing import NDArray

from spark_kafka_sink.errors import KafkaSinkError
from spark_kafka_sink.producer.calls import FailedRows, SendCall, StoredRanges
from spark_kafka_sink.producer.futures import Callback, RecordFutures


class NamedCall:
    """A SendCall that is equal to other calls with its name, and ignores its results."""

    future_bytes_per_row = 0

    def __init__(self, name: object) -> None:
        self.name = name

    def __repr__(self) -> str:
        return f"NamedCall({self.name!r})"

    def __eq__(self, other: object) -> bool:
        return bool(self.name == (other.name if isinstance(other, NamedCall) else other))

    def __hash__(self) -> int:
        return hash(self.name)

    def __lt__(self, other: NamedCall) -> bool:
        return str(self.name) < str(other.name)

    def complete_rows(self, row_indices: NDArray[np.int64], stored_ranges: StoredRanges, row_count: int) -> None:
        pass

    def fail_rows(self, failure: FailedRows, errors_by_position: Mapping[int, KafkaSinkError] | None = None) -> None:
        pass


def get_name(call: SendCall) -> object:
    """Return the name of a NamedCall, or the names of single records (`named`)."""
    if not isinstance(call, RecordFutures):
        return call.name if isinstance(call, NamedCall) else call
    return [name for _, (name,) in sorted(call.callbacks.items())]


def named(name: object) -> tuple[Callback]:
    """Return callbacks by which a test identifies a single record. They are never called."""
    return (cast("Callback", name),)
