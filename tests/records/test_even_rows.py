"""Records of one length in every kind of batch: stored by a few assignments, they equal the slow encoder's."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_kafka_sink.records import encoder
from spark_kafka_sink.records.columns import RecordColumns
from spark_kafka_sink.records.encoder import BatchSlice, encode
from tests.records.column_strategies import NOW
from tests.records.slow_encoder import Row, slow_encode
from tests.records.test_encoder import assert_equal

HEADERS = (("trace-id", b"0123"), ("source", None))


def columns_of(rows: list[Row], *, headers: bool = True) -> RecordColumns:
    return RecordColumns(
        pa.array([r.value for r in rows], pa.binary()),
        pa.array([r.key for r in rows], pa.binary()),
        pa.array([r.headers for r in rows], pa.map_(pa.string(), pa.binary())) if headers else None,
    )


def rows_of(
    count: int, key_bytes: int | None, value_bytes: int | None, headers: tuple[tuple[str, bytes | None], ...] | None
) -> list[Row]:
    """Rows that differ in their bytes, not in their lengths."""

    def cell(row: int, size: int | None) -> bytes | None:
        return None if size is None else (b"%3d" % (row % 200) * (size // 3 + 1))[:size]

    return [Row(cell(i, value_bytes), cell(i, key_bytes), headers) for i in range(count)]


@st.composite
def runs_of_batches(draw: st.DrawFn) -> list[BatchSlice]:
    """Batches of the same shape one after the other, then some of another shape, new ones and appended ones."""
    plan: list[BatchSlice] = []
    row = 0
    for _ in range(draw(st.integers(1, 4))):
        count = draw(st.integers(1, 90))
        first = draw(st.sampled_from([0, 0, 1, 60, 8150, 8192, 32_700, 32_768, (1 << 20) - 40, (1 << 27) - 9]))
        base = draw(st.sampled_from([NOW, NOW - 70, NOW + 3, 0])) if first else None
        for _ in range(draw(st.integers(1, 4))):
            plan.append(BatchSlice(len(plan), row, row + count, first, base))
            row += count
    return plan


@st.composite
def neighbouring_batches(draw: st.DrawFn) -> list[BatchSlice]:
    """Many shapes of batches whose records have places near each other, so that their numbers are looked up."""
    plan: list[BatchSlice] = []
    row = 0
    first = draw(st.sampled_from([0, 1, 40, 8_150, 32_700, (1 << 20) - 40, (1 << 27) - 90]))
    bases = draw(st.lists(st.sampled_from([NOW - 63, NOW - 70, NOW + 3, 0]), min_size=1, max_size=2))
    for index in range(draw(st.integers(8, 20))):
        shift, count = draw(st.integers(0, 9)), draw(st.integers(1, 40))
        base = bases[index % len(bases)] if first + shift else None
        plan.append(BatchSlice(index, row, row + count, first + shift, base))
        row += count
    return plan


@given(
    neighbouring_batches(),
    st.sampled_from([None, 0, 1, 12, 64, 99, 100, 101]),
    st.sampled_from([None, 0, 1, 63, 100, 8_192]),
    st.booleans(),
)
@settings(max_examples=60, deadline=None)
def test_numbers_that_are_looked_up_equal_the_slow_encoder(
    plan: list[BatchSlice], key_bytes: int | None, value_bytes: int | None, headers: bool
) -> None:
    rows = rows_of(plan[-1].stop, key_bytes, value_bytes, HEADERS if headers else None)
    assert_equal(encode(columns_of(rows), plan, NOW), rows, plan)


@given(
    runs_of_batches(),
    st.sampled_from([None, 0, 1, 12, 64]),
    st.sampled_from([None, 0, 1, 63, 100]),
    st.booleans(),
)
@settings(max_examples=60, deadline=None)
def test_batches_of_a_few_shapes_equal_the_slow_encoder(
    plan: list[BatchSlice], key_bytes: int | None, value_bytes: int | None, headers: bool
) -> None:
    rows = rows_of(plan[-1].stop, key_bytes, value_bytes, HEADERS if headers else None)
    assert_equal(encode(columns_of(rows), plan, NOW), rows, plan)


@pytest.mark.parametrize("headers", [None, HEADERS])
@pytest.mark.parametrize("sizes", [[7] * 300, [i % 5 + 1 for i in range(300)]], ids=["one shape", "many shapes"])
def test_many_small_batches_equal_the_slow_encoder(sizes: list[int], headers: tuple[tuple[str, bytes | None]]) -> None:
    stops = np.cumsum(sizes).tolist()
    plan = [BatchSlice(i, stop - size, stop) for i, (stop, size) in enumerate(zip(stops, sizes, strict=True))]
    rows = [Row(b"v" * 20, b"%05d" % i, headers) for i in range(stops[-1])]
    assert_equal(encode(columns_of(rows), plan, NOW), rows, plan)


def test_nothing_is_computed_for_the_single_row(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("rows of one length were looked at one by one")

    monkeypatch.setattr(encoder, "_rows", refuse)
    rows = [Row(b"v" * 100, b"%012d" % i) for i in range(10_000)]
    plan = [BatchSlice(0, start, min(start + 130, 10_000)) for start in range(0, 10_000, 130)]
    segments = [bytes(piece.segment) for piece in encode(columns_of(rows), plan, NOW)]
    assert segments == [piece.segment for piece in slow_encode(rows, plan, NOW)]
    many_shapes = [BatchSlice(i, cut, min(cut + 40, 10_000), i % 7 * 40) for i, cut in enumerate(range(0, 10_000, 40))]
    segments = [bytes(piece.segment) for piece in encode(columns_of(rows), many_shapes, NOW)]
    assert segments == [piece.segment for piece in slow_encode(rows, many_shapes, NOW)]
