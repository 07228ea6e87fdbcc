"""Owners: the shares of a piece equal those found row by row, however rows of calls and cuts of batches lie."""

from __future__ import annotations

from itertools import groupby

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_kafka_sink.producer.batching.row_origins import PieceRows, RowOwners, positions

LENGTHS = st.lists(st.integers(1, 5), min_size=1, max_size=8)


@settings(max_examples=100, deadline=None)
@given(LENGTHS, st.data())
def test_shares_equal_those_found_row_by_row(lengths: list[int], data: st.DataObject) -> None:
    row_calls = [call for call, length in enumerate(lengths) for _ in range(length)]
    starts = [sum(lengths[:i]) for i in range(len(lengths))]
    start = data.draw(st.integers(0, len(row_calls) - 1))
    stop = data.draw(st.integers(start + 1, len(row_calls)))
    owners = RowOwners(np.arange(len(row_calls)) * 10, list(range(len(lengths))), starts)
    slow = [(call, list(rows)) for call, rows in groupby(range(start, stop), key=row_calls.__getitem__)]
    assert owners.shares(start, stop) == [(call, rows[0], rows[-1] + 1) for call, rows in slow]
    parts = PieceRows(owners, start, stop, 4).parts
    assert [(p.call, p.rows.tolist()) for p in parts] == [(call, [10 * row for row in rows]) for call, rows in slow]
    assert [p.first_index for p in parts] == [rows[0] - start + 4 for _, rows in slow]


@settings(max_examples=100, deadline=None)
@given(LENGTHS, st.integers(0, 40), st.integers(1, 40))
def test_what_lies_between_two_records_of_a_batch_is_counted_from_the_first(
    lengths: list[int], first: int, count: int
) -> None:
    rows = sum(lengths)
    owners = RowOwners(np.arange(rows), ["call"])
    edges = [sum(lengths[:i]) for i in range(len(lengths) + 1)]
    pieces = [PieceRows(owners, edges[i], edges[i + 1], edges[i]) for i in range(len(lengths))]
    cut = [piece.between(first, first + count) for piece in pieces]
    told = [
        (part.first_index + i, int(row))
        for piece in cut
        if piece is not None
        for part in piece.parts
        for i, row in enumerate(part.rows)
    ]
    assert told == [(row - first, row) for row in range(rows) if first <= row < first + count]


def test_positions_are_shared_and_cannot_be_written_to() -> None:
    assert positions(3).tolist() == [0, 1, 2]
    assert positions(40_000).tolist() == list(range(40_000))
    with pytest.raises(ValueError, match="read-only"):
        positions(3)[0] = 1
