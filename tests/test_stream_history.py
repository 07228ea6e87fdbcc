"""stream_history: finds each kind of anomaly in a stream of numbered rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import pytest

from integration.support.stream_history import find_row_anomalies
from tests.history import Kind

ROWS = 4


class Stored(NamedTuple):
    partition: int
    key: bytes
    value: bytes


def stored(*numbers: int) -> list[Stored]:
    """Return stored rows. Even and odd numbers have different keys and partitions."""
    return [Stored(number % 2, b"%d" % (number % 2), b"%d" % number) for number in numbers]


@pytest.mark.parametrize(
    ("numbers", "batches", "expected"),
    [
        pytest.param(range(8), 2, set(), id="all is well"),
        pytest.param(range(8), 1, set(), id="one more batch than was committed"),
        pytest.param(range(4), 2, {Kind.LOST}, id="a batch is missing"),
        pytest.param((0, 1, 3, 4, 5, 6, 7), 2, {Kind.TORN_BATCH}, id="a row is missing"),
        pytest.param((*range(8), 8), 2, {Kind.TORN_BATCH}, id="a part of the next batch"),
        pytest.param((*range(8), 7), 2, {Kind.DUPLICATE}, id="a row twice"),
        pytest.param((1, 0, 2, 3, 4, 5, 6, 7), 2, set(), id="keys in any order"),
        pytest.param((0, 3, 2, 1, 4, 5, 6, 7), 2, {Kind.OUT_OF_ORDER}, id="a key out of order"),
    ],
)
def test_finds_anomalies_in_stream_history(numbers: Sequence[int], batches: int, expected: set[Kind]) -> None:
    assert {anomaly.kind for anomaly in find_row_anomalies(stored(*numbers), batches, ROWS)} == expected
