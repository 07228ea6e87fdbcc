"""Calls and futures that tests know by their names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

import numpy as np
from numpy.typing import NDArray

from spark_kafka_sink.errors import KafkaSinkError
from spark_kafka_sink.producer.calls import Call, FailedRows, Shares
from spark_kafka_sink.producer.futures import Callback, RecordFutures


class NamedCall:
    """A Call that equals its name, and forgets its results."""

    bytes_per_row = 0

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

    def stored(self, row_indices: NDArray[np.int64], shares: Shares, count: int) -> None:
        pass

    def failed(self, failed: FailedRows, named: Mapping[int, KafkaSinkError] | None = None) -> None:
        pass


def name_of(call: Call) -> object:
    """The name of a NamedCall, or those of single records (`named`)."""
    if not isinstance(call, RecordFutures):
        return call.name if isinstance(call, NamedCall) else call
    return [name for _, (name,) in sorted(call.callbacks.items())]


def named(name: object) -> tuple[Callback]:
    """The callbacks of a single record that gets no outcome: its name."""
    return (cast("Callback", name),)
